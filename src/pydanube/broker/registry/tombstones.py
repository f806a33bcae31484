"""Tombstones of dropped ledgers: the log frees only records of ledgers that the metadata records as dropped.

```
 key of a ledger deleted  --one transaction-->  /dropped/<ledger id> written
 log released its files   ------------------->  /dropped/<ledger id> removed
```

Metadata that lost keys looks like metadata whose ledgers were dropped. The tombstone tells the two apart: a ledger of
the log that is neither listed nor has a tombstone refuses the start, and nothing of it is freed.

Each broker of a cluster has a log of its own. A ledger's record names the log that holds it, and a tombstone names the
log that may still hold the dropped ledger (empty: that of the cluster's founder). A broker looks only at what concerns
its own log.

Invariants
    every ledger that the log holds records of is listed under a topic, or has a tombstone, at every moment: a kill
    between any two steps leaves a directory that starts
    a tombstone is removed only when no file that the manifest names has records of its ledger
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Self

from pydanube.metadata.opening import MetadataPlace
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Delete, KeyValue, MetadataStore, Put, list_all
from pydanube.model.errors import Refused
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.wal import LogWriter, RecoveredLog

from . import records
from .records import LedgerRecord, TopicRecord

log = get_logger(__name__)


def drop_writes(ledgers: Sequence[tuple[str, str]], beside: int = 0) -> Iterator[list[Put | Delete]]:
    """Yield transactions that delete ledgers, each given by its key and its log, and leave tombstones. Each is within
    the store's limits, also with as many other writes as `beside` says."""
    step = (METADATA_OPERATIONS_MAX - beside) // 2
    for start in range(0, len(ledgers), step):
        some = ledgers[start : start + step]
        tombstones = [Put(records.dropped_key(records.ledger_of_key(key)[1]), log.encode()) for key, log in some]
        yield [*(Delete(key) for key, _ in some), *tombstones]


def log_of(listed: KeyValue) -> str:
    """Return the log that holds a ledger; `listed` is the ledger's key with its record."""
    return unpack(listed.value, LedgerRecord).log


def _all_logs(_log: str) -> bool:
    """Return True: a broker alone has only one log."""
    return True


@dataclass(slots=True)
class KnownLedgers:
    """What the metadata says about the ledgers of one log when the broker that writes it starts."""

    needed: set[int] = field(default_factory=set)
    """Ledgers of topics that exist."""
    dropped: set[int] = field(default_factory=set)
    """Ledgers with a tombstone, and those of topics whose deletion has not been cleaned up yet."""
    lost: dict[str, int] = field(default_factory=dict)
    """Keys of ledgers whose topic neither exists nor was deleted, with the topic's id."""

    @classmethod
    async def load(cls, store: MetadataStore, is_own_log: Callable[[str], bool] = _all_logs) -> Self:
        """Read every ledger's record and tombstone, and the topics. `is_own_log` is asked by the id of a log.

        The order is the reverse of that in which another broker deletes a topic: topic and mark of its deletion in one
        transaction, then ledger and tombstone in one, then the mark. So a topic that is deleted meanwhile is found in
        one of them.
        """
        known = cls()
        listed = [one.key async for one in list_all(store, records.LEDGERS) if is_own_log(log_of(one))]
        topics: set[int] = set()
        if listed:
            topics = {unpack(one.value, TopicRecord).topic_id async for one in list_all(store, records.TOPICS)}
        deleted = {records.deleted_of_key(one.key) async for one in list_all(store, records.DELETED)}
        known.dropped |= {
            records.dropped_of_key(one.key)
            async for one in list_all(store, records.DROPPED)
            if is_own_log(one.value.decode())
        }
        for key in listed:
            topic_id, ledger_id = records.ledger_of_key(key)
            if topic_id in topics:
                known.needed.add(ledger_id)
            elif topic_id in deleted:
                known.dropped.add(ledger_id)
            elif ledger_id not in known.dropped:
                known.lost[key] = topic_id
        return known

    async def check(self, store: MetadataStore, recovered: RecoveredLog, metadata: MetadataPlace) -> None:
        """Raise Refused when the log holds a ledger that `metadata` lost.

        An earlier release dropped ledgers without tombstones. Where one was the last to write this log, which then does
        not name its metadata, they are written now, and nothing is refused.
        """
        unknown = sorted(recovered.oldest_files.keys() - self.needed - self.dropped)
        if not recovered.is_stamped:
            await self._record(store, unknown)
            return
        remedy = (
            f"{metadata} lost keys or is not the newest copy; nothing was freed: put back the newest good copy of it, "
            f"or restore from the object store into an empty directory (see docs/operations.md)"
        )
        if self.lost:
            key, topic_id = next(iter(self.lost.items()))
            raise Refused(
                f"ledger {records.ledger_of_key(key)[1]} belongs to topic {topic_id}, which neither exists nor was "
                f"deleted ({len(self.lost)} such ledgers): {remedy}"
            )
        if unknown:
            raise Refused(
                f"the log has ledger {unknown[0]} in {recovered.oldest_files[unknown[0]]}, which the metadata neither "
                f"lists nor records as dropped ({len(unknown)} such ledgers): {remedy}"
            )

    async def _record(self, store: MetadataStore, unknown: list[int]) -> None:
        """Write tombstones for what an earlier release dropped. If this is interrupted, the next start does it
        again. Only the founder's log can be so old."""
        for writes in drop_writes([(key, "") for key in self.lost]):
            await store.transact([], writes)
        for start in range(0, len(unknown), METADATA_OPERATIONS_MAX):
            some = unknown[start : start + METADATA_OPERATIONS_MAX]
            await store.transact([], [Put(records.dropped_key(ledger_id), b"") for ledger_id in some])
        if unknown or self.lost:
            log.info("tombstones.recorded", ledgers=len(unknown) + len(self.lost))
        self.dropped.update(unknown, (records.ledger_of_key(key)[1] for key in self.lost))
        self.lost.clear()


@dataclass(eq=False)
class Tombstones:
    """Removes tombstones of this broker's log that are no longer needed. No publish waits for that.

    `in_use` returns the ledgers that this broker may still append to, although another broker has deleted their topic.
    """

    store: MetadataStore
    writer: LogWriter
    is_own_log: Callable[[str], bool] = _all_logs
    in_use: Callable[[], Set[int]] = frozenset

    async def sweep(self) -> int:
        """Remove the tombstones of ledgers that the log no longer holds, and return how many there were. Ledgers that
        it holds no longer prevent the release of files: another broker may have dropped them.

        Cancelled or failed: some are removed, and a later sweep removes the rest.
        """
        removed, after = 0, ""
        while page := await self.store.list(records.DROPPED, start_after=after, limit=METADATA_OPERATIONS_MAX):
            after = page[-1].key
            own = {records.dropped_of_key(one.key) for one in page if self.is_own_log(one.value.decode())}
            ledger_ids = sorted(own - self.in_use()) if own else []
            if not ledger_ids:
                continue
            held = await self.writer.held(ledger_ids)
            self.writer.forget(held)
            gone = [Delete(records.dropped_key(ledger_id)) for ledger_id in ledger_ids if ledger_id not in held]
            if gone:
                await self.store.transact([], gone)
            removed += len(gone)
        return removed
