"""The records of queries in the metadata, which are written by compare-and-set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from pydanube.broker.registry.records import QUERIES, query_key
from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.audit_operations import note_change, note_check
from pydanube.core import staging as core
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.core.staging import QueryRecord
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import (
    Compare,
    Delete,
    KeyValue,
    MetadataStore,
    Put,
    fits_transaction,
    is_last_page,
    list_all,
)
from pydanube.model.errors import Denied, Unavailable
from pydanube.runtime.clock import Clock

LOST_COMPARISONS_MAX: Final = 20
"""After this many lost comparisons in a row the caller gets Unavailable."""

CACHED_MAX: Final = 10_000


class KnownQuery(NamedTuple):
    """A record, and the revision at which it was read, for the comparison; 0: it is not stored yet."""

    record: QueryRecord
    revision: int


class QueryRecords:
    """Reads and writes the records of queries. Other brokers may write to the same metadata."""

    def __init__(self, store: MetadataStore, registry: Registry, clock: Clock, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._registry = registry
        self._clock = clock
        self._cached: dict[str, QueryRecord] = {}
        self._names: dict[int, str] = {}
        """Names of queries by their numbers; refreshed when a number is not found."""
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def locked(self, query: str) -> AsyncIterator[None]:
        """Hold the lock of a query, so that tasks of this broker do not lose comparisons against each other."""
        lock, users = self._locks.get(query, (asyncio.Lock(), 0))
        self._locks[query] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(query)
            if users > 1:
                self._locks[query] = lock, users - 1

    async def find(self, query: str) -> KnownQuery | None:
        found = await self._store.get(query_key(query))
        return KnownQuery(unpack(found.value, QueryRecord), found.mod_revision) if found is not None else None

    async def find_number(self, number: int) -> KnownQuery | None:
        """Return the query with this number, or None."""
        if number not in self._names:
            self._names = {known.record.number: known.record.query async for known in self.all()}
        known = await self.find(self._names[number]) if number in self._names else None
        return known if known is not None and known.record.number == number else None

    def check_owner(self, principal: Principal, record: QueryRecord) -> None:
        """Raise Denied unless the query belongs to the principal, or to nobody, or the principal may administer the
        cluster."""
        if record.owner in ("", principal.owner_id):
            return
        note_check(Action.ADMINISTER, BROKER)
        if not self._authorizer.allows(principal, Action.ADMINISTER, BROKER):
            raise Denied(f"query {record.query!r} does not belong to {principal.id}: use another name")
        note_change(Action.ADMINISTER, BROKER)

    async def enter_run(self, principal: Principal, query: str, run: str) -> QueryRecord:
        """Make `run` the current run of the query, and return the record, which is durable. A query that belongs to
        nobody belongs to the principal from then on.

        Uses a cached record if it has this run. Then a run that another broker has just fenced may still store stages;
        its commit will fail.
        """
        cached = self._cached.get(query)
        if cached is not None and cached.run == run and (cached.owner or not principal.owner_id):
            self.check_owner(principal, cached)
            return cached
        async with self.locked(query):
            for _ in range(LOST_COMPARISONS_MAX):
                known = await self.find(query) or await self.new(query, run)
                self.check_owner(principal, known.record)
                record = core.with_run(known.record, run, self._clock.now_us())
                record = core.with_owner(record, principal.owner_id)
                if (known.revision and record is known.record) or await self.replace(known, record):
                    self._cache(record)
                    return record
        raise lost_comparisons(query)

    async def new(self, query: str, run: str) -> KnownQuery:
        """Return a new record, which is not stored yet."""
        number = await self._registry.new_query_number()
        return KnownQuery(QueryRecord(query, number, run, started_at=self._clock.now_us()), 0)

    async def replace(self, known: KnownQuery, record: QueryRecord, writes: Sequence[Put | Delete] = ()) -> bool:
        """Write the new record, and `writes` in the same transaction. Returns False if the record has changed
        meanwhile."""
        result = await self._store.transact(*_replacement(known, record, writes))
        if result.succeeded:
            self._cache(record)
        return result.succeeded

    def can_replace(self, known: KnownQuery, record: QueryRecord, writes: Sequence[Put | Delete]) -> bool:
        """Return whether `replace` with these arguments is within the limits of one transaction."""
        return fits_transaction(*_replacement(known, record, writes))

    async def remove(self, known: KnownQuery) -> bool:
        """Delete the record. Returns False if it has changed meanwhile.

        The caller holds the lock of the query: otherwise a concurrent STAGE could read the record that is about to be
        deleted, and cache it.
        """
        assert known.record.query in self._locks
        key = query_key(known.record.query)
        self._cached.pop(known.record.query, None)
        result = await self._store.transact([Compare.mod_revision(key, known.revision)], [Delete(key)])
        return result.succeeded

    def changed(self, query: str, record: QueryRecord | None) -> None:
        """Take over what another broker wrote, or (None) that it removed the query."""
        if record is None:
            self._cached.pop(query, None)
        elif query in self._cached:
            self._cached[query] = record

    async def page(self, after: str, count: int) -> list[QueryRecord]:
        """Return `count` records in the order of their names, from the one behind `after` on; fewer at the end."""
        start_after = query_key(after) if after else ""
        found: list[KeyValue] = []
        while len(found) < count:  # a page of the store has a limit of bytes too
            wanted = count - len(found)
            some = await self._store.list(QUERIES, start_after=start_after, limit=wanted)
            found += some
            if is_last_page(some, wanted):
                break
            start_after = some[-1].key
        return [unpack(one.value, QueryRecord) for one in found]

    async def all(self) -> AsyncIterator[KnownQuery]:
        async for one in list_all(self._store, QUERIES):
            yield KnownQuery(unpack(one.value, QueryRecord), one.mod_revision)

    def _cache(self, record: QueryRecord) -> None:
        self._cached.pop(record.query, None)
        self._cached[record.query] = record
        if len(self._cached) > CACHED_MAX:
            del self._cached[next(iter(self._cached))]


def lost_comparisons(query: str) -> Unavailable:
    return Unavailable(f"query {query!r} is changed by others all the time: try again")


def _replacement(
    known: KnownQuery, record: QueryRecord, writes: Sequence[Put | Delete]
) -> tuple[list[Compare], list[Put | Delete]]:
    """Return the transaction that replaces the known record, and makes `writes`."""
    key = query_key(record.query)
    return [Compare.mod_revision(key, known.revision)], [Put(key, pack(record)), *writes]
