"""Limits the memory of large messages that are being sent to HTTP clients, which may read them slowly or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from pydanube.model.limits import KIB

PIECE_BYTES: Final = 64 * KIB
"""What is sent to one client at a time, and the size above which a message is large."""


class ClientConnection(Protocol):
    """What is known of how fast a client reads."""

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def is_writable(self) -> bool: ...

    async def until_writable(self) -> None: ...


class LargeMessages:
    """Counts large messages; those beyond the limit wait, in the order in which they came."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def sending(self, size_bytes: int) -> AsyncIterator[None]:
        """Wait for memory, and have it as long as the block runs. One message at a time is always accepted."""
        if size_bytes <= PIECE_BYTES:
            yield
            return
        if self._waiting or not self._fits(size_bytes):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size_bytes, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(size_bytes)
                raise
        else:
            self._used_bytes += size_bytes
        try:
            yield
        finally:
            self._give_back(size_bytes)

    def is_free(self, size_bytes: int) -> bool:
        """Return whether there is memory for a message of this size without waiting."""
        return size_bytes <= PIECE_BYTES or (not self._waiting and self._fits(size_bytes))

    def _fits(self, size_bytes: int) -> bool:
        return not self._used_bytes or self._used_bytes + size_bytes <= self._limit_bytes

    def _give_back(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._used_bytes += size
                turn.set_result(None)
