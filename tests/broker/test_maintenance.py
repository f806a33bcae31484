"""Brokers are drained under load, resumed, and removed when they are away and nothing waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC
from cluster_harness import MovingBroker, MovingCluster, moving_cluster, releases
from metadata_harness import puts

from pydanube.broker.cluster.node_records import NODES, node_key, unpack_node
from pydanube.broker.handlers import carry_out
from pydanube.broker.registry.records import DROPPED
from pydanube.core.access import ANONYMOUS
from pydanube.core.identity import NOBODY
from pydanube.metadata.store import list_all
from pydanube.model.cluster import DrainState
from pydanube.model.errors import NotFound, Refused, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.operations.brokers import DrainBroker, RemoveBroker, ResumeBroker
from pydanube.operations.topics import MoveTopic
from waiting import until


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[MovingCluster]:
    async with moving_cluster(tmp_path, "a", "b", "c") as opened:
        yield opened


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[MovingCluster]:
    async with moving_cluster(tmp_path, "a", "b") as opened:
        yield opened


async def do(asked: MovingBroker, operation: Any) -> Any:
    return await carry_out(asked.broker, NOBODY, operation)


async def drain(asked: MovingBroker, name: str) -> DrainState:
    return await do(asked, DrainBroker(broker=name))


def states(cluster: MovingCluster, asked: str = "a") -> dict[str, str]:
    described = cluster.brokers[asked].broker.cluster.describe(ANONYMOUS)
    return {one.name: one.state for one in described.brokers}


async def all_know(cluster: MovingCluster, name: str, *, drained: bool) -> None:
    await until(lambda: all(one.membership.is_drained(name) is drained for one in cluster.brokers.values()))


async def empty(cluster: MovingCluster, asked: MovingBroker, name: str, partitions: int) -> None:
    """Wait until a drained broker has given everything away, and the others have opened it."""
    await until(lambda: len(cluster.owners()) == partitions and not cluster.brokers[name].opened())
    assert await drain(asked, name) == DrainState(name)


async def test_a_drained_broker_gives_everything_away_and_gets_nothing_until_it_is_resumed(three):
    a, b, c = (three.brokers[name] for name in "abc")
    await three.create(partitions=9)
    for index, owner in three.owners().items():
        await owner.client.publish(await owner.client.producer(partition=index), [b"%d" % index])
    assert len(b.opened()) == 3
    assert (await drain(a, "b")).broker == "b"
    await empty(three, c, "b", 9)
    assert (len(a.opened()), len(b.opened()), len(c.opened())) in {(4, 0, 5), (5, 0, 4)}
    for index, owner in three.owners().items():
        assert await owner.client.read_all(index) == [(0, b"%d" % index)]
    await all_know(three, "b", drained=True)
    assert states(three) == {"a": "ok", "b": "drained", "c": "ok"}
    later = TopicName.parse("/default/later")
    await a.broker.topics.create(ANONYMOUS, later, TopicConfig(4, ack_level=AckLevel.STORED))
    await until(lambda: all(one.broker._registry.find_topic(later) is not None for one in three.brokers.values()))
    await until(lambda: len(a.opened(later)) == len(c.opened(later)) == 2)
    with pytest.raises(Refused, match=r"broker 'b' is drained: .*`danube brokers resume b`"):
        await do(a, MoveTopic(topic=TOPIC, partition=0, to="b"))
    await do(a, ResumeBroker(broker="b"))
    await all_know(three, "b", drained=False)
    assert states(three) == {"a": "ok", "b": "ok", "c": "ok"}
    assert not b.opened()
    index = min(a.opened())
    await do(c, MoveTopic(topic=TOPIC, partition=index, to="b"))
    await until(lambda: b.opened() == {index})


async def test_what_cannot_be_moved_now_is_told_with_the_reason_and_moves_when_it_can(two):
    await two.create(ack_level=AckLevel.MEMORY)
    owner = two.owners()[0]
    other = next(one for one in two.brokers.values() if one is not owner)
    collected = await owner.client.subscribe()
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await collected.wait_for(1)
    state = await drain(other, owner.name)
    assert (state.partitions, state.stuck) == (1, 1)
    (stuck,) = state.examples
    assert (stuck.topic, stuck.partition) == (str(TOPIC), 0) and "wait until they are acked" in stuck.reason
    await all_know(two, owner.name, drained=True)
    assert states(two, other.name)[owner.name] == "draining"
    await collected.ack((0, 1))
    await until(lambda: other.opened() == {0})
    assert (await drain(other, owner.name)).partitions == 0


async def test_the_last_broker_that_takes_partitions_cannot_be_drained(two):
    a, b = two.brokers["a"], two.brokers["b"]
    await drain(a, "b")
    await all_know(two, "b", drained=True)
    with pytest.raises(Refused, match="broker 'a' is the last one that takes partitions: `danube brokers resume b`"):
        await drain(b, "a")
    assert not a.membership.is_drained("a")
    await drain(a, "b")  # repeated, it only says how far it is
    await do(b, ResumeBroker(broker="b"))
    await drain(b, "a")


async def test_two_drains_at_once_leave_one_broker_that_takes_partitions(two):
    a, b = two.brokers["a"], two.brokers["b"]
    held = [one.faults.hold(puts(NODES)) for one in (a, b)]
    drains = [asyncio.create_task(drain(a, "a")), asyncio.create_task(drain(b, "b"))]
    for one in held:
        await one.asked.wait()
    for one in held:
        one.go_on()
    outcomes = await asyncio.gather(*drains, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["DrainState", "Refused"]


async def test_a_drain_that_failed_half_way_goes_on(two):
    await two.create(partitions=4)
    a, b = two.brokers["a"], two.brokers["b"]
    refused = a.faults.refuse_all(releases)
    await drain(b, "a")
    await refused.asked.wait()
    refused.end()
    await empty(two, b, "a", 4)
    assert b.opened() == {0, 1, 2, 3}


async def test_a_broker_is_still_drained_after_its_session_was_lost(two):
    await two.create(partitions=4)
    a, b = two.brokers["a"], two.brokers["b"]
    await drain(b, "a")
    await empty(two, b, "a", 4)
    await a.lose_session(two.store)
    await until(lambda: a.membership.holds() and b.membership.find("a") is not None)
    assert a.membership.is_drained("a") and b.membership.is_drained("a")


async def test_an_earlier_feature_level_refuses_to_drain_and_nothing_changes(two):
    a = two.brokers["a"]
    a.broker._registry.level.in_force = 2
    before = await two.store.get(node_key("b"))
    with pytest.raises(Refused, match=r"draining a broker needs feature level 3.*danube cluster upgrade --finish"):
        await drain(a, "b")
    assert await two.store.get(node_key("b")) == before


async def test_brokers_that_are_unknown_or_away_cannot_be_drained(two):
    a, b = two.brokers["a"], two.brokers["b"]
    with pytest.raises(NotFound, match="there is no broker 'x': there is 'a', 'b'"):
        await drain(a, "x")
    with pytest.raises(NotFound, match="there is no broker 'x'"):
        await do(a, ResumeBroker(broker="x"))
    await b.membership.leave()
    await until(lambda: b.name in a.membership.away())
    with pytest.raises(Refused, match=r"broker 'b' is away.*start it again, or see `danube brokers remove`"):
        await drain(a, "b")


async def test_without_a_broker_that_takes_partitions_nothing_is_placed_and_the_way_out_is_named(two):
    a, b = two.brokers["a"], two.brokers["b"]
    await drain(a, "a")
    await all_know(two, "a", drained=True)
    await b.broker.close()
    await b.membership.leave()
    await until(lambda: b.name in a.membership.away())
    await a.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(ack_level=AckLevel.STORED))
    with pytest.raises(Unavailable, match="no living broker takes partitions; `danube brokers resume a`"):
        await a.partitions.placement.place(TOPIC)
    await do(a, ResumeBroker(broker="a"))
    await until(lambda: not a.membership.is_drained("a"))
    await a.partitions.placement.place(TOPIC)
    await until(lambda: a.opened() == {0})


# -- remove ------------------------------------------------------------------------------------------------------------


async def test_a_drained_broker_that_was_stopped_is_removed_and_its_name_can_be_used_again(two):
    await two.create(partitions=4)
    a, b = two.brokers["a"], two.brokers["b"]
    with pytest.raises(Refused, match="broker 'b' lives: `danube brokers drain b`, stop it, and remove it then"):
        await do(a, RemoveBroker(broker="b"))
    await drain(a, "b")
    await empty(two, a, "b", 4)
    await b.broker.close()
    await b.membership.leave()
    await until(lambda: b.name in a.membership.away())
    await do(a, RemoveBroker(broker="b"))
    assert await two.store.get(node_key("b")) is None
    await until(lambda: states(two) == {"a": "ok"})
    with pytest.raises(NotFound):
        await do(a, RemoveBroker(broker="b"))


async def test_a_broker_for_which_partitions_wait_is_not_removed(two):
    await two.create(ack_level=AckLevel.DURABLE)
    owner = two.owners()[0]
    other = next(one for one in two.brokers.values() if one is not owner)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await owner.broker.close()
    await owner.membership.leave()
    await until(lambda: owner.name in other.membership.away())
    with pytest.raises(Refused, match=f"its log has {TOPIC}: start it again .*`danube topics takeover {TOPIC}` first"):
        await do(other, RemoveBroker(broker=owner.name))
    found = await two.store.get(node_key(owner.name))
    assert found is not None and unpack_node(found.key, found.value).log == f"log-{owner.name}"
    await other.broker.topics.take_over(ANONYMOUS, TOPIC, None, True)
    await until(lambda: other.opened() == {0})
    assert await other.broker.leftovers.describe(ANONYMOUS)
    await do(other, RemoveBroker(broker=owner.name))
    assert not await other.broker.leftovers.describe(ANONYMOUS)
    assert not (await two.record(other.broker._registry.topic(TOPIC).topic_id)).lost
    assert not [one.key async for one in list_all(two.store, DROPPED) if one.value.decode() == f"log-{owner.name}"]
    await other.client.publish(await other.client.producer(), [b"two"])
