"""Which broker owns which partition, as the partitions' records in the metadata say.

```
 record.owner lives, same incarnation       ─► it owns the partition
 record.assigned lives                      ─► it is about to take it
 the broker that writes record.log lives    ─► it is about to take it again
 there are no ledgers, and the broker of the name record.owner lives again ─► so is it
 none of them                               ─► no owner: the partition is unplaced, or waits for a broker
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from pydanube.broker.registry.records import PARTITIONS, PartitionRecord, partition_key, partition_of_key
from pydanube.metadata.following import Follower, Handler
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Event, KeyValue
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Corrupt
from pydanube.runtime.telemetry import get_logger

from .membership import Membership, MembershipListener

log = get_logger(__name__)

Key = tuple[int, int]
"""A topic's id and a partition's index."""


class StoredRecord(NamedTuple):
    """The record of a partition as the metadata has it."""

    record: PartitionRecord
    value: bytes
    revision: int


def has_ledgers(record: PartitionRecord) -> bool:
    """Return whether the log of one broker may hold ledgers of the partition. Records of earlier releases name no log,
    and mean that of the cluster's founder."""
    return bool(record.log) or (record.epoch > 0 and record.incarnation == 0)


class Owners(Protocol):
    """The owner of every partition of the cluster; answers from memory, which follows the metadata."""

    def record(self, topic_id: int, index: int) -> PartitionRecord | None:
        """Return the record of a partition; None if it never had an owner and is not assigned to one."""
        ...

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        """Return the living broker that owns the partition or is about to take it; None if there is none."""
        ...

    def of_broker(self, name: str) -> list[Key]:
        """Return the partitions that the broker of this name owns or is about to take."""
        ...

    def subscribe(self, changed: Callable[[Key], None]) -> None:
        """Have `changed` called, on the event loop, after the record of a partition changed, and after a session began
        or ended that matters for the partition."""
        ...

    def wrote(self, topic_id: int, index: int, stored: StoredRecord) -> None:
        """Take over a record that this broker has written or read itself: what it asks next must not depend on how soon
        the watch shows the change."""
        ...


class SoleOwners:
    """Of a broker that is no part of a cluster: it owns every partition, each from when it is first needed."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def record(self, topic_id: int, index: int) -> PartitionRecord | None:
        return None

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        return self._membership.session

    def of_broker(self, name: str) -> list[Key]:
        return []

    def subscribe(self, changed: Callable[[Key], None]) -> None:
        """No partition ever has another owner."""

    def wrote(self, topic_id: int, index: int, stored: StoredRecord) -> None:
        """Nothing is known of any partition."""


class ClusterOwners:
    """Of a broker of a cluster: follows the records of all partitions."""

    def __init__(self, membership: Membership, follower: Follower) -> None:
        """Call this before `follower.start`."""
        self._membership = membership
        self._follower = follower
        self._stored: dict[Key, StoredRecord] = {}
        self._owner_of: dict[Key, str] = {}
        """The name of the broker in `_of_broker` that has the partition; none: it has no living owner."""
        self._of_broker: dict[str, set[Key]] = {}
        self._changed: list[Callable[[Key], None]] = []
        follower.add(PARTITIONS, Handler(self._apply, self._replace))
        membership.subscribe(
            MembershipListener(joined=self._sessions, left=self._sessions, lost=self._sessions, renewed=self._sessions)
        )

    def record(self, topic_id: int, index: int) -> PartitionRecord | None:
        stored = self._stored.get((topic_id, index))
        return None if stored is None else stored.record

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        stored = self._stored.get((topic_id, index))
        return None if stored is None else self._session_of(stored.record)

    def of_broker(self, name: str) -> list[Key]:
        return sorted(self._of_broker.get(name, ()))

    def subscribe(self, changed: Callable[[Key], None]) -> None:
        self._changed.append(changed)

    def wrote(self, topic_id: int, index: int, stored: StoredRecord) -> None:
        key, known = (topic_id, index), self._stored.get((topic_id, index))
        if stored.revision <= self._follower.revision or (known is not None and known.revision >= stored.revision):
            return  # the change was applied already, and perhaps a newer one after it
        self._follower.wrote(partition_key(topic_id, index), stored.revision)
        self._put(key, stored)
        self._notify([key])

    def _session_of(self, record: PartitionRecord) -> BrokerSession | None:
        """Return the living broker that a record names."""
        if record.owner:
            session = self._membership.find(record.owner)
            if session is not None and session.incarnation == record.incarnation:
                return session
        if record.assigned and (session := self._membership.find(record.assigned)) is not None:
            return session
        if has_ledgers(record):
            return self._writer_of(record)
        return self._membership.find(record.owner) if record.owner else None

    def _writer_of(self, record: PartitionRecord) -> BrokerSession | None:
        """Return the living broker that writes the log which holds the partition's ledgers."""
        if self._membership.is_own_log(record.log):
            mine = self._membership.session
            return self._membership.find(mine.name)
        if record.log:
            return next((one for one in self._membership.sessions() if one.log == record.log), None)
        return self._membership.find(record.owner)

    # -- following -----------------------------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        key = partition_of_key(event.key)
        if event.current is None:
            self._remove(key)
        else:
            self._read(key, event.current)
        self._notify([key])

    def _replace(self, entries: list[KeyValue]) -> None:
        found = {partition_of_key(one.key): one for one in entries}
        changed = [
            key for key, one in self._stored.items() if key not in found or found[key].mod_revision != one.revision
        ]
        changed += [key for key in found if key not in self._stored]
        for key in changed:
            if key in found:
                self._read(key, found[key])
            else:
                self._remove(key)
        self._notify(changed)

    def _read(self, key: Key, entry: KeyValue) -> None:
        try:
            record = unpack(entry.value, PartitionRecord)
        except Corrupt as error:
            log.error("partition.record_unreadable", key=entry.key, error=error.message)
            return
        self._put(key, StoredRecord(record, entry.value, entry.mod_revision))

    def _put(self, key: Key, stored: StoredRecord) -> None:
        self._stored[key] = stored
        self._count(key)

    def _remove(self, key: Key) -> None:
        self._stored.pop(key, None)
        self._count(key)

    def _count(self, key: Key) -> bool:
        """List the partition with the broker that has it now; return whether that is another one than before."""
        owner = self.owner(*key)
        name, former = None if owner is None else owner.name, self._owner_of.pop(key, None)
        if former is not None and former != name:
            self._of_broker[former].discard(key)
        if name is not None:
            self._owner_of[key] = name
            self._of_broker.setdefault(name, set()).add(key)
        return former != name

    def _sessions(self, session: BrokerSession) -> None:
        """Look at every partition again; those that name the broker may have another owner now."""
        self._notify(
            [
                key
                for key, stored in self._stored.items()
                if self._count(key) or session.name in (stored.record.owner, stored.record.assigned)
            ]
        )

    def _notify(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for changed in self._changed:
                changed(key)
