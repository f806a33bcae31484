"""A command fails soon if the broker is unreachable, and waits longer for a busy one."""

from __future__ import annotations

import asyncio

import pytest

from pydanube.cli import connecting
from pydanube.codec.native import frames, requests
from pydanube.codec.native.frames import FrameKind
from pydanube.model.errors import Unavailable
from pydanube.model.paging import NamePage


async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the handshake and pings at once, and a request later than REACH_SECONDS."""
    loop = asyncio.get_running_loop()
    try:
        await reader.readexactly(len(frames.PREAMBLE))
        while True:
            header = await reader.readexactly(frames.HEADER.size)
            rest = await reader.readexactly(frames.frame_length(memoryview(header)) - len(header))
            frame = frames.decode(memoryview(header + rest))
            if frame.kind is FrameKind.HELLO:
                welcome = requests.encode(requests.Welcome(version=1, broker="busy"))
                writer.write(frames.encode(FrameKind.WELCOME, welcome, frame.correlation))
            elif frame.kind is FrameKind.PING:
                writer.write(frames.encode(FrameKind.PONG, b"", frame.correlation))
            else:
                names = frames.encode(FrameKind.RESPONSE, requests.encode(NamePage(["/default/t"])), frame.correlation)
                loop.call_later(3.5, writer.write, names)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def test_a_busy_broker_has_time_to_answer_on_the_one_connection_of_a_command() -> None:
    connections: list[asyncio.StreamWriter] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await answer_late(reader, writer)

    async with await asyncio.start_server(count, "127.0.0.1", 0) as server:
        url = f"danube://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = await asyncio.to_thread(connecting.with_client, url, lambda client: client.list_topics())
    assert (found, len(connections)) == (["/default/t"], 1)


def test_a_broker_that_is_not_there_is_given_up_soon() -> None:
    with pytest.raises(Unavailable, match="gave up after 3 s: no broker can be reached"):
        connecting.with_client("danube://127.0.0.1:1", lambda client: client.list_topics())
