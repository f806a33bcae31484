"""kill -9 at random while producers publish and a bad store takes uploads: what was acked is there, all of it, once."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from brokers import BrokerProcess
from entry_points import installed

import pydanube
from pydanube.model.errors import DanubeError, Unavailable

TOPICS = {"/default/plain": 0, "/default/parts": 3}
UPLOADED_SECONDS_MAX = 200
SETTINGS = {
    "STORAGE_SEGMENT_BYTES": "65536",
    "STORAGE_SEGMENT_AGE_S": "1",
    "STORAGE_SHARED_BELOW_BYTES": "20000",
    "STORAGE_LOG_KEEP_BYTES": "0",
    "STORAGE_GRACE_S": "0",
    "LOG_FILE_BYTES": "65536",
    "LOG_GROUP_BYTES_MAX": "65536",
    "CACHE_TAIL_BYTES": "65536",
}


@pytest.fixture
def seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    seed = int(os.environ.get("CHURN_SEED", random.randrange(2**32)))
    print(f"CHURN_SEED={seed}")
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path / "site", "flaky", "flaky_store"))
    monkeypatch.setenv("DANUBE_STORAGE_URL", f"flaky://{tmp_path / 'objects'}")
    monkeypatch.setenv("FLAKY_SEED", str(seed))
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"DANUBE_{name}", value)
    return seed


class Load:
    """A producer that publishes until it is stopped, and the payloads that were acked."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.topic = topic
        self.acked: list[bytes] = []
        self.stopping = False

    async def produce(self) -> None:
        number = 0
        async with pydanube.connect(self.url) as client, client.producer(self.topic, timeout=120) as producer:
            while not self.stopping:
                payloads = [b"%08d " % (number + n) + b"x" * 300 for n in range(20)]
                number += len(payloads)
                await asyncio.gather(*[producer.send(one, key=one[:8].decode()) for one in payloads])
                self.acked += payloads


async def stored(client: pydanube.Client, topic: str, partitions: int) -> list[bytes]:
    """Read the topic; read again when the store fails."""
    found: list[bytes] = []
    for partition in range(partitions or 1):
        offset = 0
        async with asyncio.timeout(200):
            while True:
                try:
                    reader = client.reader(topic, partition=partition, start=offset, end="latest")
                    async with reader:
                        async for message in reader:
                            assert message.offset == offset, "offsets are dense"
                            found.append(message.payload)
                            offset += 1
                    break
                except Unavailable:
                    await asyncio.sleep(0.05)
    return found


async def consumed(client: pydanube.Client, topic: str, count: int) -> Counter[bytes]:
    seen: Counter[bytes] = Counter()
    async with asyncio.timeout(200):
        while len(seen) < count:
            try:
                async with client.consumer(topic, subscription="late") as consumer:
                    while len(seen) < count:
                        message = await consumer.receive(timeout=60)
                        seen[message.payload] += 1
                        await consumer.ack(message)
            except Unavailable:
                await asyncio.sleep(0.05)
    return seen


async def damages(client: pydanube.Client) -> list[object]:
    async with asyncio.timeout(200):
        while True:
            try:
                return list((await client.verify_storage()).damages)
            except DanubeError:
                await asyncio.sleep(0.05)


async def something_uploaded(client: pydanube.Client) -> None:
    """However bad the store was until now: what is compared then comes from it too."""
    async with asyncio.timeout(UPLOADED_SECONDS_MAX):
        while not (await client.storage_usage()).total.segments:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.2)


async def churn(directory: Path, seed: int, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    broker = BrokerProcess(directory)
    loads = [Load(broker.url, topic) for topic in TOPICS]
    with broker:
        async with pydanube.connect(broker.url) as client:
            for topic, partitions in TOPICS.items():
                await client.create_topic(topic, partitions=partitions)
                await client.create_subscription(topic, "late", start="earliest")
        tasks = [asyncio.create_task(load.produce()) for load in loads]
        for number in range(kills):
            await asyncio.sleep(chance.uniform(0.2, 2.5))
            monkeypatch.setenv("FLAKY_START", str(number))
            await broker.restart()
        for load in loads:
            load.stopping = True
        await asyncio.gather(*tasks)
        async with pydanube.connect(broker.url) as client:
            await something_uploaded(client)
            for load in loads:
                assert Counter(await stored(client, load.topic, TOPICS[load.topic])) == Counter(load.acked)
                assert await consumed(client, load.topic, len(load.acked)) == Counter(load.acked)
            assert await damages(client) == []
            segments = (await client.storage_usage()).total.segments
            assert segments > 0
            print(f"{kills} kills, {sum(len(load.acked) for load in loads):,} messages, {segments} segments")


@pytest.mark.exhaustive
@pytest.mark.process
@pytest.mark.timeout(900)
async def test_a_broker_killed_at_random_with_a_bad_store_has_everything_once(tmp_path: Path, seed, monkeypatch):
    await churn(tmp_path / "data", seed, 4, monkeypatch)


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.timeout(2400)
async def test_a_broker_killed_forty_times_with_a_bad_store_has_everything_once(tmp_path: Path, seed, monkeypatch):
    await churn(tmp_path / "data", seed, 40, monkeypatch)
