"""Messages that are not acked: nacks, ack timeouts, dead letters. The test sets the failure policies."""

from __future__ import annotations

import time
from typing import Any

from danube import SubType
from parts import new_producer, new_receiver, payloads


async def nack(client: Any, steps: Any, topic: str, delays_ms: list[int | None]) -> Any:
    """Nack one message with each of these delays. Returns the times from each nack to the redelivery, in ms, and all
    payloads in the order in which they came."""
    producer = await new_producer(client, topic)
    receiver = await new_receiver(client, topic, kind=SubType.SHARED)
    steps.reached("subscribed")
    await steps.told("policy set")
    await producer.send(b"again")
    message = await receiver.next(ack=False)
    waited = []
    for delay_ms in delays_ms:
        asked = time.monotonic()
        await receiver.consumer.nack(message, delay_ms, "not today")
        message = await receiver.next(ack=False)
        waited.append((time.monotonic() - asked) * 1000)
    await receiver.consumer.ack(message)
    await producer.send(b"last")
    await receiver.next()
    return waited, payloads(receiver.received)


async def ack_timeout(client: Any, steps: Any, topic: str) -> Any:
    """Let one message time out twice, then ack it. Returns the payloads in the order in which they came."""
    producer = await new_producer(client, topic)
    receiver = await new_receiver(client, topic)
    steps.reached("subscribed")
    await steps.told("policy set")
    await producer.send(b"slow")
    await receiver.take(2, ack=False)
    await receiver.next()
    await producer.send(b"last")
    await receiver.next()
    return payloads(receiver.received)


async def dead_letter(client: Any, steps: Any, topic: str, dead_topic: str, redeliveries: int) -> Any:
    """Nack a message until it is exhausted. Returns the original, the dead letter, both as JSON, and what follows."""
    producer = await new_producer(client, topic, name="billing")
    receiver = await new_receiver(client, topic)
    await new_producer(client, dead_topic)
    dead = await new_receiver(client, dead_topic)
    steps.reached("subscribed")
    await steps.told("policy set")
    await producer.send(b"before", None)
    await receiver.next()
    await producer.send_with_key(b"poison", {"kind": "invoice"}, "customer 7")
    for _ in range(redeliveries + 1):
        original = await receiver.next(ack=False)
        await receiver.consumer.nack(original, None, "cannot be read")
    letter = await dead.next()
    await producer.send(b"after")
    await receiver.next()
    facts = [
        {
            "payload": one.payload.decode(),
            "key": one.routing_key,
            "attributes": dict(one.attributes),
            "producer_id": one.msg_id.producer_id,
            "offset": one.msg_id.topic_offset,
            "broker": one.msg_id.broker_addr,
        }
        for one in (original, letter)
    ]
    return [*facts, payloads(receiver.received)]


async def dropped(client: Any, steps: Any, topic: str) -> Any:
    """Nack a message once, of a subscription that then drops it. Returns the payloads in the order they came."""
    producer = await new_producer(client, topic)
    receiver = await new_receiver(client, topic)
    steps.reached("subscribed")
    await steps.told("policy set")
    await producer.send(b"poison")
    await receiver.consumer.nack(await receiver.next(ack=False))
    await producer.send(b"after")
    await receiver.next()
    return payloads(receiver.received)
