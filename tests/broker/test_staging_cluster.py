"""Staged writes whose partitions belong to several brokers: who publishes, who waits, and who goes on for another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_harness import TOPIC
from cluster_harness import stop_following
from staging_harness import NeverRetried, Query, payloads, stages_in
from two_brokers import TwoBrokers, two_brokers

from pydanube.broker import Broker
from pydanube.broker.registry.records import (
    DECISIONS,
    PENDING,
    STAGED,
    DecisionRecord,
    PendingRecord,
    decision_key,
    pending_key,
)
from pydanube.broker.staging import decisions as module
from pydanube.broker.staging.decisions import Decisions
from pydanube.core.access import ANONYMOUS
from pydanube.core.staging import STAGED_PRODUCER
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Delete, Event, Put, list_all
from pydanube.model.errors import NotFound, Refused
from pydanube.model.names import TopicName
from pydanube.model.topics import TopicConfig
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until


async def keys(pair: TwoBrokers, prefix: str) -> list[str]:
    return [one.key async for one in list_all(pair.store, prefix)]


async def prepare(pair: TwoBrokers) -> int:
    """Create a topic with partition 0 at broker a and partition 1 at broker b; return its id."""
    return await pair.create(TOPIC, 2, b=[1])


def decisions(broker: Broker) -> Decisions:
    return broker.staging.decisions


async def over(pair: TwoBrokers) -> None:
    """Wait until nothing of a decision is left, in the metadata and in both brokers."""

    async def is_over() -> bool:
        rest = [*await keys(pair, DECISIONS), *await keys(pair, PENDING)]
        return not rest and not any(decisions(one)._by_query for one in (pair.a, pair.b))

    await until(is_over)


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def pair(tmp_path: Path, objects: MemoryStore) -> AsyncIterator[TwoBrokers]:
    async with two_brokers(tmp_path, objects) as opened:
        yield opened


async def test_each_owner_publishes_its_partitions_and_the_committer_waits_for_all(pair, objects):
    await prepare(pair)
    query = Query(pair.a)
    assert await query.write(0, {0: [b"a"], 1: [b"b", b"c"]}) == (False, True)
    assert (await payloads(pair.a, 0), await payloads(pair.b, 1)) == ([b"a"], [b"b", b"c"])
    assert pair.opened_by(TOPIC) == {"a": [0], "b": [1]}
    await over(pair)
    assert await stages_in(objects) == []


async def test_a_batch_is_committed_at_one_broker_and_repeated_at_another(pair, objects):
    await prepare(pair)
    stage = await Query(pair.a).stage(0, {0: [b"a"], 1: [b"b"]})
    assert (await Query(pair.b).commit(0, stage, wait_ms=0)).repeated is False
    assert await Query(pair.a).commit(0, stage) == (True, True)
    await over(pair)
    assert (await payloads(pair.a, 0), await payloads(pair.b, 1)) == ([b"a"], [b"b"])


async def test_a_repeated_commit_waits_for_an_owner_that_cannot_publish_yet(pair, objects):
    await pair.create(TOPIC, 2, nobody=[1])
    stage = await Query(pair.a).stage(0, {0: [b"a"], 1: [b"b"]})
    assert await Query(pair.a).commit(0, stage, wait_ms=0) == (False, False)
    assert await Query(pair.b).commit(0, stage, wait_ms=10) == (True, False)
    await pair.give(TOPIC, 1, "b")
    assert await Query(pair.b).commit(0, stage) == (True, True)


async def test_batches_of_a_query_stay_in_order_whichever_broker_commits_them(pair, objects, monkeypatch):
    monkeypatch.setattr("pydanube.broker.staging.staging.WRITES_AT_ONCE", 0)  # pending keys are written later
    await prepare(pair)
    wanted = []
    for batch_id in range(10):
        broker = (pair.a, pair.b)[batch_id % 2]
        query = Query(broker, parts=batch_id)
        rows = [b"%d.%d" % (batch_id, row) for row in range(3)]
        stage = await query.stage(batch_id, {0: rows, 1: rows})
        await query.commit(batch_id, stage, wait_ms=30_000 if batch_id % 4 == 3 else 0)
        wanted += rows
    await over(pair)
    assert (await payloads(pair.a, 0), await payloads(pair.b, 1)) == (wanted, wanted)


async def test_a_partition_that_moves_gets_the_rest_from_its_new_owner(pair, objects):
    await pair.create(TOPIC, 2, nobody=[0], b=[1])
    stage = await Query(pair.a).stage(0, {0: [b"a"], 1: [b"b"]})
    await Query(pair.a).commit(0, stage, wait_ms=0)
    await until(lambda: pair.opened_by(TOPIC)["b"] == [1])
    await pair.give(TOPIC, 0, "b")
    await over(pair)
    assert (await payloads(pair.b, 0), pair.opened_by(TOPIC)["a"]) == ([b"a"], [])


async def test_what_is_enqueued_for_a_partition_that_was_lost_is_given_up(pair, objects):
    """Without that, the former owner would try for ever, and the pending key would never be deleted."""
    await prepare(pair)
    publisher = decisions(pair.a).publisher
    publish = publisher._apply

    async def lose(key, decision):
        publisher._apply = publish
        await pair.give(TOPIC, 0, "b")
        raise Refused("the partition is being closed")

    publisher._apply = lose
    stage = await Query(pair.a).stage(0, {0: [b"a"]})
    assert await Query(pair.a).commit(0, stage) == (False, True)
    await over(pair)
    assert (await payloads(pair.b, 0), pair.opened_by(TOPIC)["a"]) == ([b"a"], [])


@pytest.mark.parametrize("decided_by", ["a pending key", "the query", "the owner"])
async def test_a_retry_for_a_lost_stage_ends_when_it_is_decided_elsewhere(tmp_path, objects, decided_by):
    """A broker that stood still takes the stage that its successor has published and deleted for a lost one. When the
    partition is its own again, what was committed meanwhile must not wait behind that."""
    async with two_brokers(tmp_path, objects, NeverRetried()) as pair:
        await pair.create(TOPIC, 1, nobody=[0])
        query, publisher = Query(pair.b), decisions(pair.a).publisher
        await query.commit(0, await query.stage(0, {0: [b"lost"]}), wait_ms=0)
        await objects.delete(await stages_in(objects))
        await pair.give(TOPIC, 0, "a")
        (decision,) = (one for known in decisions(pair.a)._by_query.values() for one in known.values())
        await until(lambda: decision.obstacles)
        if decided_by == "the query":
            await pair.b.staging.forget(ANONYMOUS, "query")
        elif decided_by == "a pending key":
            await pair.store.transact([], [Delete(one) for one in await keys(pair, PENDING)])
        else:
            await pair.give(TOPIC, 0, "b")
            await until(lambda: not publisher._queues and pair.opened_by(TOPIC)["b"] == [0])
            await pair.store.transact([], [Delete(one) for one in await keys(pair, PENDING)])
            await pair.give(TOPIC, 0, "a")
        await over(pair)
        assert await query.commit(1, await query.stage(1, {0: [b"next"]})) == (False, True)
        assert (await payloads(pair.a), publisher.dropped) == ([b"next"], 0)


async def test_nothing_is_published_before_all_pending_keys_of_a_decision_are_written(pair, objects):
    """A committer that died has written a part of them: the coordinator writes the rest, and deletes the decision."""
    topic_id = await prepare(pair)
    query = Query(pair.a)
    stage = await query.stage(0, {0: [b"a"], 1: [b"b"]})
    known = await pair.a.staging._records.find(ANONYMOUS, "query")
    number = known.record.number
    record = DecisionRecord("query", [stage])
    await pair.store.transact([], [Put(decision_key(number, 0), pack(record))])
    await pair.store.transact([], [Put(pending_key(topic_id, 0, number, 0), pack(PendingRecord(str(TOPIC))))])
    await until(lambda: decisions(pair.a).find(number, 0) and decisions(pair.a).find(number, 0).keys)
    decisions(pair.a)._refresh()
    assert decisions(pair.a).find(number, 0).enqueued == set()
    await decisions(pair.a).carry_on()
    assert pair.opened_by(TOPIC) == {"a": [], "b": []}, "a living committer has a whole round"
    await decisions(pair.a).carry_on()
    await until(lambda: decisions(pair.a).find(number, 0).applied)
    assert (await payloads(pair.a, 0), await payloads(pair.b, 1)) == ([b"a"], [b"b"])
    await until(lambda: not decisions(pair.a).find(number, 0).keys)
    await decisions(pair.a).carry_on()
    await decisions(pair.a).carry_on()
    await over(pair)
    assert await stages_in(objects) == []


async def test_the_coordinator_deletes_no_pending_key_of_a_decision_that_it_has_not_followed(pair, objects):
    topic_id = await prepare(pair)
    key = pending_key(topic_id, 0, 77, 0)
    await pair.store.transact([], [Put(key, pack(PendingRecord(str(TOPIC))))])
    await until(lambda: decisions(pair.a)._orphans)
    held = Held(decisions(pair.a))
    decided = Put(decision_key(77, 0), pack(DecisionRecord("other", ["stage"], spread=True)))
    await pair.store.transact([], [decided])
    await until(held.names)
    for _ in range(2):
        await decisions(pair.a).carry_on()
    assert key in await keys(pair, PENDING)


async def test_pending_keys_without_a_decision_are_deleted_by_the_coordinator(pair, objects):
    topic_id = await prepare(pair)
    await pair.store.transact([], [Put(pending_key(topic_id, 0, 77, 0), pack(PendingRecord(str(TOPIC))))])
    await until(lambda: decisions(pair.a)._orphans)
    for _ in range(2):
        await decisions(pair.a).carry_on()
    assert await keys(pair, PENDING) == []


async def test_pending_keys_of_a_late_spread_do_not_come_back(pair, objects, monkeypatch):
    """Two brokers write the pending keys of one decision; the slower one must not write those that are done."""
    monkeypatch.setattr("pydanube.broker.staging.staging.WRITES_AT_ONCE", 0)  # they are written later
    await prepare(pair)
    query = Query(pair.a)
    stage = await query.stage(0, {0: [b"a"], 1: [b"b"]})
    slow = module.Decision("query", (await pair.a.staging._records.find(ANONYMOUS, "query")).record.number, 0, [stage])
    plan = sorted(await slow.plan(pair.a.staging._reader))
    assert await query.commit(0, stage) == (False, True)
    assert await decisions(pair.b)._write_pending(slow, plan) is not True
    await over(pair)


async def test_what_is_pending_for_a_deleted_topic_is_dropped(pair, objects):
    topic_id = await pair.create(TOPIC, 2, nobody=[1])
    stage = await Query(pair.a).stage(0, {0: [b"a"], 1: [b"b"]})
    assert await Query(pair.a).commit(0, stage, wait_ms=0) == (False, False)
    for _ in range(3):
        await decisions(pair.a).carry_on()
    assert await keys(pair, PENDING), "the topic is there: its partition waits for a broker"
    await pair.a.topics.delete(ANONYMOUS, TOPIC)
    assert topic_id
    for _ in range(3):
        await decisions(pair.a).carry_on()
    await over(pair)


async def test_a_topic_that_the_registry_does_not_know_yet_is_not_taken_for_deleted(pair, objects):
    topic_id = await prepare(pair)
    registry = pair.b._registry
    assert await registry.has_topic(TOPIC, topic_id)
    assert not await registry.has_topic(TOPIC, topic_id + 1)
    assert not await registry.has_topic(TopicName.parse("/default/other"), topic_id)


async def test_a_topic_and_a_partition_that_another_broker_made_are_staged_to_before_they_are_heard_of(pair, objects):
    await stop_following(pair.b)
    await pair.a.topics.create(ANONYMOUS, TOPIC, TopicConfig(1))
    await Query(pair.b).stage(0, {0: [b"a"]})
    await pair.a.topics.grow(ANONYMOUS, TOPIC, 3)
    await Query(pair.b, parts=1).stage(0, {0: [b"a"], 2: [b"b"]})
    with pytest.raises(NotFound, match="there is no partition 3"):
        await Query(pair.b, parts=2).stage(0, {3: [b"a"]})


async def test_a_stage_for_a_topic_that_another_broker_made_anew_is_refused_before_that_is_heard_of(pair, objects):
    """Its messages would be dropped, though a topic of that name was there all the time."""
    await prepare(pair)
    await stop_following(pair.b)
    await pair.a.topics.delete(ANONYMOUS, TOPIC)
    await pair.a.topics.create(ANONYMOUS, TOPIC, TopicConfig(2))
    query = Query(pair.b)
    stage = await query.stage(0, {0: [b"former"]})
    with pytest.raises(Refused, match="was deleted since"):
        await query.commit(0, stage)
    stage = await query.stage(0, {0: [b"present"]}, attempt=1)
    assert (await query.commit(0, stage, wait_ms=0)).repeated is False


async def test_a_query_that_another_broker_forgot_begins_anew(pair, objects):
    await prepare(pair)
    assert await Query(pair.a).write(0, {0: [b"a"], 1: [b"b"]}) == (False, True)
    await pair.b.staging.forget(ANONYMOUS, "query")
    with pytest.raises(NotFound):
        await pair.a.staging.forget(ANONYMOUS, "query")
    await until(lambda: "query" not in pair.a.staging._records._cached)
    assert await Query(pair.a, parts=1).write(0, {0: [b"c"]}) == (False, True)
    assert await payloads(pair.a, 0) == [b"a", b"c"]


async def test_the_owner_pins_a_query_whose_pending_key_another_broker_wrote(pair, objects):
    topic_id = await pair.create(TOPIC, 2, nobody=[1])
    stage = await Query(pair.a).stage(0, {1: [b"b"]})
    await Query(pair.a).commit(0, stage, wait_ms=0)
    number = (await pair.a.staging._records.find(ANONYMOUS, "query")).record.number
    assert await pair.b._partitions._staged_producers(topic_id, 1) == {number | STAGED_PRODUCER}


async def test_what_was_followed_is_listed_again_without_doing_anything_twice(pair, objects):
    """The events were compacted: both brokers list everything again, while a decision is under way."""
    await pair.create(TOPIC, 2, nobody=[1])
    stage = await Query(pair.a).stage(0, {0: [b"a"], 1: [b"b"]})
    await Query(pair.a).commit(0, stage, wait_ms=0)
    await until(lambda: pair.opened_by(TOPIC)["a"] == [0])
    for broker in (pair.a, pair.b):
        await broker._registry.follower.start()
    await pair.give(TOPIC, 1, "b")
    assert await Query(pair.b).commit(0, stage) == (True, True)
    await over(pair)
    for broker in (pair.a, pair.b):
        await broker._registry.follower.start()
    assert (await payloads(pair.a, 0), await payloads(pair.b, 1)) == ([b"a"], [b"b"])
    assert [one for one in await keys(pair, STAGED) if "/queries/" not in one] == []


class Held:
    """Events that a broker follows, kept back until the test lets them through."""

    def __init__(self, followed: Decisions) -> None:
        self._followed = followed
        self._follower = followed._registry.follower
        self._kept: list[Event] = []
        handler = self._follower._handlers[STAGED]
        self._apply = handler.apply
        self._follower._handlers[STAGED] = handler._replace(apply=self._kept.append)

    def names(self) -> list[str]:
        return [one.key for one in self._kept]

    def let_through(self, count: int | None = None) -> None:
        some, self._kept[:] = self._kept[:count], self._kept[count:] if count is not None else []
        for event in some:
            self._apply(event)
        if count is None:
            handler = self._follower._handlers[STAGED]
            self._follower._handlers[STAGED] = handler._replace(apply=self._apply)


async def test_a_batch_does_not_overtake_one_that_another_broker_committed_and_this_one_has_not_followed(pair, objects):
    await prepare(pair)
    held = Held(decisions(pair.a))
    first = await Query(pair.b).stage(0, {0: [b"first"]})
    await Query(pair.b).commit(0, first, wait_ms=0)
    second = await Query(pair.a, parts=1).stage(1, {0: [b"second"]})
    await Query(pair.a).commit(1, second, wait_ms=0)
    await until(lambda: sum(DECISIONS in one for one in held.names()) == 2)
    assert pair.opened_by(TOPIC)["a"] == []
    held.let_through()
    await over(pair)
    assert await payloads(pair.a, 0) == [b"first", b"second"]


async def test_a_decision_whose_pending_keys_were_not_all_followed_is_not_deleted(pair, objects):
    """Its pending keys, of the same transaction, come after it: none of them is known when it is."""
    await pair.create(TOPIC, 2, nobody=[0, 1])
    held = Held(decisions(pair.a))
    stage = await Query(pair.b).stage(0, {0: [b"a"], 1: [b"b"]})
    await Query(pair.b).commit(0, stage, wait_ms=0)
    await until(lambda: sum(PENDING in one for one in held.names()) == 2)
    held._kept.sort(key=lambda one: (one.revision, PENDING in one.key))
    held.let_through(next(at for at, key in enumerate(held.names()) if DECISIONS in key) + 1)
    for _ in range(3):
        await decisions(pair.a).carry_on()
    (decision,) = [one for known in decisions(pair.a)._by_query.values() for one in known.values()]
    assert (decision.spread, decision.keys, decision.applied) == (True, set(), False)
    assert len(await keys(pair, DECISIONS)) == 1
    assert len(await stages_in(objects)) == 1
    held.let_through()
    assert len(decision.keys) == 2
