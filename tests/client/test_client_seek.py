"""Acks of messages received before a seek have no effect after it, whichever client moved the subscription; acks of
messages received after it count."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from client_harness import TOPIC, nobody_is_attached, position, publish, take
from flaky_wire import Wire

import pydanube
from pydanube import Client, Consumer, Corrupt, Invalid, testing
from pydanube.client.consuming import partition_source
from pydanube.client.consuming.messages import Message
from pydanube.client.consuming.partition_source import PartitionSource
from pydanube.codec.native import requests
from pydanube.operations import subscriptions
from waiting import until

LATER_MS = 60_000
"""Acks are sent by a flush, not by themselves."""
TYPES = ("exclusive", "shared", "failover", "key-shared")


async def publish_keyed(client: Client, count: int = 20) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number, key=f"user-{number % 5}")
        await producer.flush()


def payloads(messages: list[Message]) -> list[bytes]:
    return sorted((message.payload for message in messages), key=int)


def sources(consumer: Consumer) -> list[PartitionSource]:
    return list(consumer._sources._sources.values())


async def heard_of_a_seek(consumer: Consumer, after: int = 0) -> None:
    """Wait until every source of the consumer has a higher generation than this."""
    await until(lambda: all(source.acks.generation > after for source in sources(consumer)))


async def positions(client: Client) -> list[int]:
    return [one.position for one in (await client.describe_subscription(TOPIC, "billing")).partitions]


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
        with wire.closed():
            await until(lambda: nobody_is_attached(operator))
            for message in messages[:6]:
                await consumer.ack(message)
            assert await operator.seek(TOPIC, "billing", "earliest") == {0: 0}
        assert [message.offset for message in await take(consumer, 10)] == list(range(10))
        await consumer.flush()
        assert await position(operator) == 0


@pytest.mark.parametrize("sought", ["", "before", "while attached"])
async def test_after_a_disconnect_without_a_seek_the_acks_are_sent_again(operator, client, wire, sought):
    await publish(client, 10)
    await operator.create_subscription(TOPIC, "billing", start="earliest")
    if sought == "before":
        await operator.seek(TOPIC, "billing", "earliest")
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        messages = await take(consumer, 10)
        if sought == "while attached":
            await operator.seek(TOPIC, "billing", "earliest")
            await heard_of_a_seek(consumer)
            messages = await take(consumer, 10)
        with wire.closed():
            await until(lambda: nobody_is_attached(operator))
            for message in messages[:6]:
                await consumer.ack(message)
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


# -- another client seeks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partitions", "has_heard"), [(0, False), (3, True)], ids=["at once", "in all partitions, once it has heard of it"]
)
@pytest.mark.parametrize("how", ["ack", "coalesced", "batch", "cumulative", "nack"])
@pytest.mark.parametrize("kind", TYPES)
async def test_acks_and_nacks_of_messages_from_before_a_seek_have_no_effect(
    client: Client, operator: Client, kind: str, partitions: int, how: str, has_heard: bool
) -> None:
    if how == "cumulative" and "shared" in kind:
        pytest.skip("shared subscriptions have no cumulative acks")
    await client.create_topic(TOPIC, partitions=partitions)
    await publish_keyed(client)
    linger = {"ack_linger_ms": LATER_MS} if how == "coalesced" else {}
    async with client.consumer(TOPIC, subscription="billing", type=kind, start="earliest", **linger) as consumer:
        if how == "batch":
            received: list[pydanube.ReceivedBatch | Message] = []
            while sum(map(len, received)) < 20:
                received.append(await consumer.receive_batch(timeout=60))
        else:
            received = [*await take(consumer, 20)]
        if how == "coalesced":
            for one in received:
                await consumer.ack(one)
        await operator.seek(TOPIC, "billing", "earliest")
        if has_heard:
            await heard_of_a_seek(consumer)
        for one in received if how != "coalesced" else ():
            if how == "nack":
                await consumer.nack(one, delay=0, reason="too late")
            elif how == "cumulative":
                await consumer.ack_cumulative(one)
            else:
                await consumer.ack(one)
        await consumer.flush()
        assert set(await positions(operator)) == {0}
    async with operator.consumer(TOPIC, subscription="billing", type=kind) as another:
        again = await take(another, 20)
        assert payloads(again) == [b"%d" % number for number in range(20)]
        assert {one.redeliveries for one in again} == {0}


@pytest.mark.parametrize("kind", TYPES)
async def test_a_consumer_that_was_attached_during_a_seek_receives_the_replay_and_its_acks_count(
    client: Client, operator: Client, kind: str
) -> None:
    await publish_keyed(client)
    async with client.consumer(TOPIC, subscription="billing", type=kind, start="earliest") as consumer:
        old = await take(consumer, 20)
        await operator.seek(TOPIC, "billing", 5)
        await heard_of_a_seek(consumer)
        again = await take(consumer, 15)
        assert payloads(again) == [b"%d" % number for number in range(5, 20)]
        for message in old:
            await consumer.ack(message)
        for message in again[:-1]:
            await consumer.ack(message)
        await consumer.flush()
        assert await positions(operator) == [again[-1].offset]
        (statistics,) = (await operator.topic_statistics(TOPIC)).partitions[0].subscriptions
        assert statistics.backlog == 1


async def test_messages_that_were_prefetched_before_a_seek_are_not_returned_after_it(
    client: Client, operator: Client
) -> None:
    await publish_keyed(client)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        assert (await consumer.receive(timeout=60)).offset == 0
        await operator.seek(TOPIC, "billing", "latest")
        await heard_of_a_seek(consumer)
        async with operator.producer(TOPIC) as producer:
            await producer.send(b"new")
        message = await consumer.receive(timeout=60)
        assert (message.offset, message.payload) == (20, b"new")


async def test_the_credit_of_messages_that_a_seek_dropped_is_granted_again(client: Client, operator: Client) -> None:
    for _ in range(4):
        await publish_keyed(client, 5)  # some batches wait in the client when it hears of a seek
    async with client.consumer(
        TOPIC, subscription="billing", start="earliest", prefetch_messages=8, prefetch_bytes=1 << 20
    ) as consumer:
        for _ in range(10):
            assert (await consumer.receive(timeout=60)).offset == 0
            (source,) = sources(consumer)
            before = source.acks.generation
            await operator.seek(TOPIC, "billing", "earliest")
            await heard_of_a_seek(consumer, before)
        assert [message.offset for message in await take(consumer, 20)] == list(range(20))


async def test_the_ack_timeout_of_messages_from_before_a_seek_ends_with_it(client: Client, operator: Client) -> None:
    await publish_keyed(client)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", ack_timeout=3600) as consumer:
        await take(consumer, 20)
        (source,) = sources(consumer)
        old = source.acks
        assert old.timeouts is not None and len(old.timeouts) == 20
        await operator.seek(TOPIC, "billing", "earliest")
        await heard_of_a_seek(consumer)
        assert old.timeouts is None
        await take(consumer, 3)
        assert source.acks.timeouts is not None and len(source.acks.timeouts) == 3


async def test_a_flush_does_not_wait_for_acks_that_another_clients_seek_made_obsolete(
    client: Client, operator: Client
) -> None:
    await publish_keyed(client)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", ack_linger_ms=LATER_MS) as consumer:
        for message in await take(consumer, 20):
            await consumer.ack(message)
        seeking = asyncio.create_task(operator.seek(TOPIC, "billing", "earliest"))
        async with asyncio.timeout(20):
            await consumer.flush()
            await seeking
            await consumer.flush()


async def test_acks_through_a_subscription_that_was_deleted_do_not_count_for_the_next_of_its_name(
    operator, client, wire
):
    await publish_keyed(client, 10)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 10)
        with wire.closed():
            await until(lambda: nobody_is_attached(operator))
            for message in messages:
                await consumer.ack(message)
            await operator.delete_subscription(TOPIC, "billing")
            await operator.create_subscription(TOPIC, "billing", start="earliest")
        assert [message.offset for message in await take(consumer, 10)] == list(range(10))
        await consumer.flush()
        assert await positions(operator) == [0]


async def test_a_seek_and_a_restart_during_a_disconnect_make_acks_obsolete(tmp_path: Path) -> None:
    async with Wire("") as wire, AsyncExitStack() as stack:
        async with testing.broker(tmp_path / "data", server_advertised=wire.address) as url:
            wire.target = url.removeprefix("danube://")
            client = await stack.enter_async_context(pydanube.connect(wire.url))
            await publish_keyed(client, 10)
            consumer = await stack.enter_async_context(client.consumer(TOPIC, subscription="billing", start="earliest"))
            messages = await take(consumer, 10)
            wire.open_for_new = False
            wire.cut()
            for message in messages[:6]:
                await consumer.ack(message)
            async with pydanube.connect(url) as operator:
                await until(lambda: nobody_is_attached(operator))
                await operator.seek(TOPIC, "billing", "earliest")
        async with testing.broker(tmp_path / "data", server_advertised=wire.address) as url:
            wire.target = url.removeprefix("danube://")
            wire.open_for_new = True
            assert [message.offset for message in await take(consumer, 10)] == list(range(10))
            await consumer.flush()
            assert await positions(client) == [0]
            await stack.aclose()


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
        damage.setattr(partition_source, "Batch", Damaging)
        consumer = await client.consumer(TOPIC, subscription="billing", start="earliest")
        with pytest.raises(Corrupt, match="arrived damaged: a bit fell over"):
            await consumer.receive(timeout=60)
    await until(lambda: nobody_is_attached(client))
    async with client.consumer(TOPIC, subscription="billing") as another:
        assert [message.offset for message in await take(another, 1)] == [0]
    await consumer.close()
