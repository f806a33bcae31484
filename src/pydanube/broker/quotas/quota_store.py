"""The quotas of the cluster: in memory on every broker, changed by comparing in the metadata.

Invariants
    what is in memory was stored; a change is in force on this broker when the call that made it returns
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pydanube.metadata.following import Follower, KeyMirror
from pydanube.metadata.packing import unpack, version_of
from pydanube.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put
from pydanube.metadata.writing import try_again, write_surely
from pydanube.model.errors import Conflict, NotFound
from pydanube.model.quotas import QuotaSubject
from pydanube.runtime.clock import Clock

from .records import QUOTAS, QuotaRecord, quota_key, subject_of_key

Changed = Callable[[QuotaSubject, QuotaRecord | None], None]


class QuotaStore:
    """What the metadata says about quotas."""

    def __init__(self, store: MetadataStore, clock: Clock, on_changed: Changed) -> None:
        """`on_changed` is called with every quota that is set, and with None when one is deleted."""
        self._store = store
        self._clock = clock
        self._on_changed = on_changed
        self.quotas: dict[QuotaSubject, QuotaRecord] = {}
        self._mirror = KeyMirror(QUOTAS, self._take)

    def follow(self, follower: Follower) -> None:
        """Learn by the follower what other brokers change."""
        self._mirror.follow(follower)

    async def load(self) -> None:
        """Read everything. Raises what the store raises, and Corrupt for a record that cannot be read."""
        await self._mirror.load(self._store)

    async def find(self, subject: QuotaSubject) -> QuotaRecord | None:
        """Return the quota of a subject; None: it has none of its own. In a cluster the store is asked before that is
        said."""
        await self._mirror.ask(self._store, quota_key(subject))
        return self.quotas.get(subject)

    async def set(
        self, subject: QuotaSubject, change: Callable[[QuotaRecord | None], QuotaRecord], expected: str = ""
    ) -> QuotaRecord:
        """Store what `change` makes of the record that there is, and return it. Durable and in force here on return.

        Raises Conflict if the quota does not have the version `expected`; empty: any, or none yet.
        Cancelled: it may be done.
        """
        key = quota_key(subject)

        async def attempt() -> QuotaRecord:
            found = await self._mirror.refresh(self._store, key)
            stored = _checked(subject, found, expected)
            record = change(stored)
            value = msgspec.msgpack.encode(record)
            compare = Compare.missing(key) if found is None else Compare.mod_revision(key, found.mod_revision)
            revision = await write_surely(self._store, self._clock, [compare], [Put(key, value)])
            await self._mirror.learn_written(self._store, key, value, revision)
            return record

        return await try_again(attempt)

    async def delete(self, subject: QuotaSubject, expected: str = "") -> None:
        """Delete a quota; see `set`."""
        key = quota_key(subject)

        async def attempt() -> None:
            found = await self._mirror.refresh(self._store, key)
            _checked(subject, found, expected)
            if found is None:
                raise no_quota(subject)
            compare = Compare.mod_revision(key, found.mod_revision)
            revision = await write_surely(self._store, self._clock, [compare], [Delete(key)])
            await self._mirror.learn_written(self._store, key, None, revision)

        await try_again(attempt)

    def _take(self, key: str, value: bytes | None) -> None:
        subject = subject_of_key(key)
        record = None if value is None else unpack(value, QuotaRecord)
        if record is None:
            self.quotas.pop(subject, None)
        else:
            self.quotas[subject] = record
        self._on_changed(subject, record)


def no_quota(subject: QuotaSubject) -> NotFound:
    return NotFound(f"{subject} has no quota of its own: 'danube auth quotas list' shows those that there are")


def _checked(subject: QuotaSubject, found: KeyValue | None, expected: str) -> QuotaRecord | None:
    """Return the record that is stored; raise Conflict if it is not the version that the caller expects."""
    stored = None if found is None else unpack(found.value, QuotaRecord)
    if expected and (stored is None or version_of(stored) != expected):
        raise Conflict(f"the quota of {subject} has changed since it had version {expected[:40]!r}: read it again")
    return stored
