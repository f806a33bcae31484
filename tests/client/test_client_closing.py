"""Closing while another task closes the same object or its client, and closing that is cancelled."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import TOPIC, connection_of

import pydanube
from pydanube import Client, Refused
from pydanube.codec.native import requests
from waiting import until


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
