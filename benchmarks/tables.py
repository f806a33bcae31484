"""A topic read into Polars, beside the same rows read from a Parquet file: from the object store and from the broker.

    python benchmarks/tables.py                         # 2 million messages of 100 B
    python benchmarks/tables.py --messages 10000000

The Parquet file has what `client.read` returned, written by Polars with its defaults. Both are read alternately, each
by a process of its own, which has imported everything and read a little before the clock starts. The ratio is that of
rows per second, the target is 0.5. Memory is what the process grows by while it streams through the topic without
keeping rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import connect, connect_blocking

TOPIC = "/default/rows"
SIZE = 100
BATCH = 500
COLUMNS = ["topic", "partition", "offset", "append_time", "publish_time", "key", "payload"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reader", nargs=2, metavar=("KIND", "WHERE"), help="used by the benchmark itself")
    return parser.parse_args()


async def fill(url: str, messages: int, partitions: int) -> None:
    random = Random(1)
    async with connect(url) as client:
        await client.create_topic(TOPIC, partitions=partitions)
        async with client.producer(TOPIC, partition_by="round-robin", batch_messages=BATCH) as producer:
            for _ in range(0, messages, BATCH):
                keys = [f"user-{random.randrange(10_000)}" for _ in range(BATCH)]
                await producer.queue_many([random.randbytes(SIZE) for _ in range(BATCH)], keys=keys)
        await client.upload_storage(TOPIC)


def read(kind: str, where: str) -> dict[str, float]:
    """Read once by one kind of reader; return rows, seconds, and the megabytes that the process grew by."""
    import polars

    if kind == "parquet":
        polars.read_parquet(where, n_rows=100)
        begin = time.perf_counter()
        rows = polars.read_parquet(where).height
        return {"rows": rows, "seconds": time.perf_counter() - begin}
    direct = "never" if kind == "broker" else "always"
    with connect_blocking(where) as client:
        client.read(TOPIC, end=100, columns=COLUMNS, direct_read=direct).to_polars()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begin = time.perf_counter()
        if kind == "stream":
            batches = client.read_batches(TOPIC, columns=COLUMNS, direct_read=direct)
            rows = sum(batch.num_rows for batch in batches)
        else:
            rows = client.read(TOPIC, columns=COLUMNS, direct_read=direct).to_polars().height
        seconds = time.perf_counter() - begin
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"rows": rows, "seconds": seconds, "grown": grown}


def read_apart(kind: str, where: str) -> dict[str, float]:
    """Read in a process of its own."""
    command = [sys.executable, __file__, "--reader", kind, where]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(finished.stdout)
    return found


async def run(wanted: argparse.Namespace, directory: Path) -> None:
    parquet = str(directory / "rows.parquet")
    ratios: dict[str, list[float]] = {"store": [], "broker": []}
    async with await BrokerProcess.start(directory / "data") as broker:
        await fill(broker.url, wanted.messages, wanted.partitions)
        async with connect(broker.url) as client:
            (await client.read(TOPIC, columns=COLUMNS)).to_polars().write_parquet(parquet)
        for _ in range(wanted.rounds):
            found = {
                kind: await asyncio.to_thread(read_apart, kind, parquet if kind == "parquet" else broker.url)
                for kind in ("parquet", "store", "broker")
            }
            assert {one["rows"] for one in found.values()} == {wanted.messages}
            for kind, each in ratios.items():
                each.append(found["parquet"]["seconds"] / found[kind]["seconds"])
            print(
                ", ".join(f"{kind} {one['rows'] / one['seconds'] / 1e6:.2f} M rows/s" for kind, one in found.items()),
                flush=True,
            )
        stream = await asyncio.to_thread(read_apart, "stream", broker.url)
    for kind, each in ratios.items():
        print(f"{kind}: median ratio {statistics.median(each):.2f}")
    print(f"streamed at {stream['rows'] / stream['seconds'] / 1e6:.2f} M rows/s, grew by {stream['grown']:.0f} MB")


def main() -> None:
    wanted = arguments()
    if wanted.reader:
        print(json.dumps(read(*wanted.reader)))
        return
    with tempfile.TemporaryDirectory(prefix="danube-tables-") as name:
        asyncio.run(run(wanted, Path(name)))


if __name__ == "__main__":
    main()
