"""Topics that are unloaded while clients use them: producers and consumers continue by themselves."""

from __future__ import annotations

import asyncio

import pytest

import pydanube
from pydanube import Client
from waiting import until

TOPIC = "/default/orders"
UNLOADS = 8


@pytest.mark.parametrize("kind", ["exclusive", "failover", "shared", "key-shared"])
async def test_exactly_the_unacked_messages_are_redelivered(
    client: Client, kind: pydanube.SubscriptionTypeName
) -> None:
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, subscription="billing", type=kind) as consumer,
    ):
        for number in range(10):
            await producer.send(b"%d" % number, key=f"k{number % 3}")
        messages = [await consumer.receive(timeout=60) for _ in range(10)]
        for message in messages:
            if message.offset in (0, 1, 4, 7):
                await consumer.ack(message)
        await consumer.flush()
        await client.unload_topic(TOPIC)
        again = [await consumer.receive(timeout=60) for _ in range(6)]
        assert sorted(one.offset for one in again) == [2, 3, 5, 6, 8, 9]
        assert (await producer.send(b"10")).offset == 10
        assert (await consumer.receive(timeout=60)).offset == 10


async def test_nothing_is_lost_while_a_topic_is_unloaded_again_and_again_under_load(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    await client.create_subscription(TOPIC, "billing", type="shared")
    is_over = asyncio.Event()
    producing = {"till-1", "till-2"}
    published: dict[tuple[int, int], bytes] = {}
    received: dict[tuple[int, int], bytes] = {}

    async def produce(name: str) -> None:
        async with client.producer(TOPIC, name=name) as producer:
            number = 0
            while not is_over.is_set():
                payloads = [b"%s %d" % (name.encode(), number + index) for index in range(20)]
                number += len(payloads)
                for payload, receipt in zip(
                    payloads, await asyncio.gather(*(producer.send(one) for one in payloads)), strict=True
                ):
                    assert (receipt.partition, receipt.offset) not in published
                    published[receipt.partition, receipt.offset] = payload
        producing.remove(name)

    async def consume() -> None:
        async with client.consumer(TOPIC, subscription="billing", type="shared") as consumer:
            while producing or not received.keys() >= published.keys():
                try:
                    message = await consumer.receive(timeout=1)
                except TimeoutError:
                    continue
                place = (message.partition, message.offset)
                assert received.setdefault(place, message.payload) == message.payload
                await consumer.ack(message)

    async def unload() -> None:
        for _ in range(UNLOADS):
            seen = len(received)
            await client.unload_topic(TOPIC)
            await until(lambda seen=seen: len(received) >= seen + 50)
        is_over.set()

    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        for name in sorted(producing):
            tasks.create_task(produce(name))
        for _ in range(3):
            tasks.create_task(consume())
        tasks.create_task(unload())
    assert received == published
    assert sorted(set(published.values())) == sorted(published.values()), "each payload once"
    for partition in range(3):
        offsets = sorted(offset for index, offset in published if index == partition)
        assert offsets == list(range(len(offsets))), "no gaps"
    described = await client.describe_topic(TOPIC)
    assert sum(one.end_offset for one in described.partitions) == len(published)
    assert all(one.epoch > UNLOADS for one in described.partitions)


async def test_a_reader_goes_on_after_an_unload(client: Client) -> None:
    async with client.producer(TOPIC) as producer, client.reader(TOPIC, start="earliest") as reader:
        await producer.send(b"before")
        assert (await reader.receive(timeout=60)).payload == b"before"
        await client.unload_topic(TOPIC)
        await producer.send(b"after")
        assert (await reader.receive(timeout=60)).payload == b"after"
