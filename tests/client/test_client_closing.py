"""Acks and nacks of a consumer that is closed or has failed are refused, because they cannot be sent. Closing while
another task closes the same object or its client, and closing that is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import TOPIC, connection_of, publish

import pydanube
from pydanube import Client, NotFound, Refused
from pydanube.client.consuming.messages import Message
from pydanube.codec.native import requests
from waiting import until


async def backlog(client: Client) -> int:
    return (await client.describe_subscription(TOPIC, "billing")).partitions[0].lag


async def test_a_closed_consumer_refuses_acks_and_nacks(client: Client) -> None:
    await publish(client, b"0", b"1", b"2")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        first, second = await consumer.receive(timeout=60), await consumer.receive(timeout=60)
        rest = await consumer.receive_batch(timeout=60)
        await consumer.ack(first)
    with pytest.raises(Refused, match="consumer is closed"):
        await consumer.ack(second)  # right behind the last ack, which is the short way
    with pytest.raises(Refused, match="consumer is closed"):
        await consumer.ack(rest)
    with pytest.raises(Refused, match="consumer is closed"):
        await consumer.ack_cumulative(second)
    with pytest.raises(Refused, match="consumer is closed"):
        await consumer.nack(second)
    async with asyncio.timeout(60):
        with pytest.raises(Refused, match="consumer is closed"):
            await consumer.flush()
    assert await backlog(client) == 2


async def test_another_consumer_refuses_them_too(client: Client) -> None:
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as former:
        message = await former.receive(timeout=60)
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        with pytest.raises(Refused, match="consumer is closed"):
            await consumer.ack(message)
        await consumer.ack(await consumer.receive(timeout=60))
    assert await backlog(client) == 0


async def failed(consumer: pydanube.Consumer) -> None:
    with pytest.raises(Refused):
        await consumer.receive(timeout=60)


async def test_messages_of_a_consumer_that_was_taken_over_are_refused_with_the_reason(client: Client) -> None:
    await publish(client, b"0", b"1")
    async with client.consumer(TOPIC, subscription="billing", start="earliest", name="worker") as consumer:
        messages: list[Message] = [await consumer.receive(timeout=60) for _ in range(2)]
        async with client.consumer(TOPIC, subscription="billing", name="worker") as successor:
            await failed(consumer)
            for message in messages:
                with pytest.raises(Refused, match="took over"):
                    await consumer.ack(message)
                with pytest.raises(Refused, match="took over"):
                    await consumer.nack(message)
            await successor.ack(await successor.receive_batch(timeout=60))
    assert await backlog(client) == 0


async def test_messages_of_a_deleted_topic_are_refused_with_the_reason(client: Client) -> None:
    await publish(client, b"0")
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        await client.delete_topic(TOPIC)
        await failed(consumer)
        with pytest.raises(NotFound, match="deleted"):
            await consumer.ack(message)


async def test_a_pattern_outlives_one_of_its_topics_and_acks_for_it_are_no_error(client: Client) -> None:
    await client.create_topic("/default/orders-a")
    async with client.consumer("/default/orders-*", subscription="billing", start="earliest") as consumer:
        async with client.producer("/default/orders-a") as producer:
            await producer.send(b"0")
        message = await consumer.receive(timeout=60)
        await client.delete_topic("/default/orders-a")
        await until(lambda: not consumer.topics)
        await consumer.ack(message)
        await consumer.flush()


def test_without_await() -> None:
    with pydanube.testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send(b"0")
        with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
            message = consumer.receive(timeout=60)
        with pytest.raises(Refused, match="consumer is closed"):
            consumer.ack(message)
        with pytest.raises(Refused, match="consumer is closed"):
            consumer.nack(message)
        with pytest.raises(Refused, match="consumer is closed"):
            consumer.flush()


async def test_a_client_that_is_closed_waits_for_what_others_are_closing(url: str, client: Client) -> None:
    closed = await pydanube.connect(url)
    producer = await closed.producer(TOPIC)
    consumer = await closed.consumer(TOPIC, subscription="billing", start="earliest", ack_linger_ms=60_000)
    await producer.send_many([b"x"] * 100)
    await consumer.ack(await consumer.receive_batch(timeout=60))
    await producer.queue_many([bytes(1_000)] * 5_000)
    others = [asyncio.create_task(one.close()) for one in (producer, consumer)]
    await asyncio.sleep(0)  # they have begun
    await closed.close()
    assert all(other.done() for other in others)
    await asyncio.gather(*others)
    assert (await client.partitions(TOPIC))[0].end_offset == 5_100
    assert (await client.describe_subscription(TOPIC, "billing")).partitions[0].position == 100


async def test_a_second_close_waits_for_the_end_of_the_first(client, wire):
    producer = await client.producer(TOPIC)
    wire.answers_flow = False
    producer.send_nowait(b"x")
    closing = [asyncio.create_task(producer.close()) for _ in range(3)]
    await until(lambda: bool(connection_of(client)._publishes))
    assert not any(one.done() for one in closing)
    wire.cut()
    wire.answers_flow = True
    async with asyncio.timeout(60):
        await asyncio.gather(*closing)
    await producer.close()
    assert (await client.partitions(TOPIC))[0].end_offset == 1


async def test_a_send_ends_although_the_close_is_cancelled_in_the_midst_of_its_end(client, wire):
    producer = await client.producer(TOPIC)
    wire.answers_flow = False
    sending = asyncio.create_task(producer.send(b"x"))
    await until(lambda: bool(connection_of(client)._publishes))
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)  # it waits for the answer to the message
    closing.cancel()
    await until(lambda: is_asked(client, requests.Done))  # now it waits for the answer to CloseProducer
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(60):
        with pytest.raises(Refused, match="closed before this message was published"):
            await sending


def is_asked(client: Client, answer: type) -> bool:
    """Return whether a request is in flight that such an answer ends."""
    return any(getattr(one, "kind", None) is answer for one in connection_of(client)._asked.values())
