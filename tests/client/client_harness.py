"""What tests of the client do with a topic: publish to it, take from it, and see where its subscription stands."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydanube import Client, Consumer
from pydanube.client.connection.connection import Connection
from pydanube.client.consuming.messages import Message

TOPIC = "/default/orders"


@asynccontextmanager
async def server_that_says(
    answer: bytes, *, ends: bool = False, context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """Yield the address of a server that answers the first bytes of a client with `answer`, then ends or waits."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(answer)
        if not ends:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def publish(client: Client, *payloads: bytes | int, topic: str = TOPIC, batch: int = 10_000, **how: Any) -> None:
    """Publish the payloads; a number stands for so many of them, which are numbered."""
    every = [one for some in payloads for one in (numbered(some) if isinstance(some, int) else [some])]
    async with client.producer(topic, batch_messages=batch, **how) as producer:
        await producer.send_many(every)


async def stored(client: Client, topic: str = TOPIC, partition: int = 0) -> list[bytes]:
    async with client.reader(topic, partition=partition, start="earliest", end="latest") as reader:
        return [message.payload async for message in reader]


async def take(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout=60) for _ in range(count)]


async def position(client: Client, topic: str = TOPIC, partition: int = 0) -> int:
    return (await client.describe_subscription(topic, "billing")).partitions[partition].position


async def nobody_is_attached(client: Client) -> bool:
    return not (await client.describe_subscription(TOPIC, "billing")).partitions[0].consumer


def offsets(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def connection_of(client: Client) -> Connection:
    (connection,) = client._brokers._connections.values()
    return connection


def client_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pydanube-client")}
