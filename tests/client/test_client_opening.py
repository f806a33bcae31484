"""A consumer that is being opened takes nothing from those that are open: it grants no credit before it can serve."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest

import pydanube
from pydanube import Client, Consumer, Unavailable
from pydanube.client.connection.connection import Connection
from pydanube.client.consuming import partition_sources
from waiting import until

TOPIC = "/default/orders"
AWAY = "/default/away"
Kind = Literal["shared", "key-shared", "failover"]
KINDS = ["shared", "key-shared", "failover"]
COUNT = 40

Owner = Callable[[str, int], Awaitable[Connection]]


class Absence:
    """Lets one partition have no owner, as one client sees it, until it is over."""

    def __init__(self, client: Client, topic: str, partition: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        self.asked = 0
        self._away = topic, partition
        self._owner: Owner = client._brokers.owner
        monkeypatch.setattr(client._brokers, "owner", self.owner)

    async def owner(self, topic: str, partition: int) -> Connection:
        if (topic, partition) == self._away and not self.is_over:
            self.asked += 1
            raise Unavailable("broker 'b2' is away")
        return await self._owner(topic, partition)


def consumer_of(client: Client, topics: str | list[str], kind: Kind, priority: int) -> Consumer:
    chosen = priority if kind == "failover" else 0
    return client.consumer(topics, subscription="billing", type=kind, name=f"c{priority}", priority=chosen)


async def publish(client: Client) -> set[bytes]:
    payloads = [b"%d" % number for number in range(COUNT)]
    async with client.producer(TOPIC, batch_messages=1, partition_by=0) as producer:
        for payload in payloads:
            await producer.send(payload, key=payload.decode())
    return set(payloads)


async def take(consumer: Consumer, count: int) -> set[bytes]:
    return {(await consumer.receive(timeout=60)).payload for _ in range(count)}


@pytest.mark.parametrize("kind", KINDS)
async def test_while_a_partition_is_away_an_open_consumer_gets_every_message(
    client: Client, url: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_sources, "PATIENCE_S", 60.0)
    await client.create_topic(TOPIC, partitions=2)
    async with (
        pydanube.connect(url, timeout=120) as second,
        consumer_of(client, TOPIC, kind, 5) as consumer,
    ):
        absence = Absence(second, TOPIC, 1, monkeypatch)
        opened = consumer_of(second, TOPIC, kind, 4)
        opening = asyncio.create_task(opened.open())
        await until(lambda: absence.asked > 2 and opened.type is not None)
        sent = await publish(client)
        assert await take(consumer, COUNT) == sent
        absence.is_over = True
        await opening
        await opened.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_while_a_topic_is_away_an_open_consumer_gets_every_message_of_the_others(
    client: Client, url: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route names an owner that does not answer."""
    for topic in (TOPIC, AWAY):
        await client.create_topic(topic)
    async with (
        pydanube.connect(url, timeout=120) as second,
        consumer_of(client, TOPIC, kind, 5) as consumer,
    ):
        absence = Absence(second, AWAY, 0, monkeypatch)
        opened = consumer_of(second, [TOPIC, AWAY], kind, 4)
        opening = asyncio.create_task(opened.open())
        await until(lambda: absence.asked > 2 and opened.type is not None)
        sent = await publish(client)
        assert await take(consumer, COUNT) == sent
        absence.is_over = True
        await opening
        if kind == "failover":
            assert await take(opened, COUNT) == sent, "it is preferred, and they are not acked"
        await opened.close()
