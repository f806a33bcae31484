"""An owner whose session may be over answers nothing, delivers nothing and counts no ack; it goes on when it is not."""

import asyncio

import numpy as np
import pytest
from broker_harness import TOPIC
from cluster_harness import Node, World, open_world

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Unavailable
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.subscriptions import Advance, Seek, Settle
from pydanube.runtime.clock import ManualClock
from waiting import until

LEVELS = [AckLevel.DURABLE, AckLevel.WRITTEN, AckLevel.MEMORY]


async def started(world: World, **config) -> Node:
    a = await world.start("a")
    await a.client.create(**config)
    return a


async def settle(node: Node) -> None:
    """Wait until the log has answered everything, and the loop has done what follows from it."""
    synced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    node.writer.sync(lambda _error: synced.set_result(None))
    await synced
    for _ in range(10):
        await asyncio.sleep(0)


# -- publishing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
async def test_a_publish_is_not_acked_past_the_deadline_and_the_same_one_is_recognised_later(world, level):
    a = await started(world, ack_level=level)
    producer = await a.client.producer("p")
    await a.client.publish(producer, [b"0"], sequence=0)
    waiting = a.client.publish(producer, [b"1"], sequence=1)
    a.member.is_held = False  # the process was paused while the log wrote
    if level is not AckLevel.DURABLE and waiting.done():  # nothing may lie between the publish and its answer
        assert (await waiting).base_offset == 1
    else:
        with pytest.raises(Unavailable, match="could not renew its session"):
            await waiting
    with pytest.raises(Unavailable, match="could not renew its session"):
        await a.client.publish(producer, [b"0"], sequence=0)  # nor is a duplicate
    with pytest.raises(Unavailable, match="could not renew its session"):
        await a.client.publish(producer, [b"2"], sequence=2)
    a.member.is_held = True
    answers = [await a.client.publish(producer, [b"%d" % n], sequence=n) for n in (1, 2)]
    assert [one.base_offset for one in answers] == [1, 2]
    assert answers[0].duplicate
    assert [payload for _, payload in await a.client.read_all()] == [b"0", b"1", b"2"]


async def test_a_non_reliable_publish_past_the_deadline_reaches_nobody(world):
    a = await started(world, reliable=False)
    producer, consumer = await a.client.producer(), await a.client.subscribe()
    a.member.is_held = False
    with pytest.raises(Unavailable, match="could not renew its session"):
        await a.client.publish(producer, [b"x"])
    assert consumer.received == []
    a.member.is_held = True
    await a.client.publish(producer, [b"y"])
    assert [payload for _, payload in consumer.received] == [b"y"]


# -- delivering --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
async def test_nothing_is_delivered_past_the_deadline_and_delivery_goes_on_by_itself(tmp_path, level):
    clock = ManualClock()
    async with open_world(tmp_path, clock) as world:
        a = await started(world, ack_level=level)
        producer, consumer = await a.client.producer(), await a.client.subscribe()
        await a.client.publish(producer, [b"0"])
        await consumer.wait_for(1)
        a.member.is_held = False
        with pytest.raises(Unavailable):
            await a.client.publish(producer, [b"1"])
        await settle(a)
        clock.advance(5)
        await settle(a)
        assert len(consumer.received) == 1
        a.member.is_held = True  # a late renewal makes no noise
        clock.advance(1)
        assert [payload for _, payload in await consumer.wait_for(2)] == [b"0", b"1"]


# -- acks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("awaited", [True, False])
async def test_an_ack_past_the_deadline_is_not_counted_and_the_message_comes_again(world, level, awaited):
    a = await started(world, ack_level=level)
    consumer = await a.client.subscribe()
    await a.client.publish(await a.client.producer(), [b"0", b"1"])
    await consumer.wait_for(2)
    live = (await a.partitions.get(TOPIC, 0)).subscriptions["billing"]
    a.member.is_held = False
    answers = []
    consumer.consumer.ack([(0, 1)], False, answers.append if awaited else None)
    assert [type(one) for one in answers] == [Unavailable] * awaited
    assert isinstance(consumer.error, Unavailable), "the consumer looks the owner up again"
    assert (live.cursor.position, live.counts.acked) == (0, 0)
    a.member.is_held = True
    again = await a.client.subscribe()
    assert await again.wait_for(2) == [(0, b"0"), (1, b"1")]
    await again.ack((0, 2))
    assert live.cursor.position == 2


async def test_acks_that_waited_to_be_joined_are_not_counted_past_the_deadline(world):
    a = await started(world)
    consumer = await a.client.subscribe(kind=SubscriptionType.SHARED)
    await a.client.publish(await a.client.producer(), [b"0", b"1", b"2", b"3"])
    await consumer.wait_for(4)
    live = (await a.partitions.get(TOPIC, 0)).subscriptions["billing"]
    answers = []
    consumer.consumer.ack(np.array([[0, 1], [2, 3]], np.int64), False, answers.append)
    assert not answers
    a.member.is_held = False
    await until(lambda: bool(answers))
    assert isinstance(answers[0], Unavailable)
    assert not live.cursor.acked and live.cursor.position == 0


async def test_an_ack_whose_sync_ends_past_the_deadline_is_not_answered_as_done(world):
    a = await started(world)
    consumer = await a.client.subscribe()
    await a.client.publish(await a.client.producer(), [b"0", b"1"])
    await consumer.wait_for(2)
    await consumer.ack((0, 1))  # opens the state ledger
    answers = []
    consumer.consumer.ack([(1, 2)], False, answers.append)
    (await a.partitions.get(TOPIC, 0)).state.flush()
    a.member.is_held = False
    await until(lambda: bool(answers))
    assert isinstance(answers[0], Unavailable)


async def test_nacks_single_acks_seeks_and_advances_past_the_deadline_change_nothing(world):
    a = await started(world)
    consumer = await a.client.subscribe()
    await a.client.publish(await a.client.producer(), [b"0", b"1"])
    await consumer.wait_for(2)
    partition = await a.partitions.get(TOPIC, 0)
    live = partition.subscriptions["billing"]
    a.member.is_held = False
    acks = a.broker.single_acks
    for call in (
        lambda: acks.ack(ANONYMOUS, TOPIC, 0, "billing", 0),
        lambda: acks.nack(ANONYMOUS, TOPIC, 0, "billing", 0, 0, ""),
        lambda: a.broker.subscriptions.seek(
            ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("latest"))
        ),
        lambda: a.broker.subscriptions.advance(
            ANONYMOUS, Advance(topic=TOPIC, subscription="billing", partition=0, offset=1, expected=0)
        ),
        lambda: a.broker.subscriptions.settle(
            ANONYMOUS, Settle(topic=TOPIC, subscription="billing", partition=0, ranges=[])
        ),
    ):
        with pytest.raises(Unavailable, match="could not renew its session"):
            await call()
    with pytest.raises(Unavailable):
        live.seek(2, lambda _error: None)
    assert live.mark_acked([(0, 2)], None) == 0
    live.expire([(0, 1)])
    live.evict_below(1)
    consumer.consumer.nack([(0, 1)])
    assert isinstance(consumer.error, Unavailable)
    assert live.cursor.position == 0
    assert live.counts.expired == live.counts.evicted == 0


# -- reading -----------------------------------------------------------------------------------------------------------


async def test_a_fetch_is_not_answered_past_the_deadline(world):
    a = await started(world)
    await a.client.publish(await a.client.producer(), [b"0"])
    partition = await a.partitions.get(TOPIC, 0)
    a.member.is_held = False
    with pytest.raises(Unavailable, match="could not renew its session"):
        await partition.fetch(EARLIEST, 1 << 20, 0)
    with pytest.raises(Unavailable, match="could not renew its session"):
        await a.client.fetch()
    a.member.is_held = True
    assert await a.client.read_all() == [(0, b"0")]
