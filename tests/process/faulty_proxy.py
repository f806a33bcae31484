"""A TCP proxy that delays, cuts one way or both, loses answers, and freezes, and who holds a connection to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Self


class FaultyProxy:
    """Forwards TCP connections to an address until told otherwise."""

    def __init__(self, target: str, *, may_pass: Callable[[str], bool] | None = None) -> None:
        """`may_pass` is asked with the first bytes of a connection, again and again, whether its bytes may pass."""
        self._may_pass = may_pass
        self.target = target
        self.port = 0
        self.connections = 0
        """How many there have been to the target."""
        self.open_for_new = True
        """False: new connections are aborted."""
        self.answers_flow = True
        """False: bytes from the server are read and dropped."""
        self.delay_s = 0.0
        self.to_server = True
        """Whether bytes of the client reach the server; else they wait."""
        self.to_client = True
        self.banned: set[str] = set()
        """Clients, as `client_name` calls them, whose bytes wait, in both directions."""
        self.client_name: Callable[[int], str] | None = None
        """Returns who holds the connection that comes from this port; asked once for each connection."""
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Close all connections and accept no more, until `start`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Close all connections; new ones are accepted."""
        for writer in self._writers:
            writer.transport.abort()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Close all connections, and abort new ones during the block."""
        self.open_for_new = False
        self.cut()
        yield
        self.open_for_new = True

    def freeze(self, *, to_server: bool = False, to_client: bool = False) -> None:
        """Let bytes pass only in the directions that are named; connections stay open, and new ones open."""
        self.to_server, self.to_client = to_server, to_client

    def ban(self, client: str) -> None:
        """Let the bytes of one client wait; its connections stay open."""
        self.banned.add(client)

    def thaw(self) -> None:
        self.to_server = self.to_client = True
        self.banned.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.refuse()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        if not self.open_for_new:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            first = await reader.read(65536) if self._may_pass else b""
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        client = self.client_name(writer.get_extra_info("peername")[1]) if self.client_name else ""
        pairs = [
            (reader, far_writer, first, lambda: self.to_server and client not in self.banned, False),
            (far_reader, writer, b"", lambda: self.to_client and client not in self.banned, True),
        ]
        if self._may_pass is not None:
            allowed = partial(self._may_pass, first.decode("latin-1"))
            pairs = [(*pair[:3], allowed, pair[4]) for pair in pairs]
        self._writers |= {writer, far_writer}
        tasks = [asyncio.ensure_future(self._pump(*pair)) for pair in pairs]
        self._tasks.update(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
                self._tasks.discard(task)
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: bytes,
        may_pass: Callable[[], bool],
        are_answers: bool,
    ) -> None:
        with contextlib.suppress(OSError):
            while received := first or await reader.read(65536):
                first = b""
                if are_answers and not self.answers_flow:
                    continue
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                while not may_pass():
                    await self._changed.wait()
                writer.write(received)
                await writer.drain()


def holder(port: int, processes: Mapping[int, str]) -> str:
    """Return the name of the process that holds the local end of a TCP connection from `port`; empty if none of
    `processes` (names by their ids) does. Reads /proc, which only Linux has: elsewhere nobody is known."""
    inodes = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process, name in processes.items():
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return name
    return ""
