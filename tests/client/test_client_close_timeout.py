"""How long closing waits: for brokers that answer, for those that are gone, and when a limit is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from flaky_wire import Wire
from scripted_brokers import scripted_brokers

import pydanube
from pydanube import Invalid, Unavailable, testing
from pydanube.client.connection import routing
from waiting import until

TOPIC = "/default/orders"
FOREVER = 3_600
"""The timeout of the clients here: a close that waited for it would hang the test."""


class Gone(NamedTuple):
    """A client whose broker has stopped, with two messages queued and acks unconfirmed."""

    client: pydanube.Client
    producer: pydanube.Producer
    consumer: pydanube.Consumer


@asynccontextmanager
async def gone_broker(tmp_path: Path) -> AsyncIterator[Gone]:
    async with testing.broker(tmp_path / "data") as url:
        client = await pydanube.connect(url, timeout=FOREVER)
        await client.create_topic(TOPIC)
        producer = await client.producer(TOPIC)
        consumer = await client.consumer(TOPIC, subscription="billing", start="earliest", ack_linger_ms=60_000)
        await producer.send_many([b"x"] * 10)
        received = await consumer.receive_batch(timeout=60)
    await consumer.ack(received)
    producer.send_nowait(b"one")
    producer.send_nowait(b"two")
    async with asyncio.timeout(60):
        yield Gone(client, producer, consumer)


async def test_closing_a_producer_gives_up_on_a_broker_that_is_gone_and_says_what_was_not_sent(tmp_path: Path) -> None:
    async with gone_broker(tmp_path) as gone:
        told = r"^2 queued messages were not published; the first: .* no broker was heard for 5 s \(.*cannot connect"
        with pytest.raises(Unavailable, match=told):
            await gone.producer.close()
        with pytest.raises(Unavailable, match="acks were not confirmed"):
            await gone.client.close(timeout=0)


async def test_closing_a_client_gives_up_too(tmp_path: Path) -> None:
    async with gone_broker(tmp_path) as gone:
        with pytest.raises(Unavailable, match=r"2 queued messages were not published|acks were not confirmed"):
            await gone.client.close()


async def test_a_send_that_waits_gets_the_same_error(tmp_path: Path) -> None:
    async with gone_broker(tmp_path) as gone:
        sending = asyncio.create_task(gone.producer.send(b"three"))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=r"2 queued messages .* the 0\.01 s that close\(\) was given"):
            await gone.producer.close(timeout=0.01)
        with pytest.raises(Unavailable, match="not acknowledged before the producer was closed"):
            await sending
        with pytest.raises(Unavailable):
            await gone.client.close(timeout=0)


async def test_a_limit_of_nothing_drops_what_is_queued_and_says_so(wire: Wire) -> None:
    client = await pydanube.connect(wire.url, timeout=FOREVER)
    producer = await client.producer(TOPIC)
    wire.answers_flow = False
    producer.send_nowait(b"x")
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match="1 queued message was not published"):
            await producer.close(timeout=0)
        await client.close(timeout=0)


async def test_a_limit_that_is_not_reached_changes_nothing(client: pydanube.Client) -> None:
    producer = await client.producer(TOPIC)
    await producer.queue_many([b"x"] * 1_000)
    await producer.close(timeout=60)
    assert (await client.partitions(TOPIC))[0].end_offset == 1_000


async def test_closing_what_has_nothing_to_wait_for_takes_no_time(client: pydanube.Client) -> None:
    producer, reader = await client.producer(TOPIC), client.reader(TOPIC)
    consumer = await client.consumer(TOPIC, subscription="billing")
    for one in (producer, consumer, reader):
        await one.close(timeout=0)


async def test_a_broker_that_answers_pings_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "CLOSE_INTERVAL_SECONDS", 0.05)
    async with scripted_brokers(1) as (slow,), asyncio.timeout(60):
        slow.holds_publishes = True
        client = await pydanube.connect(f"danube://{slow.address}", timeout=FOREVER)
        producer = await client.producer(TOPIC)
        producer.send_nowait(b"x")
        closing = asyncio.create_task(producer.close())
        await until(lambda: slow.pings > 8)
        assert not closing.done()
        for answer in slow.held:
            answer()
        await closing
        await client.close()


@pytest.mark.parametrize("timeout", [-1, "soon", True])
async def test_a_timeout_that_is_none_is_refused_and_closes_nothing(client: pydanube.Client, timeout: object) -> None:
    producer = await client.producer(TOPIC)
    with pytest.raises(Invalid, match="timeout="):
        await producer.close(timeout)  # type: ignore[arg-type]
    await producer.send(b"x")


def test_without_await(tmp_path: Path) -> None:
    with testing.broker_thread(tmp_path / "data") as url:
        client = pydanube.connect_blocking(url, timeout=FOREVER).open()
        producer = client.producer(TOPIC).open()
        producer.send(b"one")
        with pytest.raises(Invalid, match="timeout="):
            client.close(timeout=-1)
    producer.send_nowait(b"two")
    with pytest.raises(Unavailable, match=r"1 queued message was not published.*0\.1 s"):
        client.close(timeout=0.1)
