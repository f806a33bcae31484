"""Waits that end early, on a clock that is passed in: for an event, or for something that is decided meanwhile; and a
lock with shared and exclusive holders.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from .clock import Clock


async def wait_at_most(event: asyncio.Event, seconds: float, clock: Clock) -> None:
    """Return when the event is set, at the latest after `seconds`. Cancelled: nothing is left behind."""
    await _first(asyncio.create_task(event.wait()), asyncio.create_task(clock.sleep(seconds)))


class Signal:
    """Wakes tasks when something has changed. It holds no state: a task checks its condition before it waits."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def wake(self) -> None:
        """End every wait that has no condition, or a condition that is true now."""
        for woken, condition in self._waiting.items():
            if not woken.done() and condition():
                woken.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next `wake`, at the latest after `seconds`. Cancelled: nothing is left behind."""
        with self._waits(lambda: True) as woken, suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await woken

    async def wait_for(self, condition: Callable[[], bool], seconds: float, clock: Clock) -> None:
        """Return if the condition is true, or as soon as `wake` finds it true, at the latest after `seconds` of this
        clock. Cancelled: nothing is left behind."""
        if condition():
            return
        with self._waits(condition) as woken:
            await _first(woken, asyncio.create_task(clock.sleep(seconds)))

    @contextmanager
    def _waits(self, condition: Callable[[], bool]) -> Iterator[asyncio.Future[None]]:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = condition
        try:
            yield woken
        finally:
            del self._waiting[woken]


async def _first(*waits: asyncio.Future[Any]) -> None:
    """Wait until one of these is done, and cancel the others."""
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waits:
            one.cancel()


class SharedLock:
    """`async with lock:` holds the lock exclusively, `async with lock.shared():` together with other shared holders.

    The lock is fair: an exclusive request is not overtaken by later shared requests.
    """

    def __init__(self) -> None:
        self._queue = asyncio.Lock()
        self._sharing = 0
        self._unshared = asyncio.Event()
        self._unshared.set()

    async def __aenter__(self) -> None:
        await self._queue.acquire()
        try:
            await self._unshared.wait()
        except BaseException:
            self._queue.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._queue.release()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._queue:
            self._sharing += 1
            self._unshared.clear()
        try:
            yield
        finally:
            self._sharing -= 1
            if self._sharing == 0:
                self._unshared.set()
