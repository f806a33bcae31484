"""Wraps an object store so that calls that hang time out, and unexpected exceptions become errors of ours.

Invariants
    every call except `close` ends within `seconds`, plus the time its bytes take at SLOWEST_BYTES_PER_S
    nothing is deleted before `check_deletion` has allowed it
    an exception of the store that is not a DanubeError is raised as Unavailable, because a later try may succeed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.closing import Closing
from pydanube.runtime.objects import Buffer, Capabilities, ObjectInfo, ObjectStore

SLOWEST_BYTES_PER_S: Final = 256 * 1024
"""A slower store is treated as one that hangs."""


class TimeLimitedStore(Closing):
    """An object store with time limits."""

    def __init__(
        self, store: ObjectStore, seconds: float, check_deletion: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`check_deletion` is called before every deletion and raises if nothing may be deleted."""
        self._check_deletion = check_deletion
        self._store = store
        self._seconds = seconds

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        async with self._limited(f"put of {key}", sum(map(len, pieces))):
            return await self._store.put(key, data, create=create, if_match=if_match)

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        async with self._limited(f"read of {key}", 0 if end is None else end - start):
            return await self._store.get(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        async with self._limited(f"look at {key}"):
            return await self._store.head(key)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        """List objects, with the time limit for each object of the listing."""
        found = aiter(self._store.list(prefix, after))
        while True:
            async with self._limited(f"listing of {prefix}"):
                info = await anext(found, None)
            if info is None:
                return
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        if self._check_deletion is not None:
            await self._check_deletion()
        async with self._limited(f"deletion of {len(keys)} objects"):
            await self._store.delete(keys)

    async def close(self) -> None:
        await self._store.close()

    @asynccontextmanager
    async def _limited(self, what: str, size: int = 0) -> AsyncIterator[None]:
        seconds = self._seconds + size / SLOWEST_BYTES_PER_S
        try:
            async with asyncio.timeout(seconds):
                with self._explained(what):
                    yield
        except TimeoutError:
            raise Unavailable(f"{self.url}: no answer to the {what} within {seconds:.0f} s") from None

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except DanubeError:
            raise
        except Exception as error:
            raise Unavailable(f"{self.url}: the {what} failed: {type(error).__name__}: {error}") from error
