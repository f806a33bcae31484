"""What a client says when something answers that is not a danube broker."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from client_harness import server_that_says
from hypothesis import given
from hypothesis import strategies as st
from impatient_clock import ImpatientClock

import pydanube
from pydanube import Client, Invalid, Unavailable
from pydanube.client.connection.foreign_peer import describe_peer
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from waiting import until

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
SSH = b"SSH-2.0-OpenSSH_9.6p1\r\n"
TLS_ALERT = bytes.fromhex("15030300020246")
HTTP2 = bytes.fromhex("000018040000000000000400400000000500400000000600004000fe0300000001")
MYSQL = bytes.fromhex("4a0000000a382e302e33360008000000")


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (HTTP, r"an HTTP server \('HTTP/1.1 400 Bad Request'\) answered"),
        (b"<!DOCTYPE HTML>\n<html>", r"an HTTP server \('<!DOCTYPE HTML>'\) answered"),
        (SSH, r"an SSH server \('SSH-2.0-OpenSSH_9.6p1'\) answered"),
        (TLS_ALERT, "a TLS server answered"),
        (HTTP2, "an HTTP/2 server, such as a gRPC listener, answered"),
        (b"220 ready\r\n", r"another protocol \('220 ready'\) answered"),
        (b"-ERR unknown command 'DANUBE'\r\n", "another protocol"),
        (MYSQL, "another protocol"),
        (b"\x1b]0;evil\x07" * 4, r"another protocol \('\\x1b\]0;evil\\x07"),
    ],
)
async def test_another_protocol_is_recognised_and_named_at_once(answer: bytes, told: str, ends: bool) -> None:
    async with server_that_says(answer, ends=ends) as address, asyncio.timeout(60):
        with pytest.raises(Invalid, match=rf"^{address} is not a danube broker: .*{told}.*6655 by default"):
            await pydanube.connect(f"danube://{address}", timeout=2)


async def test_a_tls_server_that_just_closes_is_suspected() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    async with server_that_says(b"", context=context) as address, asyncio.timeout(60):
        with pytest.raises(Unavailable, match=rf"{address} closed the connection before it greeted.*a TLS server"):
            await Client(f"danube://{address}", clock=ImpatientClock())


async def test_a_silent_peer_is_suspected() -> None:
    async with server_that_says(b"") as address, asyncio.timeout(60):
        with pytest.raises(Unavailable, match=rf"{address} accepted .* did not greet .* not a danube broker, or it"):
            await pydanube.connect(f"danube://{address}", timeout=0.5)


async def test_a_grpc_server_is_recognised() -> None:
    aio = pytest.importorskip("grpc.aio")
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(60):
            with pytest.raises(Invalid, match=r"is not a danube broker: an HTTP/2 server"):
                await pydanube.connect(f"danube://127.0.0.1:{port}", timeout=60)
    finally:
        await server.stop(None)


async def test_another_listed_broker_is_taken(url: str) -> None:
    async with server_that_says(HTTP) as address:
        async with pydanube.connect(f"danube://{address},{url.removeprefix('danube://')}") as client:
            assert await client.list_topics() == []
        with pytest.raises(Unavailable, match=r"no broker can be reached: .*not a danube broker: an HTTP server"):
            await Client(f"danube://{address},127.0.0.1:1", clock=ImpatientClock())


async def test_a_client_that_was_connected_tries_on(tmp_path: Path) -> None:
    """Another program may answer at the port while the broker restarts."""
    async with pydanube.testing.broker(tmp_path / "data") as url:
        port = int(url.rsplit(":", 1)[1])
        client = await pydanube.connect(url, timeout=60)
        await client.create_topic("/default/orders")
        producer = await client.producer("/default/orders")
    answered = asyncio.Event()

    async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        writer.write(HTTP)
        writer.close()
        answered.set()

    async with asyncio.timeout(120):
        async with await asyncio.start_server(stranger, "127.0.0.1", port):
            sending = asyncio.create_task(producer.send(b"one"))
            await answered.wait()
            await until(lambda: "is not a danube broker" in str(producer.obstacle))
        async with pydanube.testing.broker(tmp_path / "data", server_port=port):
            assert (await sending).offset == 0
            await client.close()


@given(st.binary(max_size=64))
def test_whatever_comes_is_described_or_taken_for_a_frame(first: bytes) -> None:
    described = describe_peer(first)
    assert described.isprintable()
    assert len(described) < 400


@given(st.integers(1, 10_000), st.sampled_from([FrameKind.WELCOME, FrameKind.ERROR, FrameKind.GOAWAY, FrameKind.PING]))
def test_what_a_broker_says_first_is_never_foreign(size: int, kind: FrameKind) -> None:
    frame = frames.encode(kind, bytes(size))
    for end in range(65):
        assert describe_peer(frame[:end]) == ""


def test_a_broker_that_refuses_is_heard() -> None:
    refused = requests.encode(requests.Failure.of(pydanube.Full("too many connections")))
    assert describe_peer(frames.encode(FrameKind.GOAWAY, refused)) == ""
