"""A thousand clients of each listener that ask for large messages and read nothing: what the broker holds for all of
them together stays within what docs/operations.md says, and a fifth more."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import BrokerProcess
from grpc_peer import connect, method_of
from http2_peer import PREFACE, SETTINGS, PartialRequest, UnreadStream, frame

import pydanube
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.limits import MIB
from pydanube.model.positions import Position
from pydanube.operations import schemas

pytestmark = [pytest.mark.process, pytest.mark.soak]

TOPIC = "/default/large"
CLIENTS = int(os.environ.get("DANUBE_UNREAD_CLIENTS", "1000"))
LARGE = 3 * MIB
MESSAGES = 30
WATCHED_S = 25

UNREAD_BYTES = 256 * MIB
SMALL_BYTES = 64 * 1024
"""What each client may have beyond the common memory."""
CONNECTION_BYTES = 32 * 1024
"""A connection itself. Measured: 13 KiB over the native protocol, 9 over HTTP, 22 over gRPC."""
SOURCES = 8
"""An address may have at most half of the places for gRPC: the clients come from this many."""

BASE = f"/api/v1/topics{TOPIC}"


def opened(port: int, asked: bytes) -> socket.socket:
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024)
    line.connect(("127.0.0.1", port))
    line.sendall(asked)
    return line


def http(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def events_of_a_subscription(broker: BrokerProcess, number: int) -> socket.socket:
    return opened(
        broker.http_port, http(f"{BASE}/subscriptions/s{number}/events?ack=manual&start=earliest&payload=base64")
    )


def events_of_the_topic(broker: BrokerProcess, _number: int) -> socket.socket:
    return opened(broker.http_port, http(f"{BASE}/events?start=earliest&payload=base64"))


def websocket(broker: BrokerProcess, number: int) -> socket.socket:
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
    upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", key)
    return opened(broker.http_port, http(f"{BASE}/subscriptions/s{number}/websocket?start=earliest", *upgrade))


def fetches(broker: BrokerProcess, _number: int) -> socket.socket:
    hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="greedy")))
    fetch = requests.encode(requests.Fetch(TOPIC, 0, Position("earliest"), bytes_max=8 * MIB))
    asked = b"".join(frames.encode(FrameKind.FETCH, fetch, one) for one in range(1, 5))
    return opened(broker.port, frames.PREAMBLE + hello + asked)


def native_consumer(broker: BrokerProcess, number: int) -> socket.socket:
    hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="greedy")))
    wanted = requests.Subscribe(TOPIC, 0, f"s{number}", "c", "exclusive", Position("earliest"))
    credit = frames.CREDIT.pack(1, 1_000_000, 1 << 30)
    asked = frames.encode(FrameKind.REQUEST, requests.encode(wanted), 1)
    line = opened(broker.port, frames.PREAMBLE + hello + asked)
    opened_frame = b""
    while len(opened_frame) < 200:  # WELCOME and the answer, which names the handle 1
        opened_frame += line.recv(200)
    line.sendall(frames.encode(FrameKind.CREDIT, credit))
    return line


def requests_of_schemas(broker: BrokerProcess, _number: int) -> socket.socket:
    """Ask for a large schema, over and over."""
    hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="greedy")))
    wanted = requests.encode(schemas.GetSchema(subject="large"))
    asked = b"".join(frames.encode(FrameKind.REQUEST, wanted, one) for one in range(1, 65))
    return opened(broker.port, frames.PREAMBLE + hello + asked)


def peeks(broker: BrokerProcess, _number: int) -> socket.socket:
    return opened(broker.http_port, http(f"{BASE}/subscriptions/peeked/peek?limit=30"))


KINDS: dict[str, Callable[[BrokerProcess, int], socket.socket]] = {
    "events of a subscription": events_of_a_subscription,
    "events of the topic": events_of_the_topic,
    "websocket": websocket,
    "fetches": fetches,
    "native consumer": native_consumer,
    "requests": requests_of_schemas,
    "peeks": peeks,
}


def many_connections(directory: Path) -> BrokerProcess:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    settings = {
        "DANUBE_CACHE_TAIL_BYTES": "1MiB",  # so that messages are read from the log, into memory
        "DANUBE_LIMITS_KEEP_ALIVE_MS": "120000",
        "DANUBE_LIMITS_CONNECTIONS_MAX": "2000",  # file descriptors are shared out by these
        "DANUBE_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "2000",
        "DANUBE_LIMITS_HTTP_CONNECTIONS_MAX": "2000",
        "DANUBE_HTTP_CONSUMERS_MAX": "5000",
        "DANUBE_GRPC_CONNECTIONS_MAX": "4000",
    }
    return BrokerProcess(directory / "data", environment=settings)


async def fill(broker: BrokerProcess) -> None:
    async with pydanube.connect(broker.url) as client, client.producer(TOPIC) as producer:
        for _ in range(MESSAGES):
            await producer.send(os.urandom(LARGE))
        await client.create_subscription(TOPIC, "peeked", start="earliest")
        symbols = [f"symbol_{number}" for number in range(30_000)]
        definition = json.dumps({"type": "enum", "name": "E", "symbols": symbols})
        await client.schemas.register("large", definition, format="avro")


class Watched:
    """How much larger the broker has become."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.before = self.most = broker.resident_bytes()

    def look(self) -> None:
        self.most = max(self.most, self._broker.resident_bytes())

    async def watch(self, seconds: float) -> None:
        """Look for a while; nothing is waited for."""
        for _ in range(int(seconds * 10)):
            self.look()
            await asyncio.sleep(0.1)

    def check(self, kind: str) -> None:
        """Check that it stayed within what docs/operations.md says, and a fifth more."""
        grown, now = self.most - self.before, self._broker.resident_bytes() - self.before
        bound = UNREAD_BYTES + CLIENTS * (SMALL_BYTES + CONNECTION_BYTES)
        print(f"{kind}: grew by {grown // MIB} MiB of {bound // MIB}, {now // MIB} at the end")
        assert grown < 1.2 * bound


@pytest.mark.parametrize("kind", KINDS)
async def test_what_clients_do_not_read_is_bounded(tmp_path: Path, kind: str) -> None:
    with many_connections(tmp_path) as broker, ExitStack() as lines:
        await fill(broker)
        watched = Watched(broker)
        for number in range(CLIENTS):
            line = await asyncio.to_thread(KINDS[kind], broker, number)
            lines.callback(line.close)
            watched.look()
        await watched.watch(WATCHED_S)
        lines.close()
        await watched.watch(5)
        watched.check(kind)


async def test_streams_over_grpc_that_nobody_reads_are_bounded(tmp_path: Path) -> None:
    with many_connections(tmp_path) as broker:
        await fill(broker)
        address, service = f"127.0.0.1:{broker.grpc_port}", "danube.ConsumerService"
        named = [{"topic_name": TOPIC, "consumer_name": "c", "subscription": f"s{one}"} for one in range(CLIENTS)]
        async with pydanube.connect(broker.url) as client, connect(address) as caller:
            for one in named:
                await client.create_subscription(TOPIC, one["subscription"], start="earliest")
            known = [await caller.call(f"{service}/Subscribe", **one) for one in named]
        watched, streams = Watched(broker), []
        receive = method_of(f"{service}/ReceiveMessages")
        for number, one in enumerate(known):
            request = receive.request(consumer_id=one.consumer_id).SerializeToString()
            source = f"127.0.0.{1 + number % SOURCES}"
            streams.append(await UnreadStream.open(address, receive.path, request, source))
            watched.look()
        await watched.watch(WATCHED_S)
        assert any(one.received for one in streams)
        for one in streams:
            await one.close()
        await watched.watch(5)
        watched.check("streams over gRPC")


async def test_large_publishes_over_grpc_that_arrive_at_once_are_bounded(tmp_path: Path) -> None:
    with many_connections(tmp_path) as broker:
        watched = Watched(broker)
        address, path = f"127.0.0.1:{broker.grpc_port}", "/danube.ProducerService/SendMessage"
        calls = [await PartialRequest.open(address, path, 10 * MIB) for _ in range(CLIENTS)]
        await watched.watch(WATCHED_S)
        for call in calls:
            await call.close()
        watched.check("publishes over gRPC")


def idle_native(broker: BrokerProcess, _number: int) -> socket.socket:
    hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="idle")))
    return opened(broker.port, frames.PREAMBLE + hello)


def idle_http(broker: BrokerProcess, _number: int) -> socket.socket:
    return opened(broker.http_port, http("/healthz"))


def idle_grpc(broker: BrokerProcess, _number: int) -> socket.socket:
    return opened(broker.grpc_port, PREFACE + frame(SETTINGS, 0, 0, b""))


@pytest.mark.parametrize("idle", [idle_native, idle_http, idle_grpc])
async def test_what_an_idle_connection_costs(
    tmp_path: Path, idle: Callable[[BrokerProcess, int], socket.socket]
) -> None:
    with many_connections(tmp_path) as broker, ExitStack() as lines:
        watched = Watched(broker)
        for number in range(CLIENTS):
            line = await asyncio.to_thread(idle, broker, number)
            lines.callback(line.close)
            await asyncio.sleep(0)
        await watched.watch(5)
        grown = watched.most - watched.before
        print(f"{idle.__name__}: {grown // CLIENTS // 1024} KiB each")
        assert grown < 1.2 * CLIENTS * CONNECTION_BYTES
