"""Acks and nacks of a consumer that is closed or has failed are refused, because they cannot be sent."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import TOPIC, publish

import pydanube
from pydanube import Client, NotFound, Refused
from pydanube.client.consuming.messages import Message
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
