"""Who gets which messages: fan-out, round robin, partitions, large messages."""

from __future__ import annotations

import asyncio
from typing import Any

from danube import SubType
from parts import connect_all, digest, drain, new_producer, new_receiver, payloads


async def fan_out(client: Any, _steps: Any, topic: str, count: int) -> Any:
    """Three exclusive subscriptions; returns what each of them gets."""
    producer = await new_producer(client, topic)
    receivers = [await new_receiver(client, topic, subscription=f"subscription-{one}") for one in range(3)]
    for number in range(count):
        await producer.send(b"%d" % number)
    return [payloads(await one.take(count)) for one in receivers]


async def round_robin(client: Any, _steps: Any, topic: str, count: int, reliable: bool) -> Any:
    """Three consumers of one shared subscription; returns what each of them gets."""
    producer = await new_producer(client, topic, reliable=reliable)
    receivers = [await new_receiver(client, topic, name=f"consumer-{one}", kind=SubType.SHARED) for one in range(3)]
    await connect_all(lambda number: producer.send(b"warm up %d" % number), receivers)
    for number in range(count):
        await producer.send(b"%d" % number)
    await drain(receivers, count)
    return [payloads(one.received) for one in receivers]


async def partitions(client: Any, _steps: Any, topic: str, partitions: int, count: int) -> Any:
    """A partitioned topic with an exclusive and a shared subscription of two consumers. Returns what each of the three
    consumers gets: payload, topic and offset."""
    producer = await new_producer(client, topic, partitions=partitions)
    exclusive = await new_receiver(client, topic, subscription="exclusive")
    shared = [
        await new_receiver(client, topic, subscription="shared", name=f"consumer-{one}", kind=SubType.SHARED)
        for one in range(2)
    ]
    for number in range(count):
        await producer.send(b"%d" % number)
    await asyncio.gather(drain([exclusive], count), drain(shared, count))
    return [
        [[one.payload.decode(), one.msg_id.topic_name, one.msg_id.topic_offset] for one in receiver.received]
        for receiver in (exclusive, *shared)
    ]


async def large_messages(client: Any, _steps: Any, topic: str, count: int, size: int) -> Any:
    """Reliable messages of this size; returns the digests of what was sent, and of what two subscriptions get."""
    producer = await new_producer(client, topic)
    exclusive = await new_receiver(client, topic, subscription="exclusive")
    shared = await new_receiver(client, topic, subscription="shared", kind=SubType.SHARED)
    sent = [bytes((place * (number + 7)) % 251 for place in range(size)) for number in range(count)]
    for one in sent:
        await producer.send(one)
    return [
        [digest(one) for one in sent],
        *[[digest(message.payload) for message in await one.take(count)] for one in (exclusive, shared)],
    ]
