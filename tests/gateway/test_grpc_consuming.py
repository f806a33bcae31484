"""danube.ConsumerService: subscribing, streams, acks and nacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from danube_peer import (
    CLOSE,
    CONSUMER,
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    OK,
    SHARED,
    DanubePeer,
    GrpcBroker,
    Refused,
    grpc_broker,
)

import pydanube
from pydanube.broker.subscriptions import consumer_sessions
from pydanube.gateway.grpc.messages import API
from pydanube.model.failure import DANUBE
from pydanube.model.names import TopicName

TOPIC = "/default/orders"


@pytest.fixture
async def broker() -> AsyncIterator[GrpcBroker]:
    async with grpc_broker() as opened:
        yield opened


@pytest.fixture
async def peer(broker: GrpcBroker) -> AsyncIterator[DanubePeer]:
    async with broker.peer() as opened:
        yield opened


def position(broker: GrpcBroker, topic: str = TOPIC) -> int:
    offset: int = broker.live(topic).cursor.position
    return offset


async def test_a_message_arrives_as_it_was_sent(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC, "billing")
    consumer = await peer.consumer(TOPIC)
    await producer.send(b"one", key="k", attributes={"a": "b"}, schema_id=7, schema_version=3)
    await producer.send(b"two", key="")
    await producer.send(b"three")
    one, two, three = await consumer.receive_many(3)
    assert one.msg_id == API["MsgID"](
        producer_id=producer.number, topic_name=TOPIC, broker_addr=f"http://{broker.address}", topic_offset=0
    )
    assert (one.payload, one.routing_key, dict(one.attributes)) == (b"one", "k", {"a": "b"})
    assert (one.producer_name, one.subscription_name, one.publish_time) == ("billing", "s", 1_700_000_000_123)
    assert (one.schema_id, one.schema_version) == (7, 3)
    assert (two.HasField("routing_key"), two.routing_key) == (True, "")
    assert not three.HasField("routing_key") and not three.HasField("schema_id")
    assert not three.HasField("schema_version") and not three.attributes
    assert [message.msg_id.topic_offset for message in (one, two, three)] == [0, 1, 2]
    assert len({message.request_id for message in (one, two, three)}) == 3
    await broker.until(lambda: position(broker) == 3)


async def test_a_stream_says_that_it_is_open_before_there_is_a_message(broker: GrpcBroker, peer: DanubePeer) -> None:
    """The client for Rust holds its consumer until then, and could neither ack nor close."""
    await peer.producer(TOPIC)
    stream = await peer.consumer(TOPIC)
    await stream.opened()
    with pytest.raises(Refused, match="UNAVAILABLE"):  # and a refused one never says so
        await peer.stream(12345).receive()


async def test_what_is_published_natively_arrives_with_its_producer_and_times(
    broker: GrpcBroker, peer: DanubePeer
) -> None:
    async with pydanube.connect(broker.url) as client:
        await client.create_topic(TOPIC)
        consumer = await peer.consumer(TOPIC)
        async with client.producer(TOPIC, name="native") as producer:
            await producer.send(b"one", key="k", attributes={"a": "b"})
            await producer.send(b"two")
        one, two = await consumer.receive_many(2)
        reader = client.reader(TOPIC, start="earliest")
        async with reader:
            stored = await anext(reader)
    assert (one.producer_name, one.routing_key, dict(one.attributes)) == ("native", "k", {"a": "b"})
    assert one.publish_time == int(stored.publish_time.timestamp() * 1000)
    assert one.msg_id.producer_id == two.msg_id.producer_id > 0
    assert not two.HasField("routing_key")


async def test_a_consumer_subscribes_only_to_topics_that_exist(peer: DanubePeer) -> None:
    with pytest.raises(Refused, match="NOT_FOUND"):
        await peer.subscribe(TOPIC)
    await peer.producer(f"{TOPIC}-part-0")
    with pytest.raises(Refused, match=r"NOT_FOUND.*part-0"):
        await peer.subscribe(TOPIC)
    with pytest.raises(Refused, match="NOT_FOUND"):
        await peer.subscribe(f"{TOPIC}-part-1")
    await peer.subscribe(f"{TOPIC}-part-0")


async def test_a_bad_subscribe_says_why(broker: GrpcBroker, peer: DanubePeer) -> None:
    await peer.producer(TOPIC)
    await peer.subscribe(TOPIC)
    for fields, code in [
        ({"subscription": ""}, "INVALID_ARGUMENT"),
        ({"subscription": "a b"}, "INVALID_ARGUMENT"),
        ({"name": ""}, "INVALID_ARGUMENT"),
        ({"name": "c" * 256}, "INVALID_ARGUMENT"),
        ({"kind": 9}, "INVALID_ARGUMENT"),
        ({"filters": ("a*",)}, "INVALID_ARGUMENT"),
        ({"kind": EXCLUSIVE}, "FAILED_PRECONDITION"),
    ]:
        with pytest.raises(Refused) as refused:
            await peer.subscribe(TOPIC, **fields)
        assert refused.value.code == code, fields


async def test_a_new_subscription_begins_at_the_end_and_keeps_that_place(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        producer = await peer.producer(TOPIC)
        await producer.send(b"before")
        number = await peer.subscribe(TOPIC)
        await producer.send(b"after")
        record = broker.broker._registry.subscription(TopicName.parse(TOPIC), "s")
        assert record.failure() == DANUBE
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        assert await peer.stream(number).payloads(1) == [b"after"]


async def test_ids_from_before_a_restart_are_served(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        producer = await peer.producer(f"{TOPIC}-part-1", "billing")
        consumer = await peer.consumer(f"{TOPIC}-part-1", kind=KEY_SHARED, filters=("eu-*",))
        await producer.send(b"1", key="eu-1")
        assert await consumer.payloads(1) == [b"1"]
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        producer.peer = peer
        assert await peer.health(CONSUMER, consumer.number) == OK
        again = peer.stream(consumer.number)
        await producer.send(b"2", key="us-1")
        await producer.send(b"3", key="eu-1")
        (message,) = await again.receive_many(1)
        assert (message.payload, message.msg_id.topic_name) == (b"3", f"{TOPIC}-part-1")
        assert message.msg_id.producer_id == producer.number


async def test_the_same_name_takes_over_and_gets_what_was_not_acked(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    first = await peer.consumer(TOPIC, kind=EXCLUSIVE)
    await producer.send(b"1")
    await first.receive()
    assert await peer.subscribe(TOPIC, kind=EXCLUSIVE) == first.number
    assert (await first.end()).code == "UNAVAILABLE"
    second = peer.stream(first.number)
    assert await second.payloads(1, ack=False) == [b"1"]
    third = peer.stream(first.number)
    assert (await second.end()).code == "UNAVAILABLE"
    assert await third.payloads(1) == [b"1"]


async def test_an_exclusive_subscription_is_refused_to_others_while_it_is_held(
    broker: GrpcBroker, peer: DanubePeer
) -> None:
    await peer.producer(TOPIC)
    holder = await peer.consumer(TOPIC, kind=EXCLUSIVE)
    with pytest.raises(Refused, match=r"PERMISSION_DENIED.*held by consumer 'c'"):
        await peer.subscribe(TOPIC, name="other", kind=EXCLUSIVE)
    await broker.attached(TOPIC, 1)
    holder.cancel()
    await broker.until(lambda: broker.live(TOPIC).consumers == 0)
    other = await peer.consumer(TOPIC, name="other", kind=EXCLUSIVE)
    await broker.attached(TOPIC, 1)
    assert (await peer.stream(holder.number).end()).code == "PERMISSION_DENIED"
    other.cancel()


async def test_a_consumer_that_opens_no_stream_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_sessions, "PLACE_S", 0.05)
    async with grpc_broker() as broker, broker.peer() as peer:
        producer = await peer.producer(TOPIC)
        late = await peer.subscribe(TOPIC, kind=EXCLUSIVE)
        await broker.until(lambda: broker.live(TOPIC).consumers == 0)
        other = await peer.consumer(TOPIC, name="other", kind=EXCLUSIVE)
        await broker.attached(TOPIC, 1)
        other.cancel()
        await broker.until(lambda: broker.live(TOPIC).consumers == 0)
        assert await peer.health(CONSUMER, late) == OK
        stream = peer.stream(late)
        await producer.send(b"1")
        assert await stream.payloads(1) == [b"1"]


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED])
async def test_a_consumer_without_a_stream_keeps_nothing_from_others(
    broker: GrpcBroker, peer: DanubePeer, kind: int
) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC, name="b", kind=kind)
    await broker.attached(TOPIC, 1)
    await producer.send(b"0", key="0")
    assert await consumer.payloads(1, ack=False) == [b"0"]
    await peer.subscribe(TOPIC, name="a", kind=kind)
    for index in range(1, 20):
        await producer.send(b"%d" % index, key=str(index))
    assert await consumer.payloads(19) == [b"%d" % index for index in range(1, 20)]


async def test_an_unloaded_topic_is_served_again_at_the_next_use(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC, kind=EXCLUSIVE)
    await producer.send(b"1")
    first = await consumer.receive()
    async with pydanube.connect(broker.url) as client:
        await client.unload_topic(TOPIC)
    assert (await consumer.end()).code == "UNAVAILABLE"
    await consumer.ack(first)
    await producer.send(b"2")
    assert await peer.stream(consumer.number).payloads(1) == [b"2"]


async def test_unacked_messages_of_a_client_that_is_gone_go_to_another(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    async with broker.peer() as dying:
        gone = await dying.consumer(TOPIC, name="gone")
        await broker.attached(TOPIC, 1)
        await producer.send(b"1")
        await gone.receive()
        stays = await peer.consumer(TOPIC, name="stays")
    assert await stays.payloads(1) == [b"1"]


async def test_36_messages_are_12_for_each_of_three(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    consumers = [await peer.consumer(TOPIC, name=f"c{index}") for index in range(3)]
    await broker.attached(TOPIC, 3)
    for index in range(36):
        await producer.send(b"%d" % index)
    received = await asyncio.gather(*(one.payloads(12) for one in consumers))
    assert sorted(int(one) for some in received for one in some) == list(range(36))


async def test_an_unknown_consumer_is_refused_late_and_told_to_subscribe_again(
    broker: GrpcBroker, peer: DanubePeer
) -> None:
    assert await peer.health(CONSUMER, 77) == CLOSE
    refused = await peer.stream(77).end()
    assert (refused.code, "subscribe again" in refused.details) == ("UNAVAILABLE", True)


async def test_refusals_take_their_time_so_that_clients_do_not_spin(broker: GrpcBroker, peer: DanubePeer) -> None:
    slept: list[float] = []
    service = next(one for _, one in broker.server._grpc._services if type(one).__name__ == "ConsumerService")

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(clock, name)

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    clock = service._resources.clock
    service._resources = replace(service._resources, clock=Watched())
    await peer.producer(TOPIC)
    await peer.stream(77).end()
    first = await peer.consumer(TOPIC)
    await broker.attached(TOPIC, 1)
    second = await peer.consumer(TOPIC)
    await first.end()
    async with pydanube.connect(broker.url) as client:
        await client.delete_topic(TOPIC)
    await second.end()
    assert len(slept) == 3 and all(0.5 <= seconds <= 1.0 for seconds in slept)


async def test_compressed_native_batches_are_delivered_in_the_clear(broker: GrpcBroker, peer: DanubePeer) -> None:
    async with pydanube.connect(broker.url) as client:
        await client.create_topic(TOPIC)
        consumer = await peer.consumer(TOPIC)
        async with client.producer(TOPIC, compression="zstd") as producer:
            await producer.send_many([b"x" * 1000 + b"%d" % index for index in range(100)])
    received = await consumer.payloads(100)
    assert received == [b"x" * 1000 + b"%d" % index for index in range(100)]


async def test_a_deleted_subscription_ends_its_streams(broker: GrpcBroker, peer: DanubePeer) -> None:
    await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC)
    await broker.attached(TOPIC, 1)
    async with pydanube.connect(broker.url) as client:
        await client.delete_subscription(TOPIC, "s")
    assert (await consumer.end()).code == "UNAVAILABLE"
    assert await peer.health(CONSUMER, consumer.number) == CLOSE
    assert (await peer.stream(consumer.number).end()).code == "UNAVAILABLE"
    assert await peer.subscribe(TOPIC) == consumer.number


async def test_acks_are_accepted_whatever_they_name(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC)
    await producer.send(b"1")
    message = await consumer.receive()
    for field, value in [("topic_offset", 99), ("topic_offset", 2**64 - 1), ("topic_name", "/default/unknown")]:
        other = API["MsgID"]()
        other.CopyFrom(message.msg_id)
        setattr(other, field, value)
        for rpc in ("Ack", "Nack"):
            await peer.call(f"ConsumerService/{rpc}", msg_id=other, subscription_name="s")
    await peer.call("ConsumerService/Ack", msg_id=message.msg_id, subscription_name="unknown")
    assert position(broker) == 0
    await consumer.ack(message)
    await consumer.ack(message)
    await consumer.nack(message)
    await broker.until(lambda: position(broker) == 1)
    for rpc in ("Ack", "Nack"):
        with pytest.raises(Refused, match=r"INVALID_ARGUMENT: msg_id is missing"):
            await peer.call(f"ConsumerService/{rpc}", subscription_name="s")
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await peer.call(f"ConsumerService/{rpc}", msg_id=API["MsgID"](topic_name="x"), subscription_name="s")


async def test_acks_out_of_order_move_the_cursor_over_what_is_contiguous(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC)
    for index in range(4):
        await producer.send(b"%d" % index)
    messages = await consumer.receive_many(4, ack=False)
    for index, expected in [(3, 0), (1, 0), (0, 2), (2, 4)]:
        await consumer.ack(messages[index])
        await broker.until(lambda expected=expected: position(broker) == expected)


async def test_an_ack_after_a_restart_counts(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        producer = await peer.producer(TOPIC)
        consumer = await peer.consumer(TOPIC)
        await producer.send(b"1")
        message = await consumer.receive()
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        consumer.peer = producer.peer = peer
        await consumer.ack(message)
        await producer.send(b"2")
        assert await peer.stream(consumer.number).payloads(1) == [b"2"]


async def test_a_nack_is_redelivered_by_the_policy_and_by_its_delay(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC)
    async with pydanube.connect(broker.url) as client:
        policy = pydanube.FailurePolicy(redeliveries_max=2, delay_ms=1, delay_max_ms=50, poison="drop")
        await client.set_failure_policy(TOPIC, "s", policy)
    await producer.send(b"1")
    for _ in range(3):
        await consumer.nack(await consumer.receive(), delay_ms=10**9, reason="why")
    await broker.until(lambda: position(broker) == 1)
    await producer.send(b"2")
    assert await consumer.payloads(1) == [b"2"]


async def test_a_message_that_is_not_acked_in_time_comes_again(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC)
    async with pydanube.connect(broker.url) as client:
        policy = pydanube.FailurePolicy(ack_timeout_ms=50, delay_ms=1, delay_max_ms=1)
        await client.set_failure_policy(TOPIC, "s", policy)
    await producer.send(b"1")
    assert await consumer.payloads(2, ack=False) == [b"1", b"1"]


async def test_a_message_too_large_for_clients_is_given_up(peer: DanubePeer, broker: GrpcBroker) -> None:
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC)
    async with pydanube.connect(broker.url) as client:
        await client.create_topic("/default/dead")
        policy = pydanube.FailurePolicy(redeliveries_max=5, dead_letter_topic="/default/dead")
        await client.set_failure_policy(TOPIC, "s", policy)
        await producer.send(bytes(4 * 1024 * 1024), key="large")
        await producer.send(b"small")
        assert await consumer.payloads(1) == [b"small"]
        await broker.until(lambda: position(broker) == 2)
        async with client.reader("/default/dead", start="earliest") as reader:
            dead = await anext(reader)
    assert (len(dead.payload), dead.key) == (4 * 1024 * 1024, "large")
    assert "clients of the Danube gRPC API" in dead.attributes["x-failure-reason"]


async def test_a_client_that_does_not_read_holds_back_its_own_messages_only(
    broker: GrpcBroker, peer: DanubePeer
) -> None:
    producer = await peer.producer(TOPIC)
    slow = await peer.consumer(TOPIC, "slow")
    await broker.attached(TOPIC, 1, "slow")
    async with broker.peer() as other:
        quick = await other.consumer(TOPIC, "quick")
        payload = bytes(64 * 1024)
        for index in range(200):
            await producer.send(b"%d-" % index + payload)
            assert (await quick.receive()).payload.startswith(b"%d-" % index)
    taken = broker.live(TOPIC, "slow").dispatcher.next_read
    assert taken * len(payload) < 8 * 1024 * 1024
    stream = slow
    for index in range(200):
        assert (await stream.receive()).payload.startswith(b"%d-" % index)


async def test_a_non_reliable_topic_delivers_to_who_is_there(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC, reliable=False)
    await producer.send(b"unheard")
    consumer = await peer.consumer(TOPIC)
    await broker.attached(TOPIC, 1)
    await producer.send(b"heard")
    assert await consumer.payloads(1) == [b"heard"]


@pytest.mark.parametrize("kind", [SHARED, FAILOVER, KEY_SHARED])
async def test_both_protocols_share_a_subscription(broker: GrpcBroker, peer: DanubePeer, kind: int) -> None:
    """Consumers of both kinds get each message once, and the consumer that got it acks it."""
    names = {SHARED: "shared", FAILOVER: "failover", KEY_SHARED: "key-shared"}
    producer = await peer.producer(TOPIC)
    consumer = await peer.consumer(TOPIC, name="a", kind=kind)
    received: list[tuple[str, str, bytes]] = []

    async def receive_grpc() -> None:
        while True:
            message = await consumer.receive()
            received.append(("grpc", message.routing_key, message.payload))
            await consumer.ack(message)

    async with pydanube.connect(broker.url) as client:
        native = client.consumer(TOPIC, subscription="s", type=names[kind], name="b")
        async with native, client.producer(TOPIC) as native_producer:
            await broker.attached(TOPIC, 2)

            async def receive_native() -> None:
                async for message in native:
                    received.append(("native", message.key, message.payload))
                    await native.ack(message)

            receiving = [asyncio.ensure_future(receive_grpc()), asyncio.ensure_future(receive_native())]
            for index in range(50):
                await producer.send(b"g%d" % index, key=f"k{index % 10}")
                await native_producer.send(b"n%d" % index, key=f"k{index % 10}")
            await broker.until(lambda: position(broker) == 100)
            for one in receiving:
                one.cancel()
    assert sorted(one[2] for one in received) == sorted(b"%s%d" % (p, n) for p in (b"g", b"n") for n in range(50))
    by_protocol = {protocol: [one for one in received if one[0] == protocol] for protocol in ("grpc", "native")}
    if kind == FAILOVER:
        assert len(by_protocol["grpc"]) == 100
    else:
        assert by_protocol["grpc"] and by_protocol["native"]
    if kind == KEY_SHARED:
        assert not {one[1] for one in by_protocol["grpc"]} & {one[1] for one in by_protocol["native"]}


async def test_a_closing_broker_ends_streams_as_unavailable(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker:
        peer = broker.peer()
        await peer.producer(TOPIC)
        consumer = await peer.consumer(TOPIC)
        await broker.attached(TOPIC, 1)
    assert (await consumer.end()).code == "UNAVAILABLE"
    await peer.__aexit__()


async def test_idle_streams_have_no_timers(broker: GrpcBroker, peer: DanubePeer) -> None:
    await peer.producer(TOPIC)
    streams = [await peer.consumer(TOPIC, name=f"c{index}") for index in range(50)]
    await broker.attached(TOPIC, 50)
    assert not broker.broker.consumer_sessions._waiting
    for one in streams:
        one.cancel()
    await broker.until(lambda: broker.live(TOPIC).consumers == 0)


async def test_a_refused_subscribe_creates_no_subscription(broker: GrpcBroker, peer: DanubePeer) -> None:
    await peer.producer(TOPIC)
    for filters in (("a" * 201,), ("",), ("a",) * 101):
        with pytest.raises(Refused) as refused:
            await peer.subscribe(TOPIC, kind=KEY_SHARED, filters=filters)
        assert refused.value.code == "INVALID_ARGUMENT"
    async with pydanube.connect(broker.url) as client:
        assert await client.list_subscriptions(TOPIC) == []
