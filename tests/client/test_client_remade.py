"""A topic that was deleted and recreated is another topic: nothing cached about the former one is used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from flaky_wire import Wire

import pydanube
from pydanube import Client, Consumer, NotFound
from pydanube.client.history.range_fetch import RangeFetch
from pydanube.codec.native import requests
from pydanube.operations import topics
from waiting import until

TOPIC = "/default/orders"
NEVER = 3_600.0
"""Nobody looks again by himself while a test runs."""


async def remade(client: Client, operator: Client, before: int, after: int) -> None:
    """Delete and create the topic again after `client` has looked it up; `before` and `after` are the partition
    counts."""
    await operator.create_topic(TOPIC, partitions=before)
    async with client.producer(TOPIC):
        pass
    await operator.delete_topic(TOPIC)
    await operator.create_topic(TOPIC, partitions=after)


async def publish_to_each(client: Client, topic: str = TOPIC) -> None:
    """Publish one message to every partition."""
    for partition in range(await client.count_partitions(topic)):
        async with client.producer(topic, partition_by=partition) as producer:
            await producer.send(b"x")


async def received(consumer: Consumer, count: int) -> list[tuple[str, int]]:
    """Receive so many messages and return their topics and partitions."""
    messages = [await consumer.receive(timeout=60) for _ in range(count)]
    return sorted((message.topic, message.partition) for message in messages)


OTHERS = pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (0, 3), (3, 0)])  # 0: not partitioned


@OTHERS
async def test_a_new_producer_finds_the_present_partitions(
    client: Client, operator: Client, before: int, after: int
) -> None:
    await remade(client, operator, before, after)
    async with client.producer(TOPIC, partition_by="round-robin", refresh_seconds=NEVER) as producer:
        used = [(await producer.send(b"x")).partition for _ in range(after or 1)]
    assert sorted(used) == list(range(after or 1))


@OTHERS
async def test_a_new_consumer_finds_the_present_partitions(
    client: Client, operator: Client, before: int, after: int
) -> None:
    await remade(client, operator, before, after)
    await publish_to_each(operator)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", refresh_seconds=NEVER) as consumer:
        assert await received(consumer, after or 1) == [(TOPIC, partition) for partition in range(after or 1)]


async def test_a_producer_for_a_partition_that_is_gone_fails(client: Client, operator: Client) -> None:
    await remade(client, operator, before=4, after=2)
    with pytest.raises(NotFound, match="no partition 3: it has 2"):
        await client.producer(TOPIC, partition_by=3)


async def test_a_pattern_receives_from_a_topic_recreated_with_fewer_partitions(
    client: Client, operator: Client
) -> None:
    await operator.create_topic("/default/orders-a", partitions=4)
    async with client.consumer(
        "/default/orders-*", subscription="billing", start="earliest", refresh_seconds=0.02
    ) as consumer:
        await operator.delete_topic("/default/orders-a")
        await until(lambda: not consumer.topics)
        await operator.create_topic("/default/orders-a", partitions=2)
        await operator.create_topic("/default/orders-b")
        for topic in ("/default/orders-a", "/default/orders-b"):
            await publish_to_each(operator, topic)
        assert await received(consumer, 3) == [
            ("/default/orders-a", 0),
            ("/default/orders-a", 1),
            ("/default/orders-b", 0),
        ]


async def test_a_topic_that_is_deleted_after_it_was_listed_does_not_delay_the_others(
    client: Client, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[list[str]] = []
    call = client._brokers.call

    async def call_and_delete(request: requests.Request, answer: Any, repeatable: bool = True) -> Any:
        if not isinstance(request, topics.ListTopics):
            return await call(request, answer, repeatable)
        if lists:
            await asyncio.Event().wait()  # what one list leads to is looked at, not the next one
        listed = await call(request, answer, repeatable)
        if listed.names:
            lists.append(listed.names)
            await operator.delete_topic("/default/orders-a")
        return listed

    async with client.consumer("/default/orders-*", subscription="billing", refresh_seconds=0.02) as consumer:
        for topic in ("/default/orders-a", "/default/orders-b"):
            await operator.create_topic(topic)
        monkeypatch.setattr(client._brokers, "call", call_and_delete)
        await until(lambda: consumer.topics == ["/default/orders-b"])
    assert lists == [["/default/orders-a", "/default/orders-b"]]


async def test_a_topic_whose_deletion_the_consumer_has_not_noticed_does_not_delay_new_ones(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("/default/orders-a", partitions=2)
    route = client._brokers.route

    async def route_or_gone(topic: str, *how: Any, **more: Any) -> topics.Route:
        if topic == "/default/orders-a":
            raise NotFound(f"{topic} was deleted")
        return await route(topic, *how, **more)

    async with client.consumer("/default/orders-*", subscription="billing", refresh_seconds=0.02) as consumer:
        monkeypatch.setattr(client._brokers, "route", route_or_gone)
        await client.create_topic("/default/orders-b")
        await until(lambda: consumer.topics == ["/default/orders-a", "/default/orders-b"])


# -- whoever hears that a topic is gone --------------------------------------------------------------------------------


async def a_fetch_is_refused(client: Client, wire: Wire, delete: Callable[[], Awaitable[None]]) -> None:
    async with client.producer(TOPIC):
        pass
    await delete()
    with pytest.raises(NotFound):
        await anext(client.fetches(RangeFetch(TOPIC, partition=0, start=0, end=1)))


async def a_consumer_is_put_out(client: Client, wire: Wire, delete: Callable[[], Awaitable[None]]) -> None:
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        await delete()
        with pytest.raises(NotFound):
            await consumer.receive(timeout=60)


async def a_consumer_comes_back(client: Client, wire: Wire, delete: Callable[[], Awaitable[None]]) -> None:
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        wire.answers_flow = False  # what it is told of it gets lost
        await delete()
        wire.cut()
        wire.answers_flow = True
        with pytest.raises(NotFound):
            await consumer.receive(timeout=60)


async def a_producer_comes_back(client: Client, wire: Wire, delete: Callable[[], Awaitable[None]]) -> None:
    async with client.producer(TOPIC) as producer:
        await delete()
        wire.cut()
        with pytest.raises(NotFound):
            await producer.send(b"x")


@pytest.mark.parametrize(
    "hear", [a_fetch_is_refused, a_consumer_is_put_out, a_consumer_comes_back, a_producer_comes_back]
)
async def test_not_found_removes_the_cached_route(
    wire: Wire, hear: Callable[[Client, Wire, Callable[[], Awaitable[None]]], Awaitable[None]]
) -> None:
    async with (
        pydanube.connect(f"danube://{wire.target}") as operator,
        pydanube.connect(wire.url) as client,
        client.stager("query", run="run", batch_id=0) as stager,
    ):
        await operator.create_topic(TOPIC)
        await hear(client, wire, lambda: operator.delete_topic(TOPIC))
        await operator.create_topic(TOPIC, partitions=3)
        assert await stager.partitions(TOPIC) == 3  # which believes for seconds what the client knows
