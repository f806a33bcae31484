"""The interface of an object store: named, immutable bytes that can be put, read in ranges, listed and deleted.

The interface is small, and every store passes the same conformance suite. The broker needs only the minimum:
create-only puts, range reads, listing in order of keys, and that an object is visible to all readers once its put has
returned. What a store can do beyond that is in its `Capabilities`.

Keys are text of the characters A-Z a-z 0-9 - _ . = and /, at most 512 of them, without empty, `.` or `..` parts.

Errors: NotFound for a missing key, AlreadyExists for a create-only put of an existing key, Refused for a put whose
`if_match` does not match any more, Denied and Unauthenticated when the store reports so, Unavailable for everything
that may work later. A put that failed with Unavailable may have happened: a caller that repeats it with `create` and
gets AlreadyExists must compare the stored object. `create` and `if_match` are never given together.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeAlias

from pydanube.model.errors import Invalid

KEY_CHARACTERS_MAX: Final = 512
_KEY: Final = re.compile(r"[A-Za-z0-9\-_.=]+(/[A-Za-z0-9\-_.=]+)*")

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object without its bytes. `etag` changes whenever the bytes do."""

    key: str
    size: int
    etag: str
    modified_us: int
    """When it was put, by the store's clock. If the store does not answer a put with the time, by the local clock."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store can do beyond the minimum."""

    if_match: bool = False
    """A put can require that the stored object still has a given etag."""
    durable: bool = True
    """Objects survive the end of the process that stores them."""
    shared: bool = True
    """Other processes and machines see the same objects."""


class ObjectStore(Protocol):
    """One store, or one prefix of a store. Opened by `open_store`; the caller closes it."""

    @property
    def url(self) -> str:
        """The URL without credentials: it may be shown and logged."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store these bytes (pieces are joined), atomically. With `create`, only if the key does not exist. When
        cancelled, the object may be stored or not."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Return the bytes [start, end) of an object; fewer if the object ends before `end`."""

    async def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix` and come after `after`, in the order of their keys."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects. A missing key is no error."""

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def check_key(key: str) -> str:
    """Return the key, or raise Invalid."""
    if len(key) > KEY_CHARACTERS_MAX or not _KEY.fullmatch(key) or any(part in (".", "..") for part in key.split("/")):
        raise Invalid(f"object key {key[:80]!r} is not valid: use A-Z a-z 0-9 - _ . = and / between non-empty parts")
    return key


def check_range(start: int, end: int | None) -> None:
    """Raise Invalid if [start, end) is no range."""
    if start < 0 or (end is not None and end < start):
        raise Invalid(f"[{start}, {end}) is no range of bytes: 0 <= start <= end")


def joined(data: Buffer | Sequence[Buffer]) -> Buffer:
    """Return the data in one piece."""
    return data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
