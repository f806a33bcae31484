"""Objects in the memory of this process, for tests and examples.

Each opening of `memory://` makes a new store; `memory://NAME` is the same store everywhere in the process, so that a
broker can be restarted with it. Both are lost when the process ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple

from pydanube.model.errors import AlreadyExists, NotFound, Refused
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.closing import Closing

from .object_store import Buffer, Capabilities, ObjectInfo, check_key, check_range, joined
from .store_address import StoreAddress, StoreOptions


class _Object(NamedTuple):
    data: memoryview
    info: ObjectInfo


class _Contents:
    """The objects of one store."""

    def __init__(self) -> None:
        self.objects: dict[str, _Object] = {}
        self.keys: list[str] = []
        self.puts = 0


_named: Final[dict[str, _Contents]] = {}


class MemoryStore(Closing):
    """A dictionary with the interface of a store."""

    capabilities = Capabilities(if_match=True, durable=False, shared=False)

    def __init__(self, url: str = "memory://", contents: _Contents | None = None, clock: Clock | None = None) -> None:
        self.url = url
        self._contents = contents or _Contents()
        self._clock = clock or SystemClock()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        contents = self._contents
        found = contents.objects.get(check_key(key))
        if create and found is not None:
            raise AlreadyExists(f"object {key} exists already in {self.url}")
        if if_match is not None and (found is None or found.info.etag != if_match):
            raise Refused(f"object {key} in {self.url} is not the one with etag {if_match}")
        whole = bytes(joined(data))
        contents.puts += 1
        info = ObjectInfo(key, len(whole), f"{contents.puts:x}", self._clock.now_us())
        contents.objects[key] = _Object(memoryview(whole), info)
        if found is None:
            insort(contents.keys, key)
        return info

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        check_range(start, end)
        return self._find(key).data[start:end]

    async def head(self, key: str) -> ObjectInfo:
        return self._find(key).info

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        contents = self._contents
        last = after
        at = max(bisect_left(contents.keys, prefix), bisect_right(contents.keys, after) if after else 0)
        while at < len(contents.keys) and (last := contents.keys[at]).startswith(prefix):
            yield contents.objects[last].info
            at = bisect_right(contents.keys, last)  # keys may have been put or deleted meanwhile

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self._contents.objects.pop(check_key(key), None) is not None:
                del self._contents.keys[bisect_left(self._contents.keys, key)]

    async def close(self) -> None:
        """Do nothing: the objects of a named store stay for the next opening."""

    def _find(self, key: str) -> _Object:
        found = self._contents.objects.get(check_key(key))
        if found is None:
            raise NotFound(f"object {key} is not in {self.url}")
        return found


async def open_memory(address: StoreAddress, settings: Mapping[str, str]) -> MemoryStore:
    address.expect(path=False)
    StoreOptions(address.scheme, settings).done()
    if not address.host:
        return MemoryStore()
    return MemoryStore(address.shown, _named.setdefault(address.host, _Contents()))
