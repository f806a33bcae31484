"""Reads one small document over HTTP, with what Python has: for clients that know a broker only by its HTTP address."""

from __future__ import annotations

import asyncio
import http.client
import io
import ssl
from typing import Final, NamedTuple

from pydanube.model.addresses import host_port

READ_BYTES: Final = 64 * 1024
_BEGINNING: Final = b"HTTP/"


class HttpAnswer(NamedTuple):
    status: int
    body: bytes


class NotHttp(Exception):
    """The server answered in another protocol, or with more than is accepted."""


async def http_get(
    host: str, port: int, path: str, bytes_max: int, token: str = "", tls: ssl.SSLContext | None = None
) -> HttpAnswer:
    """Return the answer of a server to GET, with `tls` over an encrypted connection. Redirects are not followed.
    `token`: sent as a bearer token, unless empty.

    Raises ssl.SSLError if the server speaks no TLS or its certificate is not accepted, OSError if it
    cannot be reached, and NotHttp if it does not speak HTTP, or sends more than `bytes_max`.
    Cancelled, the connection is closed.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    try:
        credentials = f"Authorization: Bearer {token}\r\n" if token else ""
        head = (
            f"GET {path} HTTP/1.1\r\nHost: {host_port(host, port)}\r\nAccept: application/json\r\n"
            f"{credentials}Connection: close\r\n\r\n"
        )
        writer.write(head.encode("ascii", "replace"))
        received = bytearray()
        while part := await reader.read(READ_BYTES):
            received += part
            if not received.startswith(_BEGINNING[: len(received)]):
                break  # another protocol, whose server may wait for more
            if len(received) > bytes_max:
                raise NotHttp(f"it sends more than {bytes_max} bytes")
    finally:
        writer.transport.abort()
    return _parse(bytes(received))


class _Received:
    """What `http.client` needs of a socket: a file with the bytes that were received."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def _parse(received: bytes) -> HttpAnswer:
    response = http.client.HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
        return HttpAnswer(response.status, response.read())
    except (http.client.HTTPException, ValueError) as error:
        line = received[:40].partition(b"\r\n")[0].decode("ascii", "replace")
        shown = f" ({line!r})" if line.isprintable() and "\ufffd" not in line else ""
        raise NotHttp(f"it does not speak HTTP{shown}") from error
