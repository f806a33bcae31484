"""kill -9 at every step of an upload: nothing acked is lost, offsets are dense, nothing comes twice, orphans go."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from brokers import BrokerProcess
from entry_points import installed

import pydanube
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.objects.local import LocalStore
from pydanube.storage.segments.catalog import Catalog
from pydanube.storage.segments.garbage_collector import GarbageCollector

TOPIC = "/default/load"
SETTINGS = {
    "STORAGE_SEGMENT_BYTES": "65536",
    "STORAGE_SEGMENT_AGE_S": "0",
    "STORAGE_SHARED_BELOW_BYTES": "1000",
    "STORAGE_LOG_KEEP_BYTES": "0",
    "LOG_FILE_BYTES": "65536",
    "LOG_GROUP_BYTES_MAX": "65536",
    "CACHE_TAIL_BYTES": "65536",
}
STEPS = ["before 1", "during 1 0", "during 1 2", "after 1", "later 1 0", "later 1 1", "later 1 3", "later 2 10"]


@pytest.fixture
def tiered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of brokers that upload soon, to a store that kills them."""
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path / "site", "killing", "killing_store"))
    monkeypatch.setenv("DANUBE_STORAGE_URL", f"killing://{tmp_path / 'objects'}")
    for name, value in SETTINGS.items():
        monkeypatch.setenv(f"DANUBE_{name}", value)
    return tmp_path / "data"


class Load:
    """A producer that publishes until it is stopped, and the payloads that were acked, with their offsets."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.acked: list[tuple[bytes, int]] = []
        self.stopping = False

    async def produce(self) -> None:
        async with pydanube.connect(self.url) as client, client.producer(TOPIC) as producer:
            count = 0
            while not self.stopping:
                payloads = [b"%d " % (count + n) + b"x" * 500 for n in range(20)]
                count += len(payloads)
                receipts = await asyncio.gather(*[producer.send(one) for one in payloads])
                self.acked += [(one, receipt.offset) for one, receipt in zip(payloads, receipts, strict=True)]


async def kill_at(steps: list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = BrokerProcess(directory)
    load = Load(broker.url)
    producing: asyncio.Task[None] | None = None
    for step in steps:
        name, put, *wait_ms = step.split()
        monkeypatch.setenv("KILLING_STEP", name)
        monkeypatch.setenv("KILLING_PUT", put)
        monkeypatch.setenv("KILLING_MS", wait_ms[0] if wait_ms else "0")
        await asyncio.to_thread(broker.start)
        if producing is None:
            async with pydanube.connect(broker.url) as client:
                await client.create_topic(TOPIC)
                await client.create_subscription(TOPIC, "late", start="earliest")
            producing = asyncio.create_task(load.produce())
        assert await asyncio.to_thread(broker.ended, 200) == -9, f"it was to be killed at {step}"
    monkeypatch.setenv("KILLING_STEP", "")
    with broker:
        load.stopping = True
        assert producing is not None
        await producing
        await check_served(broker.url, load)
        assert await asyncio.to_thread(broker.stop) == 0
    await check_stored(directory)


async def check_served(url: str, load: Load) -> None:
    async with pydanube.connect(url) as client:
        async with client.reader(TOPIC, start="earliest", end="latest") as reader:
            stored = [(message.payload, message.offset) async for message in reader]
        assert [offset for _, offset in stored] == list(range(len(stored))), "offsets are dense"
        copies = [payload for payload, count in Counter(payload for payload, _ in stored).items() if count > 1]
        assert not copies, "stored twice"
        assert set(load.acked) <= set(stored), "acked and lost"
        async with client.consumer(TOPIC, subscription="late") as consumer:
            received = [await consumer.receive(timeout=60) for _ in stored]
            assert [(one.payload, one.offset) for one in received] == stored


async def check_stored(directory: Path) -> None:
    """The catalog has no hole, its objects are there, and after the grace there are no others."""
    store = await EmbeddedStore.open(directory / "metadata.db", SystemClock())
    objects = await LocalStore.open(directory.parent / "objects")
    catalog, clock = Catalog(store), ManualClock(SystemClock().now_us() + 10**12)
    (topic_id,) = await catalog.topics()
    offset, used = 0, set()
    async for page in catalog.pages(topic_id, 0):
        for segment in page:
            assert segment.first_offset == offset
            offset = segment.end_offset
            used.add(segment.record.object)
    assert offset > 0
    await GarbageCollector(objects, catalog, clock, 3_600_000_000).collect_orphans()
    assert {info.key async for info in objects.list("segments/")} == used
    await objects.close()
    await store.close()


@pytest.mark.exhaustive
@pytest.mark.process
async def test_killing_the_broker_at_every_step_of_an_upload_loses_and_repeats_nothing(tiered, monkeypatch):
    await kill_at(STEPS, tiered, monkeypatch)


@pytest.mark.soak
@pytest.mark.process
async def test_killing_the_broker_forty_times_around_uploads_loses_and_repeats_nothing(tiered, monkeypatch):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = [chance.choice(["before", "during", "after", "later"]) for _ in range(40)]
    steps = [f"{name} {chance.randint(1, 4)} {chance.expovariate(1 / 20):.2f}" for name in names]
    await kill_at(steps, tiered, monkeypatch)
