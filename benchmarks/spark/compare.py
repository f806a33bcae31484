"""Two source trees of pydanube beside each other: the same work in turn, in one run, on one machine.

    python benchmarks/spark/compare.py ../base                     # this tree against another checkout
    python benchmarks/spark/compare.py ../base --only write --rounds 5 --json result.json

Each tree has a broker, a Spark session and workers of its own, in a process of its own that waits while the other one
works. Both run the scenarios of this directory. A ratio is of one round; the median is reported, with the smallest and
the largest. The first round warms up and is not counted. The processor time of all processes of a tree is compared too:
on a machine with other load it says more than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
MEASURES = ("read", "length", "stream", "write", "latency", "start")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("against", type=Path, help="the other tree, whose `src` has the package pydanube")
    parser.add_argument("--tree", type=Path, default=HERE.parent.parent, help="this tree, if it is not this file's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages of 100 B")
    parser.add_argument("--latency-seconds", type=float, default=12.0)
    parser.add_argument("--only", action="append", choices=MEASURES, help="may be given several times")
    parser.add_argument("--conf", action="append", default=[], help="name=value, a Spark setting of this tree only")
    parser.add_argument("--json", type=Path, help="where to write everything that was measured")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# -- one tree ----------------------------------------------------------------------------------------------------------


def serve(rows: int, latency_seconds: float, conf: dict[str, str]) -> None:
    """Measure what the lines of standard input name, and answer each with a line of JSON."""
    from bench_broker import running_broker
    from scenarios import Bench

    answers, sys.stdout = sys.stdout, sys.stderr
    with tempfile.TemporaryDirectory(prefix="danube-compare-spark-") as temporary:
        directory = Path(temporary)
        with running_broker(directory / "data") as url, Bench(url, directory, rows, **conf) as bench:
            for line in sys.stdin:
                measure, used = line.strip(), processor_seconds(os.getpid())
                found = bench.measure(measure, latency_seconds)
                found[f"processor time of {measure}, s"] = processor_seconds(os.getpid()) - used
                print(json.dumps(found), file=answers, flush=True)


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and its descendants, those that ended and were waited for included."""
    times: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process may end at this moment
            fields = stat.read_text().rpartition(")")[2].split()
            process = int(stat.parent.name)
            times[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append(process)
    total, left = 0.0, [root]
    while left:
        process = left.pop()
        total += times.get(process, 0.0)
        left += children.get(process, [])
    return total


@contextmanager
def side(tree: Path, wanted: argparse.Namespace, conf: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process that measures the tree."""
    source = tree.resolve() / "src"
    if not (source / "pydanube").is_dir():
        raise SystemExit(f"{tree} is no source tree: it has no src/pydanube")
    command = [sys.executable, str(HERE / "compare.py"), str(tree), "--serve", f"--rows={wanted.rows}"]
    command += [f"--latency-seconds={wanted.latency_seconds}", *(f"--conf={one}" for one in conf)]
    # Workers of Spark import the package and the baselines from here too.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(HERE)])}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


def ask(process: subprocess.Popen[str], measure: str) -> dict[str, float]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(measure + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"the process that measures {measure} has ended")
    found: dict[str, float] = json.loads(line)
    return found


# -- both --------------------------------------------------------------------------------------------------------------


def main() -> int:
    wanted = arguments()
    if wanted.serve:
        serve(wanted.rows, wanted.latency_seconds, dict(one.split("=", 1) for one in wanted.conf))
        return 0
    chosen = [one for one in MEASURES if one in (wanted.only or MEASURES)]
    found: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        before = stack.enter_context(side(wanted.against, wanted, []))
        after = stack.enter_context(side(wanted.tree, wanted, wanted.conf))
        for measure in chosen:
            for number in range(wanted.rounds + 1):
                pair = {"before": ask(before, measure), "after": ask(after, measure)}
                for name in pair["before"] if number else ():
                    values = found.setdefault(name, {"before": [], "after": []})
                    for which, answer in pair.items():
                        values[which].append(answer[name])
                print(f"{measure} {number}: {pair}", file=sys.stderr, flush=True)
    print(report(found))
    if wanted.json:
        wanted.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def report(found: dict[str, dict[str, list[float]]]) -> str:
    lines = [f"{'':44} {'before':>10} {'after':>10}  {'ratio':>6}  spread"]
    for name, values in found.items():
        ratios = [after / before for before, after in zip(values["before"], values["after"], strict=True)]
        first, second = (_number(median(values[which])) for which in ("before", "after"))
        lines.append(
            f"{name:44} {first:>10} {second:>10}  {median(ratios):6.2f}  {min(ratios):.2f} to {max(ratios):.2f}"
        )
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return "\n".join([*lines, f"{os.cpu_count()} cores, load {load}"])


def _number(value: Any) -> str:
    return f"{value:,.3f}" if value < 100 else f"{value:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
