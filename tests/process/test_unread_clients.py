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
from http2_peer import PartialRequest

import pydanube
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.limits import MIB

pytestmark = [pytest.mark.process, pytest.mark.soak]

TOPIC = "/default/large"
CLIENTS = int(os.environ.get("DANUBE_UNREAD_CLIENTS", "1000"))
LARGE = 3 * MIB
MESSAGES = 30
WATCHED_S = 25

UNREAD_BYTES = 256 * MIB
SMALL_BYTES = 64 * 1024
"""What each client may have beyond the common memory."""
CONNECTION_BYTES = 320 * 1024
"""A connection itself, with its receive buffer and what one piece of an answer takes."""

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
    fetch = requests.encode(requests.Fetch(TOPIC, 0, requests.Start("earliest"), bytes_max=8 * MIB))
    asked = b"".join(frames.encode(FrameKind.FETCH, fetch, one) for one in range(1, 5))
    return opened(broker.port, frames.PREAMBLE + hello + asked)


def native_consumer(broker: BrokerProcess, number: int) -> socket.socket:
    hello = frames.encode(FrameKind.HELLO, requests.encode(requests.Hello(client="greedy")))
    wanted = requests.Subscribe(TOPIC, 0, f"s{number}", "c", "exclusive", requests.Start("earliest"))
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
    wanted = requests.encode(requests.GetSchema(subject="large"))
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
        "DANUBE_LIMITS_CONNECTIONS_PER_ADDRESS_MAX": "5000",
        "DANUBE_LIMITS_HTTP_CONNECTIONS_MAX": "5000",
        "DANUBE_HTTP_CONSUMERS_MAX": "5000",
        "DANUBE_GRPC_CONNECTIONS_MAX": "5000",
    }
    return BrokerProcess(directory / "data", environment=settings)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_clients_do_not_read_is_bounded(tmp_path: Path, kind: str) -> None:
    with many_connections(tmp_path) as broker, ExitStack() as lines:
        async with pydanube.connect(broker.url) as client, client.producer(TOPIC) as producer:
            for _ in range(MESSAGES):
                await producer.send(os.urandom(LARGE))
            await client.create_subscription(TOPIC, "peeked", start="earliest")
            symbols = [f"symbol_{number}" for number in range(30_000)]
            definition = json.dumps({"type": "enum", "name": "E", "symbols": symbols})
            await client.schemas.register("large", definition, format="avro")
        before = most = broker.resident_bytes()
        for number in range(CLIENTS):
            line = await asyncio.to_thread(KINDS[kind], broker, number)
            lines.callback(line.close)
            most = max(most, broker.resident_bytes())
        for _ in range(WATCHED_S * 10):  # it is looked at for a while; nothing is waited for
            most = max(most, broker.resident_bytes())
            await asyncio.sleep(0.1)
        lines.close()
        for _ in range(50):
            most = max(most, broker.resident_bytes())
            await asyncio.sleep(0.1)
        print(f"{kind}: grew by {(most - before) // MIB} MiB, {(broker.resident_bytes() - before) // MIB} at the end")
        assert most - before < 1.2 * (UNREAD_BYTES + CLIENTS * (SMALL_BYTES + CONNECTION_BYTES))


async def test_large_publishes_over_grpc_that_arrive_at_once_are_bounded(tmp_path: Path) -> None:
    with many_connections(tmp_path) as broker:
        before = most = broker.resident_bytes()
        address, path = f"127.0.0.1:{broker.grpc_port}", "/danube.ProducerService/SendMessage"
        calls = [await PartialRequest.open(address, path, 10 * MIB) for _ in range(CLIENTS)]
        for _ in range(WATCHED_S * 10):
            most = max(most, broker.resident_bytes())
            await asyncio.sleep(0.1)
        for call in calls:
            await call.close()
        print(f"publishes over gRPC: grew by {(most - before) // MIB} MiB")
        assert most - before < 1.2 * (UNREAD_BYTES + CLIENTS * (SMALL_BYTES + CONNECTION_BYTES))
