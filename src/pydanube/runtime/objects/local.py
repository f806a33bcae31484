"""A directory as a store, safe against kill -9 and power cuts; `tree.py` says how.

A directory that cannot be written when the store is opened (its disk is read-only, full or not mounted) is no error: as
with a store behind a network, reads are tried, writes fail, and each write tries to open the directory again.

All disk operations are done by the store's own threads. A read is one `pread` into new memory, the only copy. A memory
map would avoid the copy, but would block the event loop at the first access to each page that is not in memory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final, Self, TypeVar

from pydanube.model.errors import DanubeError, Denied, Invalid, Refused, Unavailable
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.closing import Closing
from pydanube.runtime.telemetry import get_logger

from .object_store import Buffer, Capabilities, ObjectInfo, check_key, check_range
from .store_address import StoreAddress, StoreOptions
from .threads import Threads
from .tree import Tree, next_page

log = get_logger(__name__)

T = TypeVar("T")

THREADS: Final = 8
"""Enough to keep a disk busy; each may hold the bytes of one range."""

_DENIED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class LocalStore(Closing):
    """A directory as a store. Opened by `LocalStore.open`."""

    def __init__(self, root: Path, *, shared: bool = False, clock: Clock | None = None) -> None:
        self.url = Path(os.path.abspath(root)).as_uri()  # noqa: PTH100 - links stay as they were given
        self._tree = Tree(Path(os.path.abspath(root)), clock or SystemClock())  # noqa: PTH100
        self._shared = shared
        self._threads = Threads(THREADS, self.url)
        self._opening = Lock()

    @classmethod
    async def open(cls, root: Path, *, shared: bool = False, clock: Clock | None = None) -> Self:
        """Create the directory if needed, and remove the temporary files of processes that have ended.

        Raises Refused if the path is no directory. A directory that cannot be written now is opened by a later write.
        """
        store = cls(root, shared=shared, clock=clock)
        try:
            await store._write(lambda: None)
        except (Denied, Unavailable) as error:
            log.warning("store.not_writable", store=store.url, error=error.message)
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(if_match=True, durable=True, shared=self._shared)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """See `ObjectStore.put`. When cancelled, a thread still finishes the put, so the bytes must not be changed."""
        check_key(key)
        pieces = [data] if isinstance(data, bytes | bytearray | memoryview) else data
        return await self._write(partial(self._tree.put, key, pieces, create, if_match))

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        check_key(key)
        check_range(start, end)
        return await self._run(partial(self._with_directory, partial(self._tree.get, key, start, end)))

    async def head(self, key: str) -> ObjectInfo:
        check_key(key)
        return await self._run(partial(self._with_directory, partial(self._tree.head, key)))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        found = self._tree.walk(prefix, after)
        while page := await self._run(partial(self._with_directory, partial(next_page, found))):
            for info in page:
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        await self._write(partial(self._tree.delete, keys))

    async def is_there(self) -> bool:
        """Return whether there is anything at the path of the directory. Raises Denied if that cannot be seen."""

        def look() -> bool:
            try:
                self._tree.root.stat()
            except FileNotFoundError:
                return False
            return True

        return await self._run(look)

    async def close(self) -> None:
        """Wait for the threads; a put that was cancelled is finished here."""
        await self._threads.close()
        self._tree.close()

    async def _write(self, work: Callable[[], T]) -> T:
        return await self._run(partial(self._with_open_tree, work))

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._threads.run(work)
        except OSError as error:
            raise self._explained(error) from error

    def _with_open_tree(self, work: Callable[[], T]) -> T:
        """Open the directory if that was not possible before, then call `work`. Runs in a thread."""
        if not self._tree.is_open:
            with self._opening:
                if not self._tree.is_open:
                    self._tree.open()
        return work()

    def _with_directory(self, work: Callable[[], T]) -> T:
        """Call `work`; if the directory is missing, try to open it first, so that an object in a directory that is not
        mounted is Unavailable and not NotFound. Runs in a thread."""
        if not self._tree.is_open and not self._tree.root.is_dir():
            return self._with_open_tree(work)
        return work()

    def _explained(self, error: OSError) -> DanubeError:
        reason = (error.strerror or str(error)).lower()
        if error.errno in _DENIED:
            return Denied(f"{self.url}: {reason}: {error.filename or ''}")
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            return Refused(f"{self.url}: {reason}: {error.filename or ''} is in the way")
        return Unavailable(f"{self.url}: {reason}")


async def open_local(address: StoreAddress, settings: Mapping[str, str]) -> LocalStore:
    return await LocalStore.open(_root(address), shared=_is_shared(address, settings))


async def peek_local(address: StoreAddress, settings: Mapping[str, str]) -> LocalStore | None:
    """Return the store for reading: nothing is created or locked unless it is written to. None if nothing is there."""
    store = LocalStore(_root(address), shared=_is_shared(address, settings))
    try:
        if await store.is_there():
            return store
    except BaseException:
        await store.close()
        raise
    await store.close()
    return None


def _root(address: StoreAddress) -> Path:
    address.expect(host=False)
    if not address.path:
        raise Invalid("a file URL names a directory: file:///var/lib/danube/objects")
    return Path("/", address.path)


def _is_shared(address: StoreAddress, settings: Mapping[str, str]) -> bool:
    options = StoreOptions(address.scheme, settings)
    shared = options.flag("shared")
    options.done()
    return shared
