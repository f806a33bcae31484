"""The ownership of one partition, and the ledgers that its owner opens.

The partition's record in the metadata store carries an epoch. Acquiring the partition raises the epoch; every later
write compares the record's revision. So an owner that was replaced is fenced: it can no longer open a ledger, reserve
offsets or drop anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from pydanube.broker.registry.ids import IdBlocks
from pydanube.broker.registry.records import (
    LedgerRecord,
    PartitionRecord,
    RestoredRecord,
    ledger_key,
    ledger_of_key,
    ledgers_of,
    pack,
    partition_key,
    restored_of,
    unpack,
)
from pydanube.broker.registry.tombstones import drop_writes
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, list_all
from pydanube.model.errors import StaleEpoch
from pydanube.model.ledgers import CursorEntry


class OpenedLedger(NamedTuple):
    ledger_id: int
    revision: int
    """The revision of the metadata that lists the ledger first."""


class Ownership:
    """This broker's ownership of one partition, under one epoch."""

    def __init__(self, store: MetadataStore, ledger_ids: IdBlocks, topic_id: int, index: int, owner: str) -> None:
        self._store = store
        self._ledger_ids = ledger_ids
        self.topic_id = topic_id
        self.index = index
        self._key = partition_key(topic_id, index)
        self._record = PartitionRecord(owner=owner)
        self._revision = 0
        self._writing = asyncio.Lock()  # a change of the record changes the revision that every other write compares
        self._is_new = False
        """Whether the partition never had an owner: then it has no ledgers yet, and nothing was restored."""
        self._in_doubt = False
        """Whether the last change of the record failed with an error, although it may have been written."""
        self._is_released = False

    @property
    def epoch(self) -> int:
        return self._record.epoch

    @property
    def reserved_end(self) -> int:
        return self._record.reserved_end

    @property
    def start_offset(self) -> int:
        """Where retention has moved the start of the partition; 0 if it has dropped nothing yet."""
        return self._record.start_offset

    async def acquire(self) -> None:
        """Take the partition over from its former owner. Raises StaleEpoch when another broker did so at the same
        time."""
        found = await self._store.get(self._key)
        former = unpack(found.value, PartitionRecord) if found else PartitionRecord()
        compare = Compare.mod_revision(self._key, found.mod_revision if found else 0)
        record = msgspec.structs.replace(former, epoch=former.epoch + 1, owner=self._record.owner)
        result = await self._store.transact([compare], [Put(self._key, pack(record))])
        if not result.succeeded:
            raise StaleEpoch(f"partition {self.index} of topic {self.topic_id} was taken by another broker")
        self._record, self._revision, self._is_new = record, result.revision, found is None

    async def ledgers(self) -> list[tuple[int, LedgerRecord]]:
        """Return the ids and records of the partition's ledgers, oldest first."""
        if self._is_new:
            return []
        prefix = ledgers_of(self.topic_id, self.index)
        return [
            (ledger_of_key(one.key)[1], unpack(one.value, LedgerRecord)) async for one in list_all(self._store, prefix)
        ]

    async def restored_cursors(self) -> list[CursorEntry]:
        """Return the cursors that a restore found; they are valid until the log has newer ones."""
        if self._is_new:
            return []
        prefix = restored_of(self.topic_id, self.index)
        found = [unpack(one.value, RestoredRecord) async for one in list_all(self._store, prefix)]
        return [CursorEntry(one.subscription_id, one.position, one.acked) for one in found]

    async def open_ledger(self, kind: Literal["data", "state"]) -> OpenedLedger:
        """Open a new ledger under this epoch. It is listed durably in the metadata on return."""
        self._is_new = False
        ledger_id = await self._ledger_ids.take()
        record = LedgerRecord(kind, self.epoch)
        revision = await self._write([Put(ledger_key(self.topic_id, self.index, ledger_id), pack(record))])
        return OpenedLedger(ledger_id, revision)

    async def drop_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Delete the keys of ledgers that are no longer needed, and write tombstones for the log."""
        for writes in drop_writes([ledger_key(self.topic_id, self.index, ledger_id) for ledger_id in ledger_ids]):
            await self._write(writes)

    async def reserve(self, end: int) -> None:
        """Reserve the offsets below `end`: they may be given out from now on, and a restart continues at `end`."""
        await self._change(reserved_end=end)

    async def move_start(self, offset: int) -> None:
        """Record durably that the partition begins at `offset`, for this owner and later ones. It never moves back."""
        if offset > self._record.start_offset:
            await self._change(start_offset=offset)

    @property
    def uploaded_end(self) -> int:
        """The end of what is uploaded and listed in the catalog."""
        return self._record.uploaded_end

    async def upload(self, entries: Sequence[Put | Delete], uploaded_end: int) -> None:
        """Write the catalog entries of what was uploaded, up to `uploaded_end`; they are in force on return."""
        assert uploaded_end > self._record.uploaded_end
        await self._change(entries, uploaded_end=uploaded_end)

    async def rewrite(self, writes: Sequence[Put | Delete]) -> None:
        """Change the catalog of what is uploaded; the change is in force on return. Raises StaleEpoch."""
        await self._write(list(writes))

    async def remove_doubts(self) -> None:
        """Find out whether a change that failed was written. Raises StaleEpoch when another broker has the
        partition."""
        async with self._writing:
            await self._reload_if_in_doubt()

    async def release(self) -> None:
        """Give the partition up, once the writes that are in progress have ended. Later ones raise StaleEpoch, as if
        another broker had taken the partition."""
        async with self._writing:
            self._is_released = True

    async def _change(self, writes: Sequence[Put | Delete] = (), **fields: int) -> None:
        async with self._writing:
            await self._reload_if_in_doubt()
            record = msgspec.structs.replace(self._record, **fields)
            compare = Compare.mod_revision(self._key, self._revision)
            self._in_doubt = True
            result = await self._store.transact([compare], [Put(self._key, pack(record)), *writes])
            self._in_doubt = False
            if not result.succeeded:
                raise self._fenced()
            self._record, self._revision = record, result.revision

    async def _write(self, writes: list[Put | Delete]) -> int:
        async with self._writing:
            await self._reload_if_in_doubt()
            result = await self._store.transact([Compare.mod_revision(self._key, self._revision)], writes)
            if not result.succeeded:
                raise self._fenced()
            return result.revision

    async def _reload_if_in_doubt(self) -> None:
        if self._is_released:
            raise self._fenced()
        if not self._in_doubt:
            return
        found = await self._store.get(self._key)
        record = unpack(found.value, PartitionRecord) if found is not None else PartitionRecord()
        if found is None or (record.epoch, record.owner) != (self._record.epoch, self._record.owner):
            raise self._fenced()
        self._record, self._revision, self._in_doubt = record, found.mod_revision, False

    def _fenced(self) -> StaleEpoch:
        return StaleEpoch(
            f"partition {self.index} of topic {self.topic_id} was taken from this broker (epoch {self.epoch} is over)"
        )
