"""The records below one prefix of the metadata: in memory on every broker, changed by comparing in the store.

```
 own change ─► store ─┐
 watch, or list ──────┴─► KeyMirror ─► take(id, record)
```

Invariants
    what is in memory was stored; a change is in force on this broker when the call that made it returns
    a change that expects a version is made to that version, or not at all
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from pydanube.model.errors import AlreadyExists, Conflict, NotFound
from pydanube.runtime.clock import Clock

from .following import Follower, KeyMirror
from .packing import pack, pack_over, unpack, version_of
from .store import Compare, Delete, MetadataStore, Put
from .writes import Outrun, try_again, write_surely

Id = TypeVar("Id")
Record = TypeVar("Record", bound=msgspec.Struct)


class Stored(NamedTuple, Generic[Record]):
    """A record as it is in the store."""

    key: str
    record: Record
    value: bytes
    """Its bytes, which may have fields of a later release."""
    revision: int

    @property
    def unchanged(self) -> Compare:
        return Compare.mod_revision(self.key, self.revision)


class RecordTable(Generic[Id, Record]):
    """The records of one kind. `put` and `remove` raise Outrun when another broker was faster; what calls them here
    tries again. Cancelled: a change may be made."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        kind: type[Record],
        prefix: str,
        take: Callable[[Id, Record | None], None],
        key_of: Callable[[Id], str],
        id_of: Callable[[str], Id],
        what: Callable[[Id], str],
    ) -> None:
        """`take` is called with each record that is new or changed, and with None when one is gone. `what` returns how
        errors call a record."""
        self._store = store
        self._clock = clock
        self._kind = kind
        self._take = take
        self._key_of = key_of
        self._id_of = id_of
        self._what = what
        self.keys = KeyMirror(prefix, self._take_over)

    def follow(self, follower: Follower) -> None:
        """Learn by the follower what other brokers change."""
        self.keys.follow(follower)

    async def load(self) -> None:
        """Read everything. Raises what the store raises, and Corrupt for a record that cannot be read."""
        await self.keys.load(self._store)

    async def ask(self, record_id: Id) -> None:
        """Read a record that is not in memory, before it is said that there is none."""
        await self.keys.ask(self._store, self._key_of(record_id))

    async def refresh(self, record_id: Id) -> Stored[Record] | None:
        """Read a record from the store, and take it into memory if it is newer than what is known."""
        found = await self.keys.refresh(self._store, self._key_of(record_id))
        if found is None:
            return None
        return Stored(found.key, unpack(found.value, self._kind), found.value, found.mod_revision)

    async def exists(self, record_id: Id) -> bool:
        """Return whether there is a record, as the store says."""
        return await self.refresh(record_id) is not None

    async def read(
        self, record_id: Id, expected: str = "", missing: NotFound | None = None, what: str = ""
    ) -> Stored[Record]:
        """Return a record as it is in the store. Raises NotFound (`missing`, if it is given), and Conflict if it does
        not have the version `expected`; empty: any. `what`: how errors call it, if not as always."""
        found = await self.refresh(record_id)
        if found is None:
            raise missing or NotFound(f"there is no {self._what(record_id)}")
        check_version(found.record, expected, what or self._what(record_id))
        return found

    async def put(
        self,
        record_id: Id,
        record: Record,
        former: Stored[Record] | None,
        compares: Sequence[Compare] = (),
        writes: Sequence[Put | Delete] = (),
    ) -> Stored[Record]:
        """Store a record that is new, or in place of `former`. `compares` and `writes` are made in the same
        transaction. Raises Outrun."""
        key = self._key_of(record_id)
        value = pack(record) if former is None else pack_over(former.value, record)
        is_same = Compare.missing(key) if former is None else former.unchanged
        revision = await write_surely(self._store, self._clock, [is_same, *compares], [Put(key, value), *writes])
        await self.keys.learn_written(self._store, key, value, revision)
        return Stored(key, record, value, revision)

    async def remove(self, former: Stored[Record], writes: Sequence[Put | Delete] = ()) -> None:
        """Delete a record; see `put`."""
        revision = await write_surely(self._store, self._clock, [former.unchanged], [Delete(former.key), *writes])
        if revision:
            self.keys.learn(former.key, None, revision)
        else:
            self.keys.learn_deleted(former.key, former.revision)

    async def create(self, record_id: Id, record: Record) -> None:
        """Store a record that is new. Raises AlreadyExists."""
        try:
            await self.put(record_id, record, None)
        except Outrun:
            await self.refresh(record_id)
            raise AlreadyExists(f"{self._what(record_id)} exists") from None

    async def change(
        self,
        record_id: Id,
        change: Callable[[Record], Record],
        expected: str = "",
        missing: NotFound | None = None,
        what: str = "",
    ) -> Stored[Record]:
        """Store what `change` makes of the record as it is in the store. See `read`."""

        async def attempt() -> Stored[Record]:
            former = await self.read(record_id, expected, missing, what)
            return await self.put(record_id, change(former.record), former)

        return await try_again(attempt)

    async def set(self, record_id: Id, make: Callable[[Record | None], Record], expected: str = "") -> Stored[Record]:
        """Store what `make` makes of the record that there is, or of None."""

        async def attempt() -> Stored[Record]:
            former = await self.refresh(record_id)
            stored = None if former is None else former.record
            check_version(stored, expected, self._what(record_id))
            return await self.put(record_id, make(stored), former)

        return await try_again(attempt)

    async def delete(self, record_id: Id, expected: str = "", missing: NotFound | None = None) -> None:
        """Delete a record; see `read`."""

        async def attempt() -> None:
            await self.remove(await self.read(record_id, expected, missing))

        await try_again(attempt)

    def _take_over(self, key: str, value: bytes | None) -> None:
        self._take(self._id_of(key), None if value is None else unpack(value, self._kind))


def named_table(
    store: MetadataStore,
    clock: Clock,
    kind: type[Record],
    prefix: str,
    take: Callable[[str, Record | None], None],
    what: str,
) -> RecordTable[str, Record]:
    """Return a table of records with names: the end of the key of each. Errors call one `what 'name'`."""
    return RecordTable(
        store,
        clock,
        kind,
        prefix,
        take,
        prefix.__add__,
        lambda key: key.removeprefix(prefix),
        lambda name: f"{what} {name!r}",
    )


def check_version(record: msgspec.Struct | None, expected: str, what: str) -> None:
    """Raise Conflict if the record (None: there is none) does not have the version that the caller expects."""
    if expected and (record is None or version_of(record) != expected):
        raise Conflict(f"{what} has changed since it had version {expected[:40]!r}: read it again")
