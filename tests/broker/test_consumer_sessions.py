"""Consumers of the Danube gRPC API: their places, their ids, and who may use these."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, Collector, open_broker

from pydanube.broker import Broker
from pydanube.broker.subscriptions.consumer_sessions import PLACE_S
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.model.errors import Denied, Held, NotFound, Refused, Unavailable
from pydanube.model.names import TopicAddress
from pydanube.model.topics import SubscriptionType

ADDRESS = TopicAddress.parse(str(TOPIC))
STRANGER = Principal("stranger")


async def subscribe(
    broker: Broker, consumer: str = "one", kind: SubscriptionType = SubscriptionType.EXCLUSIVE, **options
) -> int:
    sessions = broker.consumer_sessions
    return await sessions.subscribe(options.pop("principal", ANONYMOUS), ADDRESS, "s", consumer, kind, **options)


async def open_stream(broker: Broker, number: int, principal: Principal = ANONYMOUS) -> Collector:
    sink = Collector()
    sink.consumer = await broker.consumer_sessions.open_stream(principal, number, sink)
    sink.consumer.credit(1000, 1 << 20)
    return sink


async def publish(broker: Broker, *payloads: bytes) -> None:
    client = BrokerClient(broker)
    producer = await client.producer()
    await client.publish(producer, list(payloads))
    producer.close()


async def test_a_place_without_a_stream_is_lost_in_time(broker, clock):
    await BrokerClient(broker).create()
    first = await subscribe(broker)
    await asyncio.sleep(0)
    clock.advance(PLACE_S - 1)
    with pytest.raises(Held, match="'one'"):
        await subscribe(broker, "two")
    assert await subscribe(broker) == first  # which begins to wait again
    await asyncio.sleep(0)
    clock.advance(PLACE_S - 1)
    await asyncio.sleep(0)
    with pytest.raises(Held, match="'one'"):
        await subscribe(broker, "two")
    clock.advance(1)
    await asyncio.sleep(0)
    second = await subscribe(broker, "two")
    with pytest.raises(Held, match="'two'"):
        await open_stream(broker, first)
    stream = await open_stream(broker, second)
    await asyncio.sleep(0)
    clock.advance(2 * PLACE_S)
    await publish(broker, b"1")
    assert await stream.wait_for(1) == [(0, b"1")]


async def test_a_stream_takes_over_from_the_one_before(broker):
    await BrokerClient(broker).create()
    number = await subscribe(broker)
    first = await open_stream(broker, number)
    await publish(broker, b"1")
    await first.wait_for(1)
    second = await open_stream(broker, number)
    assert isinstance(first.error, Refused)
    assert await second.wait_for(1) == [(0, b"1")]
    await broker.consumer_sessions.close_stream(number, first.consumer, was_replaced=True)
    assert number in broker._registry.consumers.live
    await publish(broker, b"2")
    assert await second.wait_for(2) == [(0, b"1"), (1, b"2")]
    await broker.consumer_sessions.close_stream(number, second.consumer, was_replaced=False)
    assert number not in broker._registry.consumers.live


async def test_subscribing_again_ends_the_stream_and_changes_the_filters(broker):
    await BrokerClient(broker).create()
    kind = SubscriptionType.KEY_SHARED
    number = await subscribe(broker, kind=kind, key_filters=("eu-*",))
    stream = await open_stream(broker, number)
    assert await subscribe(broker, kind=kind, key_filters=("us-*",)) == number
    assert isinstance(stream.error, Refused)
    found = broker.consumer_sessions.find(number)
    assert found is not None and found.key_filters == ["us-*"]


async def test_an_id_gives_a_stranger_nothing(tmp_path: Path) -> None:
    class OnlyAnonymous:
        def check(self, principal: Principal, action: Action, resource: str) -> None:
            if principal != ANONYMOUS:
                raise Denied(f"{principal} may not {action} {resource}")

        def allows(self, principal: Principal, action: Action, resource: str) -> bool:
            return principal == ANONYMOUS

    async with open_broker(tmp_path, authorizer=OnlyAnonymous()) as broker:
        await BrokerClient(broker).create()
        number = await subscribe(broker)
        stream = await open_stream(broker, number)
        with pytest.raises(Unavailable, match="is not known"):  # as for an id that was never given out
            await open_stream(broker, number, STRANGER)
        with pytest.raises(Denied):
            await subscribe(broker, principal=STRANGER)
        await publish(broker, b"1")
        await stream.wait_for(1)
        with pytest.raises(Denied):
            await broker.single_acks.ack(STRANGER, TOPIC, 0, "s", 0)
        with pytest.raises(Denied):
            await broker.shared_producers.open(STRANGER, ADDRESS, broker.addresses.get(ANONYMOUS, ADDRESS), "p")
        assert stream.error is None


async def test_an_id_that_leads_nowhere_is_unavailable(broker):
    with pytest.raises(NotFound):
        await subscribe(broker)
    with pytest.raises(Unavailable, match="subscribe again"):
        await open_stream(broker, 1)
    await BrokerClient(broker).create()
    number = await subscribe(broker)
    stream = await open_stream(broker, number)
    await broker.topics.delete(ANONYMOUS, TOPIC)
    assert stream.error is not None
    await BrokerClient(broker).create()
    with pytest.raises(Unavailable, match="subscribe again"):
        await open_stream(broker, number)
    assert await subscribe(broker) == number


async def test_after_a_seek_only_what_is_in_flight_is_acked(broker, topic):
    number = await subscribe(broker)
    stream = await open_stream(broker, number)
    await publish(broker, b"1", b"2")
    await stream.wait_for(2)
    for offset in (0, 1):
        await broker.single_acks.ack(ANONYMOUS, TOPIC, 0, "s", offset)
    await asyncio.sleep(0)
    live = broker._partitions.of(TOPIC)[0].subscriptions["s"]
    assert live.cursor.position == 2
    await broker.consumer_sessions.close_stream(number, stream.consumer, was_replaced=False)
    done = asyncio.get_running_loop().create_future()
    live.seek(0, lambda error: done.set_result(error))
    assert await done is None
    await broker.single_acks.ack(ANONYMOUS, TOPIC, 0, "s", 0)  # of a delivery before the seek
    await asyncio.sleep(0)
    assert live.cursor.position == 0
    again = await open_stream(broker, number)
    await again.wait_for(2)
    await broker.single_acks.ack(ANONYMOUS, TOPIC, 0, "s", 0)
    await asyncio.sleep(0)
    assert live.cursor.position == 1
