"""An HTTP listener on a real broker, and peers that write to its port byte by byte, well or badly.

The peers share nothing with an HTTP client library: what they send is what a test wants sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from broker_harness import changed

import waiting
from pydanube import testing
from pydanube.gateway.http import HttpServer
from pydanube.model.settings.sections import Sections
from pydanube.runtime.clock import Clock, ManualClock, SystemClock
from pydanube.runtime.tasks import Tasks

TIMEOUT_S = waiting.HANG_S


class HttpListener:
    """An HTTP listener under test."""

    def __init__(self, server: HttpServer, address: tuple[str, int], broker: Any, broker_url: str) -> None:
        self.server = server
        self.address = address
        self.broker = broker
        self.broker_url = broker_url

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    until = staticmethod(waiting.until)


@asynccontextmanager
async def open_listener(
    clock: Clock | None = None, wrap: Callable[[Any], Any] | None = None, drain_s: float = 0.0, **settings: Any
) -> AsyncIterator[HttpListener]:
    """A listener with these settings on a real broker of its own. `wrap` may put something between the two."""
    async with testing._server(None, {"topics_ack_level": "written"}) as broker_server:
        assert broker_server._native is not None
        broker = broker_server._native._resources.broker
        broker = wrap(broker) if wrap is not None else broker
        async with Tasks() as tasks:
            server = HttpServer(broker, changed(Sections(), "http", **settings), clock or SystemClock(), tasks)
            address = await server.start("127.0.0.1", 0)
            try:
                yield HttpListener(server, address, broker, broker_server.url)
            finally:
                closing = asyncio.ensure_future(server.close(drain_s))
                while isinstance(clock, ManualClock) and not closing.done():
                    clock.advance(0.1)
                    await asyncio.sleep(0.001)
                await closing


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Peer:
    """One connection to the listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, listener: HttpListener) -> Self:
        return cls(*await asyncio.open_connection(*listener.address))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def flushed(self) -> None:
        await self._writer.drain()

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> None:
        """Write a whole request; `content_type="..."` becomes the header Content-Type."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {headers.pop('host', 'localhost')}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None and "content_length" not in headers and "transfer_encoding" not in headers:
            lines.append(f"Content-Length: {len(body)}")
        self.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def answer(self) -> Answer:
        """The next answer."""
        async with asyncio.timeout(TIMEOUT_S):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin1")
            first, *lines = head.strip().split("\r\n")
            pairs = (line.partition(": ") for line in lines)
            headers = {name.lower(): value for name, _, value in pairs}
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split()[1]), headers, body)

    async def request(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        self.send(method, path, body, **headers)
        return await self.answer()

    async def closed(self) -> bytes:
        """Wait until the listener has closed the connection; return what it sent before."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""
