"""Staged writes and concurrent events: manual deletion of stages, cancellation, removal of the query, a restore."""

import asyncio
from pathlib import Path

import pytest
from broker_harness import TOPIC
from metadata_harness import FaultyStore, puts
from staging_harness import Query, payloads, quiet, stages_in, staging_broker
from test_staging_restart import Hiding
from tiering_harness import keys, upload_all

from pydanube.broker.registry.records import DECISIONS, query_key
from pydanube.broker.staging import staging
from pydanube.broker.staging.stage_reader import CHECKS_AT_ONCE
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Delete
from pydanube.model.errors import Refused, Unavailable
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects import ObjectInfo
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.store_ownership import StoreOwner
from waiting import until


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
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
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
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
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
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
        stage = await cancelled_commit(broker, metadata, written)
        assert await Query(broker).commit(0, stage) == (written, True)
        await Query(broker).write(1, {0: [b"2"]})
        assert await payloads(broker) == [b"1", b"2"]


async def test_a_cancelled_commit_that_was_written_is_published_without_a_repetition(tmp_path):
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
        await cancelled_commit(broker, metadata, written=True)

        async def is_there() -> bool:
            return await payloads(broker) == [b"1"]

        await until(is_there)


async def test_a_commit_that_is_cancelled_while_the_broker_closes_is_only_cancelled(tmp_path):
    objects, metadata = MemoryStore(), FaultyStore()
    async with staging_broker(tmp_path, objects, metadata=metadata) as broker:
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
        await broker.staging._tasks.close()
        await cancelled_commit(broker, metadata, written=True)
    async with staging_broker(tmp_path, objects) as broker:
        await quiet(broker)
        assert await payloads(broker) == [b"1"]


async def test_an_uncertain_decision_is_removed_with_its_query(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "UNCERTAIN_RETRY_S", 1e6)
    metadata = FaultyStore()
    async with staging_broker(tmp_path, MemoryStore(), metadata=metadata) as broker:
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
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
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
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
        await broker.create_topic(ANONYMOUS, TOPIC, TopicConfig())
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
