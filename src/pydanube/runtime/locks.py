"""A lock with shared and exclusive holders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
