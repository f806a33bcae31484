"""A catalog of 20 GB is opened, listed and sought by time with few questions, and without memory for it."""

import tracemalloc
from pathlib import Path

import msgspec
import pytest
from broker_harness import TOPIC, BrokerClient, open_broker, open_topic
from tiering_harness import SMALL, WAL, filled, upload_all

from pydanube.broker.registry.records import PartitionRecord, partition_key
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.store import Put
from pydanube.model.positions import Position
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.catalog import CatalogSegment, SegmentRecord, entries

SEGMENT_BYTES = 1 << 20
SEGMENTS = 20 * 1024
"""Twenty gigabytes in segments of a megabyte: sixty times as many as there are by default."""


class Questions:
    """Counts the requests to the metadata store."""

    def __init__(self, store) -> None:
        self._list, self._get, self.asked = store.list, store.get, 0
        store.list, store.get = self.list, self.get

    async def list(self, *arguments, **options):
        self.asked += 1
        return await self._list(*arguments, **options)

    async def get(self, *arguments):
        self.asked += 1
        return await self._get(*arguments)

    async def of(self, work) -> int:
        before = self.asked
        await work
        return self.asked - before


async def pretend(store, topic_id: int, like: CatalogSegment, shift_us: int) -> None:
    """Add catalog entries of an older history, whose objects are never read here."""
    writes: list[Put] = []
    for number in range(SEGMENTS):
        record = SegmentRecord(
            object=f"segments/{topic_id:016x}/{0:08x}/{number * 1000:020d}-old.seg",
            first_offset=number * 1000,
            start=64,
            end=64 + SEGMENT_BYTES,
            footer_start=64 + SEGMENT_BYTES,
            object_bytes=SEGMENT_BYTES + 4096,
            messages=1000,
            first_time=like.record.first_time - shift_us + number * 1_000_000,
            last_time=like.record.first_time - shift_us + number * 1_000_000 + 999_999,
        )
        writes += entries(CatalogSegment(topic_id, 0, (number + 1) * 1000, record))
        if len(writes) >= 120:
            await store.transact([], writes)
            writes = []
    await store.transact([], writes)


@pytest.mark.exhaustive
async def test_twenty_gigabytes_of_history_are_opened_listed_and_sought_with_few_questions(tmp_path: Path):
    objects, clock = MemoryStore(), ManualClock()
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1, "clock": clock}
    base = SEGMENTS * 1000
    async with open_topic(tmp_path, **settings) as client:
        await client.fetch()
        store = client.broker._registry._store
        (tier,) = client.broker._tiers.partitions.values()
        topic_id = tier.topic_id
        now = CatalogSegment(topic_id, 0, 0, SegmentRecord("", 0, 0, 0, 0, 0, first_time=clock.now_us()))
        await pretend(store, topic_id, now, shift_us=SEGMENTS * 1_000_000)
        found = await store.get(partition_key(topic_id, 0))
        assert found is not None
        record = msgspec.msgpack.decode(found.value, type=PartitionRecord)
        record = msgspec.structs.replace(record, uploaded_end=base, reserved_end=base, start_offset=0)
        # The log knows nothing of it: as after a restore, the next offset is where the catalog ends.
        last = await client.broker._tiers.catalog.find(topic_id, 0, base - 1)
        assert last is not None and last.end_offset == base
        await store.transact([], [Put(partition_key(topic_id, 0), msgspec.msgpack.encode(record))])

    async with open_broker(tmp_path, **settings) as broker:
        broker._tiers.history.producers = no_producers  # its objects are not there
        client = BrokerClient(broker)
        questions = Questions(broker._registry._store)
        assert await questions.of(client.fetch(Position("latest", 0))) < 100, "a sample, not the catalog"
        assert (await client.fetch(Position("latest", 0))).end_offset == base
        tracemalloc.start()
        listed = [len(page) async for page in broker._tiers.catalog.pages(topic_id, 0)]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(listed) == SEGMENTS
        assert peak < 10 << 20, "a page at a time"
        assert await questions.of(anext(broker._tiers.catalog.pages(topic_id, 0))) == 1
        target = clock.now_us() - 7_000 * 1_000_000
        assert await questions.of(broker._tiers.catalog.find_time(topic_id, 0, target, 0, base)) <= 30
        segment = await broker._tiers.catalog.find_time(topic_id, 0, target, 0, base)
        assert segment is not None and segment.record.first_time <= target <= segment.record.last_time
        await filled(client, 30)
        await upload_all(broker)
        assert (await client.fetch(Position("offset", base))).batches
        assert await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", clock.now_us())) == base


async def no_producers(_segment: CatalogSegment) -> list:
    return []
