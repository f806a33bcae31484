"""A lock that some holders may share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedLock:
    """`async with lock:` holds it alone, `async with lock.shared():` beside others that share it.

    Whoever asks first gets it first: a holder that wants it alone is not overtaken by later ones that would share it.
    """

    def __init__(self) -> None:
        self._entrance = asyncio.Lock()
        self._sharing = 0
        self._unshared = asyncio.Event()
        self._unshared.set()

    async def __aenter__(self) -> None:
        await self._entrance.acquire()
        try:
            await self._unshared.wait()
        except BaseException:
            self._entrance.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._entrance.release()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        async with self._entrance:
            self._sharing += 1
            self._unshared.clear()
        try:
            yield
        finally:
            self._sharing -= 1
            if self._sharing == 0:
                self._unshared.set()
