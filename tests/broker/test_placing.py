"""Placement of partitions, their opening by their owners, and what brokers say about partitions of others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from broker_harness import TOPIC, BrokerClient
from cluster_harness import FOUNDER, Node, PlacingCluster, placing_cluster

from pydanube.broker.partitions.own_partitions import RETRY_S
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.records import PartitionRecord, TopicRecord, partition_key, topic_key
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Put
from pydanube.model.errors import NotFound, NotOwner, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.clock import ManualClock
from waiting import until


async def owners_by(node: Node, topic_id: int, count: int) -> list[str]:
    found = (node.owners.owner(topic_id, index) for index in range(count))
    return [one.name if one is not None else "" for one in found]


async def write(cluster: PlacingCluster, topic_id: int, index: int, record: PartitionRecord) -> int:
    """Write the record of a partition as another broker would."""
    result = await cluster.store.transact([], [Put(partition_key(topic_id, index), pack(record))])
    for node in cluster.nodes.values():
        await until(lambda node=node: node.owners.record(topic_id, index) == record)
    return result.revision


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PlacingCluster]:
    async with placing_cluster(tmp_path) as opened:
        yield opened


async def test_a_new_topic_is_spread_over_the_brokers_before_creating_it_returns(cluster):
    a, b, c = [await cluster.start(name, run=False) for name in "abc"]
    topic_id = await cluster.create(a, partitions=6)
    assert Counter(await owners_by(a, topic_id, 6)) == {"a": 2, "b": 2, "c": 2}
    route = await a.broker.topics.lookup(ANONYMOUS, TOPIC, create=False)
    assert Counter(one.owner for one in route.partitions) == {"a.test:6650": 2, "b.test:6650": 2, "c.test:6650": 2}
    assert [one.native for one in route.brokers] == ["a.test:6650", "b.test:6650", "c.test:6650"]
    for other in (b, c):
        await until(lambda other=other: len(other.owners._stored) == 6)
        assert await owners_by(other, topic_id, 6) == await owners_by(a, topic_id, 6)


async def test_grown_partitions_are_placed_too(cluster):
    a = await cluster.start("a", run=False)
    topic_id = await cluster.create(a, partitions=2)
    await cluster.start("b", run=False)
    await a.broker.topics.grow(ANONYMOUS, TOPIC, 4)
    assert await owners_by(a, topic_id, 4) == ["a", "a", "b", "b"]


async def test_more_partitions_than_a_transaction_holds_are_placed(cluster):
    a = await cluster.start("a", run=False)
    await cluster.start("b", run=False)
    topic_id = await cluster.create(a, partitions=1000)
    assert Counter(await owners_by(a, topic_id, 1000)) == {"a": 500, "b": 500}


async def test_two_brokers_that_place_at_once_agree(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig(partitions=300))
    await cluster.know()
    await asyncio.gather(a.partitions.placement.place(TOPIC), b.partitions.placement.place(TOPIC))
    topic_id = a.registry.topic(TOPIC).topic_id
    assert await owners_by(a, topic_id, 300) == await owners_by(b, topic_id, 300)
    assert Counter(await owners_by(a, topic_id, 300)) == {"a": 150, "b": 150}


async def test_placing_keeps_fields_that_this_release_does_not_know(cluster):
    a = await cluster.start("a", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig())
    key = partition_key(a.registry.topic(TOPIC).topic_id, 0)
    await cluster.store.transact([], [Put(key, msgspec.msgpack.encode({"from_later": 7, "start_offset": 3}))])
    await until(lambda: a.owners.record(a.registry.topic(TOPIC).topic_id, 0) is not None)
    await a.partitions.placement.place(TOPIC)
    stored = await cluster.store.get(key)
    assert msgspec.msgpack.decode(stored.value) == {"from_later": 7, "start_offset": 3, "assigned": "a"}


async def test_a_deleted_topic_is_not_placed(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig())
    await cluster.know()
    record = a.registry.topic(TOPIC)
    await b.registry.delete_topic(TOPIC)
    with pytest.raises(NotFound, match="was deleted"):
        await a.partitions.placement._assign(TOPIC, record, [0], {})  # as if the deletion was not heard of yet
    assert await cluster.store.get(partition_key(record.topic_id, 0)) is None


async def created_anew(by: Node) -> None:
    """Delete the topic and create it anew; only the broker asked hears of it if the others follow nothing."""
    await by.broker.topics.delete(ANONYMOUS, TOPIC)
    await by.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())


async def test_a_topic_that_was_created_anew_is_asked_for_again_rather_than_not_found(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig())
    await cluster.know()
    former = a.registry.topic(TOPIC).topic_id
    await a.stop_following()
    await created_anew(b)
    with pytest.raises(Unavailable, match="created anew"):
        await a.partitions.get(TOPIC, 0)
    assert await cluster.store.get(partition_key(former, 0)) is None


async def test_a_broker_that_stood_still_takes_no_partition_of_a_topic_that_is_gone(cluster):
    """The record of its partition is gone with the topic, so nothing compares as another owner's."""
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    former = await cluster.create(a)
    assert await owners_by(a, former, 1) == ["a"]
    await a.stop_following()
    await created_anew(b)
    with pytest.raises(Unavailable, match="created anew"):
        await a.partitions.get(TOPIC, 0)
    assert a.partitions.find(former, 0) is None
    assert await cluster.store.get(partition_key(former, 0)) is None


async def test_a_broker_that_stood_still_opens_no_producer_of_a_topic_that_is_gone(cluster):
    """It still has the partition open, and what it acked there would be lost."""
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await cluster.create(a)
    client = BrokerClient(a.broker)
    await client.producer("before")
    await a.stop_following()
    await created_anew(b)
    with pytest.raises(Unavailable, match="created anew"):
        await client.producer("after")


async def test_a_broker_that_stood_still_attaches_no_consumer_to_a_topic_that_is_gone(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await cluster.create(a)
    client = BrokerClient(a.broker)
    await client.publish(await client.producer(), [b"of the former topic"])
    await client.subscribe()
    await a.stop_following()
    await created_anew(b)
    with pytest.raises(Unavailable, match="created anew"):
        await client.subscribe(consumer="another")


async def test_a_broker_opens_what_is_assigned_to_it_and_nothing_else(cluster):
    a, b = await cluster.start("a"), await cluster.start("b")
    await a.registry.create_topic(TOPIC, TopicConfig(partitions=4))
    await cluster.know()
    await a.broker.topics.lookup(ANONYMOUS, TOPIC, create=False)
    await until(lambda: len(a.opened()) == len(b.opened()) == 2)
    assert not a.opened() & b.opened()


async def test_asking_for_a_partition_of_another_broker_names_that_broker(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    topic_id = await cluster.create(a, partitions=2)
    [theirs] = [index for _, index in a.owners.of_broker("b")]
    with pytest.raises(NotOwner, match="belongs to broker 'b'") as refused:
        await a.partitions.get(TOPIC, theirs)
    assert refused.value.owner == "b.test:6650"
    before = await cluster.store.get(partition_key(topic_id, theirs))
    described = await a.broker.topics.describe(ANONYMOUS, TOPIC)
    assert described.partitions[theirs].owner == "b.test:6650"
    assert "broker 'b'" in described.partitions[theirs].health
    assert described.partitions[1 - theirs].health == "ok"
    assert await cluster.store.get(partition_key(topic_id, theirs)) == before, "asking takes nothing"
    assert theirs not in a.opened()
    assert (await b.partitions.get(TOPIC, theirs)).index == theirs


async def test_asking_for_an_unplaced_partition_places_the_topic(cluster):
    a, _ = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig(partitions=2))
    results = await asyncio.gather(*(a.partitions.get(TOPIC, index) for index in (0, 1)), return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["NotOwner", "StoredPartition"]


async def test_many_callers_of_an_unplaced_partition_get_the_same_one(cluster):
    a = await cluster.start("a", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig())
    found = await asyncio.gather(*(a.partitions.get(TOPIC, 0) for _ in range(10)))
    assert len(set(map(id, found))) == 1
    assert found[0].epoch == 1, "it was opened once"


async def test_a_partition_waits_for_the_broker_whose_log_holds_its_ledgers(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    topic_id = await cluster.create(a)
    lost = PartitionRecord(epoch=3, owner="b", incarnation=2, assigned="b", log="log-b")
    await write(cluster, topic_id, 0, lost)
    assert b.owners.owner(topic_id, 0).name == "b"
    await cluster.sessions.end("b", since_us=1_790_000_000_000_000)
    expected = "/default/orders waits for broker 'b', which is away since 2026-09-21 14:13:20 UTC"
    with pytest.raises(Unavailable, match=expected):
        await a.partitions.get(TOPIC, 0)
    route = await a.broker.topics.lookup(ANONYMOUS, TOPIC, create=False)
    assert (route.partitions[0].owner, route.partitions[0].epoch) == ("", 3)
    assert route.partitions[0].health.startswith(expected)
    await a.partitions.placement.round()
    assert a.owners.record(topic_id, 0) == lost, "it is not placed anew"
    await cluster.sessions.begin("b")
    assert a.owners.owner(topic_id, 0).incarnation == 3, "the broker is back, and will take it again"


async def test_a_released_partition_belongs_to_the_broker_that_writes_its_log(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    topic_id = await cluster.create(a)
    await write(cluster, topic_id, 0, PartitionRecord(epoch=3, log="log-b"))
    assert a.owners.owner(topic_id, 0).name == b.owners.owner(topic_id, 0).name == "b"


async def test_a_record_of_an_earlier_release_waits_for_the_founder(cluster):
    b = await cluster.start("b", run=False)
    await b.registry.create_topic(TOPIC, TopicConfig())
    topic_id = b.registry.topic(TOPIC).topic_id
    await write(cluster, topic_id, 0, PartitionRecord(epoch=3, owner=FOUNDER))
    with pytest.raises(Unavailable, match="waits for broker 'a', which is away: "):
        await b.partitions.get(TOPIC, 0)
    await cluster.sessions.begin(FOUNDER)
    assert b.owners.owner(topic_id, 0).name == FOUNDER


@pytest.mark.parametrize("config", [TopicConfig(reliable=False), TopicConfig(ack_level=AckLevel.MEMORY)], ids=str)
async def test_what_keeps_nothing_is_placed_anew_when_its_broker_is_gone(tmp_path: Path, config: TopicConfig):
    async with placing_cluster(tmp_path, ManualClock()) as cluster:  # no round at an interval
        a, b = await cluster.start("a"), await cluster.start("b")
        await a.registry.create_topic(TOPIC, config)
        await cluster.know()
        topic_id = a.registry.topic(TOPIC).topic_id
        await write(cluster, topic_id, 0, PartitionRecord(epoch=3, owner="b", incarnation=2, assigned="b"))
        await until(lambda: 0 in b.opened())
        await cluster.sessions.end("b")
        await until(lambda: 0 in a.opened())
        assert a.owners.owner(topic_id, 0).name == "a"


async def test_only_the_coordinator_places_in_its_rounds(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig())
    await cluster.know()
    topic_id = a.registry.topic(TOPIC).topic_id
    await b.partitions.placement.round()
    assert await cluster.store.get(partition_key(topic_id, 0)) is None
    await a.partitions.placement.round()
    assert a.owners.owner(topic_id, 0) is not None


async def test_a_partition_that_another_broker_has_taken_is_abandoned(cluster):
    a, b = await cluster.start("a"), await cluster.start("b", run=False)
    topic_id = await cluster.create(a)
    client = BrokerClient(a.broker)
    producer = await client.producer()
    await client.publish(producer, [b"one"])
    await write(cluster, topic_id, 0, PartitionRecord(epoch=9, owner="b", incarnation=2, log="log-b"))
    await until(lambda: not a.opened())
    with pytest.raises(NotOwner) as refused:
        await client.publish(producer, [b"two"])
    assert refused.value.owner == "b.test:6650"
    assert b.owners.owner(topic_id, 0).name == "b"


async def test_a_broker_that_starts_opens_everything_that_is_its_own(cluster):
    a = await cluster.start("a", run=False)
    topic_id = await cluster.create(a, partitions=3)
    await write(cluster, topic_id, 0, PartitionRecord(epoch=1, owner="b", incarnation=9, log="log-b"))
    await write(cluster, topic_id, 1, PartitionRecord(assigned="b"))
    b = await cluster.start("b")
    await until(lambda: b.opened() == {0, 1})
    assert not a.opened()


async def test_lifetimes_end_no_topic_whose_other_owner_does_not_answer(tmp_path: Path):
    clock = ManualClock()
    async with placing_cluster(tmp_path, clock) as cluster:
        a, _ = await cluster.start("a", run=False), await cluster.start("b", run=False)
        mine, shared = TopicName.parse("/default/mine"), TopicName.parse("/default/shared")
        for topic, partitions in ((shared, 2), (mine, 1)):
            await cluster.create(a, topic, partitions=partitions)
            await a.broker.policies.set(ANONYMOUS, topic, {"inactive_topic_s": 1})
        assert a.partitions.routing.is_own(a.registry.topic(mine).topic_id, 0)
        clock.advance(10)
        await a.broker._lifetimes.round()
        assert a.registry.topics() == [shared]
        assert len(a.opened(shared)) == 1, "a round opens only its own partitions"


async def test_a_broker_that_is_back_takes_its_empty_partitions_again(cluster):
    a, b = await cluster.start("a", run=False), await cluster.start("b", run=False)
    topic_id = await cluster.create(a)
    await write(cluster, topic_id, 0, PartitionRecord(epoch=1, owner="b", incarnation=1))
    assert a.owners.owner(topic_id, 0).incarnation == 2, "it has no ledgers, but the broker was its last owner"
    assert b.owners.of_broker("b") == [(topic_id, 0)]


async def test_after_a_new_session_everything_is_opened_again(cluster):
    a = await cluster.start("a")
    topic_id = await cluster.create(a, partitions=2)
    await until(lambda: a.opened() == {0, 1})
    await cluster.sessions.end("a")
    assert not a.opened()
    await cluster.sessions.begin("a")
    await until(lambda: a.opened() == {0, 1})
    await until(lambda: a.owners.record(topic_id, 0).incarnation == 2)


async def test_a_partition_that_cannot_be_opened_is_tried_again(tmp_path: Path):
    """The record of a partition may be known before that of its topic, after everything was listed anew."""
    clock = ManualClock()
    async with placing_cluster(tmp_path, clock) as cluster:
        a = await cluster.start("a")
        topic_id = 77
        await write(cluster, topic_id, 0, PartitionRecord(assigned="a"))
        await until(lambda: clock.sleeping >= 3)  # its placing and load telling, and its wait before it tries again
        topic = TopicRecord(topic_id)
        await cluster.store.transact([], [Put(topic_key(TOPIC), pack(topic))])
        await cluster.know()
        assert not a.opened()

        def tried_again() -> bool:
            clock.advance(RETRY_S)  # as often as it takes: it may not have begun to wait yet
            return a.opened() == {0}

        await until(tried_again)


async def test_a_new_session_ends_the_wait_before_a_partition_is_tried_again(tmp_path: Path):
    clock = ManualClock()
    async with placing_cluster(tmp_path, clock) as cluster:
        a = await cluster.start("a")
        await write(cluster, 77, 0, PartitionRecord(assigned="a"))
        await until(lambda: clock.sleeping >= 3)  # its placing and load telling, and its wait before it tries again
        await cluster.store.transact([], [Put(topic_key(TOPIC), pack(TopicRecord(77)))])
        await cluster.know()
        await cluster.sessions.end("a")
        await cluster.sessions.begin("a")
        await until(lambda: a.opened() == {0})


async def test_empty_partitions_of_a_durable_topic_move_only_when_they_are_asked_for(cluster):
    a, _ = await cluster.start("a", run=False), await cluster.start("b", run=False)
    topic_id = await cluster.create(a)
    await write(cluster, topic_id, 0, PartitionRecord(epoch=1, owner="b", incarnation=2))
    await cluster.sessions.end("b")
    await a.partitions.placement.round()
    assert a.owners.owner(topic_id, 0) is None, "its broker may be back soon"
    assert (await a.partitions.get(TOPIC, 0)).epoch == 2


async def test_a_broker_that_closes_opens_nothing_more(cluster):
    a, b = await cluster.start("a"), await cluster.start("b", run=False)
    topic_id = await cluster.create(b)
    await a.broker.close()
    await write(cluster, topic_id, 0, PartitionRecord(assigned="a", reserved_end=1))
    await asyncio.gather(*a.broker._member_tasks, return_exceptions=True)
    assert not a.opened()


async def test_a_session_that_is_over_does_not_own_although_its_broker_lives(cluster):
    a, _ = await cluster.start("a", run=False), await cluster.start("b", run=False)
    topic_id = await cluster.create(a)
    await write(cluster, topic_id, 0, PartitionRecord(epoch=1, owner="b", incarnation=1, assigned="a"))
    assert a.owners.owner(topic_id, 0).name == "a", "b lives under incarnation 2"


async def test_a_partition_that_another_caller_opened_while_it_was_placed_is_not_opened_again(cluster):
    a = await cluster.start("a", run=False)
    await a.registry.create_topic(TOPIC, TopicConfig())
    opened: list[Partition] = []
    place = a.partitions.placement.place

    async def place_slowly(name: TopicName) -> None:
        await place(name)
        a.partitions.placement.place = place  # type: ignore[method-assign]
        opened.append(await a.partitions.get(name, 0))

    a.partitions.placement.place = place_slowly  # type: ignore[method-assign]
    assert await a.partitions.get(TOPIC, 0) is opened[0]
    assert opened[0].epoch == 1
