"""kill -9 of a broker under load, again and again: nothing acked is lost, nothing is stored twice, nothing is skipped.

Of topics that are `stored`, what counts afterwards is in the object store alone, which may be flaky: the records of the
local log are made unreadable before a start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from brokers import BrokerProcess
from entry_points import installed
from object_servers import S3_BUCKET, missing_weed, s3_server, s3_settings

import pydanube

pytestmark = pytest.mark.process

TOPIC = "/default/load"
PARTITIONS = 3
PRODUCERS = 3
MARK = b"payload-"
"""Every payload begins with it, so that the local log can be searched for payloads."""
SETTINGS = {"DANUBE_STORAGE_SEGMENT_AGE_S": "1"}
"""Uploads begin soon, so that a kill meets slices, segments and what is in between."""
INTERVAL_S = 1.0
"""How long the broker may keep an ack before it leaves in a slice (`state_interval_ms`)."""
SLACK_S = 2.0
"""How long a put and the way of an ack may take on a busy machine."""

Place = tuple[int, int]


@dataclass
class Recorded:
    """What was acked to producers, and what the consumer got and acked."""

    published: dict[bytes, Place] = field(default_factory=dict)
    content: dict[Place, bytes] = field(default_factory=dict)
    consumed: dict[Place, float] = field(default_factory=dict)
    """When the ack of a message was sent; of the last one, if it came again."""
    killed: list[float] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    """Messages that came again although they were acked long before the kill."""


class Load:
    """Producers and a consumer that go on over all kills."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.url = url
        self.chance = chance
        self.record = Recorded()
        self.stopping = False
        self._progress = asyncio.Event()

    async def until_acked(self, count: int) -> None:
        goal = len(self.record.published) + count
        while len(self.record.published) < goal:
            self._progress.clear()
            await self._progress.wait()

    async def produce(self, number: int) -> None:
        """Publish until told to stop; a client repeats what was not answered, and the broker recognises it."""
        name = f"p{number}" if number % 2 else None
        async with (
            pydanube.connect(self.url) as client,
            client.producer(TOPIC, name=name, timeout=120) as producer,
        ):
            count = 0
            while not self.stopping:
                payloads = [MARK + b"%d-%d" % (number, count + n) for n in range(self.chance.randint(1, 50))]
                count += len(payloads)
                receipts = await asyncio.gather(*[producer.send(one, key=one.decode()) for one in payloads])
                for payload, receipt in zip(payloads, receipts, strict=True):
                    self.record.published[payload] = (receipt.partition, receipt.offset)
                self._progress.set()

    async def consume(self) -> None:
        """Receive until told to stop and everything acked has come."""
        record = self.record
        async with (
            pydanube.connect(self.url) as client,
            client.consumer(TOPIC, subscription="load", start="earliest", name="c") as consumer,
        ):
            while not (self.stopping and all(place in record.content for place in record.published.values())):
                with contextlib.suppress(TimeoutError):
                    message = await consumer.receive(timeout=0.5)
                    self.received((message.partition, message.offset), message.payload)
                    await consumer.ack(message)
                    record.consumed[message.partition, message.offset] = time.monotonic()

    def received(self, place: Place, payload: bytes) -> None:
        record = self.record
        assert record.content.setdefault(place, payload) == payload, "an offset was used twice"
        acked_at = record.consumed.get(place)
        killed_at = next((one for one in record.killed if acked_at is not None and one > acked_at), None)
        if acked_at is not None and (killed_at is None or killed_at - acked_at > INTERVAL_S + SLACK_S):
            ago = f"{killed_at - acked_at:.1f} s before the kill" if killed_at is not None else "and nothing was killed"
            record.returned.append(f"{place} came again: it was acked {ago}")


async def read_everything(url: str) -> dict[int, list[bytes]]:
    stored: dict[int, list[bytes]] = {}
    async with pydanube.connect(url) as client:
        for partition in range(PARTITIONS):
            payloads = stored[partition] = []
            async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
                async for message in reader:
                    assert message.offset == len(payloads), "offsets are dense"
                    payloads.append(message.payload)
    return stored


def spoil(directory: Path) -> None:
    """Overwrite every payload in the local log, so that no record of a message can be read there any more."""
    found = 0
    for path in (directory / "wal").iterdir():
        data = path.read_bytes()
        found += data.count(MARK)
        path.write_bytes(data.replace(MARK, b"spoiled!"))
    assert found, "there was nothing to spoil: the local log is elsewhere"
    assert len(MARK) == len(b"spoiled!")


def verify(record: Recorded, stored: dict[int, list[bytes]]) -> None:
    everywhere = Counter(payload for payloads in stored.values() for payload in payloads)
    assert not [payload for payload, count in everywhere.items() if count > 1], "a retried batch was stored twice"
    lost = [
        (payload, place)
        for payload, place in record.published.items()
        if stored[place[0]][place[1] : place[1] + 1] != [payload]
    ]
    assert not lost, f"acked and lost: {lost[:5]}"
    for place, payload in record.content.items():
        assert stored[place[0]][place[1]] == payload, "what a consumer got is there"
    assert not record.returned, record.returned[:5]


async def kill_again_and_again(
    directory: Path, kills: int, acked_max: int, environment: dict[str, str], ack_level: str = "stored"
) -> None:
    seed = int(os.environ.get("DANUBE_SEED", random.randrange(2**32)))
    print(f"DANUBE_SEED={seed}")
    chance = random.Random(seed)
    with BrokerProcess(directory, environment={**SETTINGS, **environment, "FLAKY_SEED": str(seed)}) as broker:
        load = Load(broker.url, chance)
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS, ack_level=ack_level)
            await client.create_subscription(TOPIC, "load", start="earliest")
        async with asyncio.TaskGroup() as tasks:
            producers = [tasks.create_task(load.produce(number)) for number in range(PRODUCERS)]
            tasks.create_task(load.consume())
            for number in range(kills):
                await load.until_acked(chance.randint(20, acked_max))
                broker.kill()
                load.record.killed.append(time.monotonic())
                if ack_level == "stored":
                    spoil(directory)
                broker.environment["FLAKY_START"] = str(number + 1)
                await asyncio.to_thread(broker.start)
            await load.until_acked(20)
            load.stopping = True
            await asyncio.wait(producers)
        verify(load.record, await read_everything(broker.url))


async def test_killing_the_broker_five_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", 5, 2000, {}, "durable")


async def test_killing_the_broker_and_spoiling_its_log_loses_and_repeats_nothing(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", 4, 1000, {})


def on_a_flaky_store(directory: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": installed(directory / "site", "flaky", "flaky_store"),
        "DANUBE_STORAGE_URL": f"flaky://{directory / 'objects'}",
    }


@pytest.mark.exhaustive
async def test_killing_the_broker_on_a_store_that_loses_answers_loses_and_repeats_nothing(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", 3, 500, on_a_flaky_store(tmp_path))


@contextlib.contextmanager
def on_s3(directory: Path) -> Iterator[dict[str, str]]:
    (directory / "weed").mkdir()
    with s3_server(directory / "weed") as server:
        options = ",".join(f"{name}={value}" for name, value in s3_settings(server.port).items())
        yield {"DANUBE_STORAGE_URL": f"s3://{S3_BUCKET}/stored", "DANUBE_STORAGE_OPTIONS": options}


@pytest.mark.exhaustive
@pytest.mark.skipif(bool(missing_weed()), reason=missing_weed() or "the S3 server is there")
async def test_killing_the_broker_on_an_s3_server_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with on_s3(tmp_path) as environment:
        await kill_again_and_again(tmp_path / "data", 2, 1000, environment)


@pytest.mark.soak
async def test_killing_the_broker_fifty_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", 50, 2000, {}, "durable")


@pytest.mark.soak
async def test_killing_the_broker_fifty_times_and_spoiling_its_log_loses_and_repeats_nothing(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", 50, 2000, {})


@pytest.mark.soak
async def test_killing_the_broker_thirty_times_on_a_flaky_store_loses_and_repeats_nothing(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path / "data", 30, 1000, on_a_flaky_store(tmp_path))
