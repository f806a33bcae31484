"""Staged writes while stores fail, partitions wait and topics are deleted. Staged writes and concurrent events: manual
deletion of stages, cancellation, removal of the query, a restore."""

import asyncio
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient
from metadata_harness import FaultyStore, deletes, puts
from staging_harness import NeverRetried, Query, payloads, quiet, staged_keys, stages_in, staging_broker
from test_staging_restart import Hiding
from tiering_harness import FaultyObjectStore, keys, upload_all

from pydanube.broker.registry.records import DECISIONS, PENDING, query_key, topic_key
from pydanube.broker.staging import stage_publisher, staging
from pydanube.broker.staging.decisions import WRITES_AT_ONCE
from pydanube.broker.staging.stage_publisher import PUBLICATIONS_AT_ONCE
from pydanube.broker.staging.stage_reader import CHECKS_AT_ONCE
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.core.staging import UNAPPLIED_MAX
from pydanube.metadata import store as metadata_store
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Delete
from pydanube.model.errors import Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.objects import ObjectInfo
from pydanube.runtime.objects.local import LocalStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.retry import LONGEST_SECONDS
from pydanube.storage.segments.store_ownership import StoreOwner
from waiting import until

# -- stores that fail ----------------------------------------------------------------------------------------------


async def test_a_stage_that_the_store_did_not_take_is_unavailable_and_the_next_try_works(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        first = await query.stage(0, {0: [b"0"]})
        for fault in ("away", "crashing", "put and failed"):
            objects.fault = fault
            with pytest.raises(Unavailable):
                await query.stage(0, {0: [b"0"]})
        objects.fault = "none"
        await query.commit(0, first)
        assert await payloads(broker) == [b"0"]


async def test_a_commit_whose_stages_cannot_be_read_now_is_unavailable_and_not_decided(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
    async with staging_broker(tmp_path, objects) as broker:
        objects.fault = "unreadable"
        with pytest.raises(Unavailable):
            await Query(broker).commit(0, stage)
        objects.fault = "none"
        assert await Query(broker).commit(0, stage) == (False, True)


async def test_a_decision_waits_until_the_store_can_be_read(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stage = await query.stage(0, {0: [b"1"]})
        objects.fault = "unreadable"
        assert await query.commit(0, stage, wait_ms=50) == (False, False)
        (about,) = (await broker.staging.queries(ANONYMOUS, "", 10)).queries
        assert (about.pending, about.last_batch_id) == (1, 0)
        await until(lambda: obstacle(broker))
        objects.fault = "none"
        assert await query.commit(0, stage) == (True, True)
        assert await payloads(broker) == [b"1"]


async def test_a_bug_while_publishing_is_reported_and_the_decision_is_retried(tmp_path, monkeypatch):
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stage = await query.stage(0, {0: [b"1"]})
        with monkeypatch.context() as mistaken:
            mistaken.setattr("pydanube.broker.staging.stage_publisher.rows_to_skip", lambda *_: 1 / 0)
            assert await query.commit(0, stage, wait_ms=50) == (False, False)
            await until(lambda: obstacle(broker))
            assert "internal error: ZeroDivisionError" in await obstacle(broker)
        assert await query.commit(0, stage) == (True, True)
        assert await payloads(broker) == [b"1"]


async def arrived(broker, partition: int, expected: list[bytes]) -> bool:
    return await payloads(broker, partition) == expected


async def obstacle(broker) -> str:
    (about,) = (await broker.staging.queries(ANONYMOUS, "", 10)).queries
    return about.obstacle


async def test_a_query_that_is_too_far_ahead_of_its_partitions_waits(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stages = [await query.stage(batch_id, {0: [b"%d" % batch_id]}) for batch_id in range(UNAPPLIED_MAX + 1)]
        objects.fault = "unreadable"
        for batch_id in range(UNAPPLIED_MAX):
            assert await query.commit(batch_id, stages[batch_id], wait_ms=0) == (False, False)
        with pytest.raises(Unavailable, match="commit again"):
            await query.commit(UNAPPLIED_MAX, stages[-1])
        objects.fault = "none"
        await quiet(broker)
        await query.commit(UNAPPLIED_MAX, stages[-1])
        assert await payloads(broker) == [b"%d" % number for number in range(UNAPPLIED_MAX + 1)]


async def test_a_stage_that_was_damaged_after_the_decision_stops_its_partitions_and_no_others(tmp_path):
    objects = await LocalStore.open(tmp_path / "objects")
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=2))
        query = Query(broker)
        stage = await query.stage(0, {0: [b"1" * 100], 1: [b"2"]})
        (key,) = await stages_in(objects)
        data = bytearray(await objects.get(key))
        data[data.index(b"1" * 100)] ^= 1
        await objects.put(key, bytes(data))
        assert await query.commit(0, stage, wait_ms=10) == (False, False)
        await until(lambda: obstacle(broker))
        assert "checksum" in await obstacle(broker)
        await until(lambda: arrived(broker, 1, [b"2"]))
        await broker.staging.forget(ANONYMOUS, "query")
        assert await staged_keys(broker) == []
        assert await stages_in(objects) == []
    await objects.close()


async def test_a_query_whose_stage_is_lost_holds_up_no_other_query_in_the_same_partition(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        lost = await Query(broker, "unlucky").stage(0, {0: [b"lost"]})
        objects.fault = "unreadable"
        assert await Query(broker, "unlucky").commit(0, lost, wait_ms=10) == (False, False)
        await objects.delete(await stages_in(objects))
        objects.fault = "none"
        await until(lambda: obstacle(broker))
        assert (await Query(broker, "lucky").write(0, {0: [b"1"]})).applied
        assert (await Query(broker, "lucky").write(1, {0: [b"2"]})).applied
        assert await payloads(broker) == [b"1", b"2"]


async def test_a_lost_stage_is_given_up_as_soon_as_its_topic_is_deleted(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects, clock=NeverRetried()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        lost = await Query(broker).stage(0, {0: [b"lost"]})
        objects.fault = "unreadable"
        await Query(broker).commit(0, lost, wait_ms=0)
        await objects.delete(await stages_in(objects))
        objects.fault = "none"

        async def is_found_lost() -> bool:
            return "is not in" in await obstacle(broker)

        await until(is_found_lost)
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await quiet(broker)
        assert broker.staging.decisions.publisher.dropped == 1


async def test_partitions_that_a_publish_rate_holds_back_hold_up_no_others(tmp_path):
    slow, count = TopicName.parse("/default/slow"), PUBLICATIONS_AT_ONCE + 8
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await broker.topics.create(ANONYMOUS, slow, TopicConfig(partitions=count))
        await broker.policies.set(ANONYMOUS, slow, {"publish_messages_per_s": 1})
        rows = {index: [b"%d" % row for row in range(400)] for index in range(count)}
        held = Query(broker, "held back", topic=slow)
        stage = await held.stage(0, rows, per_batch=100)
        assert await held.commit(0, stage, wait_ms=100) == (False, False)
        async with asyncio.timeout(60):  # the others take minutes
            assert (await Query(broker).write(0, {0: [b"1"]})).applied
        await broker.policies.set(ANONYMOUS, slow, {"publish_messages_per_s": 0})
        assert await held.commit(0, stage) == (True, True)
        assert [await payloads(broker, index, slow) for index in range(count)] == list(rows.values())


# -- topics that go ------------------------------------------------------------------------------------------------


async def test_messages_for_a_deleted_topic_are_dropped_and_the_others_are_published(tmp_path):
    objects, gone = FaultyObjectStore(), TopicName.parse("/default/gone")
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await broker.topics.create(ANONYMOUS, gone, TopicConfig(partitions=2))
        query = Query(broker)
        stages = [await query.stage(0, {0: [b"1"]}), await Query(broker, topic=gone).stage(0, {0: [b"2"], 1: [b"3"]})]
        objects.fault = "unreadable"
        assert await query.commit(0, *stages, wait_ms=0) == (False, False)
        await broker.topics.delete(ANONYMOUS, gone)
        await broker.topics.create(ANONYMOUS, gone, TopicConfig(partitions=2))
        objects.fault = "none"
        assert await query.commit(0, *stages) == (True, True)
        await quiet(broker)
        assert await payloads(broker) == [b"1"]
        assert await payloads(broker, topic=gone) == []
        assert broker.staging.decisions.publisher.dropped == 2
        assert await staged_keys(broker) == []


async def test_a_topic_that_waits_for_stages_is_in_use(tmp_path):
    objects = FaultyObjectStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        assert not broker._deletion.in_use(TOPIC)
        objects.fault = "unreadable"
        await Query(broker).commit(0, stage, wait_ms=0)
        assert broker._deletion.in_use(TOPIC)
        objects.fault = "none"


async def test_a_decision_waits_while_a_deletion_is_uncertain_and_is_published_if_the_topic_stays(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(stage_publisher, "RETRY_S_MAX", 0.05)
    monkeypatch.setattr(stage_publisher, "LOST_RETRY_S", 0.01)
    objects, metadata = FaultyObjectStore(), FaultyStore()
    async with staging_broker(tmp_path, objects, metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stage = await query.stage(0, {0: [b"1", b"2"]})
        objects.fault = "unreadable"
        assert await query.commit(0, stage, wait_ms=0) == (False, False)
        in_doubt = metadata.hold_refusal(deletes(topic_key(TOPIC)))
        deleting = asyncio.create_task(broker.topics.delete(ANONYMOUS, TOPIC))
        await in_doubt.asked.wait()
        objects.fault = "none"

        async def has_missed_its_topic() -> bool:
            return str(TOPIC) in await obstacle(broker)

        await until(has_missed_its_topic)
        in_doubt.go_on()
        with pytest.raises(Unavailable):
            await deleting
        assert await query.commit(0, stage) == (True, True)
        assert await payloads(broker) == [b"1", b"2"]
        assert broker.staging.decisions.publisher.dropped == 0


# -- topics without clients ----------------------------------------------------------------------------------------


@pytest.fixture
def metadata() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
async def unused(tmp_path, metadata):
    """Yield a client of a topic that the next round deletes, unless staged messages for it are not published yet."""
    clock = ManualClock()
    objects = MemoryStore(clock=clock)
    async with staging_broker(tmp_path, objects, clock=clock, metadata=metadata) as broker:
        client = BrokerClient(broker, clock=clock)
        await client.create(partitions=WRITES_AT_ONCE + 1)
        await client.policies(inactive_topic_s=3600)
        clock.advance(3600)
        yield client


async def is_kept(client: BrokerClient) -> bool:
    await client.broker._lifetimes.round()
    return str(TOPIC) in await client.broker.topics.names(ANONYMOUS)


async def test_an_unused_topic_stays_while_the_pending_keys_of_a_decision_are_written(unused, metadata):
    query = Query(unused.broker)
    stage = await query.stage(0, {index: [b"1"] for index in range(WRITES_AT_ONCE + 1)})
    spreading = metadata.hold(puts(PENDING))
    assert await query.commit(0, stage, wait_ms=0) == (False, False)
    await spreading.asked.wait()
    assert await is_kept(unused)
    spreading.go_on()
    assert await query.commit(0, stage) == (True, True)
    assert await payloads(unused.broker, WRITES_AT_ONCE) == [b"1"]


async def test_a_decision_whose_pending_keys_do_not_fit_one_transaction_is_spread_over_several(unused, monkeypatch):
    monkeypatch.setattr(metadata_store, "METADATA_TRANSACTION_BYTES_MAX", 1_500)
    query = Query(unused.broker)
    stage = await query.stage(0, {index: [b"1"] for index in range(50)})
    assert await query.commit(0, stage) == (False, True)
    for index in range(50):
        assert await payloads(unused.broker, index) == [b"1"]


async def test_an_unused_topic_stays_while_a_commit_is_in_progress(unused, metadata):
    query = Query(unused.broker)
    stage = await query.stage(0, {0: [b"1"]})
    deciding = metadata.hold(puts(DECISIONS))
    committing = asyncio.create_task(query.commit(0, stage))
    await deciding.asked.wait()
    assert await is_kept(unused)
    deciding.go_on()
    assert await committing == (False, True)
    assert await payloads(unused.broker) == [b"1"]


@pytest.mark.parametrize("written", [False, True])
async def test_an_unused_topic_stays_while_a_commit_is_uncertain(unused, metadata, written):
    broker = unused.broker
    stage = await Query(broker).stage(0, {0: [b"1"]})
    doubt = metadata.lose_answer if written else metadata.refuse
    doubt(puts(DECISIONS))
    with pytest.raises(Unavailable):
        await Query(broker).commit(0, stage)
    assert await is_kept(unused)
    unused.clock.advance(LONGEST_SECONDS)
    await until(lambda: not broker.staging._uncertain)
    await quiet(broker)
    assert await payloads(broker) == [b"1"] * written
    unused.clock.advance(3600)
    assert not await is_kept(unused)


async def test_an_unused_topic_is_deleted_although_its_published_pending_keys_are_left(unused, metadata):
    sweeping = metadata.hold(deletes(PENDING))
    assert (await Query(unused.broker).write(0, {0: [b"1"]})).applied
    await sweeping.asked.wait()
    unused.clock.advance(3600)
    assert not await is_kept(unused)
    sweeping.go_on()
    await quiet(unused.broker)
    assert await staged_keys(unused.broker) == []


class Counting(MemoryStore):
    """A store that counts how many calls check for objects at the same time."""

    looking = most = 0

    async def head(self, key: str) -> ObjectInfo:
        self.looking += 1
        self.most = max(self.most, self.looking)
        try:
            await asyncio.sleep(0)
            return await super().head(key)
        finally:
            self.looking -= 1


# -- stages that were deleted by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_a_commit_is_refused_if_one_of_its_stages_was_deleted_from_the_store(tmp_path, position):
    objects = MemoryStore()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stages = [await query.stage(0, {0: [b"%d" % number]}) for number in range(3)]
        await objects.delete([key for key in await stages_in(objects) if key.endswith(stages[position])])
        with pytest.raises(Refused, match="not there"):
            await query.commit(0, *stages)
        assert await payloads(broker) == []
        stages[position] = await query.stage(0, {0: [b"%d" % position]})
        assert await query.commit(0, *stages) == (False, True)
        assert await payloads(broker) == [b"0", b"1", b"2"]


async def test_a_commit_checks_a_limited_number_of_stages_concurrently(tmp_path):
    objects = Counting()
    async with staging_broker(tmp_path, objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stages = [await query.stage(0, {0: [b"%d" % number]}) for number in range(2 * CHECKS_AT_ONCE)]
        assert await query.commit(0, *stages) == (False, True)
        assert objects.most == CHECKS_AT_ONCE


# -- commits that were cancelled -----------------------------------------------------------------------------------


async def cancelled_commit(broker, metadata: FaultyStore, written: bool) -> str:
    stage = await Query(broker).stage(0, {0: [b"1"]})
    hanging = metadata.hold_answer(puts(DECISIONS)) if written else metadata.hold(puts(DECISIONS))
    commit = asyncio.create_task(Query(broker).commit(0, stage))
    await hanging.asked.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    return stage


@pytest.mark.parametrize("written", [False, True])
async def test_a_commit_that_was_cancelled_can_be_repeated(tmp_path, written):
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await cancelled_commit(broker, metadata, written)
        assert await Query(broker).commit(0, stage) == (written, True)
        await Query(broker).write(1, {0: [b"2"]})
        assert await payloads(broker) == [b"1", b"2"]


async def test_a_cancelled_commit_that_was_written_is_published_without_a_repetition(tmp_path):
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await cancelled_commit(broker, metadata, written=True)

        async def is_there() -> bool:
            return await payloads(broker) == [b"1"]

        await until(is_there)


async def test_a_commit_that_is_cancelled_while_the_broker_closes_is_only_cancelled(tmp_path):
    objects, metadata = MemoryStore(), FaultyStore()
    async with staging_broker(tmp_path, objects, metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        await broker.staging._tasks.close()
        await cancelled_commit(broker, metadata, written=True)
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await payloads(broker) == [b"1"]


async def test_an_uncertain_decision_is_removed_with_its_query(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "UNCERTAIN_RETRY_S", 1e6)
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        stage = await Query(broker).stage(0, {0: [b"1"]})
        metadata.lose_answer(puts(DECISIONS))
        with pytest.raises(Unavailable, match="hiccuped"):
            await Query(broker).commit(0, stage)
        await broker.staging.forget(ANONYMOUS, "query")
        assert await metadata.list(DECISIONS) == []
        await until(lambda: len(broker.staging._tasks) == 1)  # the expiry of stages: nobody looks for it any more
        await Query(broker).write(0, {0: [b"anew"]})
        assert await payloads(broker) == [b"anew"]


# -- queries that are removed --------------------------------------------------------------------------------------


class Removing:
    """A metadata store that lets a stage arrive when the record of a query is about to be removed."""

    def __init__(self, broker) -> None:
        self._broker = broker
        self._store = broker.staging._records._store
        self.stage: asyncio.Task[str] | None = None

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def transact(self, compares, writes):
        if self.stage is None and any(isinstance(one, Delete) and one.key == query_key("query") for one in writes):
            self.stage = asyncio.create_task(Query(self._broker).stage(1, {0: [b"between"]}))
            await until(lambda: self.stage.done() or self._broker.staging._records._locks["query"][1] > 1)
        return await self._store.transact(compares, writes)


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_stage_that_comes_while_its_query_is_removed_counts_for_the_new_one(tmp_path, monkeypatch, by_hand):
    async with staging_broker(tmp_path, MemoryStore()) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        await query.write(0, {0: [b"before"]})
        await quiet(broker)
        store = broker.staging._records._store = Removing(broker)
        if by_hand:
            await broker.staging.forget(ANONYMOUS, "query")
        else:
            monkeypatch.setattr(broker.staging.expiry, "query_keep_s", -1)
            assert await broker.staging.expiry.forget_queries() == 1
        assert await query.commit(1, await store.stage) == (False, True)
        assert await query.write(2, {0: [b"after"]}) == (False, True)
        assert await payloads(broker) == [b"before", b"between", b"after"]


# -- batches that a partition has a part of ------------------------------------------------------------------------


@pytest.mark.parametrize("per_batch", [1, 2, 4, 5, 9])
async def test_a_batch_that_is_committed_again_after_a_restore_in_other_pieces_is_there_once(tmp_path: Path, per_batch):
    """The manifest is from before the commit; of the partition, more was uploaded: a part of the batch."""
    objects = Hiding()
    rows = [b"%d" % number for number in range(9)]
    (tmp_path / "before").mkdir()
    async with staging_broker(tmp_path / "before", objects) as broker:
        await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        query = Query(broker)
        stages = [await query.stage(0, {0: rows[:3]}), await query.stage(0, {0: rows[3:]})]
        await broker._tiers.manifests.write()
        manifests = await keys(objects, "manifests/")
        objects.hidden = stages[1]
        await query.commit(0, *stages, wait_ms=0)

        async def is_half_there() -> bool:
            return await payloads(broker) == rows[:3]

        await until(is_half_there)
        await upload_all(broker)
    objects.hidden = ""
    await objects.delete([key for key in await keys(objects, "manifests/") if key not in manifests])
    (tmp_path / "after").mkdir()
    clock = SystemClock()
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", clock) as store:
        await rebuild(objects, store, clock, StoreOwner("cluster"))
    async with staging_broker(tmp_path / "after", objects) as broker:
        assert await payloads(broker) == rows[:3]
        query = Query(broker, run="another")
        stage = await query.stage(0, {0: rows}, per_batch=per_batch)
        assert await query.commit(0, stage, wait_ms=5_000) == (False, True)
        assert await query.write(1, {0: [b"next"]}) == (False, True)
        assert await payloads(broker) == [*rows, b"next"]
