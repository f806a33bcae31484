"""Several messages at once, but those of one key one after the other, in the order in which they came.

Invariants
    at most `concurrency` messages are processed at a time, and of one key at most one
    at most `WAITING_MAX` messages wait here; while there are as many, nothing more is received
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from pydanube.runtime.tasks import Tasks

T = TypeVar("T")

WAITING_MAX: Final = 1_000
"""Enough for other keys to go on while one key has many messages, and little enough to deliver again after a stop."""


class Lanes(Generic[T]):
    """Runs `process` for each item that is put, in one task for each key that has items."""

    def __init__(self, process: Callable[[T], Awaitable[None]], concurrency: int, tasks: Tasks) -> None:
        self._process = process
        self._tasks = tasks
        self._free = asyncio.Semaphore(concurrency)
        self._room = asyncio.Semaphore(WAITING_MAX)
        self._waiting: dict[Hashable, deque[T]] = {}
        """What waits for each key that is being processed."""
        self._stopping = False

    async def put(self, key: Hashable, item: T) -> None:
        """Have the item processed after those of its key. Waits while too many are processed or wait."""
        await self._room.acquire()
        waiting = self._waiting.get(key)
        if waiting is None:
            await self._free.acquire()
            waiting = self._waiting.get(key)  # only this method adds lanes: still None
            assert waiting is None
            self._waiting[key] = deque([item])
            self._tasks.spawn(self._run(key), f"lane {key!r}")
        else:
            waiting.append(item)

    def stop(self) -> None:
        """Start no more items. Those that wait are dropped; they are not acked, so the broker delivers them again."""
        self._stopping = True

    async def _run(self, key: Hashable) -> None:
        waiting = self._waiting[key]
        try:
            while waiting and not self._stopping:
                item = waiting.popleft()
                self._room.release()
                await self._process(item)
        finally:
            del self._waiting[key]
            self._free.release()
