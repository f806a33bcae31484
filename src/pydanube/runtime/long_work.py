"""Long work on the event loop, done in slices so that other tasks run in between."""

from __future__ import annotations

import asyncio
from typing import Final

from .clock import Clock

SLICE_S: Final = 0.002
"""How long a slice holds the loop. With what a caller does with its result, it stays below 5 ms."""


class Slices:
    """Counts the time that one piece of work has held the loop."""

    def __init__(self, clock: Clock, slice_s: float = SLICE_S) -> None:
        self._clock = clock
        self._slice_s = slice_s
        self._began = clock.monotonic()
        self.pauses = 0
        """How often other tasks were let run."""

    @property
    def is_spent(self) -> bool:
        return self._clock.monotonic() - self._began >= self._slice_s

    async def pause(self) -> None:
        """Let other tasks run, and begin the next slice. Cancelled: nothing is held."""
        self.pauses += 1
        await asyncio.sleep(0)
        self._began = self._clock.monotonic()

    async def pause_if_spent(self) -> None:
        if self.is_spent:
            await self.pause()
