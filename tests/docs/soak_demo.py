"""Runs the demo many times: with its kill at a random moment, and some times beside a full load. All must verify.

    python tests/docs/soak_demo.py            (or: make soak-demo; DANUBE_SEED repeats the moments of a run)

Stops at the first failure and keeps what that run printed; the demo itself keeps its logs and says where.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo"
QUIET_RUNS = 20
BUSY_RUNS = 5
FEED_SECONDS = 30
KILL_SECONDS_MAX = 27
RUN_SECONDS_MAX = 7200
"""Above the sum of the demo's own limits, which say more."""


@contextmanager
def full_load(busy: bool) -> Iterator[None]:
    """Keep every core busy meanwhile, if `busy`."""
    count = (os.cpu_count() or 1) if busy else 0
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in burning:
            one.kill()
            one.wait()


def run_demo(output: Path, kill_after: float) -> bool:
    command = [sys.executable, str(DEMO), "--seconds", str(FEED_SECONDS), "--kill-after", f"{kill_after:.2f}"]
    with output.open("wb") as file:
        ended = subprocess.run(
            [*command, "--plot", str(output.with_suffix(".png"))],
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=RUN_SECONDS_MAX,
        )
    return ended.returncode == 0 and "what happened: exactly once" in output.read_text()


def main() -> int:
    seed = int(os.environ.get("DANUBE_SEED") or random.randrange(2**32))
    rng, total = random.Random(seed), QUIET_RUNS + BUSY_RUNS
    directory = Path(tempfile.mkdtemp(prefix="danube-soak-demo-"))
    print(f"DANUBE_SEED={seed}, output in {directory}", flush=True)
    for number in range(total):
        busy, kill_after, begin = number >= QUIET_RUNS, rng.uniform(0, KILL_SECONDS_MAX), time.monotonic()
        output = directory / f"run-{number + 1}.txt"
        with full_load(busy):
            good = run_demo(output, kill_after)
        told = f"killed {kill_after:.2f} s after the feed began{', beside a full load' if busy else ''}"
        print(f"run {number + 1} of {total}: {told}: {time.monotonic() - begin:.0f} s", flush=True)
        if not good:
            print(f"{output.read_text()}\nFAILED: {output}; DANUBE_SEED={seed} repeats it")
            return 1
    print(f"{total} of {total} verified")
    return 0


if __name__ == "__main__":
    sys.exit(main())
