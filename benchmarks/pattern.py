"""How long a consumer takes that opens by a pattern over many topics: a new subscription, the same again, another one.

    python benchmarks/pattern.py                    # 5,000 topics
    python benchmarks/pattern.py --topics 20000

Processor time of both sides is shown too: it is what a busy machine changes least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import connect

CREATED_AT_ONCE = 50


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main(topics: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        async with await BrokerProcess.start(Path(place) / "data") as broker, connect(broker.url) as client:
            for start in range(0, topics, CREATED_AT_ONCE):
                some = range(start, min(topics, start + CREATED_AT_ONCE))
                await asyncio.gather(*(client.create_topic(f"/default/topic-{number}") for number in some))
            for subscription in ("one", "one", "two"):
                at, own, its = time.perf_counter(), time.process_time(), processor_seconds(broker.pid)
                async with client.consumer("/default/topic-*", subscription=subscription, type="shared") as consumer:
                    took = time.perf_counter() - at
                    own, its = time.process_time() - own, processor_seconds(broker.pid) - its
                    print(
                        f"{subscription:4} {len(consumer.topics)} topics: {took:6.2f} s; "
                        f"processor: broker {its:5.2f} s, client {own:5.2f} s"
                    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=5_000)
    asyncio.run(main(parser.parse_args().topics))
