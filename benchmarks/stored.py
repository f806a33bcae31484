"""Publishing to `stored` topics beside bare create-only puts to the same object store.

    python benchmarks/stored.py                   # a directory, then SeaweedFS (`weed mini`, of the test extra)
    python benchmarks/stored.py --only directory --pairs 5

latency      one publisher that waits for each ack, and one caller that waits for each bare put of as many bytes
load         bytes per second of many batches in flight, and of as many parallel bare puts as the broker has in flight,
             each of the size that the broker's slices had
partitions   batches of one size to 1,000 partitions in turn, and to one

All are medians of pairs that take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from pydanube.cli.bench.broker_process import BrokerProcess
from pydanube.client import Client, connect
from pydanube.model.errors import DanubeError
from pydanube.model.settings.sections import SliceSettings
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.opening import open_store

sys.path[:0] = [str(Path(__file__).parent.parent / "tests" / one) for one in ("runtime", "process")]
from object_servers import S3_BUCKET, missing_weed, s3_server, s3_settings  # noqa: E402 -- found by the path above

MESSAGE_BYTES = 1_000
ENVELOPE_BYTES = 300
"""About what a slice with one batch of one message has besides the payload."""
SENDS = 100
"""Of one latency measurement."""
LOAD_BATCH_BYTES = 512 << 10
LOAD_BYTES = 64 << 20
SPREAD_PARTITIONS = 1_000
SPREAD_BATCH_BYTES = 16 << 10
SPREAD_BATCHES = 3_000
DIRECTORY_TARGET_MS, S3_TARGET = 1.0, 1.5
LOAD_TARGET, SPREAD_TARGET = 0.7, 0.8


class Place(NamedTuple):
    """A broker, and the store that it uses."""

    name: str
    url: str
    store: ObjectStore
    key: str
    """A prefix for objects of this program."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", choices=["directory", "s3"])
    parser.add_argument("--part", choices=["latency", "load", "partitions"])
    return parser.parse_args()


@asynccontextmanager
async def place_of(name: str, directory: Path) -> AsyncIterator[Place]:
    with ExitStack() as servers:
        url, options = (directory / "objects").as_uri(), dict[str, str]()
        if name == "s3":
            (directory / "weed").mkdir()
            server = servers.enter_context(s3_server(directory / "weed"))
            url, options = f"s3://{S3_BUCKET}/stored", s3_settings(server.port)
        given = ",".join(f"{key}={value}" for key, value in options.items())
        environment = {
            "DANUBE_STORAGE_URL": url,
            "DANUBE_STORAGE_OPTIONS": given,
            "DANUBE_STORAGE_SEGMENT_AGE_S": "3600",
            "DANUBE_STORAGE_SEGMENT_BYTES": str(512 << 20),
        }
        broker = await BrokerProcess.start(directory / "data", environment=environment)
        try:
            store = await open_store(url, options)
            yield Place(name, broker.url, store, "bare")
            await store.close()
        finally:
            await broker.stop()


# Latency


async def latency(wanted: argparse.Namespace, place: Place, client: Client) -> bool:
    await client.create_topic("/default/latency", ack_level="stored")
    ratios, differences = [], []
    async with client.producer("/default/latency", timeout=60) as producer:
        await producer.send(b"")
        for number in range(wanted.pairs):
            acks, puts = [], []
            for one in range(SENDS):  # by turns: what else the machine does slows down both
                begin = time.perf_counter()
                await producer.send(os.urandom(MESSAGE_BYTES))
                acks.append(time.perf_counter() - begin)
                begin = time.perf_counter()
                payload = os.urandom(MESSAGE_BYTES + ENVELOPE_BYTES)
                await place.store.put(f"{place.key}/{number}/{one:08d}", payload, create=True)
                puts.append(time.perf_counter() - begin)
            ack, put = statistics.median(acks) * 1_000, statistics.median(puts) * 1_000
            ratios.append(ack / put)
            differences.append(ack - put)
            print(f"  p50 of an ack {ack:.2f} ms, of a bare put {put:.2f} ms", flush=True)
    ratio, difference = statistics.median(ratios), statistics.median(differences)
    if place.name == "directory":
        print(f"directory latency: bare put + {difference:.2f} ms (at most {DIRECTORY_TARGET_MS})")
        return difference <= DIRECTORY_TARGET_MS
    print(f"s3 latency: {ratio:.2f} of a bare put (at most {S3_TARGET})")
    return ratio <= S3_TARGET


# Load


async def publish_rate(client: Client, topic: str, batch: int, count: int, partition_by: str | int) -> float:
    """Return the bytes per second of `count` batches of one message each."""
    payload = os.urandom(batch)
    async with client.producer(
        topic, timeout=120, batch_messages=1, partition_by=partition_by, in_flight_batches=64
    ) as producer:
        begin = time.perf_counter()
        await asyncio.gather(*(producer.send(payload) for _ in range(count)))
        return count * batch / (time.perf_counter() - begin)


async def put_rate(place: Place, number: int, size: int) -> float:
    payload, count = os.urandom(size), max(8, LOAD_BYTES // size)
    numbers = iter(range(count))

    async def put_some() -> None:
        for one in numbers:
            await place.store.put(f"{place.key}/load-{number}/{one:08d}", payload, create=True)

    begin = time.perf_counter()
    await asyncio.gather(*(put_some() for _ in range(SliceSettings().in_flight_max)))
    return count * size / (time.perf_counter() - begin)


async def slice_sizes(place: Place) -> dict[str, int]:
    return {one.key: one.size async for one in place.store.list("slices/")}


async def load(wanted: argparse.Namespace, place: Place, client: Client) -> bool:
    await client.create_topic("/default/load", ack_level="stored")
    count = LOAD_BYTES // LOAD_BATCH_BYTES
    await publish_rate(client, "/default/load", LOAD_BATCH_BYTES, 16, 0)
    ratios = []
    for number in range(wanted.pairs):
        before = await slice_sizes(place)
        published = await publish_rate(client, "/default/load", LOAD_BATCH_BYTES, count, 0)
        made = [size for key, size in (await slice_sizes(place)).items() if key not in before]
        size = int(statistics.mean(made))
        put = await put_rate(place, number, size)
        ratios.append(published / put)
        print(
            f"  {published / 1e6:.0f} MB/s in {len(made)} slices of {size} bytes, bare {put / 1e6:.0f} MB/s", flush=True
        )
    ratio = statistics.median(ratios)
    print(f"{place.name} load: {ratio:.2f} of as many parallel bare puts (at least {LOAD_TARGET})")
    return ratio >= LOAD_TARGET


# Partitions


async def partitions(wanted: argparse.Namespace, place: Place, client: Client) -> bool:
    await client.create_topic("/default/spread", partitions=SPREAD_PARTITIONS, ack_level="stored")
    await client.create_topic("/default/single", ack_level="stored")
    by_topic = {"/default/single": 0, "/default/spread": "round-robin"}
    for topic, by in by_topic.items():
        await publish_rate(client, topic, SPREAD_BATCH_BYTES, SPREAD_PARTITIONS, by)
    ratios = []
    for number in range(wanted.pairs):
        rates = {}
        for topic in list(by_topic)[:: 1 if number % 2 == 0 else -1]:
            rates[topic] = await publish_rate(client, topic, SPREAD_BATCH_BYTES, SPREAD_BATCHES, by_topic[topic])
        one, many = rates["/default/single"], rates["/default/spread"]
        ratios.append(many / one)
        print(f"  one partition {one / 1e6:.1f} MB/s, {SPREAD_PARTITIONS} {many / 1e6:.1f} MB/s", flush=True)
    ratio = statistics.median(ratios)
    print(f"{place.name} partitions: {ratio:.2f} of one (at least {SPREAD_TARGET})")
    return ratio >= SPREAD_TARGET


async def main() -> int:
    wanted = arguments()
    if wanted.only != "directory" and (missing := missing_weed()):
        sys.exit(missing)
    reached = True
    parts = {"latency": latency, "load": load, "partitions": partitions}
    for name in [wanted.only] if wanted.only else ["directory", "s3"]:
        with tempfile.TemporaryDirectory() as directory:
            async with place_of(name, Path(directory)) as place, connect(place.url, timeout=120) as client:
                for part, measure in parts.items():
                    if wanted.part in (None, part):
                        try:
                            reached &= await measure(wanted, place, client)
                        except DanubeError as error:
                            sys.exit(f"not measured: {error}")
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
