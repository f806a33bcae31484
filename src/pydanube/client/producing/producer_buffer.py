"""How much a producer may hold that is not yet stored: senders wait their turn, first come, first served.

Invariants
    what is held stays within both limits, except for a single piece larger than a limit, held alone
    room is taken for a waiting sender at the moment it is woken, so nobody can slip in between
"""

from __future__ import annotations

import asyncio
from collections import deque


class ProducerBuffer:
    """Messages and bytes held, and who waits to add to them."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()

    def take_nowait(self, count: int, size: int) -> bool:
        """Take room if there is some and nobody was first."""
        held = self.messages
        if self._waiting or (
            held and (held + count > self._messages_max or self.bytes + size > self._bytes_max)
        ):  # as _fits, without the call: this is on the way of every message
            return False
        self.messages = held + count
        self.bytes += size
        return True

    def force(self, count: int, size: int) -> None:
        """Take room that the caller has made sure of in its own way."""
        self.messages += count
        self.bytes += size

    async def take(self, count: int, size: int) -> None:
        """Wait for room and take it. Cancelled, it is free again."""
        if self.take_nowait(count, size):
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((woken, count, size))
        try:
            await woken
        except asyncio.CancelledError:
            if not woken.cancelled():
                self.release(count, size)
            else:
                self._let_in()  # those behind it may fit
            raise

    def release(self, count: int, size: int) -> None:
        """So much is settled; let those go on who now fit."""
        self.messages -= count
        self.bytes -= size
        assert self.messages >= 0 and self.bytes >= 0
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            woken, needed, needed_size = self._waiting[0]
            if not woken.done():
                if not self._fits(needed, needed_size):
                    return
                self.messages += needed
                self.bytes += needed_size
                woken.set_result(None)
            self._waiting.popleft()

    def _fits(self, count: int, size: int) -> bool:
        held = self.messages
        return not held or (held + count <= self._messages_max and self.bytes + size <= self._bytes_max)
