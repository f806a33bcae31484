"""Who may not see a thing gets the same answer as for a thing that does not exist, from every operation.

Each row of the tables of the listeners is sent twice by a caller that has rights in another namespace only: with the
names of things that exist, and with names of which nothing exists. The answers must be the same but for the names, and
hold no name that the caller has not sent.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import grpc
import msgspec
import native_peer
from access_world import BINDING, BYTES, QUERY, ROLE, ROOT, SUBJECT, SUBSCRIPTION, TOPIC, World, stage
from grpc_peer import GrpcPeer
from listener_operations import GRPC, NATIVE, REST
from test_listener_operations import example, open_grpc, open_http, open_native, status_of_call

from pydanube.codec.batch import encode
from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.http.api.table import OPERATIONS
from pydanube.gateway.http.schema_registry import BASE, ROUTES
from pydanube.model.failure import FailurePolicy
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.schemas import Binding as SchemaBinding
from pydanube.model.security import Binding, BoundSubject, ResourcePattern
from pydanube.model.topics import TopicConfig
from pydanube.operations import access, schemas, staging, subscriptions

WIDE = TopicName.parse("/default/wide")
OWN = TopicName.parse("/other/own")
HTTP_PLACE = "default/orders"

EXISTING = {
    str(TOPIC): "/default/absent",
    HTTP_PLACE: "default/absent",
    "default/letters": "default/missing",
    str(WIDE): "/default/thin",
    SUBSCRIPTION: "nothing",
    SUBJECT: "absent-value",
    BINDING: "no-binding",
    ROLE: "no-role",
    QUERY: "hourly",
    "default": "nowhere",
}
"""What exists in the world, and names of the same kind of which nothing exists."""

NUMBERS = {"schema_id": 999, "global_id": 999}


def renamed(text: str, existing: str) -> str:
    return text.replace(existing, EXISTING.get(existing, existing))


async def make_stranger(world: World) -> None:
    """Give the anonymous caller everything in a namespace of its own, and let all kinds of things exist elsewhere."""
    broker = world.broker
    await broker.upgrade.finish(ROOT)
    await broker.staging.forget(ROOT, QUERY)
    await stage(broker, ROOT)  # from feature level 2 on, names of queries belong to a namespace
    await broker.namespaces.create(ROOT, "other")
    await broker.topics.create(ROOT, OWN, TopicConfig())
    await broker.topics.create(ROOT, WIDE, TopicConfig(partitions=2))
    await broker.schemas.bind(ROOT, TOPIC, SchemaBinding(SUBJECT))
    await broker.schemas.register(ROOT, "other-value", BYTES)
    await broker.schemas.bind(ROOT, WIDE, SchemaBinding("other-value"))  # a topic that the caller may not see
    subject = Binding("subject", BoundSubject.parse(ANONYMOUS.id), ("admin",), ResourcePattern.parse("schema:other-*"))
    world.rules.set_binding("subject", subject)
    own = Binding("own", BoundSubject.parse(ANONYMOUS.id), ("namespace-admin",), ResourcePattern.parse("/other"))
    world.rules.set_binding("own", own)


Answer = tuple[object, str]


def difference(name: str, first: Answer, second: Answer, existing: str, sent: str) -> list[str]:
    """Return how the answer about what exists differs from the one about what does not, and which names it tells."""
    if existing in NUMBERS:
        first, second = [(one[0], re.sub(r"\d+", "N", one[1])) for one in (first, second)]
    elif existing == HTTP_PLACE:
        existing = str(TOPIC)
    hidden = (str(TOPIC), SUBSCRIPTION, SUBJECT, "user:etl", QUERY, str(WIDE))
    found = [f"{name} tells {one!r}: {first}" for one in hidden if one not in sent and one in first[1]]
    if first[0] != second[0] or renamed(first[1], existing) != renamed(second[1], existing):
        found.append(f"{name} ({existing}): {first}, but {second}")
    return found


# -- native ------------------------------------------------------------------------------------------------------------


async def native_answer(
    peer: native_peer.Peer, data: bytes, kind: FrameKind = FrameKind.REQUEST, body: bytes = b""
) -> Answer:
    correlation = peer.next_correlation()
    peer.write(frames.encode_front(kind, data, len(body), correlation) + body)
    frame = await peer.receive(FrameKind.RESPONSE, FrameKind.FETCHED, FrameKind.ERROR)
    if frame.kind is FrameKind.ERROR:
        error = wire.decode(frame.head, wire.Failure).error()
        return type(error), error.message
    if frame.kind is FrameKind.FETCHED:
        return "done", frame.head.hex()
    return "done", json.dumps(msgspec.msgpack.decode(frame.head), default=str)


def native_requests() -> list[tuple[str, bytes, str]]:
    """Return each request with each kind of name in it."""
    policy = FailurePolicy(redeliveries_max=1, dead_letter_topic=str(TOPIC))
    named = {"topic": str(OWN), "subscription": "own"}
    more = [
        subscriptions.CreateSubscription(topic=OWN, subscription="own", type="shared", failure_policy=policy),
        wire.Subscribe(**named, partition=0, consumer="c", type="shared", failure_policy=policy),
        schemas.GetSchema(schema_id=1),
        schemas.BindTopic(topic=str(OWN), binding=SchemaBinding(SUBJECT)),
        staging.ListStagedQueries(count=1),
        schemas.DeleteSchema(subject="other-value"),
        access.CreateAccessBinding(subject="user:new", roles=["reader"], resource="/other", id=BINDING),
    ]
    found = []
    for request in [*(one.request for one in NATIVE), *more]:
        text = wire.encode(request)
        kinds = [one for one in EXISTING if one.encode() in text]
        if getattr(request, "schema_id", 0):
            kinds.append("schema_id")
        found += [(type(request).__name__, text, one) for one in kinds or ("",)]
    return found


def without(data: bytes, existing: str) -> bytes:
    """Return the same request with a name of which nothing exists."""
    if not existing:
        return data
    content = msgspec.msgpack.decode(data)
    if existing in NUMBERS:
        return msgspec.msgpack.encode(content | {existing: NUMBERS[existing]})
    return msgspec.msgpack.encode(json.loads(renamed(json.dumps(content), existing)))


async def test_native_requests_hide_names(tmp_path: Path):
    async with open_native(tmp_path) as (world, listener), await native_peer.Peer.greet(listener) as peer:
        await make_stranger(world)
        problems: list[str] = []
        for name, data, existing in native_requests():
            second = await native_answer(peer, without(data, existing))
            problems += difference(name, await native_answer(peer, data), second, existing, str(data))
        assert not problems, "\n".join(problems)


async def test_native_fetches_stages_and_asks_hide_names(tmp_path: Path):
    batch = bytes(encode([b"staged"], publish_times=1))
    body = batch + bytes(-len(batch) % 64)

    def staged(query: str, topic: TopicName, partition: int = 0) -> wire.Stage:
        return wire.Stage(query, "run", 0, 0, 0, 0, [wire.StagedSection(str(topic), partition, [len(batch)])])

    sent = [(FrameKind.FETCH, wire.Fetch(str(one), 0, Position("earliest"))) for one in (TOPIC, WIDE)]
    sent += [(FrameKind.FETCH, wire.Fetch(str(TOPIC), 9, Position("earliest"), topic_id=1))]
    sent += [(FrameKind.STAGE, staged("own", TOPIC)), (FrameKind.STAGE, staged("own", WIDE, 9))]
    sent += [(FrameKind.STAGE, staged(QUERY, TOPIC)), (FrameKind.STAGE, staged(QUERY, OWN))]
    sent += [(FrameKind.ASK, wire.Ask(str(one), 0, 8)) for one in (TOPIC, WIDE)]
    bodies = {FrameKind.STAGE: body, FrameKind.ASK: b"question"}
    async with open_native(tmp_path) as (world, listener), await native_peer.Peer.greet(listener) as peer:
        await make_stranger(world)
        await world.broker.requests.open(ROOT, TOPIC, 0)  # what others have opened is kept for all
        problems: list[str] = []
        for kind, request in sent:
            data, carried = wire.encode(request), bodies.get(kind, b"")
            for existing in [one for one in EXISTING if one.encode() in data]:
                second = await native_answer(peer, without(data, existing), kind, carried)
                first = await native_answer(peer, data, kind, carried)
                if first[0] == second[0] == "done":
                    continue  # in a namespace of its own: the answer is a number
                problems += difference(kind.name, first, second, existing, str(data))
        assert not problems, "\n".join(problems)


# -- REST --------------------------------------------------------------------------------------------------------------


CLOSING = {"connection": "close"}
WEBSOCKET = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def http_answer(
    address: tuple[str, int], method: str, path: str, body: object, headers: Mapping[str, str] = CLOSING
) -> Answer:
    reader, writer = await asyncio.open_connection(*address)
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"host: {address[0]}:{address[1]}", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if data:
        lines.append("content-type: application/json")
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        async with asyncio.timeout(60):
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return head.split()[1], answer.decode()


async def test_rest_operations_hide_names(tmp_path: Path):
    async with open_http(tmp_path) as (world, address):
        await make_stranger(world)
        run = (await world.broker.storage.upload(ROOT, TOPIC)).run
        problems: list[str] = []
        for operation in OPERATIONS:
            if operation.name == "receiveWebhook":
                continue  # webhooks are no resources: test_authentication_listeners.py has what a stranger learns
            headers = WEBSOCKET if operation.name == "connectWebSocket" else CLOSING
            sent = REST[operation.name]
            path = sent.path or re.sub(r"\{(\w+)\}", lambda found: example(found[1]), operation.path)
            pairs = [(path, path.replace(one, new), one) for one, new in EXISTING.items() if one in path]
            pairs = pairs or [(path, path, "")]
            if operation.name.startswith("getSchemaBy") or operation.name == "getUpload":
                number = run if operation.name == "getUpload" else 1
                pairs.append((re.sub(r"\d+$", str(number), path), re.sub(r"\d+$", "999", path), "global_id"))
            for there, missing, existing in pairs:
                second = await http_answer(address, operation.method, missing, sent.request, headers)
                first = await http_answer(address, operation.method, there, sent.request, headers)
                problems += difference(operation.name, first, second, existing, f"/{there} {json.dumps(sent.request)}")
        assert not problems, "\n".join(problems)


# -- the Confluent registry --------------------------------------------------------------------------------------------


def registry_requests() -> list[tuple[str, str, str, dict[str, object] | None]]:
    """Return each route with each method, parameter and body: method, path, what exists, and the body."""
    own = {"schema": '"string"', "references": [{"name": "a", "subject": SUBJECT, "version": -1}]}
    pinned = own | {"references": [{"name": "a", "subject": SUBJECT, "version": 1}]}
    setting = {"compatibility": "FULL", "mode": "READWRITE"}
    found: list[tuple[str, str, str, dict[str, object] | None]] = []
    for method, route, _ in ROUTES:
        bodies = {"POST": [{"schema": '"string"'}, own, pinned], "PUT": [setting]}.get(method, [None])
        for query, body in product(("", "?deleted=true", "?permanent=true", f"?subject={SUBJECT}"), bodies):
            for version in ("1", "9", "latest")[: 3 if "{version}" in route else 1]:
                path = BASE + route.replace("{version}", version) + query
                existing = "global_id" if "{id}" in path else SUBJECT
                found.append((method, path.replace("{subject}", SUBJECT).replace("{id}", "1"), existing, body))
                if body in (own, pinned):
                    found.append((method, path.replace("{subject}", "other-new"), existing, body))
    return found


async def test_the_confluent_registry_hides_names(tmp_path: Path):
    async with open_http(tmp_path) as (world, address):
        await make_stranger(world)
        problems: list[str] = []
        for method, path, existing, body in registry_requests():
            missing, other = renamed(path, existing), body and json.loads(renamed(json.dumps(body), existing))
            if existing == "global_id":
                missing = path.replace("/ids/1", "/ids/999")
            second = await http_answer(address, method, missing, other)
            first = await http_answer(address, method, path, body)
            problems += difference(f"{method} {path} {body}", first, second, existing, f"{path} {body}")
        assert not problems, "\n".join(problems)


# -- gRPC --------------------------------------------------------------------------------------------------------------


def grpc_requests() -> list[tuple[str, dict[str, Any], str]]:
    more = {
        "danube.ProducerService/SendMessage": {
            "msg_id": {"producer_id": 1, "topic_name": str(TOPIC)},
            "producer_name": "p",
            "payload": "x",
        },
        "danube.ProducerService/CreateProducer": {
            "topic_name": str(TOPIC),
            "producer_name": "p",
            "dispatch_strategy": 1,
            "schema_ref": {"subject": SUBJECT},
        },
    }
    found = []
    for name, fields in [*((name, one.request) for name, one in GRPC.items()), *more.items()]:
        text = json.dumps(fields, default=lambda data: data.decode())
        if str(TOPIC) in text:
            found.append((name, json.loads(text.replace(str(TOPIC), f"{WIDE}-part-0")), str(WIDE)))
        found += [(name, json.loads(text), one) for one in EXISTING if one in text]
        if "schema_id" in fields:
            found.append((name, fields, "schema_id"))
    return found


def as_sent(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with bytes where the message has bytes."""
    binary = ("payload", "schema_definition", "new_schema_definition")
    texts = {name: value.encode() for name, value in fields.items() if name in binary and isinstance(value, str)}
    return fields | texts


async def test_grpc_methods_hide_names(tmp_path: Path):
    async with open_grpc(tmp_path) as (world, peers):
        await make_stranger(world)
        problems: list[str] = []
        for name, fields, existing in grpc_requests():
            peer = peers[name.startswith("danube_admin")]
            if existing in NUMBERS:
                other = fields | {existing: NUMBERS[existing]}
            else:
                other = json.loads(renamed(json.dumps(fields), existing))
            second = await status_of_call(peer, name, as_sent(other))
            first = await status_of_call(peer, name, as_sent(fields))
            problems += difference(name, first, second, existing, str(fields))
        first, second = [await stream_answer(peers[False], number) for number in (world.consumer_id, 999)]
        problems += difference("ReceiveMessages", first, second, "global_id", "")
        assert not problems, "\n".join(problems)


async def stream_answer(peer: GrpcPeer, consumer_id: int) -> Answer:
    try:
        await anext(aiter(peer.stream("danube.ConsumerService/ReceiveMessages", consumer_id=consumer_id)))
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return "done", ""
