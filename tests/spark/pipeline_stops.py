"""Runs `danube pipeline run` many times in this process and ends each run by signals at random moments of its poll.

    python pipeline_stops.py PIPELINE.yaml SEED RUNS

Spark is replaced by a query that is between two batches for ever, or in one that only a second signal ends, and the
poll hardly pauses, so that signals come while it goes to sleep or wakes up. Prints how many runs ended; a run that does
not end is for the caller's time limit.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from types import ModuleType, SimpleNamespace
from typing import Any

import click

from pydanube.cli.spark import pipeline as command
from pydanube.spark.pipelines import load, runner

MOMENT_SECONDS = 0.0005


class Sender:
    """A process that sends signals to this one, which therefore come between any two instructions. A thread of this
    process would send them only while the main thread waits."""

    def __init__(self, seed: int) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        if os.fork():
            os.close(orders)
            os.close(answers)
            return
        os.close(self._orders)
        rng, target = random.Random(seed), os.getppid()
        while order := os.read(orders, 1):
            interrupts = int(order)
            for number in [signal.SIGTERM, *[signal.SIGHUP] * rng.randrange(4), *[signal.SIGINT] * interrupts]:
                time.sleep(rng.random() * MOMENT_SECONDS)
                os.kill(target, number)
            os.write(answers, b".")
        os._exit(0)

    def begin(self, interrupts: int) -> None:
        """Send what ends a run, and SIGHUP up to three times, which makes nothing of it an interruption."""
        os.write(self._orders, b"%d" % interrupts)

    def finish(self) -> None:
        os.read(self._answers, 1)


class IdleQuery:
    """A query of Spark that never completes a batch: it waits for one, or is in one until it is interrupted."""

    isActive = True  # noqa: N815
    lastProgress = None  # noqa: N815

    def __init__(self, working: bool) -> None:
        self.status = {"message": "Processing new data" if working else "Waiting for next trigger"}

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        return None


def replace(module: ModuleType, **parts: Any) -> None:
    for name, part in parts.items():
        setattr(module, name, part)


def run_once(file: str, sender: Sender, interrupts: int) -> str:
    def start() -> IdleQuery:
        sender.begin(interrupts)
        return IdleQuery(working=bool(interrupts))

    writer: Any = SimpleNamespace(start=start, trigger=lambda **_: writer)
    replace(runner, Graph=lambda *_: SimpleNamespace(writer=lambda *_: writer))
    try:
        command.pipeline.main(["run", file, "--json"], standalone_mode=False)
    except click.Abort:
        return "interrupted"
    else:
        return "ended"
    finally:
        sender.finish()


def main(file: str, seed: int, runs: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # for a signal that comes after the run
    replace(command, _load=lambda file, *_: load(file))  # asks no broker
    replace(runner, start_session=lambda *_: SimpleNamespace(stop=lambda: None), register=lambda _: None)
    replace(runner, fix_versions=lambda found, _: found, POLL_SECONDS=1e-6)
    rng, sender = random.Random(seed), Sender(seed)
    wanted = [rng.randrange(2) for _ in range(runs)]
    ended = [run_once(file, sender, interrupts) for interrupts in wanted]
    assert [one == "interrupted" for one in ended] == [bool(one) for one in wanted], "by two signals that count"
    print(dict(Counter(ended)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
