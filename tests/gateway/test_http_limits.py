"""Clients that misbehave on the HTTP port, on purpose or not: bounded memory and time, and others do not notice."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as ClientRequest
from urllib.request import urlopen

import pytest
from http_peer import HttpListener, Peer, open_listener
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import pydanube
from pydanube import testing
from pydanube.gateway.http import HttpServer, connection
from pydanube.gateway.http.connection import LINGER_S, RECEIVED_BYTES_MAX, HttpConnection
from pydanube.model.errors import Invalid
from pydanube.runtime.clock import ManualClock


async def pass_time(clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds / 0.1)):
        clock.advance(0.1)
        await asyncio.sleep(0.001)


def add_route(there: HttpListener, path: str, handler: Any) -> None:
    there.server._application._routes.router.routes.append(Route(path, handler, methods=["GET", "POST"]))


def post(url: str, body: bytes) -> int:
    try:
        with urlopen(ClientRequest(url, body), timeout=60) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


async def echo_size(request: Request) -> Response:
    return Response(str(len(await request.body())))


# -- bytes that are no HTTP --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_ends_its_own_connection_only(http, seed):
    chance = random.Random(seed)
    garbage = [
        chance.randbytes(chance.randrange(1, 5000)),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + chance.randbytes(50) + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chance.randbytes(30) + b"\r\n",
        b"\x16\x03\x01" + chance.randbytes(200),
    ]
    async with await Peer.connect(http) as neighbour:
        for one in garbage:
            async with await Peer.connect(http) as peer:
                peer.write(one + b"\r\n\r\n")
                peer._writer.write_eof()
                await peer.closed()
            assert (await neighbour.request("GET", "/healthz")).status == 200
    await http.until(lambda: http.server.connections == 0)
    async with pydanube.connect(http.broker_url) as client, client.producer("/default/orders") as producer:
        await producer.send(b"still served")


async def test_what_is_no_request_is_answered_as_a_problem(http, caller):
    caller.write(b"HELO mail.example.net\r\n\r\n")
    answer = await caller.answer()
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"].startswith("this is no HTTP/1.1 request: ")
    assert await caller.closed() == b""
    await http.until(lambda: http.server.connections == 0)


async def test_a_native_client_is_told_at_once_whose_port_this_is(http):
    with pytest.raises(
        Invalid, match=r"is not a danube broker: .*HTTP.* answered; .* or with http:// to its HTTP port"
    ):
        await pydanube.connect(http.url.replace("http://", "danube://"), timeout=60).open()


async def test_a_broken_body_is_answered_once_and_without_noise(caplog, capsys) -> None:
    class Started:
        """An application that begins its answer and then waits for the client to leave."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass

    async with open_listener(discarded_bytes_max=1) as there:
        add_route(there, "/started", Started())
        for path in ("/healthz", "/started"):
            async with await Peer.connect(there) as peer:
                peer.send("GET", path, b"2\r\nxx\r\n", transfer_encoding="chunked")
                if path == "/started":  # the answer has begun
                    await peer._reader.readuntil(b"\r\n\r\n")
                peer.write(b"zzzz\r\n")
                await peer.closed()
                await there.until(lambda: there.server.connections == 0 and not there.server._state.tasks)
    assert not caplog.records and capsys.readouterr().err == ""


async def test_a_request_for_a_websocket_is_answered_without_one(caplog) -> None:
    async with open_listener() as there, await Peer.connect(there) as peer:
        answer = await peer.request("GET", "/healthz", Connection="Upgrade", Upgrade="websocket")
        assert answer.status == 200
    assert not caplog.records


# -- sizes -------------------------------------------------------------------------------------------------------------


async def test_headers_have_a_limit() -> None:
    async with open_listener(header_bytes_max=2000) as there, await Peer.connect(there) as peer:
        peer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 3000)
        assert (await peer.answer()).status == 431
        assert await peer.closed() == b""


async def test_a_body_that_is_announced_too_large_is_refused_before_it_comes() -> None:
    async with open_listener(http_body_bytes_max=1000) as there:
        add_route(there, "/size", echo_size)
        async with await Peer.connect(there) as peer:
            assert (await peer.request("POST", "/size", b"x" * 1000)).body == b"1000"
            answer = await peer.request("POST", "/size", b"x" * 1001)  # thrown away, and the connection stays
            assert answer.status == 413
            assert "limits.http_body_bytes_max" in answer.json()["detail"]
            assert (await peer.request("POST", "/size", b"x" * 1000)).body == b"1000"
            answer = await peer.request("POST", "/size", b"", content_length="1001", expect="100-continue")
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            assert await peer.closed() == b""
        async with await Peer.connect(there) as peer:
            answer = await peer.request("POST", "/size", b"", content_length="9" * 15, expect="100-continue")
            assert answer.status == 413


async def test_a_body_that_grows_too_large_is_refused_when_it_does() -> None:
    async with open_listener(http_body_bytes_max=1000) as there:
        add_route(there, "/size", echo_size)
        async with await Peer.connect(there) as peer:
            peer.send("POST", "/size", b"", transfer_encoding="chunked")
            peer.write(b"%x\r\n%s\r\n" % (600, b"x" * 600) * 2)
            answer = await peer.answer()  # the rest of a body in chunks is not read
            assert (answer.status, answer.headers["connection"]) == (413, "close")
            assert await peer.closed() == b""
        assert there.server._application._bodies.used == 0


async def test_what_is_thrown_away_of_a_body_has_a_limit() -> None:
    async with open_listener(http_body_bytes_max=1000, discarded_bytes_max=100_000) as there:
        add_route(there, "/size", echo_size)
        async with await Peer.connect(there) as peer:
            peer.send("POST", "/size", b"", content_length=str(10_000_000))
            for _ in range(1000):
                peer.write(b"x" * 10_000)
            answer = await peer.closed()  # it may have been lost with the rest of the body
            assert b" 413 " in answer or answer == b""
            await there.until(lambda: there.server.connections == 0)


async def test_little_of_a_body_is_parsed_at_once(monkeypatch) -> None:
    """A body in chunks of one byte takes the parser long, and everything else waits meanwhile."""
    received: list[int] = []
    real = HttpConnection.data_received

    def data_received(self: HttpConnection, data: bytes) -> None:
        received.append(len(data))
        real(self, data)

    monkeypatch.setattr(HttpConnection, "data_received", data_received)
    async with open_listener() as there:
        add_route(there, "/size", echo_size)
        async with await Peer.connect(there) as peer:
            answer = await peer.request(
                "POST", "/size", b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n", transfer_encoding="chunked"
            )
    assert (answer.status, answer.body) == (200, b"50000")
    assert sum(received) > 300_000 and max(received) <= RECEIVED_BYTES_MAX


async def test_a_library_client_reads_that_its_body_is_too_large(http):
    for _ in range(5):
        refused = await asyncio.to_thread(post, f"{http.url}/schema-registry/subjects/a/versions", bytes(8 << 20))
        assert refused == 413


async def test_all_bodies_together_have_a_limit() -> None:
    async with open_listener(http_body_bytes_max=1000, pending_publish_bytes_max=3000) as there:
        add_route(there, "/size", echo_size)
        budget = there.server._application._bodies
        async with await Peer.connect(there) as first, await Peer.connect(there) as second:
            first.send("POST", "/size", b"x" * 999, content_length="1000")
            await there.until(lambda: budget.used == 999)
            answer = await second.request("POST", "/size", b"x" * 900)
            assert (answer.status, answer.json()["retryable"]) == (503, True)
            first.write(b"x")
            assert (await first.answer()).body == b"1000"
        await there.until(lambda: budget.used == 0)


# -- connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["http_connections_max", "connections_per_address_max"])
async def test_connections_are_counted(limit: str) -> None:
    async with open_listener(**{limit: 2}) as there:
        async with await Peer.connect(there) as first, await Peer.connect(there) as second:
            for peer in (first, second):
                assert (await peer.request("GET", "/healthz")).status == 200
            async with await Peer.connect(there) as third:
                answer = await third.answer()
                assert answer.status == 503 and "2 HTTP connections" in answer.json()["detail"]
                assert await third.closed() == b""
            assert (await first.request("GET", "/healthz")).status == 200
        await there.until(lambda: there.server.connections == 0)
        async with await Peer.connect(there) as fourth:
            assert (await fourth.request("GET", "/healthz")).status == 200
        await there.until(lambda: not there.server._places._addresses)


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
async def test_headers_must_come_in_time_however_steadily_they_trickle(sent: bytes) -> None:
    clock = ManualClock()
    async with open_listener(clock, handshake_timeout_ms=5_000) as there, await Peer.connect(there) as peer:
        await there.until(lambda: there.server.connections == 1)
        peer.write(sent)
        for _ in range(8):
            await pass_time(clock, 0.5)
            if sent:
                peer.write(b"x")
        assert there.server.connections == 1
        await pass_time(clock, 3)
        assert (await peer.answer()).status == 408
        await there.until(lambda: there.server.connections == 0)


async def test_the_headers_of_the_next_request_must_come_in_time_too() -> None:
    clock = ManualClock()
    async with open_listener(clock, handshake_timeout_ms=5_000) as there, await Peer.connect(there) as peer:
        assert (await peer.request("GET", "/healthz")).status == 200
        await pass_time(clock, 20)  # an idle connection owes nothing: keep-alive counts
        assert there.server.connections == 1
        peer.write(b"GET /he")
        await there.until(lambda: next(iter(there.server._connections)).conn.trailing_data[0] != b"")
        await pass_time(clock, 6)
        assert (await peer.answer()).status == 408


async def test_a_client_that_always_has_half_of_its_next_request_sent_is_not_late() -> None:
    clock = ManualClock()
    async with open_listener(clock, handshake_timeout_ms=5_000) as there, await Peer.connect(there) as peer:
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        peer.write(request[:10])
        for _ in range(10):
            peer.write(request[10:] + request[:10])
            assert (await peer.answer()).status == 200
            await pass_time(clock, 2)
        assert there.server.connections == 1


@pytest.mark.parametrize("framing", [{"content_length": "100"}, {"transfer_encoding": "chunked"}])
async def test_a_body_must_come_in_time(framing: dict[str, str]) -> None:
    clock = ManualClock()
    async with open_listener(clock, body_timeout_ms=10_000) as there:
        add_route(there, "/size", echo_size)
        async with await Peer.connect(there) as peer:
            peer.send("POST", "/size", b"", **framing)
            for _ in range(9):
                await pass_time(clock, 1)
                peer.write(b"1\r\nx\r\n" if "transfer_encoding" in framing else b"x")
            assert there.server.connections == 1
            await pass_time(clock, 4)
            assert (await peer.answer()).status == 408
            await there.until(lambda: there.server.connections == 0 and not there.server._state.tasks)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/size", 200), ("GET", "/missing", 404)])
async def test_a_request_with_two_framings_is_the_last_of_its_connection(http, method, path, status):
    add_route(http, "/size", echo_size)
    async with await Peer.connect(http) as peer:
        peer.send(method, path, b"1\r\nx\r\n0\r\n\r\n", content_length="5", transfer_encoding="chunked")
        peer.send("GET", "/healthz")
        answer = await peer.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert await peer.closed() == b""


async def test_a_request_is_answered_before_a_body_that_nobody_wants_and_its_connection_ends() -> None:
    """However small the chunks are: they are thrown away without being parsed, and not for long."""
    clock = ManualClock()
    async with open_listener(clock) as there, await Peer.connect(there) as peer:
        peer.send("POST", "/api/v1/none", b"1\r\nx\r\n" * 100_000, transfer_encoding="chunked")
        answer = await peer.answer()
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert await peer.closed() == b""
        (connection,) = there.server._connections
        await there.until(lambda: connection._discarded_bytes > 400_000)
        assert connection.conn._chunks == 0
        await pass_time(clock, 1)
        assert there.server.connections == 1
        await pass_time(clock, LINGER_S)
        await there.until(lambda: there.server.connections == 0)


async def test_a_small_body_that_nobody_wants_is_read_and_the_connection_goes_on(caller):
    for _ in range(2):
        answer = await caller.request("POST", "/api/v1/none", b"x" * 10_000)
        assert answer.status == 404 and "connection" not in answer.headers


async def test_a_body_has_a_limit_of_chunks(http, caller, monkeypatch):
    monkeypatch.setattr(connection, "CHUNKS_MAX", 1_000)
    add_route(http, "/size", echo_size)
    body = b"1\r\nx\r\n" * 1_000 + b"0\r\n\r\n"
    for _ in range(2):
        assert (await caller.request("POST", "/size", body, transfer_encoding="chunked")).body == b"1000"
    answer = await caller.request("POST", "/size", b"1\r\nx\r\n" * 1_002, transfer_encoding="chunked")
    assert answer.status == 400 and "more than 1000 chunks" in answer.json()["detail"]


async def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    async def endless(_request: Request) -> Response:
        async def parts():
            while True:
                yield b"x" * 65536
                await asyncio.sleep(0)

        return StreamingResponse(parts())

    clock = ManualClock()
    async with open_listener(clock, answer_timeout_ms=10_000) as there:
        add_route(there, "/endless", endless)
        async with await Peer.connect(there) as peer:
            peer.stop_reading()
            peer.send("GET", "/endless")
            await there.until(lambda: any(one.flow.write_paused for one in there.server._connections))
            await pass_time(clock, 5)
            assert there.server.connections == 1
            for _ in range(100):  # the kernel takes a little more before it is full
                await pass_time(clock, 1)
                if there.server.connections == 0:
                    break
            await there.until(lambda: there.server.connections == 0 and not there.server._state.tasks)


async def test_an_idle_connection_is_closed_after_keep_alive() -> None:
    async with open_listener(keep_alive_ms=1_000) as there, await Peer.connect(there) as peer:
        assert (await peer.request("GET", "/healthz")).status == 200
        assert await peer.closed() == b""


# -- mistakes ----------------------------------------------------------------------------------------------------------


async def test_a_mistake_in_the_broker_is_a_500_without_details_and_is_logged_once(capsys) -> None:
    async def broken(_request: Request) -> Response:
        raise ZeroDivisionError("secret")

    async with open_listener() as there:
        add_route(there, "/broken", broken)
        async with await Peer.connect(there) as peer:
            answer = await peer.request("GET", "/broken")
            assert answer.status == 500 and b"secret" not in answer.body
        async with await Peer.connect(there) as peer:
            assert (await peer.request("GET", "/healthz")).status == 200
    logged = capsys.readouterr().err
    assert logged.count("http.request_failed") == 1 and logged.count("ZeroDivisionError: secret") == 1


async def test_a_client_that_leaves_in_the_middle_is_no_mistake(capsys) -> None:
    async with open_listener() as there:
        add_route(there, "/size", echo_size)
        for _ in range(5):
            async with await Peer.connect(there) as peer:
                peer.send("POST", "/size", b"x", content_length="100")
                await there.until(lambda: there.server._application._bodies.used == 1)
            await there.until(lambda: there.server.connections == 0 and not there.server._state.tasks)
        assert there.server._application._bodies.used == 0
    assert capsys.readouterr().err == ""


async def test_a_page_of_another_origin_may_not_change_anything(http):
    add_route(http, "/size", echo_size)
    async with await Peer.connect(http) as peer:
        answer = await peer.request("POST", "/size", b"x", origin="http://localhost:1")
        assert answer.status == 403
        assert (await peer.request("POST", "/size", b"x", origin="http://[")).status == 403
        assert (await peer.request("POST", "/size", b"x", origin="http://localhost")).status == 200
        assert (await peer.request("GET", "/size", origin="http://localhost:1")).status == 200


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_closing_answers_what_is_in_flight_and_accepts_nothing_new(http):
    release = asyncio.Event()

    async def waiting(_request: Request) -> Response:
        await release.wait()
        return Response("done")

    add_route(http, "/waiting", waiting)
    async with await Peer.connect(http) as busy, await Peer.connect(http) as idle:
        assert (await idle.request("GET", "/healthz")).status == 200
        busy.send("GET", "/waiting")
        await http.until(lambda: len(http.server._state.tasks) == 1)
        closing = asyncio.ensure_future(http.server.close(60))
        assert await idle.closed() == b""
        with pytest.raises(OSError):
            await Peer.connect(http)
        assert not closing.done()
        release.set()
        assert (await busy.answer()).body == b"done"
        assert await busy.closed() == b""
        await closing


async def test_closing_ends_what_takes_too_long(capsys) -> None:
    begun = asyncio.Event()

    async def forever(_request: Request) -> Response:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with open_listener() as there:
        add_route(there, "/forever", forever)
        async with await Peer.connect(there) as peer:
            peer.send("GET", "/forever")
            await begun.wait()
            await there.server.close(0.05)
            assert await peer.closed() == b""
            assert not there.server._state.tasks and there.server.connections == 0
    assert "http.request_failed" not in capsys.readouterr().err


async def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open(tmp_path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(pydanube.Refused, match=rf"127.0.0.1:{port} is taken.* HTTP listener; .* --http-port"):
            async with testing.broker(tmp_path, server_http_port=port):
                pass
    async with testing.broker(tmp_path, server_http_port=port):
        pass


async def test_the_listener_can_be_turned_off(tmp_path) -> None:
    async with testing._server(tmp_path, {"server_http": False}) as server:
        assert server.http_address[1] == 0
        assert server.ready_line.endswith("http=127.0.0.1:0")


def test_uvicorn_leaves_signals_and_logging_alone() -> None:
    import logging
    import signal

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def main() -> None:
        async with testing.broker():
            assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) != (None, None)
            assert signal.getsignal(signal.SIGTERM) == before[0]

    asyncio.run(main())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        assert not logging.getLogger(name).handlers
    assert HttpServer.__module__ == "pydanube.gateway.http.server"
