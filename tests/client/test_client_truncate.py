"""Truncating a topic over the native protocol: readers and consumers go on at the new start, and say so."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

import pydanube
from pydanube import Client, Invalid, NotFound
from pydanube.runtime import telemetry

TOPIC = "/default/orders"


async def fill(client: Client, count: int = 30, partition: int = 0) -> None:
    """Publish messages in batches of ten."""
    async with client.producer(TOPIC, batch_messages=10, partition_by=partition) as producer:
        await producer.send_many([b"%d" % number for number in range(count)])


async def test_everything_before_a_position_is_gone_in_one_partition_or_in_all(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    for partition in range(2):
        await fill(client, partition=partition)
    assert await client.truncate_topic(TOPIC, 5, partition=1) == {1: 5}
    assert await client.truncate_topic(TOPIC, 12) == {0: 12, 1: 12}
    with pytest.raises(Invalid, match="offset 31 is not in partition 0"):
        await client.truncate_topic(TOPIC, 31)
    with pytest.raises(NotFound):
        await client.truncate_topic(TOPIC, 0, partition=2)
    for wrong in ("yesterday", -1):
        with pytest.raises(Invalid):
            await client.truncate_topic(TOPIC, wrong)
    assert [one.start_offset for one in await client.partitions(TOPIC)] == [12, 12]
    assert await client.truncate_topic(TOPIC, datetime.now(UTC)) == {0: 30, 1: 30}
    await fill(client, 1)
    assert await client.truncate_topic(TOPIC, "latest") == {0: 31, 1: 30}
    assert await client.truncate_topic(TOPIC, "earliest") == {0: 31, 1: 30}


async def test_a_reader_at_the_beginning_begins_with_the_first_that_is_left(client: Client) -> None:
    await fill(client)
    await client.truncate_topic(TOPIC, 15)
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [message.offset async for message in reader] == [*range(15, 30)]


async def test_a_reader_behind_the_start_says_what_is_gone(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_destination", telemetry._Destination())  # as in a program that logs by itself
    caplog.set_level(logging.WARNING, "pydanube.client")
    await fill(client)
    await client.truncate_topic(TOPIC, 15)
    async with client.reader(TOPIC, start=3, end="latest") as reader:
        assert [message.offset async for message in reader] == [*range(15, 30)]
    (told,) = [text for one in caplog.records if "reader.messages_gone" in (text := one.getMessage())]
    assert "start=3 end=15" in told


async def test_a_consumer_with_messages_in_flight_goes_on_after_them(client: Client) -> None:
    await fill(client)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", prefetch_messages=5) as consumer:
        first = await consumer.receive(timeout=60)
        await client.truncate_topic(TOPIC, 20)
        await consumer.ack(first)
        while (message := await consumer.receive(timeout=60)).offset < 20:
            await consumer.ack(message)
        received = [message]
        while len(received) < 10:
            received.append(await consumer.receive(timeout=60))
        assert [one.offset for one in received] == [*range(20, 30)]
        await consumer.ack_cumulative(received[-1])
        await consumer.flush()
    (place,) = (await client.describe_subscription(TOPIC, "billing")).partitions
    assert (place.position, place.lag) == (30, 0)


def test_without_await() -> None:
    with pydanube.testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send(b"0")
        assert client.truncate_topic(TOPIC, "latest") == {0: 1}
