"""A broker that stops gives its partitions to the others, one transaction each, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC
from cluster_harness import MovingBroker, MovingCluster, moving_cluster, releases
from metadata_harness import puts

from pydanube.broker.registry.records import PARTITIONS
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import NotOwner
from pydanube.model.topics import AckLevel
from waiting import until

DRAIN_S = 20


@contextlib.asynccontextmanager
async def two(directory: Path, **changes: Any) -> AsyncIterator[tuple[MovingCluster, MovingBroker, MovingBroker]]:
    async with moving_cluster(directory, "a", "b", **changes) as cluster:
        yield cluster, cluster.brokers["a"], cluster.brokers["b"]


async def other_of(cluster: MovingCluster, index: int = 0) -> tuple[MovingBroker, MovingBroker]:
    """Return the owner of a partition, and the other broker."""
    owner = cluster.owners()[index]
    return owner, next(one for one in cluster.brokers.values() if one is not owner)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MovingCluster]:
    async with moving_cluster(tmp_path, "a", "b") as opened:
        yield opened


async def test_a_stored_partition_goes_to_the_other_broker_with_everything_that_was_acked(cluster):
    await cluster.create()
    owner, other = await other_of(cluster)
    producer = await owner.client.producer("p")
    await owner.client.publish(producer, [b"one", b"two"], 0)
    collected = await owner.client.subscribe()
    await collected.wait_for(2)
    await collected.ack((0, 1))
    await owner.broker.leave(DRAIN_S)
    assert not owner.opened()
    await until(lambda: other.opened() == {0})
    assert await other.client.read_all() == [(0, b"one"), (1, b"two")]
    again = await other.client.subscribe()
    assert await again.wait_for(1) == [(1, b"two")]
    back = await other.client.come_back(producer, "p")
    repeated = await other.client.publish(back, [b"one", b"two"], 0)
    assert (repeated.base_offset, repeated.duplicate) == (0, True)
    assert (await other.client.publish(back, [b"three"], 2)).base_offset == 2
    assert isinstance(collected.error, NotOwner)


async def test_positions_of_a_subscription_that_the_next_owner_has_not_heard_of_go_to_it_too(cluster):
    await cluster.create()
    owner, other = await other_of(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one", b"two"])
    await other.stop_following()
    collected = await owner.client.subscribe()
    await collected.wait_for(2)
    await collected.ack((0, 1))
    await owner.broker.close()
    await owner.membership.leave()
    topic = other.broker._registry.topic(TOPIC)
    opened = other.partitions._being_opened[topic.topic_id, 0] = asyncio.get_running_loop().create_future()
    await other.partitions._open_into(opened, TOPIC, topic, 0)  # as if it had heard that the other one is gone
    again = await other.client.subscribe()
    assert await again.wait_for(1) == [(1, b"two")]


async def test_the_record_has_no_owner_the_next_broker_and_the_end_in_one_transaction(cluster):
    topic_id = await cluster.create()
    owner, other = await other_of(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    held = other.faults.hold(puts(PARTITIONS))  # the next owner takes it later
    await owner.broker.leave(DRAIN_S)
    await held.asked.wait()
    record = await cluster.record(topic_id)
    assert (record.owner, record.assigned) == ("", other.name)
    assert record.sequences and all(one.end > one.lowest for one in record.sequences)
    held.go_on()
    await until(lambda: other.opened() == {0})
    assert await other.client.read_all() == [(0, b"one")]


async def test_what_was_accepted_is_answered_and_moves_too(cluster):
    await cluster.create()
    owner, other = await other_of(cluster)
    producer = await owner.client.producer()
    answers = [owner.client.publish(producer, [b"%d" % number]) for number in range(50)]
    await asyncio.gather(owner.broker.leave(DRAIN_S), *answers, return_exceptions=True)
    await until(lambda: other.opened() == {0})
    acked = [one.result().base_offset for one in answers if one.exception() is None]
    refused = [one.exception() for one in answers if one.exception() is not None]
    assert all(isinstance(error, NotOwner) for error in refused)
    stored = [offset for offset, _ in await other.client.read_all()]
    assert stored == acked == list(range(len(acked)))


async def test_a_publish_during_the_move_is_not_owner_and_who_asks_again_is_told_the_next_owner(cluster):
    await cluster.create()
    owner, other = await other_of(cluster)
    producer = await owner.client.producer()
    held = owner.faults.hold(releases)
    leaving = asyncio.create_task(owner.broker.leave(DRAIN_S))
    await held.asked.wait()
    with pytest.raises(NotOwner) as refused:
        await owner.client.publish(producer, [b"late"])
    assert not refused.value.owner
    asked = asyncio.create_task(owner.client.producer())
    held.go_on()
    await leaving
    with pytest.raises(NotOwner) as told:
        await asked
    assert told.value.owner == other.address
    await until(lambda: other.opened() == {0})
    assert await other.client.read_all() == []


async def test_the_answer_to_the_release_is_lost_and_the_partition_is_released_all_the_same(cluster):
    topic_id = await cluster.create()
    owner, other = await other_of(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    partition = owner.partitions.find(topic_id, 0)
    assert partition is not None
    lost = owner.faults.lose_answer(releases)
    taking = other.faults.hold(puts(PARTITIONS))
    await owner.broker.leave(DRAIN_S)
    assert lost.asked.is_set()
    assert partition.ownership.stored.record.assigned == other.name
    taking.go_on()
    await until(lambda: other.opened() == {0})
    assert await other.client.read_all() == [(0, b"one")]


async def test_a_lost_release_that_the_next_owner_has_seen_changes_nothing_of_its(cluster):
    topic_id = await cluster.create()
    owner, other = await other_of(cluster)
    held = owner.faults.hold_answer(releases, fails=True)
    leaving = asyncio.create_task(owner.broker.leave(DRAIN_S))
    await held.asked.wait()
    await until(lambda: other.opened() == {0})
    record = await cluster.record(topic_id)
    held.go_on()
    await leaving
    after = await cluster.record(topic_id)
    assert (after.owner, after.epoch) == (other.name, record.epoch)
    await other.client.publish(await other.client.producer(), [b"one"])
    assert not owner.opened()


async def test_a_release_that_was_not_made_is_made_again(cluster):
    await cluster.create()
    owner, other = await other_of(cluster)
    refused = owner.faults.refuse(releases)
    await owner.broker.leave(DRAIN_S)
    assert refused.asked.is_set()
    await until(lambda: other.opened() == {0})


async def test_a_partition_whose_release_fails_is_read_from_its_record_before_it_is_served_again(cluster):
    topic_id = await cluster.create()
    owner, _ = await other_of(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    refused = owner.faults.refuse_all(releases)
    await owner.broker.leave(DRAIN_S)
    refused.end()
    record = await cluster.record(topic_id)
    assert record.owner == owner.name
    assert await owner.client.read_all() == [(0, b"one")]
    assert (await cluster.record(topic_id)).epoch == record.epoch + 1


async def test_durable_partitions_stay_with_their_log(cluster):
    topic_id = await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = await other_of(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await owner.broker.leave(DRAIN_S)
    assert owner.opened() == {0} and not other.opened()
    assert (await cluster.record(topic_id)).owner == owner.name


async def test_a_memory_partition_moves_once_everything_in_it_is_acked(cluster):
    await cluster.create(ack_level=AckLevel.MEMORY)
    owner, other = await other_of(cluster)
    collected = await owner.client.subscribe()
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await collected.wait_for(1)
    await owner.broker.leave(DRAIN_S)
    assert owner.opened() == {0}
    await collected.ack((0, 1))
    await owner.broker.leave(DRAIN_S)
    await until(lambda: other.opened() == {0})
    assert (await other.client.publish(await other.client.producer(), [b"two"])).base_offset == 1


async def test_a_non_reliable_partition_moves(cluster):
    await cluster.create(reliable=False, ack_level=AckLevel.MEMORY)
    owner, other = await other_of(cluster)
    await owner.broker.leave(DRAIN_S)
    await until(lambda: other.opened() == {0})
    collected = await other.client.subscribe()
    await other.client.publish(await other.client.producer(), [b"one"])
    assert [payload for _, payload in await collected.wait_for(1)] == [b"one"]


async def test_a_broker_that_leaves_is_given_nothing(tmp_path: Path) -> None:
    async with two(tmp_path) as (cluster, a, b):
        await a.broker.leave(DRAIN_S)
        await until(lambda: (load := b.broker._cluster.loads.of("a")) is not None and load.state == "leaving")
        await cluster.create(partitions=4)
        assert b.opened() == {0, 1, 2, 3}
        states = {one.name: one.state for one in b.broker.cluster.describe(ANONYMOUS).brokers}
        assert states == {"a": "leaving", "b": "ok"}


async def test_partitions_are_spread_over_the_brokers_that_stay(tmp_path: Path) -> None:
    async with moving_cluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.create(partitions=12)
        a, b, c = (cluster.brokers[name] for name in "abc")
        assert len(a.opened()) == 4
        await a.broker.leave(DRAIN_S)
        await until(lambda: (len(b.opened()), len(c.opened())) == (6, 6))


async def test_the_last_broker_keeps_its_partitions(tmp_path: Path) -> None:
    async with moving_cluster(tmp_path, "a") as cluster:
        await cluster.create()
        await cluster.brokers["a"].broker.leave(DRAIN_S)
        assert cluster.brokers["a"].opened() == {0}


async def test_after_its_time_the_rest_is_left_as_it_is(cluster):
    topic_id = await cluster.create()
    owner, other = await other_of(cluster)
    held = owner.faults.hold(releases)
    async with asyncio.timeout(60):
        await owner.broker.leave(0.05)
    assert held.asked.is_set()
    assert (await cluster.record(topic_id)).owner == owner.name
    await owner.lose_session(cluster.store)
    await until(lambda: other.opened() == {0})


async def test_the_partitions_of_a_lost_coordinator_are_placed_as_soon_as_another_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydanube.broker.cluster.placing.ROUND_S", 3600.0)
    async with two(tmp_path) as (cluster, a, b):
        await cluster.create(partitions=4)
        assert a.membership.is_coordinator() and a.opened()
        await a.broker.close()
        await a.membership.leave()
        del cluster.brokers["a"]
        await until(lambda: b.opened() == {0, 1, 2, 3})


class CountedReads:
    """An object store that counts how often each object was read."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str, *given: Any, **options: Any) -> Any:
        self.reads[key] += 1
        return await self._store.get(key, *given, **options)


async def test_a_taker_reads_each_slice_once_for_all_partitions_and_keeps_none_afterwards(tmp_path: Path) -> None:
    async with two(tmp_path) as (cluster, a, b):
        await cluster.create(partitions=8)
        for broker in (a, b):
            for index in broker.opened():
                await broker.client.publish(await broker.client.producer(partition=index), [b"one"])
        slices = b.broker._slices
        assert slices is not None
        reader = slices.takeover._reader
        reader._objects = counted = CountedReads(reader._objects)  # type: ignore[assignment]
        await a.lose_session(cluster.store)
        await until(lambda: len(b.opened()) > 4)
        await until(lambda: len(cluster.owners()) == 8)
        assert counted.reads and set(counted.reads.values()) == {1}
        assert not reader._reading and not reader._kept


async def test_after_a_failover_consumers_get_again_at_most_what_they_acked_in_the_last_interval(cluster):
    await cluster.create()
    owner, other = await other_of(cluster)
    producer = await owner.client.producer()
    await owner.client.publish(producer, [b"%d" % number for number in range(10)])
    collected = await owner.client.subscribe()
    await collected.wait_for(10)
    await collected.ack((0, 6), cumulative=False)
    slices = owner.broker._slices
    assert slices is not None and slices.current is not None
    await slices.current.flush()  # an interval has passed
    collected.consumer.ack([(6, 8)], False, lambda _: None)
    await owner.lose_session(cluster.store)
    await until(lambda: other.opened() == {0})
    again = await other.client.subscribe()
    received = [offset for offset, _ in await again.wait_for(2)]
    assert received[0] in (6, 7, 8) and received[-1] == 9
