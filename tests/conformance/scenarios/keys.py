"""Key-shared subscriptions: each key has one consumer at a time, and filters say which keys a consumer takes."""

from __future__ import annotations

import asyncio
from typing import Any

from danube import SubType
from parts import connect_all, drain, new_producer, new_receiver

KEYS = [f"user-{number}" for number in range(12)]


def by_consumer(receivers: list[Any]) -> Any:
    """Return key and payload of what each received."""
    return [[[one.routing_key, one.payload.decode()] for one in receiver.received] for receiver in receivers]


async def affinity(client: Any, _steps: Any, topic: str, count: int, partitions: int, reliable: bool) -> Any:
    """Three consumers, twelve keys; returns what each gets."""
    producer = await new_producer(client, topic, partitions=partitions, reliable=reliable)
    receivers = [await new_receiver(client, topic, name=f"consumer-{one}", kind=SubType.KEY_SHARED) for one in range(3)]
    await connect_all(lambda number: producer.send_with_key(b"warm up", None, f"warm-{number}"), receivers)
    for number in range(count):
        await producer.send_with_key(b"%d" % number, None, KEYS[number % len(KEYS)])
    await drain(receivers, count)
    return by_consumer(receivers)


async def filters(client: Any, _steps: Any, topic: str) -> Any:
    """Two consumers with filters, then one without. Returns what each gets of the keys that only filters take, and the
    key that none of them accepted, which the one without filters gets later."""
    producer = await new_producer(client, topic)
    receivers = [
        await new_receiver(client, topic, name="europe", kind=SubType.KEY_SHARED, filters=("eu-*",)),
        await new_receiver(client, topic, name="others", kind=SubType.KEY_SHARED, filters=("us-?", "asia-*")),
    ]
    for number, key in enumerate(["mars-1", "eu-west", "us-1", "asia-south", "us-12", "eu-north", "us-2"]):
        await producer.send_with_key(b"%d" % number, None, key)
    await drain(receivers, 5)
    late = await new_receiver(client, topic, name="late", kind=SubType.KEY_SHARED)
    await drain([late], 2)
    return by_consumer([*receivers, late])


async def reverse_acks(client: Any, _steps: Any, topic: str, count: int) -> Any:
    """One key-shared consumer, which acks the last message first; then another consumer, which gets what is left."""
    producer = await new_producer(client, topic)
    first = await new_receiver(client, topic, name="first", kind=SubType.KEY_SHARED)
    for number in range(count):
        await producer.send_with_key(b"%d" % number, None, KEYS[number % len(KEYS)])
    messages = await first.take(count, ack=False)
    await asyncio.gather(*(first.consumer.ack(one) for one in reversed(messages)))
    await first.close()
    second = await new_receiver(client, topic, name="second", kind=SubType.KEY_SHARED)
    await producer.send_with_key(b"last", None, KEYS[0])
    await drain([second], 1)
    return by_consumer([first, second])
