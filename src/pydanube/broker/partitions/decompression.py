"""Bounds the decompression that is done in one turn of the event loop, over all producers and listeners.

A compressed batch is decompressed on the event loop to be checked (docs/adr/0005). The cost depends on its uncompressed
size, which can be thousands of times what arrived. So each turn of the loop has a budget of uncompressed bytes. When it
is used up, further batches wait in a queue, and the loop does its other work before the next turn.

Invariants
    batches are decompressed in the order in which they were handed in
    one turn decompresses at most TURN_BYTES, plus the batch that exceeds them
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from pydanube.model.limits import MIB

TURN_BYTES: Final = 4 * MIB
"""The budget of one turn: some milliseconds of work."""


class DecompressionBudget:
    """Counts the uncompressed bytes of this turn of the loop, and keeps the batches that wait for the next."""

    def __init__(self) -> None:
        self._left = TURN_BYTES
        self._next: asyncio.Handle | None = None
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def take(self, plain_bytes: int) -> bool:
        """Return whether a batch of this uncompressed size may be decompressed now; if so, the size is counted."""
        if self._left <= 0 or self._waiting:
            return False
        self._spend(plain_bytes)
        return True

    def wait(self, plain_bytes: int, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn, when its batch may be decompressed. `go_on` must not raise."""
        self._waiting.append((plain_bytes, go_on))
        self._plan_next()

    async def turn(self, plain_bytes: int) -> None:
        """Wait until a batch of this uncompressed size may be decompressed. Cancelled: its share of a turn stays
        unused."""
        if not self.take(plain_bytes):
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait(plain_bytes, lambda: None if ready.done() else ready.set_result(None))
            await ready

    def _spend(self, plain_bytes: int) -> None:
        self._left -= plain_bytes
        self._plan_next()

    def _plan_next(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._next = None
        self._left = TURN_BYTES
        while self._waiting and self._left > 0:
            plain_bytes, go_on = self._waiting.popleft()
            self._spend(plain_bytes)
            go_on()
