"""Consumers and producers that go away and come back, take over from each other, or are refused."""

from __future__ import annotations

import asyncio
from typing import Any

from danube import SubType
from danube.proto import DanubeApi_pb2, DanubeApi_pb2_grpc
from parts import new_producer, new_receiver, payloads, refusal


async def reconnection(client: Any, _steps: Any, topic: str) -> Any:
    """An exclusive consumer that closes without an ack, twice. Returns the payloads that each of its lives gets."""
    producer = await new_producer(client, topic)
    lives = []
    for number in range(3):
        receiver = await new_receiver(client, topic)
        if number == 0:
            await producer.send(b"kept")
        await receiver.next(ack=number == 2)
        lives.append(payloads(receiver.received))
        await receiver.close()
    last = await new_receiver(client, topic)
    await producer.send(b"new")
    await last.next()
    return [*lives, payloads(last.received)]


async def hand_over(client: Any, _steps: Any, topic: str) -> Any:
    """A shared consumer closes without acks; returns what it had, and what another one gets."""
    producer = await new_producer(client, topic)
    first = await new_receiver(client, topic, name="first", kind=SubType.SHARED)
    for number in range(5):
        await producer.send(b"%d" % number)
    await first.take(5, ack=False)
    await first.close()
    second = await new_receiver(client, topic, name="second", kind=SubType.SHARED)
    await second.take(5)
    return payloads(first.received), payloads(second.received)


async def hold(client: Any, steps: Any, topic: str, count: int) -> None:
    """Receive messages and ack all but the last, then wait to be stopped."""
    producer = await new_producer(client, topic)
    receiver = await new_receiver(client, topic)
    for number in range(count):
        await producer.send(b"%d" % number)
    await receiver.take(count - 1)
    await receiver.next(ack=False)
    steps.reached("holding", receiver.ids)
    await steps.told("never")


async def take_over(client: Any, _steps: Any, topic: str) -> Any:
    """Subscribe as the consumer that holds a message elsewhere. Returns the ids, and what comes."""
    receiver = await new_receiver(client, topic)
    message = await receiver.next()
    return receiver.ids, message.payload.decode()


async def exclusive(client: Any, _steps: Any, topic: str) -> Any:
    """A second consumer of an exclusive subscription, before and after the first one leaves. Returns the statuses."""
    producer = await new_producer(client, topic)
    first = await new_receiver(client, topic, name="first")
    await producer.send(b"first")
    await first.next()
    refused = await refusal(new_receiver(client, topic, name="second"))
    await first.close()
    second = await new_receiver(client, topic, name="second")
    await producer.send(b"second")
    return refused, payloads(await second.take(1))


async def refusals(client: Any, _steps: Any, topic: str) -> Any:
    """Return the statuses of what cannot be."""
    await new_producer(client, topic)
    return {
        "a consumer of no topic": await refusal(new_receiver(client, f"{topic}-missing")),
        "another dispatch strategy": await refusal(new_producer(client, topic, name="other", reliable=False)),
        "partitions of a plain topic": await refusal(new_producer(client, topic, partitions=2)),
        "a bad name": await refusal(new_producer(client, "orders")),
    }


async def one_name(client: Any, _steps: Any, topic: str) -> Any:
    """Two producers of one name at once, and a third after both. Returns their ids and what is received."""
    producers = [await new_producer(client, topic) for _ in range(2)]
    receiver = await new_receiver(client, topic)
    for number in range(10):
        await asyncio.gather(*(one.send(b"%d-%d" % (place, number)) for place, one in enumerate(producers)))
    for one in producers:
        await one.close()
    again = await new_producer(client, topic)
    await again.send(b"2-0")
    messages = await receiver.take(21)
    ids = [one._producers[0].producer_id for one in (*producers, again)]
    return ids, [[one.payload.decode(), one.msg_id.producer_id, one.producer_name] for one in messages]


async def health(client: Any, _steps: Any, topic: str) -> Any:
    """Return how health checks are answered: of a producer, of a consumer, and of unknown ids."""
    producer = await new_producer(client, topic)
    receiver = await new_receiver(client, topic)
    connection = await client.connection_manager.get_connection(client.uri, client.uri)
    stub = DanubeApi_pb2_grpc.HealthCheckStub(connection.channel)

    async def check(kind: Any, number: int) -> str:
        request = DanubeApi_pb2.HealthCheckRequest(request_id=1, client=kind, id=number)
        reply = await stub.HealthCheck(request)
        return str(DanubeApi_pb2.HealthCheckResponse.ClientStatus.Name(reply.status))

    kinds = DanubeApi_pb2.HealthCheckRequest
    return {
        "producer": await check(kinds.Producer, producer._producers[0].producer_id),
        "consumer": await check(kinds.Consumer, receiver.ids[0]),
        "no producer": await check(kinds.Producer, 12345),
        "no consumer": await check(kinds.Consumer, 12345),
    }


async def told_to_close(client: Any, steps: Any, topic: str) -> Any:
    """A consumer whose subscription is removed: its health check tells it to subscribe again. Returns whether it got
    what was published from then on, in order."""
    producer = await new_producer(client, topic)
    receiver = await new_receiver(client, topic)
    await producer.send(b"before")
    await receiver.next()
    steps.reached("subscribed")
    await steps.told("removed")
    number = 0
    while receiver.queue.qsize() < 3:
        await producer.send(b"%d" % number)
        number += 1
        await asyncio.sleep(0.05)
    received = [int(message.payload) for message in await receiver.take(3)]
    return received == list(range(received[0], received[0] + 3))
