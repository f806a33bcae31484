"""A `stored` topic on one broker: what was acked is in the object store, and a restart finds it there, once."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path

import pytest
from broker_harness import TOPIC, open_broker, truncate
from metadata_harness import FaultyStore, Writes
from stored_harness import Death, MortalStore, client_of, markers, mortal_metadata, slices, stored_topic
from test_failing_disk import FAST_CURE, FailingDisk, until_cured
from tiering_harness import SMALL, WAL, everything, filled, upload_all

from pydanube.broker import Producer
from pydanube.broker.partitions import slice_takeover
from pydanube.broker.partitions.sliced_log import SlicedLog
from pydanube.broker.registry.records import DROPPED, PARTITIONS
from pydanube.codec.slice import slice_key
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import DanubeError, NotOwner, StaleEpoch
from pydanube.model.positions import Position
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Seek
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.clock import MICROSECONDS, SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

ROWS = [(n, b"%d" % n) for n in range(30)]


async def published(client, first: int = 0, last: int = 30, producer=None) -> None:
    """Publish the payloads [first, last) in batches of 5, one after the other."""
    producer = producer or await client.producer()
    for n in range(first, last, 5):
        await client.publish(producer, [b"%d" % one for one in range(n, min(n + 5, last))])


async def test_everything_acked_is_at_its_offset_once_after_a_kill(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        await published(await stored_topic(broker))
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        assert await client.read_all() == ROWS
        answer = await client.publish(await client.producer(), [b"30"])
        assert answer.base_offset == 30
        assert await client.read_all() == [*ROWS, (30, b"30")]


class ReadSegments(MemoryStore):
    """Counts the reads of segments."""

    def __init__(self) -> None:
        super().__init__()
        self.segments_read = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        self.segments_read += not key.startswith("slices/")
        return await super().get(key, start, end)


async def test_a_new_owner_has_what_its_subscriptions_need_in_memory(tmp_path: Path) -> None:
    objects = ReadSegments()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        sink = await client.subscribe()
        await published(client)
        await sink.wait_for(30)
        await sink.ack((0, 12))
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        await client.publish(await client.producer(), [b"30"])  # the partition is open
        objects.segments_read = 0
        sink = await client.subscribe()
        assert await sink.wait_for(19) == [*ROWS[12:], (30, b"30")]
        assert objects.segments_read == 0
        assert await client.read_all() == [*ROWS, (30, b"30")]
        assert objects.segments_read > 0, "older messages, which every subscription has acked"


async def test_nothing_of_the_local_log_is_needed_after_a_kill(tmp_path: Path) -> None:
    """The object store alone has it: the next broker has an empty log."""
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await published(client)
        sink = await client.subscribe()
        await sink.wait_for(30)
        await sink.ack((0, 10), (12, 15))
    for file in (tmp_path / "wal").iterdir():
        file.unlink()
    async with open_broker(tmp_path, objects=objects, stamped=False) as broker:
        client = client_of(broker)
        assert await client.read_all() == ROWS
        again = await client.subscribe()
        assert await again.wait_for(17) == [ROWS[10], ROWS[11], *ROWS[15:]]


async def test_a_batch_that_is_sent_again_after_a_kill_is_recognised(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        producer = await client.producer("till")
        first = await client.publish(producer, [b"a", b"b"], sequence=0)
        second = await client.publish(producer, [b"c"], sequence=2)
    for _ in range(2):  # the second start has the producer table from the first one's snapshot
        async with open_broker(tmp_path, objects=objects, crash=True) as broker:
            client = client_of(broker)
            producer = await client.come_back(producer, "till")
            again = await client.publish(producer, [b"c"], sequence=2)
            assert (again.base_offset, again.duplicate) == (second.base_offset, True)
            assert (await client.publish(producer, [b"a", b"b"], sequence=0)).base_offset == first.base_offset
            assert await client.read_all() == [(0, b"a"), (1, b"b"), (2, b"c")]


async def test_acked_ranges_and_a_seek_survive_a_kill(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await published(client)
        sink = await client.subscribe(kind=SubscriptionType.SHARED)
        await sink.wait_for(30)
        await sink.ack((2, 7), (9, 10))
        other = await client.subscribe("audit")
        await other.wait_for(30)
        await other.ack((0, 30))
        await broker.subscriptions.seek(
            ANONYMOUS, Seek(topic=TOPIC, subscription="audit", position=Position("offset", 20))
        )
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        sink = await client.subscribe(kind=SubscriptionType.SHARED)
        assert await sink.wait_for(24) == [one for one in ROWS if one[0] not in (2, 3, 4, 5, 6, 9)]
        other = await client.subscribe("audit")
        assert await other.wait_for(10) == ROWS[20:]


async def test_an_ack_without_a_waiter_counts_within_the_state_interval(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await published(client)
        sink = await client.subscribe()
        await sink.wait_for(30)
        sink.consumer.ack([(0, 30)], False, None)
        before = len(await slices(objects))
        async with asyncio.timeout(20):
            while len(await slices(objects)) == before:  # noqa: ASYNC110 the slice leaves by a timer of its own
                await asyncio.sleep(0.02)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        sink = await client.subscribe()
        await client.publish(await client.producer(), [b"30"])
        assert await sink.wait_for(1) == [(30, b"30")]


async def test_delayed_messages_come_when_due_after_a_kill(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), SystemClock()
    due = clock.now_us() + MICROSECONDS // 2
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        sink = await client.subscribe(kind=SubscriptionType.SHARED)
        await client.publish(await client.producer(), [b"later", b"now"], deliver_at=[due, 0])
        assert await sink.wait_for(1) == [(1, b"now")]
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        sink = await client_of(broker).subscribe(kind=SubscriptionType.SHARED)
        assert sorted(await sink.wait_for(2)) == [(0, b"later"), (1, b"now")]
        assert clock.now_us() >= due


async def test_an_exclusive_producer_keeps_the_older_one_fenced_after_a_kill(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        older = await client.producer(access="exclusive")
        newer = await client.producer(access="exclusive")
        await client.publish(newer, [b"0"], sequence=0)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        with pytest.raises(StaleEpoch):
            await client.come_back(older, access="exclusive")
        await client.publish(await client.come_back(newer, access="exclusive"), [b"1"], sequence=1)
        assert await client.read_all() == [(0, b"0"), (1, b"1")]


async def test_a_failing_disk_gives_no_offset_twice(tmp_path: Path) -> None:
    """What the disk refuses was in a slice already: its offsets are given out again, and the later batch has them."""
    objects, disk = MemoryStore(), FailingDisk()
    async with open_broker(tmp_path, objects=objects, disk=disk, wal=FAST_CURE, crash=True) as broker:
        client = await stored_topic(broker)
        producer = await client.producer("till")
        await client.publish(producer, [b"0", b"1"], sequence=0)
        before = len(await slices(objects))
        disk.write_error = errno.EIO
        with pytest.raises(DanubeError):
            await client.publish(producer, [b"lost", b"lost", b"lost"], sequence=2)
        disk.write_error = 0
        await until_cured(client, producer, 2)
        rows = await client.read_all()
        assert rows == [(0, b"0"), (1, b"1"), (2, b"after")]
        assert len(await slices(objects)) > before + 1, "the refused batch was put as well"
        await upload_all(broker)
        assert await client.read_all() == rows
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        assert await client.read_all() == rows
        assert (await client.publish(await client.producer(), [b"3"])).base_offset == 3


async def test_a_failing_disk_gives_no_offset_twice_to_a_taker(tmp_path: Path) -> None:
    """As above, and nothing was uploaded before the broker died: the taker finds both batches in the slices."""
    objects, disk = MemoryStore(), FailingDisk()
    async with open_broker(tmp_path, objects=objects, disk=disk, wal=FAST_CURE, crash=True) as broker:
        client = await stored_topic(broker)
        producer = await client.producer("till")
        await client.publish(producer, [b"0", b"1"], sequence=0)
        disk.write_error = errno.EIO
        with pytest.raises(DanubeError):
            await client.publish(producer, [b"lost", b"lost", b"lost"], sequence=2)
        disk.write_error = 0
        await until_cured(client, producer, 2)
        await client.publish(producer, [b"4"], sequence=3)
        rows = await client.read_all()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        assert await client.read_all() == rows == [(0, b"0"), (1, b"1"), (2, b"after"), (3, b"4")]
        producer = await client.come_back(producer, "till")
        assert (await client.publish(producer, [b"4"], sequence=3)).duplicate


async def test_a_topic_is_unloaded_and_opened_again_in_one_process(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        other = await stored_topic(broker, "other")
        for first in (0, 10, 20):
            await published(client, first, first + 10)
            await published(other, first, first + 10)
            await broker.topics.unload(UnloadTopic(topic=TOPIC))
            assert await client.read_all() == ROWS[: first + 10]
        assert await other.read_all() == ROWS
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await client_of(broker).read_all() == ROWS
        assert await client_of(broker, "other").read_all() == ROWS


async def test_truncated_messages_stay_gone_after_a_kill(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        sink = await client.subscribe()
        await published(client)
        await sink.wait_for(30)
        assert await truncate(broker, TOPIC, {0: 12}) == {0: 12}
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        assert await client.read_all() == [*ROWS[10:]], "a batch goes as a whole"
        assert (await client.fetch()).start_offset == 12
        sink = await client.subscribe()
        assert await sink.wait_for(18) == ROWS[12:]
        await truncate(broker, TOPIC, {0: 30})
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = client_of(broker)
        assert (await client.fetch()).start_offset == 30
        assert (await client.publish(await client.producer(), [b"30"])).base_offset == 30
        assert await client.read_all() == [(30, b"30")]


async def test_uploaded_messages_are_read_from_segments_and_the_rest_from_slices(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
        client = await stored_topic(broker)
        await filled(client, 30)
        await upload_all(broker)
        await filled(client, 10, first=30)
    for _ in range(2):
        async with open_broker(tmp_path, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
            assert await everything(client_of(broker)) == list(range(4000))


async def test_a_broker_that_stops_cleanly_seals_its_own_sequence(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects) as broker:
        await published(await stored_topic(broker))
        assert not await markers(objects)
    assert await markers(objects) == [slice_key(1, len(await slices(objects)))]
    async with open_broker(tmp_path, objects=objects) as broker:
        assert await client_of(broker).read_all() == ROWS


async def test_a_subscription_that_was_created_is_there_after_a_kill(tmp_path: Path) -> None:
    """Its answer came when its entry counted, also when nothing was ever published after it."""
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await published(client, 0, 10)
        await client.subscribe(start=Position("latest"))
        await published(client, 10, 30)
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        assert await (await client_of(broker).subscribe()).wait_for(20) == ROWS[10:]


# -- takers that die ---------------------------------------------------------------------------------------------------


async def _left_behind(directory: Path, objects: MortalStore) -> dict[str, Producer]:
    """Kill a broker that had two partitions, something uploaded, cursors and a producer; return that of each topic."""
    producers = {}
    async with open_broker(directory, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
        for name in ("orders", "other"):
            client = await stored_topic(broker, name)
            producer = producers[name] = await client.producer("till")
            sink = await client.subscribe()
            await published(client, 0, 10)
            await upload_all(broker)
            await published(client, 10, 28)
            await client.publish(producer, [b"28", b"29"], sequence=0)
            await sink.wait_for(30)
            await sink.ack((3, 8))
    return producers


async def _check_all(directory: Path, objects: MortalStore, producers: dict[str, Producer]) -> None:
    async with open_broker(directory, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
        for name in ("orders", "other"):
            client = client_of(broker, name)
            assert await client.read_all() == ROWS
            producer = await client.come_back(producers[name], "till")
            assert (await client.publish(producer, [b"28", b"29"], sequence=0)).duplicate
            sink = await client.subscribe()
            assert await sink.wait_for(25) == [*ROWS[:3], *ROWS[8:]]


async def _taken(directory: Path, objects: MortalStore, death: Death) -> None:
    """Take both partitions over, and publish; raises when the taker dies."""
    objects.death = death
    try:
        async with open_broker(
            directory, objects=objects, wal=WAL, tiering=SMALL, crash=True, metadata=mortal_metadata(death)
        ) as broker:
            async with asyncio.timeout(0.5 if death.after is not None else 60):
                for name in ("orders", "other"):
                    partition = await broker._partitions.get(client_of(broker, name).topic, 0)
                    state: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
                    partition.state.barrier(state.set_result)
                    if (error := await state) is not None:
                        raise error
    finally:
        objects.death = Death()


async def test_a_taker_that_dies_after_any_step_leaves_the_next_one_everything(tmp_path: Path) -> None:
    counted = Death()
    objects = MortalStore()
    producers = await _left_behind(tmp_path / "counted", objects)
    await _taken(tmp_path / "counted", objects, counted)
    await _check_all(tmp_path / "counted", objects, producers)
    assert counted.writes > 10, "sessions, seal, ends, segments, catalog, ledger, state, record"
    for after in range(counted.writes):
        directory, objects = tmp_path / f"after {after}", MortalStore()
        producers = await _left_behind(directory, objects)
        with suppress(DanubeError, TimeoutError):  # the last steps are made after the partition is served
            await _taken(directory, objects, Death(after))
        await _check_all(directory, objects, producers)


async def test_former_ledgers_and_slices_leave_in_one_transaction(tmp_path: Path) -> None:
    objects, store, seen = MemoryStore(), FaultyStore(), list[Writes]()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        await published(await stored_topic(broker))
    store.refuse_all(lambda writes: seen.append(writes) or False)  # type: ignore[func-returns-value]
    async with open_broker(tmp_path, objects=objects, crash=True, metadata=store) as broker:
        partition = await broker._partitions.get(TOPIC, 0)

        async def is_done() -> bool:
            return not partition.ownership.needs_former_slices

        await until(is_done)
        assert await broker._store.list(DROPPED)
    dropping = [writes for writes in seen if any(one.key.startswith(DROPPED) for one in writes)]
    assert len(dropping) == 1
    assert any(one.key.startswith(PARTITIONS) for one in dropping[0])


# -- mutants: each breaks one rule, and what it loses is seen ----------------------------------------------------------


async def test_state_slices_dropped_at_takeover_would_lose_cursors_and_producers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_takeover, "_state", lambda _ledgers, _records: (None, []))
    objects = MortalStore()
    producers = await _left_behind(tmp_path, objects)
    with pytest.raises(AssertionError):
        await _check_all(tmp_path, objects, producers)


async def test_a_slice_deleted_before_its_state_is_in_a_newer_snapshot_would_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record would name a slice behind the state that is still needed."""

    async def lowest_of(directory: Path) -> list[tuple[int, bytes]]:
        objects = MemoryStore()
        async with open_broker(directory, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
            client = await stored_topic(broker)
            sink = await client.subscribe()
            await published(client)
            await sink.wait_for(30)
            await sink.ack((5, 30))
            await upload_all(broker)
            await published(client, 30, 35)
            await upload_all(broker)
        async with open_broker(directory, objects=objects, wal=WAL, tiering=SMALL, crash=True) as broker:
            client = client_of(broker)
            return await (await client.subscribe()).wait_for(10)

    assert await lowest_of(tmp_path / "right") == [*ROWS[:5], *((n, b"%d" % n) for n in range(30, 35))]
    monkeypatch.setattr(SlicedLog, "lowest", lambda self, uploaded_end: self.counted_end)
    assert await lowest_of(tmp_path / "wrong") != [*ROWS[:5], *((n, b"%d" % n) for n in range(30, 35))]


async def test_partitions_that_are_opened_together_write_one_sequence(tmp_path: Path) -> None:
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker, partitions=3)
        producers = await asyncio.gather(*(client.producer(partition=index) for index in range(3)))
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(client.publish(one, [b"x"]) for one in producers))
    assert [one.base_offset for one in answers] == [0, 0, 0]
    assert len({info.key.split("/")[1] async for info in objects.list("slices/")}) == 1


async def test_a_publish_is_refused_when_the_slices_of_its_partition_have_ended(tmp_path: Path) -> None:
    async with open_broker(tmp_path, objects=MemoryStore(), crash=True) as broker:
        client = await stored_topic(broker)
        producer = await client.producer()
        assert broker._slices is not None
        broker._slices.writer().abandon(NotOwner("the incarnation is over"))
        async with asyncio.timeout(60):
            with pytest.raises(NotOwner, match="the incarnation is over"):
                await client.publish(producer, [b"x"])
