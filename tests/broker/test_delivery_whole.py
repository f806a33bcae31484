"""Consecutive stored batches go to a sole consumer as they are stored; other batches are offered one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_harness import BrokerClient, open_client, open_topic

from pydanube.broker import Producer, Published
from pydanube.broker.subscriptions.delivery_batches import WHOLE_BATCHES_MAX, whole_batches
from pydanube.codec.batch import Batch, encode
from pydanube.codec.batch.gather import gather_range
from pydanube.core.access import ANONYMOUS
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.runtime.objects.memory import MemoryStore

MANY = 1 << 30


def stored(base: int, count: int = 3) -> memoryview:
    batch = Batch.trust(encode([b"x"] * count, publish_times=0))
    batch.stamp(base, 0, 1)
    return batch.view


def one_batch(producer: Producer) -> memoryview:
    """Return a batch of one message, as a producer sends it."""
    identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
    return memoryview(encode([b"x"], publish_times=1, **identity))


def taken(views: list[memoryview], start: int = 0, messages: int = MANY, size: int = MANY) -> int:
    """Return how many of the batches are delivered together."""
    found, end, size_bytes = whole_batches(deque(views), start, messages, size)
    assert found == views[: len(found)]
    assert size_bytes == sum(map(len, found))
    assert end == (Batch.trust(found[-1]).end_offset if found else start)
    return len(found)


def test_consecutive_batches_are_delivered_together_up_to_a_gap():
    views = [stored(0), stored(3), stored(7), stored(10)]
    assert taken(views) == 2
    assert taken(views[2:], start=7) == 2
    assert taken(views[2:], start=6) == 0, "nothing is skipped here"
    assert taken(views, start=1) == 0, "a part of a batch is no whole one"


def test_a_run_ends_with_the_credit_and_one_batch_may_exceed_it():
    views = [stored(0), stored(3), stored(6)]
    assert [taken(views, messages=credit) for credit in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    size = len(views[0])
    assert [taken(views, size=credit) for credit in (1, size, size + 1)] == [1, 1, 2]
    assert taken([stored(3 * number) for number in range(30)]) == WHOLE_BATCHES_MAX


def test_a_batch_with_rows_left_out_ends_a_run():
    whole = Batch.trust(encode([b"x"] * 9, publish_times=0))
    whole.stamp(3, 0, 1)
    part = Batch.trust(gather_range(whole, 2, 5))
    assert part.count < part.span
    assert taken([stored(0), part.view]) == 1


@asynccontextmanager
async def filled(directory: Path, batches: int) -> AsyncIterator[tuple[BrokerClient, Producer]]:
    """Open a broker with a topic of this many batches of ten messages."""
    async with open_topic(directory) as client:
        producer = await client.producer()
        for _ in range(batches):
            await client.publish(producer, [b"x"] * 10)
        yield client, producer


async def test_a_run_stops_at_the_consumers_credit_and_continues_with_more_credit(tmp_path: Path):
    async with filled(tmp_path, 5) as (client, _):
        consumer = await client.subscribe(credit=15)
        assert len(await consumer.wait_for(20)) == 20, "two whole batches: the second began within the credit"
        consumer.consumer.credit(10, 0)
        assert len(await consumer.wait_for(30)) == 30, "five were owed"
        consumer.consumer.credit(MANY, 0)
        assert [offset for offset, _ in await consumer.wait_for(50)] == list(range(50))


async def test_after_a_failover_unacked_messages_go_to_the_next_consumer(tmp_path: Path):
    async with filled(tmp_path, 4) as (client, producer):
        first = await client.subscribe(consumer="a", kind=SubscriptionType.FAILOVER)
        second = await client.subscribe(consumer="b", kind=SubscriptionType.FAILOVER)
        await first.wait_for(40)
        await first.ack((5, 20))
        first.consumer.close()
        assert [offset for offset, _ in await second.wait_for(25)] == [*range(5), *range(20, 40)]
        await client.publish(producer, [b"x"] * 10)
        assert [offset for offset, _ in await second.wait_for(35)][25:] == list(range(40, 50))


@pytest.mark.parametrize("ack_level", list(AckLevel))
async def test_a_memory_topic_delivers_before_the_producer_is_answered_and_a_stored_topic_after(
    tmp_path: Path, ack_level: AckLevel
):
    order: list[str] = []
    async with open_client(tmp_path, objects=MemoryStore()) as client:
        await client.create(ack_level=ack_level)
        producer = await client.producer()
        await client.publish(producer, [b"opens what is missing"])
        consumer = await client.subscribe()
        await consumer.wait_for(1)
        deliver = consumer.deliver_whole
        consumer.deliver_whole = lambda *what: (order.append("delivered"), deliver(*what))
        client.broker.batches.publish(ANONYMOUS, producer, one_batch(producer), lambda _: order.append("answered"))
        await consumer.wait_for(2)
        assert order == sorted(order, reverse=ack_level is AckLevel.MEMORY) and len(order) == 2


async def test_a_producer_is_answered_although_delivering_raises(client, broker):
    await client.create(ack_level=AckLevel.MEMORY)
    producer = await client.producer()
    await client.publish(producer, [b"opens what is missing"])
    consumer = await client.subscribe()
    await consumer.wait_for(1)
    consumer.deliver_whole = lambda *_: 1 / 0
    answers: list[object] = []
    with pytest.raises(ZeroDivisionError):
        broker.batches.publish(ANONYMOUS, producer, one_batch(producer), answers.append)
    assert answers == [Published(1, producer.partition.epoch, False)]


async def test_a_publish_that_waits_keeps_only_its_own_memory(client, broker, topic):
    producer = await client.producer()
    chunk = one_batch(producer)
    answered = asyncio.Event()
    broker.batches.publish(ANONYMOUS, producer, chunk, lambda _: answered.set())
    ((waiting, _),) = producer.partition._publishes._waiting  # for its ledger
    assert waiting.view == chunk
    assert waiting.view.obj is not chunk.obj
    await answered.wait()
    assert await client.read_all() == [(0, b"x")]
