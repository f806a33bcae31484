"""Limits the messages and bytes of a producer that are not settled yet. Callers wait for room in the order of asking.

Invariants
    messages and bytes stay within both limits, except for a single piece larger than a limit, alone
    room is taken for a waiting caller at the moment it is woken, so that no other caller can take it in between
"""

from __future__ import annotations

import asyncio
from collections import deque


class ProducerBuffer:
    """Counts unsettled messages and bytes, and keeps the callers that wait for room."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages = 0
        self.bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()

    def take_nowait(self, count: int, size: int) -> bool:
        """Take room and return True, or return False if there is none or other callers wait for it."""
        held = self.messages
        if self._waiting or (
            held and (held + count > self._messages_max or self.bytes + size > self._bytes_max)
        ):  # as _fits, without the call: this runs for every message
            return False
        self.messages = held + count
        self.bytes += size
        return True

    def force(self, count: int, size: int) -> None:
        """Take room without checking the limits, which the caller has checked."""
        self.messages += count
        self.bytes += size

    async def take(self, count: int, size: int) -> None:
        """Wait for room and take it. Cancelled, nothing is taken."""
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
                self._wake_waiting()  # there may be room for those behind it
            raise

    def release(self, count: int, size: int) -> None:
        """Give back the room of settled messages, and wake the callers for which there is room now."""
        self.messages -= count
        self.bytes -= size
        assert self.messages >= 0 and self.bytes >= 0
        self._wake_waiting()

    def _wake_waiting(self) -> None:
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
