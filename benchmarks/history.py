"""History in earnest: gigabytes written, uploaded, trimmed; opened, sought by time and read again, beside a bare loop.

    python benchmarks/history.py                             # 2 GB, segments in a directory
    python benchmarks/history.py --s3 --gigabytes 0.5        # in SeaweedFS (`weed mini`), on loopback
    python benchmarks/history.py --store s3://bucket/prefix --option region=eu-central-1 ...

The bare loop reads the same objects of the same store range by range, one after the other, and checks nothing; from S3
by obstore alone, without anything of ours in between. Rates are compared within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.cli.bench.runs import measure
from pydanube.cli.bench.scenario import Scenario
from pydanube.client import connect
from pydanube.model.limits import MIB
from pydanube.runtime.objects.opening import open_store

RANGE_BYTES = 2 * MIB
LOG_BYTES_LEFT = 64 * MIB
"""What stays in the log: the open file, spare files for reuse, and indexes."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--s3", action="store_true", help="start SeaweedFS and use it")
    parser.add_argument("--store", default="", help="URL of a store; empty: a directory")
    parser.add_argument("--option", action="append", default=[], help="name=value, of the store")
    return parser.parse_args()


@contextmanager
def store_of(wanted: argparse.Namespace, directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    if not wanted.s3:
        url = wanted.store or (directory / "objects").as_uri()
        yield url, dict(one.split("=", 1) for one in wanted.option)
        return
    sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / one) for one in ("runtime", "process")]
    from object_servers import S3_BUCKET, s3_server, s3_settings

    (directory / "weed").mkdir()
    with s3_server(directory / "weed") as server:
        yield f"s3://{S3_BUCKET}/history", s3_settings(server.port)


async def bare_loop(url: str, options: dict[str, str]) -> float:
    """Return MB/s of range reads, one after the other."""
    if url.startswith("s3://"):
        return await asyncio.to_thread(bare_obstore_loop, url, options)
    async with await open_store(url, options) as store:
        infos = [info async for info in store.list("segments/")]
        begin = time.perf_counter()
        for info in infos:
            for start in range(0, info.size, RANGE_BYTES):
                await store.get(info.key, start, min(info.size, start + RANGE_BYTES))
        return sum(info.size for info in infos) / 1e6 / (time.perf_counter() - begin)


def bare_obstore_loop(url: str, options: dict[str, str]) -> float:
    """The same with obstore alone."""
    import obstore
    from obstore.store import S3Store

    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    known = {name: options[name] for name in ("endpoint", "region", "access_key_id", "secret_access_key")}
    store = S3Store(bucket, prefix=prefix, config=known, client_options={"allow_http": True})
    metas = [meta for page in obstore.list(store, "segments") for meta in page]
    begin = time.perf_counter()
    for meta in metas:
        for start in range(0, meta["size"], RANGE_BYTES):
            obstore.get_range(store, meta["path"], start=start, end=min(meta["size"], start + RANGE_BYTES))
    return sum(meta["size"] for meta in metas) / 1e6 / (time.perf_counter() - begin)


async def read_history(url: str, size: int, count: int) -> tuple[float, float, float]:
    """Return the seconds to open, the seconds to find the middle by time, and the MB/s of a reader."""
    async with connect(url) as client:
        (topic,) = await client.list_topics()
        begin = time.perf_counter()
        (partition,) = (await client.describe_topic(topic)).partitions
        opened = time.perf_counter() - begin
        async with client.reader(topic, start=partition.end_offset // 2) as reader:
            middle = (await reader.receive()).append_time
        begin = time.perf_counter()
        async with client.reader(topic, start=middle) as reader:
            found = await reader.receive()
        sought = time.perf_counter() - begin
        assert abs(found.offset - partition.end_offset // 2) <= 1000
        received, begin = 0, time.perf_counter()
        async with client.reader(topic, start="earliest") as reader:
            while received < count:
                received += len(await reader.receive_batch())
        return opened, sought, received * size / 1e6 / (time.perf_counter() - begin)


def bytes_in(directory: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in directory.rglob("*") if one.is_file())


async def fill(directory: Path, environment: dict[str, str], scenario: Scenario) -> None:
    """Publish all messages, and wait until the log is trimmed."""
    async with await BrokerProcess.start(directory / "data", environment=environment) as broker:
        begin = time.perf_counter()
        await measure(scenario, broker.url, broker)
        while await asyncio.to_thread(bytes_in, directory / "data" / "wal") > LOG_BYTES_LEFT:  # noqa: ASYNC110 - files
            await asyncio.sleep(0.2)
        print(f"written, uploaded and trimmed in {time.perf_counter() - begin:.1f} s")


async def run(wanted: argparse.Namespace, directory: Path, url: str, options: dict[str, str]) -> None:
    count = int(wanted.gigabytes * 1e6)
    environment = {
        "DANUBE_STORAGE_URL": url,
        "DANUBE_STORAGE_OPTIONS": ",".join(f"{name}={value}" for name, value in options.items()),
        "DANUBE_STORAGE_LOG_KEEP_BYTES": "0",
        "DANUBE_STORAGE_SEGMENT_AGE_S": "5",
        "DANUBE_LOG_FILE_BYTES": str(16 * MIB),
    }
    await fill(directory, environment, Scenario(size=1000, batch=100, count=count, consumers=0))
    ratios = []
    for _ in range(wanted.rounds):
        bare = await bare_loop(url, options)
        async with await BrokerProcess.start(directory / "data", environment=environment) as broker:
            opened, sought, rate = await read_history(broker.url, 1000, count)
            resident = broker.resident()
        ratios.append(rate / bare)
        memory = f", memory {resident[1] / 1e6:.0f} MB at most" if resident else ""
        print(
            f"opened in {opened * 1e3:.0f} ms, sought in {sought * 1e3:.0f} ms, read at {rate:.0f} MB/s, "
            f"bare loop {bare:.0f} MB/s, ratio {ratios[-1]:.2f}{memory}"
        )
    print(f"median ratio {statistics.median(ratios):.2f}")


def main() -> None:
    wanted = arguments()
    with tempfile.TemporaryDirectory(prefix="danube-history-") as name, store_of(wanted, Path(name)) as (url, options):
        asyncio.run(run(wanted, Path(name), url, options))


if __name__ == "__main__":
    main()
