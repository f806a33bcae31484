"""A client that writes HTTP/2 frames by itself, so that it can send a part of a request, or take no more of an answer
than a window."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Final, Self

END_STREAM: Final = 1

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
WINDOW: Final = 65_535
FRAME_BYTES_MAX: Final = 16_384


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: str) -> bytes:
    """The headers of a call, each as a literal without compression."""
    pairs = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "danube",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


class PartialRequest:
    """One connection with one call, whose request is announced with `size` bytes and sent but for its last byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
        self._reader = reader
        self._writer = writer
        self._left = size + 5 - 1
        self._prefix = b"\x00" + struct.pack(">I", size)
        self._connection_window = self._stream_window = self._initial_window = WINDOW
        self.sent = 0
        self.answer = b""
        """The headers or the reset with which the server ended the call."""
        self._task = asyncio.ensure_future(self._run())

    @classmethod
    async def open(cls, address: str, path: str, size: int) -> Self:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 4, 1, headers(path)))
        return cls(reader, writer, size)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError, OSError, asyncio.IncompleteReadError):
            await self._task
        self._writer.transport.abort()

    async def _run(self) -> None:
        while True:
            while not self.answer and (room := min(self._connection_window, self._stream_window, self._left)) > 0:
                self._send(min(room, FRAME_BYTES_MAX))
            await self._writer.drain()
            await self._receive()

    def _send(self, size: int) -> None:
        payload = (self._prefix + bytes(size))[:size] if not self.sent else bytes(size)
        self._writer.write(frame(DATA, 0, 1, payload))
        self.sent += size
        self._left -= size
        self._connection_window -= size
        self._stream_window -= size

    async def _receive(self) -> None:
        head = await self._reader.readexactly(9)
        payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        if kind == WINDOW_UPDATE and stream:
            self._stream_window += int.from_bytes(payload, "big")
        elif kind == WINDOW_UPDATE:
            self._connection_window += int.from_bytes(payload, "big")
        elif kind == SETTINGS and not flags & 1:
            for at in range(0, len(payload), 6):
                if payload[at : at + 2] == b"\x00\x04":
                    window = int.from_bytes(payload[at + 2 : at + 6], "big")
                    self._stream_window += window - self._initial_window
                    self._initial_window = window
            self._writer.write(frame(SETTINGS, 1, 0, b""))
        elif kind == PING and not flags & 1:
            self._writer.write(frame(PING, 1, 0, payload))
        elif kind in (HEADERS, RESET, GOAWAY):
            self.answer = self.answer or payload


class UnreadStream:
    """One connection with one call, whose request is whole, and which never allows more than the first window of the
    answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.received = 0
        """Bytes of the answer."""
        self._task = asyncio.ensure_future(self._run())

    @classmethod
    async def open(cls, address: str, path: str, request: bytes, source: str = "127.0.0.1") -> Self:
        """`source` is the address that the connection comes from."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
        message = b"\x00" + struct.pack(">I", len(request)) + request
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 4, 1, headers(path)))
        writer.write(frame(DATA, END_STREAM, 1, message))
        return cls(reader, writer)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        self._writer.transport.abort()

    async def _run(self) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):  # the server has ended the connection
            await self._receive()

    async def _receive(self) -> None:
        while True:
            head = await self._reader.readexactly(9)
            payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == DATA:
                self.received += len(payload)
            elif head[3] in (SETTINGS, PING) and not head[4] & 1:
                self._writer.write(frame(head[3], 1, 0, payload if head[3] == PING else b""))
