"""Publishing over HTTP: JSON, NDJSON and raw bodies, batches, partitions, schemas, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from http_peer import Answer, HttpListener, Peer, open_listener

import pydanube
from pydanube.client import Client
from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.publish_memory import PublishMemory
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.schemas import ValidationPolicy

ORDERS = "/api/v1/topics/default/orders/messages"


async def publish(there: HttpListener, body: Any, path: str = ORDERS, **headers: str) -> Answer:
    headers.setdefault("Content_Type", "application/json")
    async with await Peer.connect(there) as peer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await peer.request("POST", path, data, **headers)


async def received(client: Client, count: int, topic: str = "/default/orders") -> list[Any]:
    async with client.consumer(topic, subscription="check", start="earliest") as consumer, asyncio.timeout(60):
        return [await consumer.receive() for _ in range(count)]


async def batches(there: HttpListener) -> list[int]:
    """How many messages each stored batch has."""
    topic, start = TopicName("default", "orders"), Position("earliest")
    found = await there.broker.fetch(ANONYMOUS, topic, 0, start, 1 << 20, 0)
    return [Batch.trust(view).count for view in found.batches]


async def test_one_message_is_stored_and_its_offset_answered(http):
    async with pydanube.connect(http.broker_url) as client:
        answer = await publish(
            http,
            {
                "payload": "hello",
                "key": "k",
                "attributes": {"a": "1"},
                "publish_time": "2026-01-31T12:00:00Z",
            },
        )
        assert (answer.status, answer.json()) == (200, {"offsets": [{"partition": 0, "offset": 0}]})
        (message,) = await received(client, 1)
        assert (message.payload, message.key, message.attributes) == (b"hello", "k", {"a": "1"})
        assert message.publish_time.isoformat() == "2026-01-31T12:00:00+00:00"
        assert message.producer == "http"


async def test_payloads_are_text_json_values_as_written_or_base64(http):
    body = (
        b'{"messages": [{"payload": "\\u00fc"}, {"payload": {"a":  1.50}}, {"payload": null}, '
        b'{"payload_base64": "AP8="}]}'
    )
    async with pydanube.connect(http.broker_url) as client:
        answer = await publish(http, body)
        assert [one["offset"] for one in answer.json()["offsets"]] == [0, 1, 2, 3]
        messages = await received(client, 4)
        assert [one.payload for one in messages] == ["ü".encode(), b'{"a":  1.50}', b"null", b"\x00\xff"]
        assert await batches(http) == [4], "a batch body becomes one batch"


async def test_every_line_of_ndjson_is_a_message_of_one_batch(http):
    async with pydanube.connect(http.broker_url) as client:
        lines = b"\n".join(json.dumps({"payload": str(number)}).encode() for number in range(3))
        answer = await publish(http, lines + b"\n", Content_Type="application/x-ndjson")
        assert [one["offset"] for one in answer.json()["offsets"]] == [0, 1, 2]
        messages = await received(client, 3)
        assert [one.payload for one in messages] == [b"0", b"1", b"2"]
        assert await batches(http) == [3]


async def test_any_other_body_is_one_payload_with_attributes_from_headers(http):
    async with pydanube.connect(http.broker_url) as client:
        headers = {"X_Danube_Key": "k", "X_Danube_Attribute_Colour": "red", "X_Danube_Publish_Time": "1700000000000000"}
        answer = await publish(http, b"\x00\xff", Content_Type="application/octet-stream", **headers)
        assert answer.status == 200
        answer = await publish(http, b'{"id": 1}', f"{ORDERS}?format=raw")
        assert answer.status == 200
        first, second = await received(client, 2)
        assert (first.payload, first.key, first.attributes) == (b"\x00\xff", "k", {"colour": "red"})
        assert first.publish_time.timestamp() == 1_700_000_000
        assert (second.payload, second.key) == (b'{"id": 1}', None)


@pytest.mark.parametrize("media", ["application/x-www-form-urlencoded", ""])
async def test_a_message_in_json_that_does_not_say_so_is_refused(http, media):
    envelopes = (
        b'{"payload": {"id": 1}, "key": "k"}',
        b' {"messages": [{"payload": "a"}]}',
        b'{"payload_base64": "AA=="}',
    )
    payloads = b'{"id": 1}', b'{"payload": 1, "id": 2}', b'{"key": "k"}', b"[1]", b"{", b"a=b&c=d"
    async with pydanube.connect(http.broker_url) as client:
        for body in envelopes:
            answer = await publish(http, body, Content_Type=media)
            assert answer.status == 400
            assert "Content-Type: application/json" in answer.json()["detail"]
        await publish(http, envelopes[0], f"{ORDERS}?format=raw", Content_Type=media)
        for body in payloads:
            assert (await publish(http, body, Content_Type=media)).status == 200
        assert [one.payload for one in await received(client, 7)] == [envelopes[0], *payloads]


async def test_messages_of_a_partitioned_topic_go_to_the_partitions_of_their_keys(http):
    async with pydanube.connect(http.broker_url) as client:
        await client.create_topic("/default/wide", partitions=4)
        keys = [f"key-{number}" for number in range(20)]
        async with client.producer("/default/wide") as producer:
            natively = [(await producer.send(b"x", key=key)).partition for key in keys]
        body = {"messages": [{"payload": "y", "key": key} for key in keys]}
        answer = await publish(http, body, "/api/v1/topics/default/wide/messages")
        assert [one["partition"] for one in answer.json()["offsets"]] == natively
        answer = await publish(
            http, {"messages": [{"payload": "a"}, {"payload": "b"}]}, "/api/v1/topics/default/wide/messages"
        )
        assert len({one["partition"] for one in answer.json()["offsets"]}) == 1
        answer = await publish(
            http, {"payload": "c", "key": "key-0"}, "/api/v1/topics/default/wide/messages?partition=3"
        )
        assert answer.json()["offsets"][0]["partition"] == 3
        assert (await publish(http, {"payload": "c"}, "/api/v1/topics/default/wide/messages?partition=4")).status == 400


async def test_messages_that_arrive_together_share_a_batch(http):
    async with pydanube.connect(http.broker_url) as client:
        await publish(http, {"payload": "first"})
        peers = [await Peer.connect(http) for _ in range(20)]
        for number, peer in enumerate(peers):
            peer.send("POST", ORDERS, json.dumps({"payload": str(number)}).encode(), Content_Type="application/json")
        offsets = [(await peer.answer()).json()["offsets"][0]["offset"] for peer in peers]
        assert sorted(offsets) == list(range(1, 21))
        messages = await received(client, 21)
        by_offset = {one.offset: one.payload for one in messages}
        assert [by_offset[offset] for offset in offsets] == [str(number).encode() for number in range(20)]
        assert len(await batches(http)) < 21
        for peer in peers:
            await peer.__aexit__()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"{", "the body is not what is expected here"),
        (b'{"payload": "x", "colour": "red"}', "`colour`; a message is"),
        (b'{"key": "k"}', "message 0 has neither payload nor payload_base64"),
        (b'{"payload": "x", "payload_base64": "AA=="}', "both"),
        (b'{"messages": []}', "1 to 100000 messages"),
        (b'{"messages": [{"payload": "x"}], "payload": "y"}', "beside messages"),
        (b'{"messages": [{"payload": "x"}, {"payload_base64": "?"}]}', "message 1: payload_base64"),
        (b'{"payload": {"a": "\xff"}}', "utf-8"),
        (b'{"payload": "x", "key": 7}', "key"),
        (b'{"payload": "x", "publish_time": -1}', "publish_time"),
        (b'{"payload": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
async def test_a_bad_body_is_refused_by_what_is_wrong_and_nothing_is_stored(http, body, what):
    async with pydanube.connect(http.broker_url) as client:
        answer = await publish(http, body)
        assert answer.status == 400 and what in answer.json()["detail"], answer.body
        assert answer.headers["content-type"] == "application/problem+json"
        assert await client.list_topics() == []


async def test_bad_names_and_parameters_are_refused(http):
    for path in ("..%2F..", "a%00b", "a%20b"):
        answer = await publish(http, {"payload": "x"}, f"/api/v1/topics/default/{path}/messages")
        assert answer.status == 400, path
    for query in ("colour=red", "partition=x", "format=xml", "version=-1", "producer="):
        assert (await publish(http, {"payload": "x"}, f"{ORDERS}?{query}")).status == 400, query
    assert (await publish(http, {"payload": "x"}, "/api/v1/topics/missing/orders/messages")).status == 404


async def test_a_batch_that_does_not_fit_the_schema_of_the_topic_is_refused_whole(http):
    schema = '{"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}'
    async with pydanube.connect(http.broker_url) as client:
        await client.schemas.register("orders-value", schema, format="json")
        await client.create_topic("/default/orders")
        await client.schemas.bind("/default/orders", "orders-value", policy=ValidationPolicy.ENFORCE)
        path = f"{ORDERS}?subject=orders-value"
        answer = await publish(http, {"messages": [{"payload": {"id": 1}}, {"payload": {"id": "x"}}]}, path)
        assert answer.status == 400, answer.body
        assert (await publish(http, {"payload": {"id": 1}})).status == 400, "natively a schema must be named too"
        answer = await publish(http, {"messages": [{"payload": {"id": 1}}, {"payload": {"id": 2}}]}, path)
        assert answer.json()["offsets"] == [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}]
        (first, _) = await received(client, 2)
        assert first.schema_version == 1


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async with open_listener(http_body_bytes_max=1000) as there, await Peer.connect(there) as peer:
        peer.send("POST", ORDERS, b"", content_length="1001", Expect="100-continue")
        assert (await peer.answer()).status == 413


async def test_unanswered_publishes_count_against_the_budget_of_all_listeners(http):
    memory = http.server._application._data.publisher._door.publish_memory = PublishMemory(1000)
    share = memory.reserve(900)
    assert share is not None
    answer = await publish(http, {"payload": "x" * 200})
    assert (answer.status, answer.json()["title"]) == (503, "Unavailable")
    memory.release(900, share)
    assert (await publish(http, {"payload": "x" * 200})).status == 200
    assert memory.used_bytes == 0


async def test_a_large_batch_is_read_in_a_thread_and_stored(http):
    async with pydanube.connect(http.broker_url) as client:
        payload = base64.b64encode(b"x" * 3000).decode()
        answer = await publish(http, {"messages": [{"payload_base64": payload}] * 100})
        assert len(answer.json()["offsets"]) == 100
        assert (await received(client, 100))[99].payload == b"x" * 3000
