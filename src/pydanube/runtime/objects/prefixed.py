"""A store within another store: every key gets the same prefix, which callers do not see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from pydanube.model.errors import Invalid
from pydanube.runtime.closing import Closing

from .object_store import KEY_CHARACTERS_MAX, Buffer, Capabilities, ObjectInfo, ObjectStore, check_key


class Prefixed(Closing):
    """The objects with one prefix of a store, as a store. Closing it closes the underlying store."""

    def __init__(self, store: ObjectStore, prefix: str, url: str | None = None) -> None:
        """`prefix` is a path without a slash at its end."""
        self._store = store
        self._prefix = check_key(prefix) + "/"
        self.url = url or f"{store.url.rstrip('/')}/{prefix}"

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        return self._without_prefix(
            await self._store.put(self._with_prefix(key), data, create=create, if_match=if_match)
        )

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        return await self._store.get(self._with_prefix(key), start, end)

    async def head(self, key: str) -> ObjectInfo:
        return self._without_prefix(await self._store.head(self._with_prefix(key)))

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self._store.list(self._prefix + prefix, self._prefix + after if after else ""):
            yield self._without_prefix(info)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._store.delete([self._with_prefix(key) for key in keys])

    async def close(self) -> None:
        await self._store.close()

    def _with_prefix(self, key: str) -> str:
        whole = self._prefix + check_key(key)
        if len(whole) > KEY_CHARACTERS_MAX:
            raise Invalid(f"object key {key[:80]!r} is too long with the prefix of {self.url}")
        return whole

    def _without_prefix(self, info: ObjectInfo) -> ObjectInfo:
        assert info.key.startswith(self._prefix)
        return replace(info, key=info.key[len(self._prefix) :])
