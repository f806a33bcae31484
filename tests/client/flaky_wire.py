"""A TCP proxy between client and broker whose connections a test can cut, refuse, or make lose all answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pydanube import testing


class Wire:
    """Forwards bytes both ways. The broker advertises the address of the proxy, so clients always connect through
    it."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self.connections = 0
        self.answers_flow = True
        """False: bytes from the broker are read and dropped."""
        self.open_for_new = True
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"danube://{self.address}"

    def cut(self) -> None:
        """Abort every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open_for_new:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self._writers |= {writer, there_writer}
        loop = asyncio.get_running_loop()
        for coroutine in (self._pump(reader, there_writer, False), self._pump(there_reader, writer, True)):
            task = loop.create_task(coroutine)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if answers and not self.answers_flow:
                    continue
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        self._writers.discard(writer)

    async def close(self) -> None:
        self.cut()
        for task in list(self._pumps):
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


@asynccontextmanager
async def wired_broker(directory: Path, **settings: object) -> AsyncIterator[Wire]:
    """Run a broker that clients reach only through a `Wire`."""
    wire = Wire()
    server = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        async with testing.broker(directory, server_advertised=wire.address, **settings) as url:
            wire.target = int(url.rsplit(":", 1)[1])
            try:
                yield wire
            finally:
                await wire.close()
    finally:
        server.close()
