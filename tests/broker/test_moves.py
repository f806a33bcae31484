"""One partition is given to the broker that is named; everything that was acked, and every position, goes with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_harness import TOPIC, truncate
from cluster_harness import MovingBroker, MovingCluster, moving_cluster, releases

from pydanube.broker import Published
from pydanube.broker.cluster.loads import LEAVING
from pydanube.broker.handlers import carry_out
from pydanube.broker.registry.records import partition_key
from pydanube.core.access import ANONYMOUS
from pydanube.core.identity import NOBODY
from pydanube.model.cluster import PartitionMoved
from pydanube.model.errors import NotFound, NotOwner, Refused, Unavailable
from pydanube.model.positions import LATEST
from pydanube.model.topics import AckLevel
from pydanube.operations.subscriptions import Seek
from pydanube.operations.topics import MoveTopic
from waiting import until

DRAIN_S = 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MovingCluster]:
    async with moving_cluster(tmp_path, "a", "b") as opened:
        yield opened


def pair(cluster: MovingCluster, index: int = 0) -> tuple[MovingBroker, MovingBroker]:
    """Return the owner of a partition, and another broker."""
    owner = cluster.owners()[index]
    return owner, next(one for one in cluster.brokers.values() if one is not owner)


async def move(asked: MovingBroker, to: str, partition: int = 0) -> PartitionMoved:
    return await carry_out(asked.broker, NOBODY, MoveTopic(topic=TOPIC, partition=partition, to=to))


async def moved(cluster: MovingCluster, by: MovingBroker, to: MovingBroker, partition: int = 0) -> None:
    """Move a partition, and wait until its new owner has opened it."""
    await move(by, to.name, partition)
    await until(lambda: cluster.owners().get(partition) is to)


async def test_any_broker_may_be_asked_and_everything_that_was_acked_moves(cluster):
    await cluster.create()
    owner, other = pair(cluster)
    producer = await owner.client.producer("p")
    await owner.client.publish(producer, [b"one", b"two", b"three"], 0)
    collected = await owner.client.subscribe()
    await collected.wait_for(3)
    await collected.ack((1, 2), cumulative=False)
    assert await move(other, other.name) == PartitionMoved(0, owner.name, other.name)
    assert isinstance(collected.error, NotOwner)
    await until(lambda: other.opened() == {0} and not owner.opened())
    assert await other.client.read_all() == [(0, b"one"), (1, b"two"), (2, b"three")]
    again = await other.client.subscribe()
    assert await again.wait_for(2) == [(0, b"one"), (2, b"three")]
    back = await other.client.come_back(producer, "p")
    assert (await other.client.publish(back, [b"one", b"two", b"three"], 0)).duplicate
    assert (await other.client.publish(back, [b"four"], 3)).base_offset == 3


async def test_a_partition_moves_there_and_back(cluster):
    await cluster.create()
    owner, other = pair(cluster)
    for number in range(4):
        here, there = (owner, other) if number % 2 == 0 else (other, owner)
        await here.client.publish(await here.client.producer(), [b"%d" % number])
        await moved(cluster, here, there)
    assert await owner.client.read_all() == [(number, b"%d" % number) for number in range(4)]


async def test_non_reliable_partitions_move(cluster):
    await cluster.create(reliable=False, ack_level=AckLevel.MEMORY)
    owner, other = pair(cluster)
    await moved(cluster, owner, other)
    collected = await other.client.subscribe()
    await other.client.publish(await other.client.producer(), [b"one"])
    assert [payload for _, payload in await collected.wait_for(1)] == [b"one"]


async def test_a_memory_partition_moves_once_everything_in_it_is_acked(cluster):
    await cluster.create(ack_level=AckLevel.MEMORY)
    owner, other = pair(cluster)
    collected = await owner.client.subscribe()
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await collected.wait_for(1)
    with pytest.raises(Refused, match="in the memory of this broker only: wait until they are acked"):
        await move(owner, other.name)
    assert collected.error is None
    await collected.ack((0, 1))
    await moved(cluster, owner, other)
    assert (await other.client.publish(await other.client.producer(), [b"two"])).base_offset == 1


async def test_a_message_that_comes_into_memory_at_the_moment_of_the_move_is_not_lost(cluster):
    await cluster.create(ack_level=AckLevel.MEMORY)
    owner, other = pair(cluster)
    topic_id = owner.broker._registry.topic(TOPIC).topic_id
    collected = await owner.client.subscribe()
    producer = await owner.client.producer()
    await owner.client.publish(producer, [b"zero"])  # from here on a publish waits for nothing
    await collected.wait_for(1)
    await collected.ack((0, 1))
    answers: list[asyncio.Future[Published]] = []
    moving = asyncio.create_task(owner.partitions.hand_over((topic_id, 0), other.name))
    asyncio.get_running_loop().call_soon(lambda: answers.append(owner.client.publish(producer, [b"one"])))
    assert await moving is None
    with pytest.raises(NotOwner):
        await answers[0]


# -- what is refused ---------------------------------------------------------------------------------------------------


async def test_targets_that_cannot_take_it_are_refused_and_nothing_changes(cluster):
    topic_id = await cluster.create()
    owner, other = pair(cluster)
    record = await cluster.record(topic_id)
    with pytest.raises(NotFound, match=r"there is no broker 'x': there is 'a', 'b' \(`danube brokers list`\)"):
        await move(other, "x")
    with pytest.raises(Refused, match=f"partition 0 of {TOPIC} is at broker '{owner.name}' already"):
        await move(other, owner.name)
    with pytest.raises(NotFound, match="has 1 partitions: there is no partition 7"):
        await move(other, owner.name, 7)
    assert await cluster.record(topic_id) == record
    assert owner.opened() == {0}


async def test_a_broker_that_stops_is_no_target(cluster):
    await cluster.create()
    owner, other = pair(cluster)
    await other.broker.leave(DRAIN_S)
    loads = owner.broker._cluster.loads
    await until(lambda: (load := loads.of(other.name)) is not None and load.state == LEAVING)
    with pytest.raises(Refused, match=f"broker '{other.name}' is stopping: name another one"):
        await move(owner, other.name)
    assert owner.opened() == {0}


async def test_a_broker_that_is_away_is_no_target(cluster):
    await cluster.create()
    owner, other = pair(cluster)
    await other.membership.leave()
    await until(lambda: other.name in owner.membership.away())
    with pytest.raises(Refused, match=f"broker '{other.name}' is away.*start it, or name another one"):
        await move(owner, other.name)
    assert owner.opened() == {0}


async def test_a_target_that_does_not_answer_gets_nothing_although_its_session_lives(cluster):
    topic_id = await cluster.create()
    owner, other = pair(cluster)
    record = await cluster.record(topic_id)
    await other.server.close(0.0)
    with pytest.raises(Unavailable, match=f"broker '{other.name}'"):
        await move(owner, other.name)
    assert await cluster.record(topic_id) == record
    assert owner.opened() == {0}


async def test_a_partition_that_waits_for_a_lost_broker_is_refused(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await owner.membership.leave()
    await until(lambda: owner.name in other.membership.away())
    with pytest.raises(Refused, match=f"waits for broker '{owner.name}'.*danube topics takeover"):
        await move(other, other.name)


async def test_two_moves_of_a_partition_at_once_are_refused(cluster):
    await cluster.create()
    owner, other = pair(cluster)
    held = owner.faults.hold(releases)
    first = asyncio.create_task(move(owner, other.name))
    await held.asked.wait()
    with pytest.raises(Refused, match=f"is being moved to broker '{other.name}': wait until that is done"):
        await move(owner, other.name)
    held.go_on()
    await first
    await until(lambda: other.opened() == {0})


async def test_a_broker_alone_refuses(tmp_path):
    async with moving_cluster(tmp_path, "a") as cluster:
        await cluster.create()
        with pytest.raises(Refused, match=r"partition 0 of .* is at broker 'a' already"):
            await move(cluster.brokers["a"], "a")


# -- what else changes -------------------------------------------------------------------------------------------------


async def test_a_topic_that_is_deleted_during_a_move_is_gone(cluster):
    topic_id = await cluster.create()
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    held = owner.faults.hold(releases)
    moving = asyncio.create_task(move(owner, other.name))
    await held.asked.wait()
    await other.broker.topics.delete(ANONYMOUS, TOPIC)
    await until(lambda: owner.broker._registry.find_topic(TOPIC) is None)
    held.go_on()
    with pytest.raises(NotFound):
        await moving
    assert await cluster.store.get(partition_key(topic_id, 0)) is None
    assert await cluster.create() != topic_id
    assert await cluster.owners()[0].client.read_all() == []


async def test_a_topic_may_change_in_every_way_during_a_move(cluster):
    topic_id = await cluster.create(partitions=1)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"0", b"1", b"2"])
    collected = await owner.client.subscribe()
    await collected.wait_for(3)
    held = owner.faults.hold(releases)
    moving = asyncio.create_task(move(owner, other.name))
    await held.asked.wait()
    await other.broker.topics.grow(ANONYMOUS, TOPIC, 2)
    await other.broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 1000}, "")
    truncating = asyncio.create_task(truncate(other.broker, TOPIC, {0: 1}))
    seek = Seek(topic=TOPIC, subscription="billing", position=LATEST)
    seeking = asyncio.create_task(carry_out(other.broker, NOBODY, seek))
    held.go_on()
    await moving
    outcomes = await asyncio.gather(truncating, seeking, return_exceptions=True)
    assert all(isinstance(one, NotOwner | Unavailable) for one in outcomes if isinstance(one, BaseException)), outcomes
    await until(lambda: 0 in other.opened() and len(cluster.owners()) == 2)
    await truncate(other.broker, TOPIC, {0: 1})  # as a caller does who was told to ask again
    await carry_out(other.broker, NOBODY, seek)
    partition = other.partitions.find(topic_id, 0)
    assert partition is not None
    await until(lambda: partition.policies.retention_s == 1000)
    assert await other.client.start() == 1
    again = await other.client.subscribe()
    await other.client.publish(await other.client.producer(), [b"3"])
    assert await again.wait_for(1) == [(3, b"3")]


# -- what fails --------------------------------------------------------------------------------------------------------


async def test_after_a_move_that_failed_the_owner_serves_the_partition_again(cluster):
    topic_id = await cluster.create()
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    refused = owner.faults.refuse_all(releases)
    with pytest.raises(Unavailable):
        await move(owner, other.name)
    refused.end()
    assert owner.opened() == {0}
    assert (await cluster.record(topic_id)).owner == owner.name
    assert await owner.client.read_all() == [(0, b"one")]
    await moved(cluster, owner, other)


async def test_a_target_that_ends_before_it_takes_the_partition_is_replaced(cluster):
    await cluster.create()
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    await other.stop_following()  # it does not hear that the partition is its
    await move(owner, other.name)
    await other.membership.leave()
    await until(lambda: owner.opened() == {0})
    assert await owner.client.read_all() == [(0, b"one")]


async def test_publishes_during_many_moves_are_neither_lost_nor_doubled_nor_out_of_order(cluster):
    await cluster.create(partitions=1)
    a, b = cluster.brokers["a"], cluster.brokers["b"]
    acked: list[int] = []

    async def publish(total: int) -> None:
        identity, number = None, 0
        while number < total:
            here = cluster.owners().get(0)
            if here is None:
                await asyncio.sleep(0.001)
                continue
            try:
                identity = await (
                    here.client.producer("p") if identity is None else here.client.come_back(identity, "p")
                )
                while number < total:
                    acked.append((await here.client.publish(identity, [b"%d" % number], number)).base_offset)
                    number += 1
            except (NotOwner, Unavailable):
                continue

    publishing = asyncio.create_task(publish(300))
    while not publishing.done():
        here, there = (a, b) if cluster.owners().get(0) is a else (b, a)
        if 0 in here.opened():
            await move(here, there.name)
            await until(lambda there=there: 0 in there.opened())
        await asyncio.sleep(0.01)
    await publishing
    assert acked == list(range(300))
    owner = cluster.owners()[0]
    assert await owner.client.read_all() == [(number, b"%d" % number) for number in range(300)]
