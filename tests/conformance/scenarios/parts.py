"""What all scenarios are made of: producers, consumers, and how to take what they receive apart."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from typing import Any

from danube import ConsumerOptions, DispatchStrategy, ProducerOptions, SubType
from grpc.aio import AioRpcError

PATIENCE = ProducerOptions(max_retries=200, base_backoff_ms=50, max_backoff_ms=200)
"""Of a producer whose broker is killed: it tries longer than a busy machine takes to start a broker again."""

CONSUMER_PATIENCE = ConsumerOptions(max_retries=200, base_backoff_ms=50, max_backoff_ms=200)
"""The same of a consumer, which gives up for ever after its tries."""


async def new_producer(
    client: Any,
    topic: str,
    name: str = "producer",
    reliable: bool = True,
    partitions: int = 0,
    schema: tuple[str, ...] | tuple[str, str, int] = (),
    options: ProducerOptions | None = None,
) -> Any:
    """Create a producer. `schema` is ("subject", SUBJECT), ("version", SUBJECT, N) or ("min_version", SUBJECT, N)."""
    builder = client.new_producer().with_topic(topic).with_name(name).with_partitions(partitions)
    if reliable:
        builder = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)
    if schema:
        builder = getattr(builder, f"with_schema_{schema[0]}")(*schema[1:])
    if options is not None:
        builder = builder.with_options(options)
    producer = builder.build()
    await producer.create()
    return producer


class Receiver:
    """A consumer with its queue."""

    def __init__(self, consumer: Any, queue: Any) -> None:
        self.consumer = consumer
        self.queue = queue
        self.received: list[Any] = []

    @property
    def ids(self) -> list[int]:
        """The ids that the broker gave it: one for each partition."""
        return [one.consumer_id for one in self.consumer._consumers.values()]

    async def next(self, ack: bool = True) -> Any:
        message = await self.queue.get()
        self.received.append(message)
        if ack:
            await self.consumer.ack(message)
        return message

    async def take(self, count: int, ack: bool = True) -> list[Any]:
        return [await self.next(ack) for _ in range(count)]

    async def close(self) -> None:
        await self.consumer.close()


async def new_receiver(
    client: Any,
    topic: str,
    subscription: str = "subscription",
    name: str = "consumer",
    kind: SubType = SubType.EXCLUSIVE,
    filters: tuple[str, ...] = (),
    options: Any = None,
) -> Receiver:
    """Subscribe and open the streams."""
    consumer = (
        client.new_consumer()
        .with_topic(topic)
        .with_consumer_name(name)
        .with_subscription(subscription)
        .with_subscription_type(kind)
        .with_key_filters(list(filters))
        .with_options(options or ConsumerOptions())
        .build()
    )
    await consumer.subscribe()
    return Receiver(consumer, await consumer.receive())


async def drain(receivers: list[Receiver], count: int) -> None:
    """Let these receive and ack until they have this many messages together."""
    complete = asyncio.Event()

    async def receive(receiver: Receiver) -> None:
        while True:
            await receiver.next()
            if sum(len(one.received) for one in receivers) >= count:
                complete.set()

    running = [asyncio.ensure_future(receive(one)) for one in receivers]
    await complete.wait()
    for one in running:
        one.cancel()


async def connect_all(send: Any, receivers: list[Receiver]) -> None:
    """Send one message after the other until every receiver got some, and forget them all. Until its stream is open, a
    consumer gets none, and the client does not say when that is. `send` gets a number."""
    number = 0
    while not all(one.received for one in receivers):
        await send(number)
        number += 1
        while len([message for one in receivers for message in one.received]) < number:
            waiting = [asyncio.ensure_future(one.queue.get()) for one in receivers]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for receiver, one in zip(receivers, waiting, strict=True):
                if one.done():
                    receiver.received.append(one.result())
                    await receiver.consumer.ack(one.result())
                else:
                    one.cancel()
    for one in receivers:
        one.received.clear()


async def refusal(call: Coroutine[Any, Any, Any]) -> str:
    """Return how the call is refused: the name of the gRPC status, or the class of the client's own error."""
    try:
        await call
    except AioRpcError as error:
        return str(error.code().name)
    except Exception as error:
        return type(error).__name__
    return "OK"


def payloads(messages: list[Any]) -> list[str]:
    return [message.payload.decode() for message in messages]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
