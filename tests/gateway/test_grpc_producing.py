"""danube.ProducerService: opening producers, and sending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from danube_peer import CLOSE, OK, PRODUCER, DanubePeer, GrpcBroker, Refused, grpc_broker

import pydanube
from pydanube.codec.batch import Batch
from pydanube.gateway.grpc.messages import API

TOPIC = "/default/orders"


@pytest.fixture
async def broker() -> AsyncIterator[GrpcBroker]:
    async with grpc_broker() as opened:
        yield opened


@pytest.fixture
async def peer(broker: GrpcBroker) -> AsyncIterator[DanubePeer]:
    async with broker.peer() as opened:
        yield opened


async def stored(broker: GrpcBroker, topic: str = TOPIC, partition: int = 0, count: int = 1) -> list:
    """Read messages natively."""
    async with asyncio.timeout(60), pydanube.connect(broker.url) as client:
        reader = client.reader(topic, partition=partition, start="earliest")
        async with reader:
            return [await anext(reader) for _ in range(count)]


async def test_a_message_is_read_natively_as_it_was_sent(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC, "billing")
    await producer.send(b"one", key="k", attributes={"a": "b"}, schema_id=7, schema_version=3)
    await producer.send(b"two", key="")
    await producer.send(b"three")
    one, two, three = await stored(broker, count=3)
    assert (one.payload, one.key, one.attributes, one.producer) == (b"one", "k", {"a": "b"}, "billing")
    assert (one.schema_id, one.schema_version) == (7, 3)
    assert one.publish_time.timestamp() == 1_700_000_000.123
    assert (two.key, three.key, three.attributes, three.schema_id) == ("", None, {}, 0)


async def test_two_producers_of_one_name_share_an_id_and_both_publish(broker: GrpcBroker, peer: DanubePeer) -> None:
    one = await peer.producer(TOPIC, "billing")
    async with broker.peer() as other, pydanube.connect(broker.url) as client:
        two = await other.producer(TOPIC, "billing")
        assert one.number == two.number != (await peer.producer(TOPIC, "another")).number
        async with client.producer(TOPIC, name="billing") as native:
            await asyncio.gather(one.send(b"1"), two.send(b"2"), native.send(b"3"))
            await asyncio.gather(one.send(b"4"), two.send(b"5"), native.send(b"6"))
    assert sorted(message.payload for message in await stored(broker, count=6)) == [b"%d" % n for n in range(1, 7)]


async def test_sends_that_arrive_while_a_batch_is_written_become_one_batch(
    broker: GrpcBroker, peer: DanubePeer
) -> None:
    producer = await peer.producer(TOPIC)
    service = next(one for _, one in broker.server._grpc._services if type(one).__name__ == "ProducerService")
    publish, batches = broker.broker.batches.publish, []
    broker.broker.batches.publish = lambda *arguments: batches.append(arguments)
    sends = asyncio.gather(*(producer.send(b"%d" % n, key=f"k{n}") for n in range(100)))
    collected = service._sends._groups

    def arrived() -> int:
        published = [Batch.trust(batch).count for _, _, batch, *_ in batches]
        return sum(published) + sum(len(one.messages) for one in collected.values())

    await broker.until(lambda: arrived() == 100)
    assert len(batches) == 1
    broker.broker.batches.publish = publish
    publish(*batches[0])
    await sends
    messages = await stored(broker, count=100)
    assert sorted((one.key, one.payload) for one in messages) == sorted((f"k{n}", b"%d" % n) for n in range(100))
    assert len({one.append_time for one in messages}) == 2


async def test_a_bad_message_fails_alone(broker: GrpcBroker, peer: DanubePeer) -> None:
    async with pydanube.connect(broker.url) as client:
        await client.create_topic(TOPIC)
        await client.schemas.register("number", "", format="number")
        await client.schemas.bind(TOPIC, "number", policy="enforce")
        schema = await client.schemas.get("number")
    producer = await peer.producer(TOPIC)
    ids = {"schema_id": schema.schema_id, "schema_version": schema.version}
    payloads = [b"1", b"two", b"3", b"four", b"5"]
    outcomes = await asyncio.gather(*(producer.send(one, **ids) for one in payloads), return_exceptions=True)
    assert [getattr(one, "code", "OK") for one in outcomes] == ["OK", "INVALID_ARGUMENT"] * 2 + ["OK"]
    assert [one.payload for one in await stored(broker, count=3)] == [b"1", b"3", b"5"]


async def test_producers_of_partitions_create_and_grow_the_topic(broker: GrpcBroker, peer: DanubePeer) -> None:
    producers = [await peer.producer(f"{TOPIC}-part-{index}", f"p-{index}") for index in range(3)]
    assert await peer.partitions(TOPIC) == [f"{TOPIC}-part-{index}" for index in range(3)]
    assert await peer.partitions(f"{TOPIC}-part-1") == [f"{TOPIC}-part-1"]
    for index, producer in enumerate(producers):
        await producer.send(b"%d" % index)
        assert [one.payload for one in await stored(broker, partition=index)] == [b"%d" % index]
    for topic, code in [(TOPIC, "ALREADY_EXISTS"), (f"{TOPIC}-part-99999", "INVALID_ARGUMENT")]:
        with pytest.raises(Refused) as refused:
            await peer.producer(topic)
        assert refused.value.code == code
    await peer.producer("/default/plain")
    with pytest.raises(Refused, match="ALREADY_EXISTS"):
        await peer.producer("/default/plain-part-0")


async def test_topics_that_only_look_alike_have_nothing_to_do_with_each_other(peer: DanubePeer) -> None:
    await peer.producer(f"{TOPIC}-dlq")
    assert await peer.partitions(TOPIC) == []
    assert await peer.partitions(f"{TOPIC}-dlq") == [f"{TOPIC}-dlq"]
    with pytest.raises(Refused, match="NOT_FOUND"):
        await peer.call("Discovery/TopicLookup", topic=TOPIC)


async def test_a_lookup_says_where_this_listener_is(broker: GrpcBroker, peer: DanubePeer) -> None:
    await peer.producer(f"{TOPIC}-part-0")
    for topic in (TOPIC, f"{TOPIC}-part-0"):
        found = await peer.call("Discovery/TopicLookup", topic=topic)
        assert found.response_type == API["TopicLookupResponse"].Connect
        assert found.connect_url == found.broker_url == f"http://{broker.address}"
        assert not found.proxy


@pytest.mark.parametrize("topic", ["orders", "/orders", "/default/orders/", "/default/o rders", "", "//x", "/a/b/c"])
async def test_what_is_no_topic_is_an_invalid_argument(peer: DanubePeer, topic: str) -> None:
    for path, fields in [
        ("ProducerService/CreateProducer", {"topic_name": topic, "producer_name": "p"}),
        ("ConsumerService/Subscribe", {"topic_name": topic, "consumer_name": "c", "subscription": "s"}),
        ("Discovery/TopicLookup", {"topic": topic}),
        ("Discovery/TopicPartitions", {"topic": topic}),
    ]:
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            await peer.call(path, **fields)


async def test_an_existing_topic_keeps_its_dispatch_strategy_and_subject(broker: GrpcBroker, peer: DanubePeer) -> None:
    async with pydanube.connect(broker.url) as client:
        for subject in ("one", "two"):
            for text in ('{"type": "object"}', '{"type": "object", "required": ["a"]}'):
                await client.schemas.set_compatibility(subject, "none")
                await client.schemas.register(subject, text, format="json")
    await peer.producer(TOPIC, schema_ref={"subject": "one", "use_latest": True})
    await peer.producer(TOPIC, "without a schema")
    await peer.producer(TOPIC, schema_ref={"subject": "one", "pinned_version": 1})
    await peer.producer(TOPIC, schema_ref={"subject": "one", "min_version": 2})
    for fields, code in [
        ({"reliable": False}, "FAILED_PRECONDITION"),
        ({"schema_ref": {"subject": "two"}}, "FAILED_PRECONDITION"),
        ({"schema_ref": {"subject": "one", "pinned_version": 3}}, "NOT_FOUND"),
        ({"schema_ref": {"subject": "one", "pinned_version": 0}}, "INVALID_ARGUMENT"),
        ({"schema_ref": {"subject": "one", "min_version": 3}}, "NOT_FOUND"),
        ({"schema_ref": {"subject": "three"}}, "NOT_FOUND"),
        ({"schema_ref": {"subject": ""}}, "INVALID_ARGUMENT"),
    ]:
        with pytest.raises(Refused) as refused:
            await peer.producer(TOPIC, "other", **fields)
        assert refused.value.code == code, fields
    with pytest.raises(Refused, match="NOT_FOUND"):
        await peer.producer("/default/new", schema_ref={"subject": "one", "pinned_version": 9})
    assert await peer.partitions("/default/new") == []


async def test_bad_sends_get_a_status_that_says_why(broker: GrpcBroker, peer: DanubePeer) -> None:
    producer = await peer.producer(TOPIC)
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT: msg_id is missing"):
        await peer.call("ProducerService/SendMessage", payload=b"x")
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*larger"):
        await producer.send(bytes(10 * 1024 * 1024 + 1))
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*time"):
        await producer.send(b"x", publish_time=2**64 - 1)
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*schema"):
        await producer.send(b"x", schema_id=2**64 - 1)
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*name"):
        await peer.producer(TOPIC, "n" * 256)
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*name"):
        await peer.producer(TOPIC, "")
    for field in ("dispatch_strategy", "producer_access_mode"):
        with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*0 or 1"):
            await peer.call("ProducerService/CreateProducer", topic_name=TOPIC, producer_name="p", **{field: 2})
    producer.number += 1
    with pytest.raises(Refused, match=r"UNAVAILABLE.*create the producer again"):
        await producer.send(b"x")
    producer.topic = "/default/unknown"
    with pytest.raises(Refused, match="NOT_FOUND"):
        await producer.send(b"x")


async def test_a_health_check_tells_an_unknown_producer_to_create_itself_again(
    broker: GrpcBroker, peer: DanubePeer
) -> None:
    producer = await peer.producer(TOPIC)
    assert await peer.health(PRODUCER, producer.number) == OK
    assert await peer.health(PRODUCER, producer.number + 1) == CLOSE
    async with pydanube.connect(broker.url) as client:
        await client.delete_topic(TOPIC)
    assert await peer.health(PRODUCER, producer.number) == CLOSE
    with pytest.raises(Refused, match="NOT_FOUND"):
        await producer.send(b"x")
    assert (await peer.producer(TOPIC)).number == producer.number
    await producer.send(b"again")


async def test_without_auto_creation_a_producer_finds_no_topic() -> None:
    async with grpc_broker(topics_auto_create=False) as broker, broker.peer() as peer:
        with pytest.raises(Refused, match="NOT_FOUND"):
            await peer.producer(TOPIC)


async def test_a_broker_that_stops_answers_or_refuses_sends_and_cancels_none(tmp_path: Path) -> None:
    async with grpc_broker(tmp_path) as broker, broker.peer() as peer:
        producer = await peer.producer(TOPIC)
        codes: list[str] = []

        async def send_until_refused() -> None:
            try:
                while True:
                    await producer.send(b"m")
                    codes.append("OK")
            except Refused as refused:
                codes.append(refused.code)

        sends = [asyncio.ensure_future(send_until_refused()) for _ in range(50)]
        await broker.until(lambda: len(codes) > 100)
        grpc = broker.server._grpc
        await grpc.close(60)
        await asyncio.wait(sends, timeout=1)  # those that are repeated by gRPC find no server any more
        for one in sends:
            one.cancel()
        assert set(codes) <= {"OK", "UNAVAILABLE"}
