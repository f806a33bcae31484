"""Every operation of every listener, tried with every role.

The listeners ask for no credentials here, so that every caller is anonymous; the roles are given to that principal, one
after the other.
"""

from __future__ import annotations

import asyncio
import json
import re
import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc_peer
import native_peer
import pytest
from access_world import LETTERS, ROOT, SUBJECT, TOPIC, World, give, open_world
from listener_operations import BY_ID, GRPC, GRPC_ELSEWHERE, NATIVE, REST
from operations_table import operations_table

from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import ANONYMOUS
from pydanube.gateway.grpc import GrpcServer
from pydanube.gateway.grpc.messages import SCHEMA
from pydanube.gateway.grpc.services import SERVICES
from pydanube.gateway.http import HttpServer
from pydanube.gateway.http.api.operations import PATH_PARAMETERS
from pydanube.gateway.http.api.table import OPERATIONS
from pydanube.gateway.native import NativeServer
from pydanube.model.errors import Denied
from pydanube.model.schemas import Binding
from pydanube.model.settings.sections import HttpSettings, LimitSettings, Sections
from pydanube.model.webhooks import Webhook, WebhookScheme
from pydanube.operations.dead_letters import RedriveLetters
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.tasks import Tasks

TOKEN = "a-token-of-webhooks"


async def try_roles(world: World, listener: str, name: str, needs: str, send, row: str = "") -> None:
    """Send an operation as each role: it is refused exactly if the rules say so, and then changes nothing. It is in the
    audit once if it was refused, or is administrative, and else not at all."""
    was_allowed = False
    for role, is_allowed in world.roles(needs):
        give(world.rules, ANONYMOUS, role)
        before = () if is_allowed else await world.fingerprint()
        await world.audit.take(world.broker)
        is_refused = await send()
        assert is_refused is not is_allowed or ((row or name) in BY_ID and not is_allowed), (name, role)
        await world.check_audit(listener, name, needs, is_allowed, not was_allowed)
        was_allowed = is_allowed
        assert is_allowed or await world.fingerprint() == before, (name, role)


# -- native ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_native(directory: Path) -> AsyncIterator[tuple[World, native_peer.NativeListener]]:
    async with open_world(directory) as world, Tasks() as tasks:
        server = NativeServer(world.broker, LimitSettings(), SystemClock(), tasks)
        listener = native_peer.NativeListener(server, await server.start("127.0.0.1", 0), world.broker)
        try:
            yield world, listener
        finally:
            await server.close(0)


async def refuses(peer: native_peer.Peer, kind: FrameKind, head: bytes, body: bytes = b"") -> bool:
    """Send a frame, and return whether its answer is Denied."""
    correlation = peer.next_correlation()
    peer.write(frames.encode(kind, head, correlation, body=body) if body else frames.encode(kind, head, correlation))
    while True:
        frame = await peer.receive(FrameKind.RESPONSE, FrameKind.ERROR, FrameKind.CONSUMER_CLOSED)
        if frame.correlation == correlation:
            break
    if frame.kind is not FrameKind.ERROR:
        return False
    error = wire.decode(frame.head, wire.Failure).error()
    assert "internal error" not in error.message
    return isinstance(error, Denied)


@pytest.mark.parametrize("sent", NATIVE, ids=lambda one: type(one.request).__name__)
async def test_native_requests(sent, tmp_path: Path):
    async with open_native(tmp_path) as (world, listener), await native_peer.Peer.greet(listener) as peer:
        head = wire.encode(sent.request)
        name = type(sent.request).__name__
        await try_roles(world, "native", name, sent.needs, lambda: refuses(peer, FrameKind.REQUEST, head), sent.rest)


async def test_a_native_client_without_any_right_is_welcome(tmp_path: Path):
    async with open_native(tmp_path) as (_, listener), await native_peer.Peer.greet(listener) as peer:
        assert peer.welcome is not None and (peer.welcome.broker, peer.welcome.cluster) == ("node", "cluster")


async def test_a_redrive_on_behalf_counts_the_rights_of_the_principal_and_is_for_brokers(tmp_path: Path):
    async with open_native(tmp_path) as (world, listener), await native_peer.Peer.greet(listener) as peer:

        async def is_refused(role: str, on_behalf: str) -> bool:
            give(world.rules, ANONYMOUS, role)
            request = RedriveLetters(topic=LETTERS, partition=0, own_only=True, on_behalf=["user", on_behalf])
            return await refuses(peer, FrameKind.REQUEST, wire.encode(request))

        assert await is_refused("consumer", "consumer")
        assert await is_refused("admin", "reader")
        assert not await is_refused("admin", "consumer")


def test_every_native_request_has_a_row():
    assert {type(one.request) for one in NATIVE} == set(typing.get_args(wire.AnyRequest))
    assert all(one.needs for one in NATIVE if one.request.for_brokers)


# -- REST --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_http(directory: Path) -> AsyncIterator[tuple[World, tuple[str, int]]]:
    webhook = Webhook("github", TOPIC, WebhookScheme.TOKEN, TOKEN)
    async with open_world(directory) as world, Tasks() as tasks:
        server = HttpServer(world.broker, Sections(http=HttpSettings(webhooks=(webhook,))), SystemClock(), tasks)
        address = await server.start("127.0.0.1", 0)
        try:
            yield world, address
        finally:
            await server.close(0)


async def status_of(address: tuple[str, int], method: str, path: str, body: object, is_websocket: bool) -> int:
    """Send a request on a connection of its own, and return the status of the answer, without waiting for its body."""
    reader, writer = await asyncio.open_connection(*address)
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", f"host: {address[0]}:{address[1]}", f"content-length: {len(data)}"]
    if path.startswith("/webhooks"):
        lines.append(f"x-webhook-token: {TOKEN}")
    if data:
        lines.append("content-type: application/json")
    if is_websocket:
        lines = [lines[0], lines[1], "upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"]
        lines.append("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==")
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        async with asyncio.timeout(60):
            first = await reader.readline()
        return int(first.split()[1])
    finally:
        writer.close()


def example(name: str) -> str:
    return "node" if name == "broker" else str(PATH_PARAMETERS[name].example)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
async def test_rest_operations(operation, tmp_path: Path):
    sent, name = REST[operation.name], operation.name
    path = sent.path or re.sub(r"\{(\w+)\}", lambda found: example(found[1]), operation.path)
    async with open_http(tmp_path) as (world, address):

        async def send() -> bool:
            status = await status_of(address, operation.method, path, sent.request, name == "connectWebSocket")
            assert status not in (400, 401, 405, 415, 422, 500, 501), (name, status)
            return status == 403

        await try_roles(world, "http", name, sent.needs, send)


def test_every_rest_operation_has_a_row():
    assert {one.name for one in OPERATIONS} == set(REST)


async def test_metrics_show_what_the_caller_may_see(tmp_path: Path):
    async with open_http(tmp_path) as (world, address):

        async def scrape() -> str:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(
                f"GET /metrics HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\nconnection: close\r\n\r\n".encode()
            )
            text = (await reader.read()).decode()
            writer.close()
            assert text.startswith("HTTP/1.1 200")
            return text

        nothing = await scrape()
        assert "danube_broker_info" not in nothing and str(TOPIC) not in nothing
        give(world.rules, ANONYMOUS, "reader")
        topics = await scrape()
        assert "danube_broker_info" not in topics and str(TOPIC) in topics
        give(world.rules, ANONYMOUS, "monitor")
        everything = await scrape()
        assert "danube_broker_info" in everything and str(TOPIC) in everything


# -- gRPC --------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def open_grpc(directory: Path) -> AsyncIterator[tuple[World, dict[bool, grpc_peer.GrpcPeer]]]:
    """Yield a world and a peer of each listener; True: that of the administration."""
    async with open_world(directory) as world, Tasks() as tasks:
        server = GrpcServer(world.broker, Sections(), SystemClock(), tasks)
        data, admin = await server.open_data("127.0.0.1", 0), await server.open_admin("127.0.0.1", 0)
        await server.start()
        try:
            async with (
                grpc_peer.connect(f"127.0.0.1:{data[1]}") as data_peer,
                grpc_peer.connect(f"127.0.0.1:{admin[1]}") as admin_peer,
            ):
                yield world, {False: data_peer, True: admin_peer}
        finally:
            await server.close(0)


MISTAKES = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)
"""Statuses of a row whose request is wrong, or of a broker that is."""


async def status_of_call(peer: grpc_peer.GrpcPeer, name: str, fields: dict) -> tuple[grpc.StatusCode, str]:
    try:
        await peer.call(name, **fields)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("name", GRPC)
async def test_grpc_methods(name: str, tmp_path: Path):
    needs, fields, *_ = GRPC[name]
    async with open_grpc(tmp_path) as (world, peers):
        peer = peers[name.startswith("danube_admin")]
        if name.endswith("/UpdateTopicValidationPolicy"):  # it is refused for a topic without a binding
            await world.broker.schemas.bind(ROOT, TOPIC, Binding(SUBJECT))

        async def send() -> bool:
            code, details = await status_of_call(peer, name, fields)
            assert code not in MISTAKES, (code, details)
            return code is grpc.StatusCode.PERMISSION_DENIED

        listener = "admin" if name.startswith("danube_admin") else "grpc"
        await try_roles(world, listener, name, needs, send)


async def test_a_grpc_stream_and_a_message_of_others_are_refused(tmp_path: Path):
    async with open_grpc(tmp_path) as (world, peers):
        data = peers[False]
        stream = data.stream("danube.ConsumerService/ReceiveMessages", consumer_id=world.consumer_id)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(stream))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.value.details() == f"consumer {world.consumer_id} is not known: subscribe again"
        give(world.rules, ANONYMOUS, "reader")  # who sees the subscription is told what is missing
        stream = data.stream("danube.ConsumerService/ReceiveMessages", consumer_id=world.consumer_id)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(stream))
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        give(world.rules, ANONYMOUS, "producer")
        producer = await data.call(
            "danube.ProducerService/CreateProducer", topic_name=str(TOPIC), producer_name="p", dispatch_strategy=1
        )
        message = {
            "msg_id": {"producer_id": producer.producer_id, "topic_name": str(TOPIC)},
            "producer_name": "p",
            "payload": b"x",
        }
        await data.call("danube.ProducerService/SendMessage", **message)
        give(world.rules, ANONYMOUS, "consumer")
        code, _ = await data.status("danube.ProducerService/SendMessage", **message)
        assert code is grpc.StatusCode.PERMISSION_DENIED


def test_every_grpc_method_has_a_row():
    methods = {f"{one.name}/{method}" for one in SERVICES for method in SCHEMA.methods(one.name)}
    without = {name for name in methods - set(GRPC) if not name.startswith(tuple(GRPC_ELSEWHERE))}
    assert without == set() and set(GRPC) <= methods


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_has_the_table():
    page = Path(__file__).parent.parent.parent / "docs" / "security.md"
    assert operations_table() in page.read_text(), "print it with `python tests/security/operations_table.py`"
