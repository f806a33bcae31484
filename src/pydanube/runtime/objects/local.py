"""A directory as a store, safe against kill -9 and power cuts; `tree.py` says how.

All work on the disk is done by threads of the store's own. Reads are one `pread` into fresh memory, the only copy. A
memory map would save it, and would stop the event loop at the first touch of each page that is not in memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar

from pydanube.model.errors import DanubeError, Denied, Invalid, Refused, Unavailable
from pydanube.runtime.clock import Clock, SystemClock

from .address import Address, Options
from .store import Buffer, Capabilities, ObjectInfo, check_key, check_range
from .threads import Threads
from .tree import Tree, next_page

T = TypeVar("T")

THREADS: Final = 8
"""Enough to keep a disk busy; each may hold the bytes of one range."""

_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class LocalStore:
    """A directory as a store. Opened by `LocalStore.open`."""

    def __init__(self, root: Path, *, shared: bool = False, clock: Clock | None = None) -> None:
        self._url = Path(os.path.abspath(root)).as_uri()  # noqa: PTH100 - links stay as they were given
        self._tree = Tree(Path(os.path.abspath(root)), clock or SystemClock())  # noqa: PTH100
        self._shared = shared
        self._threads = Threads(THREADS, self._url)

    @classmethod
    async def open(cls, root: Path, *, shared: bool = False, clock: Clock | None = None) -> Self:
        """Make the directory if there is none, and remove what dead processes left half-written."""
        store = cls(root, shared=shared, clock=clock)
        try:
            await store._work(store._tree.open)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def url(self) -> str:
        return self._url

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(if_match=True, durable=True, shared=self._shared)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Cancelled: a thread goes on with it to its end, so the bytes must not be changed."""
        check_key(key)
        pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        return await self._work(partial(self._tree.put, key, pieces, create, if_match))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        check_key(key)
        check_range(start, end)
        return await self._work(partial(self._tree.get, key, start, end))

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return await self._work(partial(self._tree.head, key))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        found = self._tree.walk(prefix, after)
        while page := await self._work(partial(next_page, found)):
            for info in page:
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await self._work(partial(self._tree.delete, keys))

    async def close(self) -> None:
        """Waits for what threads are doing; a put that was cancelled comes to its end here."""
        await self._threads.close()
        self._tree.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _work(self, work: Callable[[], T]) -> T:
        try:
            return await self._threads.run(work)
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> DanubeError:
        reason = (error.strerror or str(error)).lower()
        if error.errno in _DENIED:
            return Denied(f"{self._url}: {reason}: {error.filename or ''}")
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            return Refused(f"{self._url}: {reason}: {error.filename or ''} is in the way")
        return Unavailable(f"{self._url}: {reason}")


async def open_local(address: Address, settings: Mapping[str, str]) -> LocalStore:
    address.expect(host=False)
    if not address.path:
        raise Invalid("a file URL names a directory: file:///var/lib/danube/objects")
    options = Options(address.scheme, settings)
    shared = options.flag("shared")
    options.done()
    return await LocalStore.open(Path("/", address.path), shared=shared)
