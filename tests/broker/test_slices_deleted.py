"""Slices go once no partition needs them, whoever wrote them; markers stay; a quiet partition keeps nobody's slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path

from broker_harness import TOPIC, BrokerClient, open_broker
from metadata_harness import FaultyStore, Writes, puts
from stored_harness import client_of, markers, sequences, slices, stored_topic
from tiering_harness import SMALL, WAL, upload_all

from pydanube.broker import Broker
from pydanube.broker.registry.records import PARTITIONS, PartitionRecord
from pydanube.broker.tiering.tiered_partition import BEHIND_S_MAX, SLICES_BEHIND_MAX
from pydanube.codec.slice import slice_key
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Put
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects import ObjectInfo
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.catalog import SEGMENTS
from pydanube.storage.slices import SliceCollector, seal
from pydanube.storage.slices.collecting import KEPT_S, WHOLE_EVERY_S
from waiting import until

ROWS = [(n, b"%d" % n) for n in range(40)]


async def published(client: BrokerClient, first: int, last: int) -> None:
    producer = await client.producer()
    for n in range(first, last):
        await client.publish(producer, [b"%d" % n])


async def collected(broker: Broker, clock: ManualClock) -> None:
    """Run the collection twice, so long apart that slices may go."""
    assert broker._tiers is not None
    await broker._tiers._collect(orphans=False)
    clock.advance(KEPT_S)
    await broker._tiers._collect(orphans=False)


async def state_counts(broker: Broker, client: BrokerClient) -> None:
    """Wait until the state of the partition counts and its record knows."""
    partition = await broker._partitions.get(client.topic, 0)
    counted: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
    partition.state.barrier(counted.set_result)
    assert await counted is None

    async def is_alone() -> bool:
        return all(len(found) == 1 for found in await sequences(broker._store))

    await until(is_alone)


async def test_uploaded_slices_are_deleted_and_a_kill_loses_nothing(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, wal=WAL, tiering=SMALL, clock=clock, crash=True) as broker:
        client = await stored_topic(broker)
        await published(client, 0, 20)
        await upload_all(broker)
        await published(client, 20, 30)
        before = await slices(objects)
        await collected(broker, clock)
        left = await slices(objects)
        assert 10 <= len(left) < len(before)
        assert left == before[-len(left) :], "the oldest go"
    async with open_broker(tmp_path, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
        assert await client_of(broker).read_all() == ROWS[:30]


async def test_slices_of_a_dead_incarnation_go_after_the_takeover_and_its_marker_stays(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, crash=True, clock=clock) as broker:
        await published(await stored_topic(broker), 0, 10)
    assert broker._tiers is not None
    async with open_broker(tmp_path, objects=objects, crash=True, clock=clock) as broker:
        await collected(broker, clock)
        assert len(await slices(objects)) >= 10, "nobody has taken the partition yet"
        client = client_of(broker)
        assert await client.read_all() == ROWS[:10]
        await state_counts(broker, client)
        await collected(broker, clock)
        assert {key.split("/")[1] for key in await slices(objects)} == {"0000000000000002"}
        assert [key.split("/")[1] for key in await markers(objects)] == ["0000000000000001"]
        sink = await client.subscribe()
        await sink.wait_for(10)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await client_of(broker).read_all() == ROWS[:10]


async def test_a_deleted_topic_frees_its_slices(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, crash=True, clock=clock) as broker:
        await published(await stored_topic(broker), 0, 10)
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await collected(broker, clock)
        assert await slices(objects) == []


async def test_a_slice_that_one_of_two_partitions_needs_stays(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, crash=True, clock=clock) as broker:
        quiet, busy = await stored_topic(broker, "quiet"), await stored_topic(broker, "busy")
        await published(quiet, 0, 1)
        await published(busy, 0, 20)
        assert broker._tiers is not None
        key = await _topic_id(broker, busy), 0
        await broker._tiers.upload([key])
        await collected(broker, clock)
        assert slice_key(1, 0) in await slices(objects)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await client_of(broker, "quiet").read_all() == ROWS[:1]
        assert await client_of(broker, "busy").read_all() == ROWS[:20]


async def _topic_id(broker: Broker, client: BrokerClient) -> int:
    return broker._registry.topic(client.topic).topic_id


# -- the order of listing, reading and deleting ------------------------------------------------------------------------


async def _sliced(count: int, incarnation: int = 1) -> MemoryStore:
    objects = MemoryStore()
    for number in range(count):
        await objects.put(slice_key(incarnation, number), bytes(128))
    return objects


async def test_a_slice_is_kept_while_a_record_that_needs_it_may_be_on_its_way() -> None:
    """A partition took number 3 as its lowest just before slice 3 was put, and its record comes after the reading."""
    objects, clock = await _sliced(5), ManualClock()
    records: dict[int, int] = {}

    async def lowest() -> Mapping[int, int]:
        return dict(records)

    collector = SliceCollector(objects, lowest, clock)
    assert await collector.collect() == 0
    clock.advance(KEPT_S / 2)
    assert await collector.collect() == 0
    records[1] = 3
    clock.advance(KEPT_S / 2)
    assert await collector.collect() == 3
    assert await slices(objects) == [slice_key(1, 3), slice_key(1, 4)]


async def test_slices_that_were_put_since_are_kept_although_no_record_names_them() -> None:
    objects, clock = await _sliced(2), ManualClock()

    async def lowest() -> Mapping[int, int]:
        return {}

    collector = SliceCollector(objects, lowest, clock)
    await collector.collect()
    await objects.put(slice_key(1, 2), bytes(128))
    clock.advance(KEPT_S)
    assert await collector.collect() == 2
    assert await slices(objects) == [slice_key(1, 2)]


async def test_records_are_read_after_the_listing() -> None:
    objects, clock = await _sliced(1), ManualClock()

    async def lowest() -> Mapping[int, int]:
        await objects.put(slice_key(1, 1), bytes(128))  # a record that names it is read only by the next round
        return {}

    collector = SliceCollector(objects, lowest, clock)
    await collector.collect()
    clock.advance(KEPT_S)
    await collector.collect()
    assert slice_key(1, 1) in await slices(objects)


async def test_markers_are_never_deleted() -> None:
    objects, clock = await _sliced(3), ManualClock()
    await seal(objects, 1, 0, 9)

    async def lowest() -> Mapping[int, int]:
        return {}

    collector = SliceCollector(objects, lowest, clock)
    await collector.collect()
    clock.advance(KEPT_S)
    assert await collector.collect() == 3
    assert await markers(objects) == [slice_key(1, 3)]


class CountingStore(MemoryStore):
    """Counts the objects that are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in super().list(prefix, after):
            self.listed += 1
            yield info


async def test_markers_of_former_incarnations_are_listed_once_an_hour() -> None:
    objects, clock, records = CountingStore(), ManualClock(), dict[int, int]()
    for incarnation in range(1, 501):
        await seal(objects, incarnation, 0, 999)
    await objects.put("slices/.README", b"")  # somebody left it there
    for number in range(5):
        await objects.put(slice_key(300, 1 + number), bytes(128))

    async def lowest() -> Mapping[int, int]:
        return dict(records)

    collector = SliceCollector(objects, lowest, clock)

    async def round_lists() -> int:
        objects.listed = 0
        await collector.collect()
        return objects.listed

    records[501] = 0  # opened, with nothing stored yet
    records[300] = 3
    assert await round_lists() == 506
    assert await round_lists() == 6, "the marker and the slices of one incarnation"
    for incarnation in (501, 502):
        await objects.put(slice_key(incarnation, 0), bytes(128))
    assert await round_lists() == 8, "and those of new ones"
    clock.advance(KEPT_S)
    assert await round_lists() == 8
    assert await slices(objects) == [slice_key(300, number) for number in (3, 4, 5)] + [slice_key(501, 0)]
    await objects.put(slice_key(502, 1), bytes(128))
    await objects.put(slice_key(7, 1), bytes(128))  # by a broker that was replaced, and did not know it
    assert await round_lists() == 6
    clock.advance(KEPT_S)
    assert await round_lists() == 6
    assert await slices(objects) == [
        slice_key(7, 1),
        *(slice_key(300, number) for number in (3, 4, 5)),
        slice_key(501, 0),
    ]
    clock.advance(WHOLE_EVERY_S)
    assert await round_lists() == 506
    clock.advance(KEPT_S)
    assert await round_lists() == 7
    assert slice_key(7, 1) not in await slices(objects)
    assert len(await markers(objects)) == 500


async def test_an_incarnation_that_a_record_names_is_listed_although_higher_ones_were_seen() -> None:
    objects, clock = MemoryStore(), ManualClock()
    await objects.put(slice_key(9, 0), bytes(128))

    async def lowest() -> Mapping[int, int]:
        return {8: 1, 9: 0}

    collector = SliceCollector(objects, lowest, clock)
    await collector.collect()
    await objects.put(slice_key(8, 0), bytes(128))
    await collector.collect()
    clock.advance(KEPT_S)
    assert await collector.collect() == 1
    assert await slices(objects) == [slice_key(9, 0)]


async def test_nothing_is_deleted_in_a_store_of_another_cluster(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path / "one", objects=objects, crash=True, clock=clock) as broker:
        await published(await stored_topic(broker), 0, 3)
        assert broker._tiers is not None
        await broker._tiers.check_ours()
        before = await slices(objects)
    async with open_broker(tmp_path / "two", objects=objects, crash=True, clock=clock, cluster="other") as broker:
        await collected(broker, clock)
        assert await slices(objects) == before


# -- records -----------------------------------------------------------------------------------------------------------


async def test_an_upload_does_not_bring_back_the_slices_of_a_former_owner(tmp_path: Path) -> None:
    """The upload begins while the record is told that those are not needed any more."""
    objects, metadata = MemoryStore(), FaultyStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        await published(await stored_topic(broker), 0, 5)
    async with open_broker(tmp_path, objects=objects, metadata=metadata, crash=True) as broker:
        client = client_of(broker)
        advancing = metadata.hold(lambda writes: puts(PARTITIONS)(writes) and _names_no_former(writes))
        publishing = asyncio.create_task(published(client, 5, 10))
        await advancing.asked.wait()
        assert broker._tiers is not None
        uploading = asyncio.create_task(upload_all(broker))
        for _ in range(50):
            await asyncio.sleep(0)
        advancing.go_on()
        await publishing
        await uploading
        await state_counts(broker, client)
        assert [[one.incarnation for one in found] for found in await sequences(broker._store)] == [[2]]


async def test_a_release_at_the_same_moment_leaves_the_next_owner_the_slices_that_it_has_ended(tmp_path: Path) -> None:
    """The snapshot of a taker counts, and before the record is told so the partition is released."""
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        sink = await client.subscribe()
        await published(client, 0, 5)
        await sink.wait_for(5)
        await sink.ack((0, 3))
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        await state_counts(broker, client)
        ownership = (await broker._partitions.get(client.topic, 0))._ownership
        await ownership.end_slices()
        await ownership.advance_slices()
        assert [[one.end >= 0 for one in found] for found in await sequences(broker._store)] == [[True]]
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        sink = await client_of(broker).subscribe()
        assert await sink.wait_for(2) == ROWS[3:5]


async def test_slices_whose_upload_was_not_listed_are_still_needed(tmp_path: Path) -> None:
    """The transaction that lists a segment fails, and a newer snapshot of the state counts before it is made again."""
    objects, metadata = MemoryStore(), FaultyStore()
    async with open_broker(tmp_path, objects=objects, metadata=metadata, crash=True) as broker:
        client = await stored_topic(broker)
        await published(client, 0, 10)
        await client.subscribe()
        listing = metadata.refuse_all(puts(SEGMENTS))
        with suppress(DanubeError):
            await upload_all(broker)
        assert listing.asked.is_set()
        partition = await broker._partitions.get(client.topic, 0)
        counted: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
        partition.state.barrier(counted.set_result)
        assert await counted is None
        await partition._ownership.advance_slices()
        assert [[one.lowest for one in found] for found in await sequences(broker._store)] == [[0]]
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await client_of(broker).read_all() == ROWS[:10]


def _names_no_former(writes: Writes) -> bool:
    put = [one for one in writes if isinstance(one, Put) and one.key.startswith(PARTITIONS)]
    records = [unpack(one.value, PartitionRecord) for one in put]
    return any([one.incarnation for one in record.sequences] == [2] for record in records)


# -- quiet partitions --------------------------------------------------------------------------------------------------


async def test_a_quiet_partition_moves_on_and_an_idle_broker_writes_nothing(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), ManualClock()
    async with open_broker(tmp_path, objects=objects, crash=True, clock=clock) as broker:
        quiet, busy = await stored_topic(broker, "quiet"), await stored_topic(broker, "busy")
        sink = await quiet.subscribe()
        await published(quiet, 0, 1)
        await sink.wait_for(1)
        await sink.ack((0, 1))
        await upload_all(broker)
        await published(busy, 0, SLICES_BEHIND_MAX + 1)
        tiers = broker._tiers
        assert tiers is not None
        revision = await broker._store.revision()
        await tiers._free_slices()
        assert await broker._store.revision() == revision, "not for long enough"
        clock.advance(BEHIND_S_MAX + 1)
        freeing = asyncio.create_task(tiers._free_slices())
        await _advance_until(clock, freeing)
        records = {one[0].lowest for one in await sequences(broker._store)}
        assert len(records) == 2 and max(records) > SLICES_BEHIND_MAX, "the busy one still has data to upload"
        revision, put = await broker._store.revision(), len(await slices(objects))
        for _ in range(5):
            clock.advance(BEHIND_S_MAX + 1)
            await _advance_until(clock, asyncio.create_task(tiers._free_slices()))
        busy_only = await broker._store.revision() - revision
        assert (busy_only, len(await slices(objects)) - put) <= (1, 1), "the broker is idle"
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        quiet = client_of(broker, "quiet")
        sink = await quiet.subscribe()
        await published(quiet, 1, 2)
        assert await sink.wait_for(1) == [(1, b"1")]


async def _advance_until(clock: ManualClock, task: asyncio.Task[None]) -> None:
    while not task.done():
        clock.advance(0.5)
        await asyncio.wait([task], timeout=0.01)
    await task
