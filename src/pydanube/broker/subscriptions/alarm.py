"""One moment in the future at which something is looked at again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pydanube.model.errors import Unavailable
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import Tasks

SLEEP_S_MAX: Final = 30.0
"""The wall clock may jump while somebody waits for a time of day."""


class Timer:
    """Rings once for the earliest time it was set to, or a little before: whoever hears it looks at the clock."""

    __slots__ = ("_at_us", "_clock", "_name", "_ring", "_tasks", "_waiting")

    def __init__(self, clock: Clock, tasks: Tasks, ring: Callable[[], None], name: str) -> None:
        self._clock = clock
        self._tasks = tasks
        self._ring = ring
        self._name = name
        self._at_us = 0
        self._waiting: asyncio.Task[None] | None = None

    def set(self, at_us: int | None) -> None:
        """Ring at this time, not at the one that was set before. None: not at all."""
        if self._waiting is not None:
            if at_us == self._at_us:
                return
            self._waiting.cancel()
            self._waiting = None
        if at_us is not None:
            self._at_us = at_us
            try:
                self._waiting = self._tasks.spawn(self._wait(at_us), self._name)
            except Unavailable:
                return  # the broker ends: nobody will hear it

    async def _wait(self, at_us: int) -> None:
        await self._clock.sleep(min(SLEEP_S_MAX, max(0, at_us - self._clock.now_us()) / MICROSECONDS))
        self._waiting = None
        self._ring()
