"""Acks of messages received before a seek have no effect after it, whichever client moved the subscription; acks of
messages received after it count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_harness import TOPIC, nobody_is_attached, position, publish, take

from pydanube import Client, Corrupt, Invalid
from pydanube.client.consuming import partition_source as source
from pydanube.codec.native import requests
from pydanube.operations import subscriptions
from waiting import until

LATER_MS = 60_000
"""Acks are sent when somebody flushes, not by themselves."""


class HeldSeek:
    """Holds the seeks of a client back until `go_on` is set."""

    def __init__(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self._call = client._brokers.call
        monkeypatch.setattr(client._brokers, "call", self._hold)

    async def _hold(self, request: requests.Request, *how: Any, **options: Any) -> Any:
        if isinstance(request, subscriptions.Seek):
            self.begun.set()
            await self.go_on.wait()
        return await self._call(request, *how, **options)


async def test_a_flush_does_not_wait_for_acks_that_a_seek_made_obsolete(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, 3)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        message = await consumer.receive(timeout=60)
        held = HeldSeek(client, monkeypatch)
        seeking = asyncio.create_task(consumer.seek("earliest"))
        await held.begun.wait()
        await consumer.ack(message)
        flushing = asyncio.create_task(consumer.flush())
        await asyncio.sleep(0)  # it waits
        held.go_on.set()
        async with asyncio.timeout(60):
            await asyncio.gather(seeking, flushing)
        assert [again.offset for again in await take(consumer, 3)] == [0, 1, 2]
        assert await position(client) == 0


async def test_a_seek_that_one_topic_refuses_has_moved_the_topics_before_it(client: Client) -> None:
    first, second = "/default/orders-1", "/default/orders-2"
    await publish(client, 3, topic=first)
    await publish(client, 1, topic=second)
    async with client.consumer(
        [first, second], subscription="billing", start="earliest", ack_linger_ms=LATER_MS
    ) as consumer:
        old = {(message.topic, message.offset): message for message in await take(consumer, 4)}
        with pytest.raises(Invalid, match="offset 2 is past the end of partition 0 of /default/orders-2"):
            await consumer.seek(2)
        again = {(message.topic, message.offset) for message in await take(consumer, 2)}
        assert again == {(first, 2), (second, 0)}
        for message in old.values():
            await consumer.ack(message)
        await consumer.flush()
        assert await position(client, first) == 2, "it was moved, and what was received before does not count"
        assert await position(client, second) == 1, "it was not"


async def test_a_seek_during_a_disconnect_is_not_undone_by_acks_from_before(operator, client, wire):
    await publish(client, 10)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 10)
        wire.open_for_new = False
        wire.cut()
        await until(lambda: nobody_is_attached(operator))
        for message in messages[:6]:
            await consumer.ack(message)
        assert await operator.seek(TOPIC, "billing", "earliest") == {0: 0}
        wire.open_for_new = True
        assert [message.offset for message in await take(consumer, 10)] == list(range(10))
        await consumer.flush()
        assert await position(operator) == 0


@pytest.mark.parametrize("was_sought", [False, True])
async def test_after_a_disconnect_without_a_seek_the_acks_are_sent_again(operator, client, wire, was_sought):
    await publish(client, 10)
    await operator.create_subscription(TOPIC, "billing", start="earliest")
    if was_sought:
        await operator.seek(TOPIC, "billing", "earliest")
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        messages = await take(consumer, 10)
        wire.open_for_new = False
        wire.cut()
        await until(lambda: nobody_is_attached(operator))
        for message in messages[:6]:
            await consumer.ack(message)
        wire.open_for_new = True
        assert [message.offset for message in await take(consumer, 4)] == [6, 7, 8, 9]
        await consumer.flush()
        assert await position(operator) == 6


async def test_acks_of_messages_received_after_a_seek_count_in_the_next_session_too(client, wire):
    await publish(client, 10)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", ack_linger_ms=LATER_MS) as consumer:
        await consumer.seek("earliest")
        messages = await take(consumer, 10)
        wire.cut()
        for message in messages:
            await consumer.ack(message)
        await consumer.flush()
        assert await position(client) == 10


# -- letting go ------------------------------------------------------------------------------------------------------


class Damaging:
    """A batch that cannot be opened."""

    @staticmethod
    def open(*_: object, **__: object) -> None:
        raise Corrupt("a bit fell over")


async def test_a_consumer_that_received_a_damaged_delivery_is_detached(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(client, 1)
    with monkeypatch.context() as damage:
        damage.setattr(source, "Batch", Damaging)
        consumer = await client.consumer(TOPIC, subscription="billing", start="earliest")
        with pytest.raises(Corrupt, match="arrived damaged: a bit fell over"):
            await consumer.receive(timeout=60)
    await until(lambda: nobody_is_attached(client))
    async with client.consumer(TOPIC, subscription="billing") as another:
        assert [message.offset for message in await take(another, 1)] == [0]
    await consumer.close()
