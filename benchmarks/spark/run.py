"""Spark and danube beside Spark and sources that have nothing to do, in turn, in one run: ratios.

    python benchmarks/spark/run.py                      # everything; some minutes
    python benchmarks/spark/run.py --quick              # less of it, once: does it run?
    python benchmarks/spark/run.py --only read --json result.json

Broker, Spark and its workers share the machine, as they do on a laptop. A ratio compares two runs that followed each
other; what is reported is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import reporting
import scenarios
import typed
from bench_broker import running_broker

GROUPS = ("read", "stream", "typed", "write", "latency")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2_000_000, help="messages of 100 B; of 1 KB a fifth")
    parser.add_argument("--latency-seconds", type=float, default=20.0)
    parser.add_argument("--only", action="append", choices=GROUPS, help="may be given several times")
    parser.add_argument("--quick", action="store_true", help="200,000 messages, one round, five seconds")
    parser.add_argument("--json", type=Path, help="where to write everything that was measured")
    parser.add_argument("--check", action="store_true", help="fail where a target is missed")
    wanted = parser.parse_args()
    if wanted.quick:
        wanted.rounds, wanted.rows, wanted.latency_seconds = 1, 200_000, 5.0
    return wanted


def main() -> int:
    wanted = arguments()
    chosen = wanted.only or GROUPS
    # Workers of Spark import the baselines too, from beside this file.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="danube-bench-spark-") as temporary:
        directory = Path(temporary)
        with running_broker(directory / "data") as url, scenarios.Bench(url, directory, wanted.rows) as bench:
            work: dict[str, Callable[[], None]] = {
                "read": lambda: bench.reads(wanted.rounds),
                "stream": lambda: bench.streams(wanted.rounds),
                "typed": lambda: typed.typed_streams(bench, wanted.rows // 2, wanted.rounds),
                "write": lambda: bench.writes(wanted.rounds),
                "latency": lambda: bench.latency(wanted.latency_seconds),
            }
            for name in GROUPS:
                if name in chosen:
                    work[name]()
            results = bench.results
    print(reporting.table(results))
    if wanted.json:
        wanted.json.write_text(json.dumps(reporting.as_json(results), indent=2) + "\n")
    return int(wanted.check and not all(one.reached for one in results))


if __name__ == "__main__":
    sys.exit(main())
