"""Staged writes across restarts: decisions continue after what is already stored. Stages that are not committed expire,
and idle queries are removed."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, TOPIC, BrokerClient
from metadata_harness import FaultyStore, deletes, puts
from staging_harness import Query, payloads, quiet, stages_in, staging_broker
from test_failing_disk import FAST_CURE, FailingDisk, until_cured
from tiering_harness import FaultyObjectStore, upload_all

from pydanube.broker.registry.records import DECISIONS, PENDING
from pydanube.broker.staging import stage_publisher, staging
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import Refused, Unavailable
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.store_ownership import StoreOwner
from waiting import until


class Hiding(MemoryStore):
    """A store that cannot read objects whose names contain `hidden`."""

    hidden = ""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        if self.hidden and self.hidden in key:
            raise Unavailable("no route to the object")
        return await super().get(key, start, end)


async def half_published(broker, objects: Hiding) -> Query:
    """Commit two stages of which only the first is published."""
    query = Query(broker)
    stages = [await query.stage(0, {0: [b"1", b"2", b"3"]}, per_batch=1), await query.stage(0, {0: [b"4", b"5"]})]
    objects.hidden = stages[1]
    assert await query.commit(0, *stages, wait_ms=0) == (False, False)
    await until(lambda: has(broker, 3))
    return query


async def has(broker, count: int) -> bool:
    return len(await payloads(broker)) == count


@pytest.mark.parametrize("ack_level", [AckLevel.DURABLE, AckLevel.WRITTEN])
async def test_a_partition_that_has_a_part_of_a_batch_gets_the_rest(tmp_path, ack_level):
    objects = Hiding()
    async with staging_broker(tmp_path, objects, crash=True) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(ack_level=ack_level))
        await half_published(broker, objects)
    objects.hidden = ""
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await payloads(broker) == [b"1", b"2", b"3", b"4", b"5"]
        assert await stages_in(objects) == []


async def test_what_was_in_memory_only_is_published_anew(tmp_path):
    objects = Hiding()
    async with staging_broker(tmp_path, objects, crash=True) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(ack_level=AckLevel.MEMORY))
        await half_published(broker, objects)
    objects.hidden = ""
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await payloads(broker) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("uploaded", [False, True])
async def test_a_partition_remembers_a_query_for_as_long_as_it_has_something_to_get(tmp_path, uploaded):
    """However many other producers come and go, and however often the broker starts."""
    objects, remembered = Hiding(), {"remembered_max": 2, "remembered_s": 0}
    async with staging_broker(tmp_path, objects, crash=True, **remembered) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await BrokerClient(broker).fetch()  # it is open before it has anything to get
        await half_published(broker, objects)
        await others(broker, b"a")
        if uploaded:
            await upload_all(broker)
    for name in (b"b", b"c"):
        async with staging_broker(tmp_path, objects, crash=True, **remembered) as broker:
            await others(broker, name)
            for partition in broker._partitions:
                partition.forget_idle_producers()
                partition.state.snapshot()
            if uploaded:
                await upload_all(broker)
    objects.hidden = ""
    async with staging_broker(tmp_path, objects, **remembered) as broker:
        await quiet(broker)
        found = await payloads(broker)
        assert [one for one in found if one.isdigit()] == [b"1", b"2", b"3", b"4", b"5"]
        (partition,) = broker._partitions
        assert not partition.remembered.pinned


async def others(broker, payload: bytes) -> None:
    for _ in range(5):
        client = BrokerClient(broker)
        await client.publish(await client.producer(), [payload], sequence=0)


async def test_published_rows_are_not_repeated_after_the_disk_refused_later_ones(tmp_path, monkeypatch):
    """The first batch's key stays, the second batch does not reach the log, and somebody else begins a new ledger."""
    objects, disk, metadata = MemoryStore(), FailingDisk(), FaultyStore()
    metadata.refuse_all(deletes(PENDING))
    monkeypatch.setattr(stage_publisher, "RETRY_S_MIN", 60.0)
    monkeypatch.setattr(stage_publisher, "RETRY_S_MAX", 60.0)
    async with staging_broker(tmp_path, objects, crash=True, disk=disk, wal=FAST_CURE, metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query, client = Query(broker), BrokerClient(broker)
        assert (await query.write(0, {0: [b"1", b"2"]})).applied
        stage = await query.stage(1, {0: [b"3"]})
        disk.write_error = errno.ENOSPC
        await query.commit(1, stage, wait_ms=0)
        await until(lambda: [one.obstacles for one in broker.staging.decisions.of(number_of(broker))][-1])
        disk.write_error = 0
        await until_cured(client, await client.producer(), sequence=0)
    monkeypatch.undo()
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await payloads(broker) == [b"1", b"2", b"after", b"3"]


def number_of(broker) -> int:
    (number,) = broker.staging.decisions._by_query
    return number


async def test_a_query_is_unpinned_once_nothing_of_it_is_pending(tmp_path):
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        for batch_id in range(3):
            await Query(broker).write(batch_id, {0: [b"1"]})
        await quiet(broker)
        (partition,) = broker._partitions
        assert partition.remembered.pinned == set()
        assert any(one.producer_id & STAGED_PRODUCER for one in partition.remembered.entries())


async def test_a_query_stays_pinned_while_a_later_batch_has_a_pending_key(tmp_path):
    objects, metadata, remembered = MemoryStore(), FaultyStore(), {"remembered_max": 1}
    first, later = metadata.hold(deletes(PENDING)), metadata.hold(deletes(PENDING))
    async with staging_broker(tmp_path, objects, crash=True, metadata=metadata, **remembered) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        for batch_id in range(2):
            assert (await Query(broker).write(batch_id, {0: [b"%d" % batch_id]})).applied
        first.go_on()
        await later.asked.wait()
        await others(broker, b"other")
        consumer = await BrokerClient(broker).subscribe()
        await consumer.wait_for(7)
        await consumer.ack((0, 7))  # is stored with a snapshot of what is remembered
    async with staging_broker(tmp_path, objects, **remembered) as broker:
        await quiet(broker)
        assert [one for one in await payloads(broker) if one.isdigit()] == [b"0", b"1"]


async def test_later_batches_wait_for_earlier_ones_also_after_a_restart(tmp_path):
    objects = Hiding()
    async with staging_broker(tmp_path, objects, crash=True) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=2))
        query = Query(broker)
        stages = [await query.stage(batch_id, {0: [b"%d" % batch_id], 1: [b"x"]}) for batch_id in range(3)]
        objects.hidden = stages[0]
        for batch_id in range(3):
            await query.commit(batch_id, stages[batch_id], wait_ms=0)
    async with staging_broker(tmp_path, objects, crash=True) as broker:
        assert await payloads(broker) == []
    objects.hidden = ""
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await payloads(broker) == [b"0", b"1", b"2"]


async def test_a_commit_that_is_repeated_after_a_restart_waits_for_what_goes_on(tmp_path):
    objects = Hiding()
    async with staging_broker(tmp_path, objects, crash=True) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        objects.hidden = stage
        await Query(broker).commit(0, stage, wait_ms=0)
    async with staging_broker(tmp_path, objects) as broker:
        assert await Query(broker).commit(0, stage, wait_ms=10) == (True, False)
        objects.hidden = ""
        assert await Query(broker).commit(0, stage) == (True, True)
        assert await payloads(broker) == [b"1"]


async def test_a_topic_that_is_gone_after_the_restart_gets_nothing(tmp_path):
    objects = Hiding()
    async with staging_broker(tmp_path, objects, crash=True) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        objects.hidden = stage
        await Query(broker).commit(0, stage, wait_ms=0)
        await broker.staging.close()
        await broker.topics.delete(ANONYMOUS, TOPIC)
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await stages_in(objects) == []


# -- metadata that fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 120])
@pytest.mark.parametrize("written", [False, True])
async def test_an_uncertain_commit_can_be_repeated(tmp_path, monkeypatch, written, partitions):
    """Whoever looks whether it was written then stops at once."""
    monkeypatch.setattr(staging, "UNCERTAIN_RETRY_S", 1e6)
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=partitions))
        query = Query(broker)
        stage = await query.stage(0, {index: [b"1"] for index in range(partitions)})
        doubt = metadata.lose_answer if written else metadata.refuse
        doubt(puts(DECISIONS))
        with pytest.raises(Unavailable, match="hiccuped"):
            await query.commit(0, stage)
        assert await query.commit(0, stage) == (written, True)
        await until(lambda: len(broker.staging._tasks) == 1)  # the expiry of stages
        await query.write(1, {0: [b"2"]})
        assert await payloads(broker) == [b"1", b"2"]


async def test_an_uncertain_commit_that_was_written_is_published_without_a_repetition(tmp_path):
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        metadata.lose_answer(puts(DECISIONS))
        with pytest.raises(Unavailable, match="hiccuped"):
            await Query(broker).commit(0, stage)
        await until(lambda: has(broker, 1))


# -- partitions that do not take it ---------------------------------------------------------------------------------


async def test_a_partition_whose_quota_is_full_gets_its_share_when_there_is_room(tmp_path):
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=2))
        consumer = await BrokerClient(broker).subscribe("slow", credit=0)
        await broker.policies.set(ANONYMOUS, TOPIC, {"backlog_messages_max": 2})
        query = Query(broker)
        await query.write(0, {0: [b"1", b"2"]})
        stage = await query.stage(1, {0: [b"3"], 1: [b"other"]})
        assert await query.commit(1, stage, wait_ms=100) == (False, False)
        await until(lambda: arrived_beside(broker))
        assert await payloads(broker) == [b"1", b"2"]
        consumer.consumer.credit(10, 1 << 20)
        await consumer.wait_for(2)
        await consumer.ack((0, 2))
        assert await query.commit(1, stage) == (True, True)
        assert await payloads(broker) == [b"1", b"2", b"3"]


async def arrived_beside(broker) -> bool:
    return await payloads(broker, 1) == [b"other"]


async def test_a_topic_with_an_exclusive_producer_gets_what_was_committed_before(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        objects.fault = "unreadable"
        await Query(broker).commit(0, stage, wait_ms=0)
        await BrokerClient(broker).producer(access="exclusive")
        objects.fault = "none"
        assert await Query(broker).commit(0, stage) == (True, True)


# -- disasters -----------------------------------------------------------------------------------------------------


async def test_after_a_restore_a_query_goes_on_behind_its_last_batch(tmp_path: Path):
    objects = MemoryStore()
    (tmp_path / "before").mkdir()
    async with staging_broker(tmp_path / "before", objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await Query(broker).write(4, {0: [b"1"]})
        await quiet(broker)
        await upload_all(broker)
        before = await broker.staging._records.find(ANONYMOUS, "query")
        await broker._tiers.manifests.write()
    (tmp_path / "after").mkdir()
    clock = SystemClock()
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", clock) as store:
        await rebuild(objects, store, clock, StoreOwner("cluster"))
    async with staging_broker(tmp_path / "after", objects) as broker:
        assert await Query(broker).commit(4) == (True, True)
        await Query(broker).write(5, {0: [b"2"]})
        await Query(broker, "another").write(0, {0: [b"3"]})
        assert await payloads(broker) == [b"1", b"2", b"3"]
        known, another = (
            await broker.staging._records.find(ANONYMOUS, "query"),
            await broker.staging._records.find(ANONYMOUS, "another"),
        )
        assert known.record.number == before.record.number < another.record.number


async def test_many_queries_write_at_once(tmp_path):
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=4))

        async def write(number: int) -> None:
            query = Query(broker, f"query {number}")
            for batch_id in range(5):
                rows = {index: [b"%d %d" % (number, batch_id)] for index in range(4)}
                assert await query.write(batch_id, rows) == (False, True)

        await asyncio.gather(*[write(number) for number in range(10)])
        for index in range(4):
            found = await payloads(broker, index)
            assert len(found) == 50
            for number in range(10):
                ours = [one for one in found if one.startswith(b"%d " % number)]
                assert ours == [b"%d %d" % (number, batch_id) for batch_id in range(5)]


DAY_S = 86_400


@pytest.fixture
async def aging(tmp_path, clock):
    objects = MemoryStore(clock=clock)
    async with staging_broker(
        tmp_path, objects, clock=clock, tiering=replace(TIERING, staged_query_keep_s=10 * DAY_S)
    ) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        yield broker


async def test_an_uncommitted_stage_expires_and_a_later_commit_of_it_is_refused(aging, clock):
    query = Query(aging)
    old = await query.stage(0, {0: [b"old"]})
    clock.advance(DAY_S - 1)
    assert await aging.staging.expiry.expire_stages() == 0
    young = await query.stage(0, {0: [b"young"]})
    clock.advance(2)
    assert await aging.staging.expiry.expire_stages() == 1
    with pytest.raises(Refused, match="has expired"):
        await query.commit(0, old, young)
    assert await payloads(aging) == []
    assert await query.commit(0, young) == (False, True)


async def test_a_committed_stage_does_not_expire(tmp_path, clock):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects, clock=clock) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        objects.fault = "unreadable"
        assert await Query(broker).commit(0, stage, wait_ms=0) == (False, False)
        clock.advance(10 * DAY_S)
        assert await broker.staging.expiry.expire_stages() == 0
        objects.fault = "none"

        async def is_there() -> bool:
            clock.advance(10)
            return await payloads(broker) == [b"1"]

        await until(is_there)


async def test_an_expiry_between_the_check_of_a_stage_and_the_decision_wins(aging, clock, monkeypatch):
    query = Query(aging)
    stage = await query.stage(0, {0: [b"1"]})
    clock.advance(2 * DAY_S)
    check = aging.staging._check_stages

    async def expire_meanwhile(*arguments):
        await check(*arguments)
        await aging.staging.expiry.expire_stages()

    monkeypatch.setattr(aging.staging, "_check_stages", expire_meanwhile)
    with pytest.raises(Refused, match="has expired"):
        await query.commit(0, stage)
    assert await payloads(aging) == []


async def test_a_decision_between_reading_and_writing_the_record_by_an_expiry_wins(aging, clock, monkeypatch):
    query = Query(aging)
    stage = await query.stage(0, {0: [b"1"]})
    clock.advance(2 * DAY_S)
    find = aging.staging.expiry.records.find_number

    async def commit_meanwhile(number):
        found = await find(number)
        monkeypatch.setattr(aging.staging.expiry.records, "find_number", find)
        await query.commit(0, stage)
        return found

    monkeypatch.setattr(aging.staging.expiry.records, "find_number", commit_meanwhile)
    await aging.staging.expiry.expire_stages()
    assert await query.commit(0, stage) == (True, True)
    assert await payloads(aging) == [b"1"]


async def test_a_query_is_remembered_longer_than_its_stages_and_then_forgotten(aging, clock):
    query = Query(aging)
    await query.write(0, {0: [b"1"]})
    await quiet(aging)
    clock.advance(9 * DAY_S)
    assert await aging.staging.expiry.forget_queries() == 0
    assert await query.commit(0) == (True, True)
    clock.advance(2 * DAY_S)
    assert await aging.staging.expiry.forget_queries() == 1
    assert await query.write(0, {0: [b"again"]}) == (False, True)
    assert await payloads(aging) == [b"1", b"again"]


async def test_stages_of_a_removed_query_are_deleted(aging, clock):
    query = Query(aging)
    await query.stage(0, {0: [b"1"]})
    clock.advance(11 * DAY_S)
    assert await aging.staging.expiry.forget_queries() == 1
    await aging.staging.expiry.expire_stages()
    assert await stages_in(aging._tiers.objects) == []


async def test_the_collection_of_orphans_leaves_stages_alone(aging, clock):
    stage = await Query(aging).stage(0, {0: [b"1"]})
    clock.advance(DAY_S / 2)
    await aging._tiers.collector.collect_orphans()
    assert await Query(aging).commit(0, stage) == (False, True)
