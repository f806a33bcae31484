"""The records of queries: read from the metadata, written by comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from pydanube.broker.registry.records import QUERIES, pack, query_key, unpack
from pydanube.broker.registry.registry import Registry
from pydanube.core import staging as core
from pydanube.core.staging import QueryRecord
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, list_all
from pydanube.model.errors import Unavailable
from pydanube.runtime.clock import Clock

LOST_COMPARISONS_MAX: Final = 20
"""Somebody else changed the query's record so often in a row: the caller is to come back."""

CACHED_MAX: Final = 10_000


class KnownQuery(NamedTuple):
    """A record and the revision that whoever replaces it compares; 0: there is none yet."""

    record: QueryRecord
    revision: int


class QueryRecords:
    """One for each broker. Others may write to the same metadata."""

    def __init__(self, store: MetadataStore, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        self._cached: dict[str, QueryRecord] = {}
        self._names: dict[int, str] = {}
        """Queries by their numbers, as far as somebody asked."""
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def alone_with(self, query: str) -> AsyncIterator[None]:
        """One change of a query at a time within this broker: comparisons that it would lose to itself are saved."""
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
        """The query with this number; None: there is none any more, or none yet."""
        if number not in self._names:
            self._names = {known.record.number: known.record.query async for known in self.all()}
        known = await self.find(self._names[number]) if number in self._names else None
        return known if known is not None and known.record.number == number else None

    async def entered(self, query: str, run: str) -> QueryRecord:
        """The query under this run, whose record is durable. Usually without a look at the metadata: a run that was
        fenced a moment ago by another broker stages in vain, and hears of it at its commit."""
        cached = self._cached.get(query)
        if cached is not None and cached.run == run:
            return cached
        async with self.alone_with(query):
            for _ in range(LOST_COMPARISONS_MAX):
                known = await self.find(query) or await self.new(query, run)
                record = core.entered(known.record, run, self._clock.now_us())
                if (known.revision and record is known.record) or await self.replace(known, record):
                    self._cache(record)
                    return record
        raise lost_comparisons(query)

    async def new(self, query: str, run: str) -> KnownQuery:
        """A record that is nowhere yet."""
        number = await self._registry.new_query_number()
        return KnownQuery(QueryRecord(query, number, run, started_at=self._clock.now_us()), 0)

    async def replace(self, known: KnownQuery, record: QueryRecord, writes: Sequence[Put | Delete] = ()) -> bool:
        """Write the new record, and `writes` with it, unless the known one is no longer what stands there."""
        key = query_key(record.query)
        compare = Compare.mod_revision(key, known.revision)
        result = await self._store.transact([compare], [Put(key, pack(record)), *writes])
        if result.succeeded:
            self._cache(record)
        return result.succeeded

    async def remove(self, known: KnownQuery) -> bool:
        """Unless it was changed. For whoever is alone with the query: a STAGE that came in between would read what is
        about to go, and keep it in mind for ever."""
        assert known.record.query in self._locks
        key = query_key(known.record.query)
        self._cached.pop(known.record.query, None)
        result = await self._store.transact([Compare.mod_revision(key, known.revision)], [Delete(key)])
        return result.succeeded

    async def page(self, after: str, count: int) -> list[QueryRecord]:
        start_after = query_key(after) if after else ""
        found = await self._store.list(QUERIES, start_after=start_after, limit=count)
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
