"""The HTTP port for health: connections that say nothing leave descriptors for the service."""

from __future__ import annotations

import asyncio

from pydanube.app.health import CONNECTIONS_MAX, health_listener
from waiting import until


async def _answer(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_connections_past_the_limit_are_closed_and_later_ones_are_served() -> None:
    async with health_listener("127.0.0.1", 0, lambda: True, str) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        assert await _answer(port) == b""
        assert not any(reader.at_eof() for reader, _ in silent)
        for _, writer in silent:
            writer.close()

        async def is_served() -> bool:
            return (await _answer(port)).startswith(b"HTTP/1.1 200 ")

        await until(is_served)
