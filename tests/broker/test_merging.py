"""Merging of small segments: nothing is lost, duplicated or changed, also when a merge is interrupted."""

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, TOPIC, BrokerClient, created, open_broker

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import StaleEpoch, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore

WAL = LogSettings(file_bytes=1 << 18, fill_bytes=0)
SMALL = replace(TIERING, segment_bytes=1 << 18, shared_below_bytes=0, segment_age_s=0)
OTHER = TopicName.parse("/default/other")


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@asynccontextmanager
async def opened(path: Path, objects: ObjectStore, **changes):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1, **changes}
    async with open_broker(path, **settings) as broker:
        yield broker


async def crumbs(broker, count: int, first: int = 0, topic: TopicName = TOPIC, sequence: bool = False):
    """Make so many segments of one batch of 100 messages each."""
    client = BrokerClient(broker, topic)
    producer = await client.producer()
    for number in range(first, first + count):
        payloads = [b"%06d" % (number * 100 + n) + b"x" * 50 for n in range(100)]
        await client.publish(producer, payloads, sequence=(number - first) * 100 if sequence else -1)
        assert await broker._tiers.uploader.round(everything=True) == 1
    await broker._tiers.trim()
    return producer


async def merged(broker) -> int:
    made = 0
    while await broker._tiers.merger.round():
        made += 1
    return made


async def everything(broker, topic: TopicName = TOPIC) -> list[int]:
    return [int(payload[:6]) for _, payload in await BrokerClient(broker, topic).read_all()]


async def keys(objects: ObjectStore) -> list[str]:
    return [info.key async for info in objects.list("segments/")]


async def segments(broker, topic: TopicName = TOPIC):
    topic_id = broker._registry.topic(topic).topic_id
    return [one async for page in broker._tiers.catalog.pages(topic_id, 0) for one in page]


async def test_small_segments_are_merged_and_their_objects_are_deleted_after_the_grace_period(
    tmp_path: Path, objects: MemoryStore
):
    clock = ManualClock()
    async with opened(tmp_path, objects, clock=clock) as broker:
        await BrokerClient(broker).create()
        await crumbs(broker, 30)
        before = await keys(objects)
        total = (await segments(broker))[-1].record.total
        assert await merged(broker) == 1
        (one,) = await segments(broker)
        assert (one.first_offset, one.end_offset, one.record.messages) == (0, 3000, 3000)
        assert one.record.total == total == one.bytes
        assert len(await keys(objects)) == 31
        assert await everything(broker) == list(range(3000))
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert not set(before) & set(await keys(objects))
        assert await everything(broker) == list(range(3000))


async def test_what_is_merged_is_found_by_offset_and_time_and_survives_a_start(tmp_path: Path, objects: MemoryStore):
    clock = ManualClock()
    times = []
    async with opened(tmp_path, objects, clock=clock) as broker:
        await BrokerClient(broker).create()
        for number in range(20):
            clock.advance(1)
            times.append(clock.now_us())
            producer = await crumbs(broker, 1, first=number, sequence=True)
        assert await merged(broker) == 1
        for number in (0, 7, 19):
            found = await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", times[number]))
            assert found == number * 100
    async with opened(tmp_path, objects, clock=clock) as broker:
        assert await everything(broker) == list(range(2000))
        again = await BrokerClient(broker).come_back(producer)
        payloads = [b"%06d" % (1900 + n) + b"x" * 50 for n in range(100)]
        assert (await BrokerClient(broker).publish(again, payloads, sequence=0)).duplicate


async def test_segments_of_several_ledgers_share_an_object_and_stay_apart_in_the_catalog(
    tmp_path: Path, objects: MemoryStore
):
    for life in range(4):
        async with opened(tmp_path, objects) as broker:
            if not life:
                await BrokerClient(broker).create()
            await crumbs(broker, 5, first=life * 5)
            if life == 3:
                assert await merged(broker) == 1
                found = await segments(broker)
                assert [(one.first_offset, one.end_offset) for one in found] == [
                    (0, 500), (500, 1000), (1000, 1500), (1500, 2000)
                ]  # fmt: skip
                assert len({one.record.object for one in found}) == 1
                assert len({one.record.ledger_id for one in found}) == 4
                assert await everything(broker) == list(range(2000))
                assert await merged(broker) == 0


async def test_shared_objects_are_left_to_the_others_in_them(tmp_path: Path, objects: MemoryStore):
    clock = ManualClock()
    shared = replace(SMALL, shared_below_bytes=1 << 17)
    async with opened(tmp_path, objects, clock=clock, tiering=shared) as broker:
        for topic in (TOPIC, OTHER):
            await BrokerClient(broker, topic).create()
        for number in range(20):
            for topic in (TOPIC, OTHER):
                client = BrokerClient(broker, topic)
                await client.publish(await client.producer(), [b"%06d" % number])
            assert await broker._tiers.uploader.round(everything=True) == 1
        await broker._tiers.merger.round()
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert await everything(broker) == await everything(broker, OTHER) == list(range(20))
        assert await merged(broker) == 1
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert len(await keys(objects)) == 2
        assert await everything(broker) == await everything(broker, OTHER) == list(range(20))


async def test_a_reader_continues_during_a_merge(tmp_path: Path, objects: MemoryStore):
    async with opened(tmp_path, objects) as broker:
        client = await created(broker)
        await crumbs(broker, 40)
        consumer = await client.subscribe(credit=150)
        await consumer.wait_for(100)
        assert await merged(broker) == 1
        consumer.consumer.credit(1_000_000, 1 << 30)
        assert [int(payload[:6]) for _, payload in await consumer.wait_for(4000)] == list(range(4000))


async def test_a_merge_cut_before_its_transaction_leaves_an_orphan_and_begins_again(
    tmp_path: Path, objects: MemoryStore
):
    clock = ManualClock()
    async with opened(tmp_path, objects, clock=clock, crash=True) as broker:
        await BrokerClient(broker).create()
        await crumbs(broker, 20)
        (tiered,) = broker._tiers.partitions.values()

        async def killed(_writes, _compares):
            raise Unavailable("the process is gone")

        tiered.rewrite = killed
        with pytest.raises(Unavailable):
            await broker._tiers.merger.round()
        assert len(await segments(broker)) == 20
    async with opened(tmp_path, objects, clock=clock) as broker:
        assert await everything(broker) == list(range(2000))
        assert await merged(broker) == 1
        assert len(await keys(objects)) == 22
        clock.advance(3601)
        objects_now = await segments(broker)
        await broker._tiers.collector.collect_garbage()
        assert await everything(broker) == list(range(2000))
        assert objects_now[0].record.object in await keys(objects)
        assert len(await keys(objects)) == 2, "the orphan is found by the listing of the store"


async def test_a_merge_cut_after_its_transaction_counts(tmp_path: Path, objects: MemoryStore):
    async with opened(tmp_path, objects, crash=True) as broker:
        await BrokerClient(broker).create()
        await crumbs(broker, 20)

        async def killed(_key, _now_us):
            raise Unavailable("the process is gone")

        broker._tiers.catalog.note_unused = killed
        assert await broker._tiers.merger.round()
    async with opened(tmp_path, objects) as broker:
        assert len(await segments(broker)) == 1
        assert await everything(broker) == list(range(2000))
        assert (await broker._tiers.collector.collect_garbage()).waiting == 20, (
            "known as garbage by the same transaction"
        )


async def test_a_fenced_owner_merges_nothing(tmp_path: Path, objects: MemoryStore):
    async with opened(tmp_path, objects, crash=True) as former:
        await BrokerClient(former).create()
        await crumbs(former, 20)
        (tiered,) = former._tiers.partitions.values()

        async def fenced(_writes, _compares):
            raise StaleEpoch("taken")

        tiered.rewrite = fenced
        assert not await former._tiers.merger.round()
        assert len(await segments(former)) == 20


async def test_a_damaged_small_segment_is_skipped_and_others_are_merged(tmp_path: Path, objects: MemoryStore):
    async with opened(tmp_path, objects) as broker:
        for topic in (TOPIC, OTHER):
            await BrokerClient(broker, topic).create()
            await crumbs(broker, 20, topic=topic)
        key = (await segments(broker))[7].record.object
        whole = bytearray(await objects.get(key))
        whole[1000] ^= 1
        await objects.put(key, whole)
        await broker._tiers.merger.round()
        assert await merged(broker) == 1
        assert len(await segments(broker)) == 20
        assert len(await segments(broker, OTHER)) == 1


async def test_retention_while_merging_and_after_it_is_kept(tmp_path: Path, objects: MemoryStore):
    clock = ManualClock()
    async with opened(tmp_path, objects, clock=clock) as broker:
        await BrokerClient(broker).create()
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 60})
        await crumbs(broker, 10)
        clock.advance(100)
        await crumbs(broker, 10, first=10)
        assert await merged(broker) == 1
        await broker._lifetimes.round()
        assert await everything(broker) == list(range(1000, 2000))
        clock.advance(100)
        await broker._lifetimes.round()
        assert await everything(broker) == []
        assert await segments(broker) == []


async def test_a_long_catalog_is_merged_from_end_to_end(tmp_path: Path, objects: MemoryStore):
    tiny = replace(SMALL, segment_bytes=1 << 14)
    async with opened(tmp_path, objects, tiering=tiny) as broker:
        client = await created(broker)
        producer = await client.producer()
        for number in range(600):
            await client.publish(producer, [b"%06d" % number])
            await broker._tiers.uploader.round(everything=True)
        assert len(await segments(broker)) == 600
        for _ in range(100):
            await broker._tiers.merger.round()
        assert len(await segments(broker)) < 600 * 256 / (1 << 14) * 4
        assert await everything(broker) == list(range(600))
