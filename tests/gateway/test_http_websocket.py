"""Consumers over WebSocket: acks, permits, flow control, the limits of the listener, and shutdown.

The client is that of the package websockets, and bytes written by hand where a client misbehaves.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest
from http_peer import TIMEOUT_S, HttpListener, Peer, open_listener
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import pydanube
from pydanube.gateway.http.websocket_connection import WEBSOCKET_MESSAGE_BYTES, WebSocketConnection
from pydanube.runtime.clock import ManualClock

TOPIC = "/api/v1/topics/default/orders"
WORKERS = f"{TOPIC}/subscriptions/workers"


async def publish(there: HttpListener, *payloads: str) -> None:
    body = json.dumps({"messages": [{"payload": one} for one in payloads]}).encode()
    async with await Peer.connect(there) as peer:
        answer = await peer.request("POST", f"{TOPIC}/messages", body, Content_Type="application/json")
        assert answer.status == 200


def open_websocket(there: HttpListener, query: str = "start=earliest", path: str = WORKERS, **options: Any) -> connect:
    url = there.url.replace("http://", "ws://")
    return connect(f"{url}{path}/websocket?{query}", max_size=None, compression=None, **options)


async def receive(websocket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        found: dict[str, Any] = json.loads(await websocket.recv())
        return found


async def take(websocket: ClientConnection, count: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    while len(taken) < count:
        taken += (await receive(websocket))["messages"]
    assert len(taken) == count
    return taken


async def position(there: HttpListener) -> int:
    async with pydanube.connect(there.broker_url) as client:
        return sum(
            one.position for one in (await client.describe_subscription("/default/orders", "workers")).partitions
        )


async def until_position(there: HttpListener, wanted: int) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await position(there) != wanted:  # noqa: ASYNC110 - what is waited for happens in the broker
            await asyncio.sleep(0.01)


async def upgraded(there: HttpListener, query: str = "start=earliest") -> Peer:
    """A peer that has upgraded its connection by hand."""
    peer = await Peer.connect(there)
    key = base64.b64encode(b"0123456789abcdef").decode()
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec_WebSocket_Version": "13", "Sec_WebSocket_Key": key}
    peer.send("GET", f"{WORKERS}/websocket?{query}", **headers)
    head = await peer._reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 "), head
    return peer


def frame(opcode: int, data: bytes, final: bool = True) -> bytes:
    """A masked frame, with a mask of zeros."""
    size = len(data)
    length = bytes([0x80 | size]) if size < 126 else b"\xff" + struct.pack("!Q", size)
    return bytes([0x80 * final | opcode]) + length + bytes(4) + data


async def test_messages_are_sent_and_acked_and_nacked(http):
    await publish(http, "a", "b", "c")
    async with open_websocket(http) as websocket:
        assert (await receive(websocket))["permits"] is None
        first, second, third = await take(websocket, 3)
        assert [one["payload"] for one in (first, second, third)] == ["a", "b", "c"]
        nack = {"ack": [first["id"], third["id"]], "nack": [second["id"]], "delay_ms": 0, "reason": "busy"}
        await websocket.send(json.dumps(nack))
        (again,) = await take(websocket, 1)
        assert (again["payload"], again["redeliveries"], again["reason"]) == ("b", 1, "busy")
        await websocket.send(json.dumps({"ack": [again["id"]]}))
        await until_position(http, 3)
    await http.until(lambda: len(http.server._application._data.sessions) == 0)


async def test_a_rejected_message_is_not_sent_again(http):
    await publish(http, "a", "b")
    async with open_websocket(http) as websocket:
        await receive(websocket)
        first, second = await take(websocket, 2)
        await websocket.send(json.dumps({"ack": [first["id"]], "reject": [second["id"]], "reason": "odd"}))
        await until_position(http, 1)
        async with pydanube.connect(http.broker_url) as client:
            (partition,) = (await client.topic_statistics("/default/orders")).partitions
        assert partition.subscriptions[0].blocked == 1


async def test_no_more_is_sent_than_the_client_permits(http):
    await publish(http, *map(str, range(10)))
    async with open_websocket(http, "start=earliest&permits=2") as websocket:
        assert (await receive(websocket))["permits"] == 2
        assert [one["payload"] for one in await take(websocket, 2)] == ["0", "1"]
        await websocket.send(json.dumps({"permits": 3}))
        assert [one["payload"] for one in await take(websocket, 3)] == ["2", "3", "4"]
        await websocket.ping()  # what comes after is an answer to what is sent now
        await websocket.send(json.dumps({"permits": 1}))
        assert [one["payload"] for one in await take(websocket, 1)] == ["5"]


async def test_what_was_not_acked_goes_to_the_next_consumer(http):
    await publish(http, "a")
    async with open_websocket(http) as websocket:
        await receive(websocket)
        await take(websocket, 1)
    async with open_websocket(http) as websocket:
        await receive(websocket)
        assert (await take(websocket, 1))[0]["payload"] == "a"


@pytest.mark.parametrize(
    "wrong",
    ['{"ack": ["x"]}', "{", '{"colour": 1}', '{"permits": 5}', '{"delay_ms": -1}', '{"nack": [7]}', "[" * 50_000],
)
async def test_a_wrong_message_is_answered_and_ends_the_connection(
    wrong: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_listener() as there:
        await publish(there, "a")
        async with open_websocket(there, "start=latest") as websocket:
            await receive(websocket)
            await websocket.send(wrong)
            assert (await receive(websocket))["error"]["title"] == "Invalid"
            with pytest.raises(ConnectionClosed):
                await receive(websocket)
            assert websocket.close_code == 1008
        await there.until(lambda: there.server.connections == 0 and len(there.server._application._data.sessions) == 0)
    assert not caplog.records


async def test_an_upgrade_is_refused_like_any_request(http):
    await publish(http, "a")
    for path, query, status in (
        ("/api/v1/topics/default/none/subscriptions/s", "", 404),
        (f"{TOPIC}/subscriptions/a%20b", "", 400),
        (WORKERS, "permits=-1", 400),
        (WORKERS, "colour=red", 400),
    ):
        with pytest.raises(InvalidStatus) as refused:
            await open_websocket(http, query, path)
        assert refused.value.response.status_code == status
        assert refused.value.response.headers["content-type"] == "application/problem+json"
    async with await Peer.connect(http) as peer:
        assert (await peer.request("GET", f"{WORKERS}/websocket")).status == 426
    await http.until(lambda: http.server.connections == 0)


async def test_a_page_of_another_origin_gets_no_websocket() -> None:
    async with open_listener(cors_origins=("https://example.com",)) as there:
        await publish(there, "a")
        with pytest.raises(InvalidStatus) as refused:
            await open_websocket(there, origin="https://evil")
        assert refused.value.response.status_code == 403
        async with open_websocket(there, origin="https://example.com") as websocket:
            assert "consumer" in await receive(websocket)
        async with open_websocket(there, origin=there.url) as websocket:
            assert "consumer" in await receive(websocket)


async def test_a_request_that_is_no_upgrade_is_answered_and_leaves_nothing(http):
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    for method, body, headers in (
        ("GET", None, {}),
        ("GET", b"x", {}),
        ("POST", b"{}", {}),
        ("GET", None, {"X_Long": "x" * 10_000}),
        ("GET", None, {f"X_{number}": "x" for number in range(200)}),
    ):
        async with await Peer.connect(http) as peer:
            peer.send(method, f"{WORKERS}/websocket", body, **upgrade, **headers)
            head = await peer._reader.readuntil(b"\r\n\r\n")
            assert head.split()[1] in (b"400", b"405", b"426"), (method, head)
        await http.until(lambda: http.server.connections == 0)


async def test_websockets_count_as_connections() -> None:
    async with open_listener(connections_per_address_max=3) as there:
        await publish(there, "a")
        await there.until(lambda: there.server.connections == 0)
        names = ("one", "two", "three")
        open_ones = [await open_websocket(there, "", f"{TOPIC}/subscriptions/{name}") for name in names]
        assert there.server.connections == 3
        with pytest.raises(InvalidStatus) as refused:
            await open_websocket(there)
        assert refused.value.response.status_code == 503
        for one in open_ones:
            await one.close()
        await there.until(lambda: there.server.connections == 0)


async def test_messages_of_a_client_have_a_limit_whole_and_in_fragments(http):
    await publish(http, "a")
    ack = b'{"ack": ["0.0.0"]}'.ljust(WEBSOCKET_MESSAGE_BYTES + 1)
    half = len(ack) // 2
    for frames in ([frame(1, ack)], [frame(1, ack[:half], final=False), frame(0, ack[half:])]):
        async with await upgraded(http) as peer:
            peer.write(b"".join(frames))
            await peer.closed()
        await http.until(lambda: http.server.connections == 0)
        assert await position(http) == 0, "a message that is too long has no effect"


async def test_fragments_without_end_take_no_memory(http):
    await publish(http, "a", "b")
    async with await upgraded(http) as peer:
        peer.write(frame(1, b'{"ack":', final=False) + frame(0, b"", final=False) * 10_000)
        peer.write(b"".join(frame(0, b" ", final=False) for _ in range(10_000)) + frame(9, b"now"))
        await peer._reader.readuntil(b"\x8a\x03now")
        (connection,) = http.server._connections
        assert isinstance(connection, WebSocketConnection)
        assert len(connection.frames) == 1
        peer.write(frame(0, b'["0.0.0"]}'))
        await until_position(http, 1)


async def test_invalid_text_and_garbage_end_their_own_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with open_listener() as there:
        await publish(there, "a")
        for data in (frame(1, b"\xff\xfe"), b"\xff\xff\xff\xff garbage", frame(9, b"x" * 200), frame(3, b"")):
            async with await upgraded(there) as peer:
                peer.write(data)
                await peer.closed()
            await there.until(lambda: there.server.connections == 0)
    assert not caplog.records


async def test_a_client_that_does_not_read_stops_the_delivery_and_gets_no_pongs(http):
    count, payload = 200, "x" * 50_000
    for _ in range(count // 10):
        await publish(http, *[payload] * 10)
    async with await upgraded(http) as peer:
        peer.stop_reading()
        await http.until(lambda: http.server.connections == 1)
        (connection,) = http.server._connections
        await http.until(lambda: not connection.writable.is_set())
        unsent = connection.transport.get_write_buffer_size()
        for _ in range(100):
            peer.write(frame(9, b"ping") * 1000)
            await peer.flushed()
        peer.write(frame(1, b'{"ack": ["0.0.0"]}'))
        await until_position(http, 1)  # so that all pings have been read
        (session,) = http.server._application._data.sessions._open.values()
        assert connection.transport.get_write_buffer_size() <= unsent
        assert sum(len(one.batch.view) for one in session.subscriber._kept) < 2_000_000


async def test_a_client_that_reads_nothing_for_too_long_is_disconnected() -> None:
    clock = ManualClock()
    async with open_listener(clock, answer_timeout_ms=2000) as there:
        for _ in range(20):
            await publish(there, *["x" * 50_000] * 10)
        async with await upgraded(there) as peer:
            peer.stop_reading()
            await there.until(lambda: there.server.connections == 1)
            (connection,) = there.server._connections
            await there.until(lambda: not connection.writable.is_set())
            for _ in range(50):
                clock.advance(0.1)
                await asyncio.sleep(0.001)
            await there.until(lambda: there.server.connections == 0)
            assert connection.transport.is_closing()
            await there.until(lambda: len(there.server._application._data.sessions) == 0)


async def test_shutdown_closes_websockets_as_going_away() -> None:
    async with open_listener(drain_s=60.0) as there:
        await publish(there, "a")
        async with open_websocket(there, "start=latest") as websocket:
            await receive(websocket)
            there.server.drain()
            with pytest.raises(ConnectionClosed):
                await receive(websocket)
            assert websocket.close_code == 1001
        with pytest.raises(InvalidStatus) as refused:
            await open_websocket(there)
        assert refused.value.response.status_code == 503


async def test_a_refused_upgrade_logs_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_listener() as there:
        for path in (WORKERS, "/api/v1/websocket", "/api/v1/topics/default/%00/subscriptions/x/websocket"):
            with pytest.raises(InvalidStatus):
                await open_websocket(there, path=path)
    assert "request_failed" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("turns", range(6))
async def test_closing_the_listener_logs_no_error(turns: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the connections or their consumers end first: `turns` of the loop are between the two."""
    async with open_listener(drain_s=60.0) as there:
        await publish(there, "a")
        peers = [await upgraded(there, "type=shared") for _ in range(3)]
        await there.until(lambda: all(one.handshake_complete for one in there.server._connections))  # type: ignore[union-attr]
        there.server.drain()
        for _ in range(turns):
            await asyncio.sleep(0)
    for peer in peers:
        await peer.closed()
        await peer.__aexit__()
    assert "request_failed" not in "".join(capsys.readouterr())


async def test_a_deleted_subscription_is_reported(http):
    async with pydanube.connect(http.broker_url) as client:
        await publish(http, "a")
        async with open_websocket(http, "start=latest") as websocket:
            await receive(websocket)
            await client.delete_subscription("/default/orders", "workers")
            assert (await receive(websocket))["error"]["title"] == "NotFound"
            with pytest.raises(ConnectionClosed):
                await receive(websocket)
