"""What was read for clients that do not read: over all listeners it has one limit, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import native_peer
import pytest
from danube_peer import DanubePeer
from grpc_peer import connect, method_of
from grpc_peer import open_listener as open_grpc
from http2_peer import DATA, HEADERS, PREFACE, SETTINGS, headers
from http2_peer import frame as http2_frame
from http_peer import HttpListener, Peer, open_listener
from test_native_hostile import fill_topic

import pydanube
from pydanube.broker import unread_memory
from pydanube.broker.unread_memory import SMALL_BYTES, UnreadMemory
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import Principal
from pydanube.gateway.grpc.consumer_stream import ConsumerStream
from pydanube.model.errors import Denied
from pydanube.model.limits import MIB
from pydanube.model.paging import NamePage
from pydanube.model.positions import Position
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.operations import schemas, topics
from waiting import HANG_S

LIMIT = 8 * MIB
LARGE = 1 * MIB
CLIENTS = 5
"""More than the limit is enough for."""
TOPIC = "/default/large"
BASE = f"/api/v1/topics{TOPIC}"
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}

PATHS: dict[str, Callable[[int], str]] = {
    "events": lambda number: f"{BASE}/subscriptions/s{number}/events?ack=manual&start=earliest",
    "websocket": lambda number: f"{BASE}/subscriptions/s{number}/websocket?start=earliest",
}


def kept_bytes(there: HttpListener) -> int:
    """What consumers keep, and what connections have not sent."""
    sessions = there.server._application._data.sessions._open.values()
    kept = sum(len(one.batch.view) for session in sessions for one in session.subscriber._kept)
    return kept + sum(one.unsent_bytes for one in there.server._connections)


async def publish_large(there: HttpListener) -> None:
    there.broker.unread.limit_bytes = LIMIT
    async with pydanube.connect(there.broker_url, timeout=HANG_S) as client, client.producer(TOPIC) as producer:
        for _ in range(4):
            await producer.send(b"x" * LARGE)


@asynccontextmanager
async def unread_streams(there: HttpListener, kind: str) -> AsyncIterator[list[Peer]]:
    """Clients with a subscription each, which read nothing of what is sent to them."""
    await publish_large(there)
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(await Peer.connect(there)) for _ in range(CLIENTS)]
        for number, peer in enumerate(peers):
            peer.stop_reading()
            peer.send("GET", PATHS[kind](number), **(UPGRADE if kind == "websocket" else {}))
        await there.until(lambda: len(there.server._application._data.sessions) == CLIENTS)
        await there.until(lambda: there.broker.unread.is_awaited)
        yield peers


@pytest.mark.parametrize("kind", PATHS)
async def test_streams_that_nobody_reads_keep_no_more_than_the_limit(kind: str) -> None:
    async with open_listener() as there, unread_streams(there, kind):
        for _ in range(200):
            assert kept_bytes(there) <= LIMIT
            assert there.broker.unread.used_bytes <= LIMIT + CLIENTS * SMALL_BYTES
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", PATHS)
async def test_others_get_small_messages_meanwhile_and_large_ones_when_these_clients_are_gone(kind: str) -> None:
    async with open_listener() as there, pydanube.connect(there.broker_url) as client:
        await client.create_topic("/default/small")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(unread_streams(there, kind))
            reader = await stack.enter_async_context(await Peer.connect(there))
            opened = await reader.request("POST", "/api/v1/topics/default/small/subscriptions/s/consumers", b"{}")
            async with client.producer("/default/small") as producer:
                await producer.send(b"small")
            polled = await reader.request("GET", f"{opened.headers['location']}/messages?wait_ms=60000")
            assert polled.json()["messages"][0]["payload"] == "small"
        await there.until(lambda: there.broker.unread.used_bytes <= SMALL_BYTES)
        async with await Peer.connect(there) as reader:
            body = b'{"start": "earliest"}'
            opened = await reader.request("POST", f"{BASE}/subscriptions/late/consumers", body)
            reader.send("GET", f"{opened.headers['location']}/messages?wait_ms=60000")
            await reader._reader.readuntil(b"x" * 100_000)


async def test_a_large_batch_is_no_small_answer_past_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that holds nothing gets a small answer when no memory is free, and no whole batch of any size."""
    monkeypatch.setattr(unread_memory, "WAIT_S", 0.05)
    async with native_peer.open_listener() as there, await native_peer.Peer.greet(there) as peer:
        await fill_topic(peer, total_bytes=2 * LARGE, batch_bytes=LARGE)
        fetch = requests.encode(requests.Fetch(native_peer.TOPIC, 0, Position("earliest"), bytes_max=4 * MIB))
        others = there.broker.unread.part()
        others.take(there.broker.unread.limit_bytes)
        peer.write(frames.encode(FrameKind.FETCH, fetch, 1))
        assert "have not taken" in str(await peer.error(1))
        others.close()
        peer.write(frames.encode(FrameKind.FETCH, fetch, 2))
        assert len((await peer.receive(FrameKind.FETCHED)).body) >= LARGE


async def test_grpc_streams_that_nobody_reads_keep_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[ConsumerStream] = []

    async def stalled(stream: ConsumerStream, *_: Any) -> None:
        kept.append(stream)
        await asyncio.Event().wait()

    monkeypatch.setattr(ConsumerStream, "_send", stalled)
    async with open_grpc() as there, DanubePeer(there.data) as peer:
        there.broker.unread.limit_bytes = LIMIT
        producer = await peer.producer(TOPIC)
        streams = [await peer.consumer(TOPIC, f"s{number}") for number in range(CLIENTS)]
        for _ in range(4):
            await producer.send(b"x" * LARGE)
        await there.until(lambda: there.broker.unread.is_awaited)
        assert 0 < len(kept) * 3 * LARGE <= LIMIT
        del streams


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients stall for a short time only."""
    monkeypatch.setattr(unread_memory, "STALLED_S", 0.2)
    monkeypatch.setattr(unread_memory, "SLOW_BYTES_PER_S", 1_000 * MIB)


@pytest.mark.parametrize("kind", PATHS)
async def test_streams_that_nobody_reads_end_when_others_wait(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_listener() as there, unread_streams(there, kind):
        hurry(monkeypatch)
        await until_given_back(there)
        async with await Peer.connect(there) as reader:
            opened = await reader.request("POST", f"{BASE}/subscriptions/late/consumers", b'{"start": "earliest"}')
            reader.send("GET", f"{opened.headers['location']}/messages?wait_ms=60000")
            await reader._reader.readuntil(b"x" * 100_000)


async def test_events_without_a_subscription_that_nobody_reads_end_when_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_listener() as there:
        await publish_large(there)
        async with await Peer.connect(there) as peer:
            peer.stop_reading()
            peer.send("GET", f"{BASE}/events?start=earliest")
            await there.until(lambda: there.broker.unread.used_bytes >= LARGE)
            hurry(monkeypatch)
            await until_given_back(there)


async def test_what_is_kept_between_polls_goes_back_when_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = f"{BASE}/subscriptions/s/consumers"
    async with open_listener() as there, await Peer.connect(there) as peer:
        async with pydanube.connect(there.broker_url) as client:
            await client.create_topic(TOPIC, partitions=3)
            async with client.producer(TOPIC) as producer:
                for number in range(3):
                    await producer.send(b"%d" % number)
        opened = await peer.request("POST", consumers, b'{"start": "earliest", "type": "shared"}')
        polled = await peer.request("GET", f"{opened.headers['location']}/messages?max=1&wait_ms=60000")
        (taken,) = polled.json()["messages"]
        hurry(monkeypatch)
        await until_given_back(there)
        other = await peer.request("POST", consumers, b'{"type": "shared", "consumer": "other"}')
        path = f"{other.headers['location']}/messages?max=1&wait_ms=60000"
        received = [(await peer.request("GET", path)).json()["messages"][0] for _ in range(2)]
        assert {one["payload"] for one in (taken, *received)} == {"0", "1", "2"}, "what was not taken, once"
        assert not any("redeliveries" in one for one in received), "it did not fail"
        body = b'{"ack": ["%s"]}' % taken["id"].encode()
        acked = await peer.request("POST", f"{opened.headers['location']}/acks", body)
        assert acked.status == 204


@pytest.mark.parametrize("kind", PATHS)
async def test_what_is_kept_is_not_sent_any_more_when_the_right_ends(kind: str) -> None:
    async with open_listener() as there, await Peer.connect(there) as peer:
        async with pydanube.connect(there.broker_url) as client:
            await client.create_topic(TOPIC, partitions=3)
            async with client.producer(TOPIC) as producer:
                for _ in range(3):
                    await producer.send(b"x" * 8 * LARGE)
        peer.stop_reading()
        peer.send("GET", PATHS[kind](0), **(UPGRADE if kind == "websocket" else {}))
        sessions = there.server._application._data.sessions._open
        await there.until(lambda: any(one.subscriber._connection is not None for one in sessions.values()))
        (session,) = sessions.values()
        await there.until(lambda: len(session.subscriber._kept) == 2)  # one is being sent
        for partition in list(session.subscriber._partitions.values()):
            partition.consumer._subscription.detach_refused(lambda *_: Denied("may not consume any more"))
        peer._writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(HANG_S):
            received = bytearray()
            while b"may not consume any more" not in received[-1_000:]:
                chunk = await peer._reader.read(1 << 16)
                assert chunk, "the connection ended without a word"
                received += chunk
        assert received.count(b'"payload"') == 1


async def until_given_back(there: HttpListener) -> None:
    """Wait for more memory than there is, until nobody holds any."""
    memory = there.broker.unread
    other, free = memory.part(), asyncio.Event()
    memory.call_when_free("another", other, memory.limit_bytes, free.set)
    async with asyncio.timeout(HANG_S):
        await free.wait()


async def test_grpc_clients_that_read_nothing_are_disconnected_when_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_grpc() as there, DanubePeer(there.data) as peer, DanubePeer(there.data) as working:
        there.broker.unread.limit_bytes = LIMIT
        producer = await working.producer(TOPIC)
        streams = [await peer.consumer(TOPIC, f"s{number}") for number in range(CLIENTS)]
        for _ in range(4):
            await producer.send(b"x" * LARGE)
        await there.until(lambda: there.broker.unread.is_awaited)
        hurry(monkeypatch)
        await until_given_back(there)
        reading = await working.consumer(TOPIC, "read")
        await producer.send(b"y" * LARGE)
        assert (await reading.receive()).payload == b"y" * LARGE
        del streams


@asynccontextmanager
async def taken_by_others(memory: UnreadMemory) -> AsyncIterator[None]:
    """A time in which no memory is free."""
    others = memory.part()
    others.take(memory.limit_bytes)
    try:
        yield
    finally:
        others.close()


LARGE_SCHEMA = json.dumps({"type": "enum", "name": "E", "symbols": [f"symbol_{n}" for n in range(8_000)]})


async def test_native_answers_that_are_no_messages_take_memory_too() -> None:
    async with native_peer.open_listener() as there, await native_peer.Peer.greet(there) as peer:
        registered = schemas.RegisterSchema(
            subject="large", definition=SchemaDefinition(SchemaFormat.AVRO, LARGE_SCHEMA)
        )
        await peer.request(registered, schemas.SchemaRegistered)
        asked = requests.encode(schemas.GetSchema(subject="large"))
        async with taken_by_others(there.broker.unread):
            peer.write(frames.encode(FrameKind.REQUEST, asked, 100))
            assert "have not taken" in str(await peer.error(100))
            await peer.request(topics.ListTopics(), NamePage)  # small ones go past the limit
        session = await there.session_of(peer)
        peer.stop_reading()
        for number in range(200, 264):
            peer.write(frames.encode(FrameKind.REQUEST, asked, number))
        await there.until(lambda: not session.connection.writable)
        for _ in range(200):
            assert session.connection.queued_bytes <= 2 * MIB, "requests wait until earlier answers are read"
            await asyncio.sleep(0.001)
        assert there.broker.unread.used_bytes >= MIB


async def test_http_answers_that_are_no_messages_take_memory_too() -> None:
    async with open_listener() as there, await Peer.connect(there) as peer:
        body = json.dumps({"schema": LARGE_SCHEMA}).encode()
        path = "/schema-registry/subjects/large/versions"
        assert (await peer.request("POST", path, body)).status == 200
        async with taken_by_others(there.broker.unread):
            refused = await peer.request("GET", f"{path}/1")
            assert refused.status == 503 and b"have not taken" in refused.body
            assert (await peer.request("GET", "/schema-registry/subjects")).status == 200
        peer.stop_reading()
        for _ in range(200):
            peer.send("GET", f"{path}/1")
        await there.until(lambda: there.broker.unread.used_bytes > SMALL_BYTES)


async def test_peeks_take_memory_before_they_read() -> None:
    async with open_listener() as there, await Peer.connect(there) as peer:
        async with pydanube.connect(there.broker_url) as client, client.producer(TOPIC) as producer:
            for _ in range(10):
                await producer.send(b"x" * 10_000)
            await client.create_subscription(TOPIC, "s", start="earliest")
        path = f"{BASE}/subscriptions/s/peek?limit=10"
        async with taken_by_others(there.broker.unread):
            assert len((await peer.request("GET", path)).json()["messages"]) == 4
        assert len((await peer.request("GET", path)).json()["messages"]) == 10


async def test_grpc_answers_that_are_no_messages_take_memory_too() -> None:
    path = "danube_schema.SchemaRegistry/GetLatestSchema"
    async with open_grpc() as there, connect(there.data) as peer:
        definition = {"schema_type": "avro", "schema_definition": LARGE_SCHEMA.encode()}
        await peer.call("danube_schema.SchemaRegistry/RegisterSchema", subject="large", **definition)
        async with taken_by_others(there.broker.unread):
            assert "have not taken" in (await peer.status(path, subject="large"))[1]
        assert len((await peer.call(path, subject="large")).schema_definition) == len(LARGE_SCHEMA)
        await there.until(lambda: not there.broker.unread.used_bytes)
        host, _, port = there.data.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1)
        request = method_of(path).request(subject="large").SerializeToString()
        body = b"\x00" + len(request).to_bytes(4, "big") + request
        writer.write(PREFACE + http2_frame(SETTINGS, 0, 0, b"") + http2_frame(HEADERS, 4, 1, headers(f"/{path}")))
        writer.write(http2_frame(DATA, 1, 1, body))
        await there.until(lambda: there.broker.unread.used_bytes > len(LARGE_SCHEMA))
        await asyncio.sleep(0.2)
        assert there.broker.unread.used_bytes > len(LARGE_SCHEMA), "what is not read counts"
        writer.transport.abort()
        await there.until(lambda: not there.broker.unread.used_bytes)


def test_a_principal_may_hold_as_much_as_is_free_for_all() -> None:
    memory = UnreadMemory(10 * MIB, lambda: True)
    greedy, other = (memory.part(Principal(name)) for name in ("greedy", "other"))
    taken = 0
    while greedy.may_take(MIB):
        greedy.take(MIB)
        taken += 1
    assert taken == 5
    again = memory.part(Principal("greedy"))
    assert not again.may_take(MIB) and again.may_take(SMALL_BYTES)
    assert other.may_take(2 * MIB)


async def test_few_reads_run_at_once_that_may_find_more_than_they_got_memory_for() -> None:
    memory = UnreadMemory(10 * MIB, lambda: False)
    running = most = 0

    async def read(is_short: bool) -> None:
        nonlocal running, most
        async with memory.turn(is_short):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(read(True) for _ in range(20)))
    assert most == unread_memory.SHORT_READS_MAX
    await asyncio.gather(*(read(False) for _ in range(20)))
    assert most == 20
