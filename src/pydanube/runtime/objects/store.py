"""An object store: named, immutable bytes that can be put, read in ranges, listed and deleted.

The interface is small on purpose, and every store passes the same conformance suite. What a store can do beyond the
minimum it declares in its `Capabilities`; the broker needs the minimum: create-only puts, range reads, listing in order
of keys, and that what was put is there for everybody once the put has returned.

Keys are text of the characters A-Z a-z 0-9 - _ . = and /, at most 512 of them, without empty, `.` or `..` parts.

Errors: NotFound for a key that is not there, AlreadyExists for a create-only put that lost, Refused for a put whose
`if_match` does not match any more, Denied and Unauthenticated where the store says so, Unavailable for everything that
may work later. A put that failed with Unavailable may have happened all the same: whoever repeats it create-only and
gets AlreadyExists looks at what is there. `create` and `if_match` are never given together.
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
    """When it was put, by the store's clock; in the answer to a put, where the store does not tell, by ours."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store does beyond the minimum."""

    if_match: bool = False
    """A put can ask that the object is still the one with this etag."""
    durable: bool = True
    """What was put outlives the process that holds it."""
    shared: bool = True
    """Other processes and machines see the same objects."""


class ObjectStore(Protocol):
    """One store, or one prefix of it. Opened by `open_store`; closed by whoever opened it."""

    @property
    def url(self) -> str:
        """Where it is, without credentials: it may be shown and logged."""

    @property
    def capabilities(self) -> Capabilities: ...

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        """Store these bytes (pieces are joined), whole or not at all. With `create`, only where there is nothing.
        Cancelled: it is there, or not."""

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        """Bytes [start, end) of an object; less where it ends before."""

    async def head(self, key: str) -> ObjectInfo: ...

    def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose keys begin with `prefix`, in the order of their keys, from the first one after `after`."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Gone on return. A key that is not there is no error."""

    async def close(self) -> None: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...


def check_key(key: str) -> str:
    """The key, or Invalid."""
    if len(key) > KEY_CHARACTERS_MAX or not _KEY.fullmatch(key) or any(part in (".", "..") for part in key.split("/")):
        raise Invalid(f"object key {key[:80]!r} is not valid: use A-Z a-z 0-9 - _ . = and / between non-empty parts")
    return key


def check_range(start: int, end: int | None) -> None:
    """Invalid where [start, end) is no range."""
    if start < 0 or (end is not None and end < start):
        raise Invalid(f"[{start}, {end}) is no range of bytes: 0 <= start <= end")


def joined(data: Buffer | Sequence[Buffer]) -> Buffer:
    """One piece of bytes."""
    return data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
