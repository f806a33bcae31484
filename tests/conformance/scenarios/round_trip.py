"""A producer and a consumer of one topic."""

from __future__ import annotations

import asyncio
from typing import Any

from danube import DispatchStrategy, SubType


async def until_connected(producer: Any, queue: Any) -> None:
    """Publish until something is received, and forget it all."""
    last = 0
    while queue.empty():
        last += 1
        await producer.send(b"%d" % last)
        await asyncio.sleep(0.05)
    while (await queue.get()).payload != b"%d" % last:
        pass


async def publish_and_receive(client: Any, _steps: Any, topic: str, payloads: list[str], reliable: bool) -> Any:
    """Publish the payloads and return what a consumer gets: payload, attributes, offset, topic, producer."""
    producer = client.new_producer().with_topic(topic).with_name("producer")
    if reliable:
        producer = producer.with_dispatch_strategy(DispatchStrategy.RELIABLE)
    producer = producer.build()
    await producer.create()
    consumer = (
        client.new_consumer()
        .with_topic(topic)
        .with_consumer_name("consumer")
        .with_subscription("subscription")
        .with_subscription_type(SubType.EXCLUSIVE)
        .build()
    )
    await consumer.subscribe()
    queue = await consumer.receive()
    if not reliable:  # messages are lost until the stream of the consumer is open, which takes a moment
        await until_connected(producer, queue)
    received = []
    for payload in payloads:
        await producer.send(payload.encode(), {"number": payload})
        message = await queue.get()
        await consumer.ack(message)
        received.append(
            [
                message.payload.decode(),
                dict(message.attributes),
                message.msg_id.topic_offset,
                message.msg_id.topic_name,
                message.producer_name,
            ]
        )
    await consumer.close()
    await producer.close()
    return received
