"""A broker's hold on one partition, and the ledgers it opens under it.

The partition's record in the metadata store carries an epoch. Taking a partition raises it; every later write compares
the record's revision, so an owner that was replaced can no longer open a ledger, reserve an offset or forget anything.
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
    """Of the metadata that lists it."""


class Ownership:
    """This broker's hold on one partition."""

    def __init__(self, store: MetadataStore, ledger_ids: IdBlocks, topic_id: int, index: int, owner: str) -> None:
        self._store = store
        self._ledger_ids = ledger_ids
        self.topic_id = topic_id
        self.index = index
        self._key = partition_key(topic_id, index)
        self._record = PartitionRecord(owner=owner)
        self._revision = 0
        self._writing = asyncio.Lock()  # a reservation changes the revision that every other write compares
        self._is_new = False
        """Nobody had the partition before: it has no ledgers yet, and nothing was restored."""
        self._in_doubt = False
        """The last change of the record failed, and may have happened all the same."""

    @property
    def epoch(self) -> int:
        return self._record.epoch

    @property
    def reserved_end(self) -> int:
        return self._record.reserved_end

    @property
    def start_offset(self) -> int:
        """Where the partition begins, by retention; 0 where nothing was given up yet."""
        return self._record.start_offset

    async def acquire(self) -> None:
        """Take the partition from whoever held it. Raises StaleEpoch when somebody else took it at the same moment."""
        found = await self._store.get(self._key)
        former = unpack(found.value, PartitionRecord) if found else PartitionRecord()
        compare = Compare.mod_revision(self._key, found.mod_revision if found else 0)
        record = msgspec.structs.replace(former, epoch=former.epoch + 1, owner=self._record.owner)
        result = await self._store.transact([compare], [Put(self._key, pack(record))])
        if not result.succeeded:
            raise StaleEpoch(f"partition {self.index} of topic {self.topic_id} was taken by another broker")
        self._record, self._revision, self._is_new = record, result.revision, found is None

    async def ledgers(self) -> list[tuple[int, LedgerRecord]]:
        """The partition's ledgers, oldest first."""
        if self._is_new:
            return []
        prefix = ledgers_of(self.topic_id, self.index)
        return [
            (ledger_of_key(one.key)[1], unpack(one.value, LedgerRecord)) async for one in list_all(self._store, prefix)
        ]

    async def restored_cursors(self) -> list[CursorEntry]:
        """Where subscriptions stood when the partition was restored: it counts until the log says otherwise."""
        if self._is_new:
            return []
        prefix = restored_of(self.topic_id, self.index)
        found = [unpack(one.value, RestoredRecord) async for one in list_all(self._store, prefix)]
        return [CursorEntry(one.subscription_id, one.position, one.acked) for one in found]

    async def open_ledger(self, kind: Literal["data", "state"]) -> OpenedLedger:
        """Open a new ledger under this epoch; it is listed durably on return."""
        self._is_new = False
        ledger_id = await self._ledger_ids.take()
        record = LedgerRecord(kind, self.epoch)
        revision = await self._write([Put(ledger_key(self.topic_id, self.index, ledger_id), pack(record))])
        return OpenedLedger(ledger_id, revision)

    async def drop_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Delete the keys of ledgers that hold nothing anybody needs, and leave tombstones for the log."""
        for writes in drop_writes([ledger_key(self.topic_id, self.index, ledger_id) for ledger_id in ledger_ids]):
            await self._write(writes)

    async def reserve(self, end: int) -> None:
        """Offsets below `end` may be given out from now on; a restart begins at `end`."""
        await self._change(reserved_end=end)

    async def move_start(self, offset: int) -> None:
        """What lies below `offset` is no longer served, by this owner or another; it never moves back."""
        if offset > self._record.start_offset:
            await self._change(start_offset=offset)

    @property
    def uploaded_end(self) -> int:
        """What lies below it is in the catalog."""
        return self._record.uploaded_end

    async def upload(self, entries: Sequence[Put | Delete], uploaded_end: int) -> None:
        """Catalog entries of what was uploaded, up to `uploaded_end`; they count once this returns."""
        assert uploaded_end > self._record.uploaded_end
        await self._change(entries, uploaded_end=uploaded_end)

    async def rewrite(self, writes: Sequence[Put | Delete]) -> None:
        """Change the catalog of what is uploaded; it counts once this returns. Raises StaleEpoch."""
        await self._write(list(writes))

    async def remove_doubts(self) -> None:
        """Learn what became of a change that failed. Raises StaleEpoch when somebody else has the partition."""
        async with self._writing:
            await self._look_again()

    async def _change(self, writes: Sequence[Put | Delete] = (), **fields: int) -> None:
        async with self._writing:
            await self._look_again()
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
            await self._look_again()
            result = await self._store.transact([Compare.mod_revision(self._key, self._revision)], writes)
            if not result.succeeded:
                raise self._fenced()
            return result.revision

    async def _look_again(self) -> None:
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
