"""The records of queries in the metadata, which are written by compare-and-set."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from pydanube.broker.registry.records import QUERIES, query_key, query_name_key
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
from pydanube.model.errors import Denied, Full, Refused, Unavailable
from pydanube.model.levels import STAGED_NAMESPACES
from pydanube.model.limits import STAGED_QUERIES_MAX
from pydanube.model.staging import check_query
from pydanube.runtime.budget import fits_share
from pydanube.runtime.cache import Cache
from pydanube.runtime.clock import Clock

LOST_COMPARISONS_MAX: Final = 20
"""After this many lost comparisons in a row the caller gets Unavailable."""

CACHED_MAX: Final = 10_000

RECOUNT_S: Final = 10.0
"""Queries are counted anew for a limit after this time: other brokers make and remove them too."""

_OWNER: Final = "\n"
"""Stands in the token of a page between the name of a query and its principal."""


class KnownQuery(NamedTuple):
    """A record and its key, and the revision at which it was read, for the comparison; 0: it is not stored yet."""

    key: str
    record: QueryRecord
    revision: int

    @property
    def page_token(self) -> str:
        """Return what asks for the page behind this query: its name, where that is all of its key."""
        name, owner = self.record.query, self.record.owner
        return name if self.key == query_key(name) else f"{name}{_OWNER}{owner}"


class _Counts:
    """How many queries there are in all, of each principal, and in each namespace."""

    def __init__(self, counted_at: float) -> None:
        self.counted_at = counted_at
        self.total = 0
        self.of_owner: Counter[str] = Counter()
        self.in_namespace: Counter[str] = Counter()

    def add(self, record: QueryRecord, change: int = 1) -> None:
        self.total += change
        self.of_owner[record.owner] += change
        self.in_namespace[record.namespace] += change


class QueryRecords:
    """Reads and writes the records of queries. Other brokers may write to the same metadata.

    The name of a query belongs to its principal: two principals that use one name have two queries, except in one
    namespace, where the second is refused. It would else begin anew for a caller that has other credentials by now, and
    publish its last batch twice.
    """

    def __init__(self, store: MetadataStore, registry: Registry, clock: Clock, authorizer: Authorizer) -> None:
        self._store = store
        self._authorizer = authorizer
        self._registry = registry
        self._clock = clock
        self._cached: Cache[str, QueryRecord] = Cache(CACHED_MAX)
        """By key."""
        self._keys: dict[int, str] = {}
        """Keys of queries by their numbers; refreshed when a number is not found."""
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._counts: _Counts | None = None
        self._counting = asyncio.Lock()

    @property
    def _has_namespaces(self) -> bool:
        return self._registry.level.has(STAGED_NAMESPACES)

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

    async def find(self, principal: Principal, query: str) -> KnownQuery | None:
        """Return the query that the principal means by a name: its own, or one that belongs to nobody.

        For a principal that may administer the cluster it is the query of another, if that is the only one of the name.
        Raises Refused if there are several.
        """
        for key in _keys_of(principal, query):
            known = await self._get(key)
            if known is not None and known.record.owner in ("", principal.owner_id):
                return known
        if not self._authorizer.allows(principal, Action.ADMINISTER, BROKER):
            return None
        others = await self._all_of(query)
        if len(others) > 1:
            names = ", ".join(one.record.owner or "nobody" for one in others)
            raise Refused(
                f"{len(others)} queries have the name {query!r}, of {names}: use another name; to forget one, name its "
                f"principal (--owner)"
            )
        for _ in others:
            note_check(Action.ADMINISTER, BROKER)
            note_change(Action.ADMINISTER, BROKER)
        return others[0] if others else None

    async def find_of(self, owner: str, query: str) -> KnownQuery | None:
        """Return the query of this name that belongs to a principal, which is written `type:name`, or None."""
        return next((one for one in await self._all_of(query) if one.record.owner == owner), None)

    async def find_number(self, number: int) -> KnownQuery | None:
        """Return the query with this number, or None."""
        if number not in self._keys:
            self._keys = {known.record.number: known.key async for known in self.all()}
        known = await self._get(self._keys[number]) if number in self._keys else None
        return known if known is not None and known.record.number == number else None

    async def _get(self, key: str) -> KnownQuery | None:
        found = await self._store.get(key)
        return _known(found) if found is not None else None

    async def _all_of(self, query: str) -> list[KnownQuery]:
        """Return all queries of this name."""
        shared = await self._get(query_key(query))
        others = [_known(one) async for one in list_all(self._store, f"{query_key(query)}/")]
        return others if shared is None else [shared, *others]

    async def enter_run(self, principal: Principal, query: str, run: str, namespace: str) -> QueryRecord:
        """Make `run` the current run of the query, and return the record, which is durable. A query that belongs to
        nobody belongs to the principal from then on, and one without a namespace to `namespace`.

        Uses a cached record if it has this run. Then a run that another broker has just fenced may still store stages;
        its commit will fail.
        """
        for key in _keys_of(principal, query):
            cached = self._cached.get(key)
            is_current = cached is not None and (cached.run, cached.owner) == (run, principal.owner_id)
            if cached is not None and is_current and (cached.namespace or not self._has_namespaces):
                return cached
        async with self.locked(query):
            for _ in range(LOST_COMPARISONS_MAX):
                known = await self.find(principal, query) or await self.new(principal, query, run, namespace)
                record = core.with_run(known.record, run, self._clock.now_us())
                record = core.with_owner(record, principal.owner_id)
                if self._has_namespaces and not await self._is_reserved(namespace, query):
                    record = core.with_namespace(record, namespace)
                if (known.revision and record is known.record) or await self.replace(known, record):
                    self._cached.put(known.key, record)
                    return record
        raise lost_comparisons(query)

    async def new(self, principal: Principal, query: str, run: str, namespace: str) -> KnownQuery:
        """Return a new record, which is not stored yet, for a principal that has no query of this name.

        Raises Denied if another principal has the name where it counts, and Full if there are too many queries.
        """
        owner = principal.owner_id
        if await self._is_taken(owner, query, namespace):
            note_check(Action.ADMINISTER, BROKER)
            place = f" of namespace {namespace!r}" if namespace else ""
            raise Denied(f"query {query!r}{place} belongs to another principal than {principal.id}: use another name")
        await self._check_room(principal, namespace)
        number = await self._registry.new_query_number()
        record = QueryRecord(query, number, run, started_at=self._clock.now_us(), owner=owner)
        if not self._has_namespaces:
            return KnownQuery(query_key(query), record, 0)
        return KnownQuery(query_key(query, owner), core.with_namespace(record, namespace), 0)

    async def _is_taken(self, owner: str, query: str, namespace: str) -> bool:
        """Return whether another principal has the name in the namespace. A query of an earlier release has it
        everywhere, until it stages again: its namespace is not known before."""
        shared = await self._get(query_key(query))
        if shared is not None and not (owner and self._has_namespaces and shared.record.namespace):
            return True
        return self._has_namespaces and await self._is_reserved(namespace, query)

    async def _is_reserved(self, namespace: str, query: str) -> bool:
        return bool(namespace) and await self._store.get(query_name_key(namespace, query)) is not None

    async def _check_room(self, principal: Principal, namespace: str) -> None:
        """Raise Full unless there may be one more query, of this principal and in this namespace."""
        counts = await self._current_counts()
        free = STAGED_QUERIES_MAX - counts.total
        if free <= 0:
            raise Full(
                f"there are {counts.total} staged queries, which is the most: forget those that are over (`danube "
                f"queries list`), or give streams that start anew the checkpoint of before"
            )
        own = {principal.id: counts.of_owner[principal.owner_id]} if principal.owner_id else {}
        if own and namespace:
            own[f"namespace {namespace}"] = counts.in_namespace[namespace]
        for who, count in own.items():
            if not fits_share(count, 1, free):
                raise Full(
                    f"{who} has {count} staged queries, and the {free} that may still be made are for others: forget "
                    f"those that are over (`danube queries list`)"
                )

    async def _current_counts(self) -> _Counts:
        async with self._counting:
            if self._counts is None or self._clock.monotonic() - self._counts.counted_at >= RECOUNT_S:
                counts = _Counts(self._clock.monotonic())
                async for known in self.all():
                    counts.add(known.record)
                self._counts = counts
            return self._counts

    def _count(self, record: QueryRecord, change: int) -> None:
        if self._counts is not None:
            self._counts.add(record, change)

    async def replace(self, known: KnownQuery, record: QueryRecord, writes: Sequence[Put | Delete] = ()) -> bool:
        """Write the new record, and `writes` in the same transaction. Returns False if the record has changed
        meanwhile."""
        result = await self._store.transact(*_replacement(known, record, writes))
        if result.succeeded:
            self._cached.put(known.key, record)
            if not known.revision:
                self._count(record, 1)
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
        self._cached.drop(known.key)
        keys = [known.key]
        if known.record.namespace:
            keys.append(query_name_key(known.record.namespace, known.record.query))
        unchanged = Compare.mod_revision(known.key, known.revision)
        result = await self._store.transact([unchanged], [Delete(key) for key in keys])
        if result.succeeded:
            self._count(known.record, -1)
        return result.succeeded

    def changed(self, key: str, record: QueryRecord | None) -> None:
        """Take over what another broker wrote under a key, or (None) that it removed the query."""
        if record is None:
            self._cached.drop(key)
        elif key in self._cached:
            self._cached.put(key, record)

    async def page(self, after: str, count: int) -> list[KnownQuery]:
        """Return `count` records in the order of their names, from the one behind `after`, a page token, on; fewer at
        the end."""
        name, _, owner = after.partition(_OWNER)
        start_after = query_key(check_query("query", name if owner.isprintable() else after), owner) if after else ""
        found: list[KeyValue] = []
        while len(found) < count:  # a page of the store has a limit of bytes too
            wanted = count - len(found)
            some = await self._store.list(QUERIES, start_after=start_after, limit=wanted)
            found += some
            if is_last_page(some, wanted):
                break
            start_after = some[-1].key
        return [_known(one) for one in found]

    async def all(self) -> AsyncIterator[KnownQuery]:
        async for one in list_all(self._store, QUERIES):
            yield _known(one)


def lost_comparisons(query: str) -> Unavailable:
    return Unavailable(f"query {query!r} is changed by others all the time: try again")


def _known(found: KeyValue) -> KnownQuery:
    return KnownQuery(found.key, unpack(found.value, QueryRecord), found.mod_revision)


def _keys_of(principal: Principal, query: str) -> tuple[str, ...]:
    """Return the keys under which the principal may have a query."""
    shared = query_key(query)
    return (query_key(query, principal.owner_id), shared) if principal.owner_id else (shared,)


def _replacement(
    known: KnownQuery, record: QueryRecord, writes: Sequence[Put | Delete]
) -> tuple[list[Compare], list[Put | Delete]]:
    """Return the transaction that replaces the known record, with what takes its name in a namespace, and makes
    `writes`."""
    compares, all_writes = [Compare.mod_revision(known.key, known.revision)], [Put(known.key, pack(record)), *writes]
    if record.namespace and not (known.revision and known.record.namespace):
        name_key = query_name_key(record.namespace, record.query)
        compares.append(Compare.missing(name_key))
        all_writes.append(Put(name_key, b""))
    return compares, all_writes
