"""Connects one open partition with object storage: what is to be uploaded, and what follows from an upload."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.partitions.state_ledger import Done
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.partitions.uploaded_producers import UploadedProducers
from pydanube.core.tiering import WaitingUpload
from pydanube.metadata.store import Compare, Delete, Put
from pydanube.model.errors import DanubeError, NotOwner, StaleEpoch
from pydanube.model.ledgers import ProducerEntry
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import ignore, outcome_of
from pydanube.storage.segments.catalog import Catalog, CatalogSegment, entries, uploading
from pydanube.storage.segments.history import PartitionHistory
from pydanube.storage.segments.uploader import elapsed_us
from pydanube.storage.stream import LoggedStream
from pydanube.storage.wal import LogWriter

SEGMENTS_PER_COMMIT: Final = 50
"""Limited by the size of a metadata transaction, which also contains the owner's record."""


SLICES_BEHIND_MAX: Final = 200
BEHIND_S_MAX: Final = 600.0
"""A partition that needs a slice which lies further back than this, and has not moved on for so long, writes its state
again, so that others of its broker do not keep their slices because of it."""


class TieredPartition:
    """One partition, as the uploader and the merger use it. Implements `UploadSource` and `MergeablePartition`."""

    def __init__(
        self,
        topic_id: int,
        partition: StoredPartition,
        ownership: Ownership,
        history: PartitionHistory,
        catalog: Catalog,
        writer: LogWriter,
        clock: Clock,
        remembered_max: int,
    ) -> None:
        assert isinstance(partition.stream, LoggedStream)
        self.topic_id = topic_id
        self.index = partition.index
        self._partition = partition
        self._stream = partition.stream
        self._ownership = ownership
        self._history = history
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._remembered_max = remembered_max
        self._oldest_us = 0
        self._producers: list[ProducerEntry] | None = None
        self._fenced = False
        self._epochs: dict[int, int] = {}
        self._catalog_lock = asyncio.Lock()
        """Held while the segments of this partition change in the catalog."""
        self._is_pruned = False
        """Whether the catalog lists no segment that ends before the start of the partition."""
        self._moved_on_at = clock.monotonic()
        """When the record was last told which slices are needed, or that was tried."""

    def waiting(self, below: int | None = None) -> WaitingUpload | None:
        """Return what is not uploaded yet, of the offsets below `below`; None if there is no message among them."""
        stream = self._stream
        first, end = max(self._history.end, stream.start_offset), stream.end_offset
        if self._fenced or not stream.gaps.messages(first, end):
            self._oldest_us = 0
            return None
        if below is not None and not stream.gaps.messages(first, end := min(end, below)):
            return None
        self._oldest_us = self._oldest_us or elapsed_us(self._clock)
        size = self._partition.sizes.between(first, end)
        policies = self._partition.policies
        age_us = (policies.segment_age_s or 0) * MICROSECONDS
        return WaitingUpload(self.topic_id, self.index, first, end, size, self._oldest_us, self.segment_bytes, age_us)

    async def producers(self) -> UploadedProducers:
        if self._producers is None:
            self._producers = await self._history.producers()
            self._epochs = {ledger_id: one.epoch for ledger_id, one in await self._ownership.ledgers()}
        return UploadedProducers(self._producers, self._remembered_max, self._partition.remembered.pinned)

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        return await self._stream.read(offset, bytes_max)

    def ledger_of(self, offset: int) -> tuple[int, int]:
        ledger_id = self._stream.ledger_of(offset)
        return ledger_id, self._epochs.get(ledger_id, self._ownership.epoch)

    async def commit(self, segments: list[CatalogSegment], producers: list[ProducerEntry]) -> None:
        """See `UploadSource.commit`. Cancelled: the segments may or may not be in the catalog."""
        self._producers = None  # read again from the footer of the last segment, unless all of this succeeds
        try:
            async with self._catalog_lock:
                is_new = await self._commit(segments)
                self._is_pruned = False  # retention may have passed these segments meanwhile
        except NotOwner as error:
            self._fenced = True  # nothing more is uploaded by this owner
            raise StaleEpoch(error.message) from None
        self._producers, self._oldest_us = producers if is_new else None, 0
        self._snapshot_state()

    async def _commit(self, segments: list[CatalogSegment]) -> bool:
        """Add the segments to the catalog. Returns False if an earlier try was committed although it seemed to fail;
        then this one is not needed."""
        await self._ownership.remove_doubts()
        if self._ownership.uploaded_end > self._history.end:
            self._uploaded(segments[0].first_offset, self._ownership.uploaded_end, self._stream.ledger_ids)
            return False
        total = await self._history.total()
        for one in segments:
            total = one.record.total = total + one.bytes
        for first in range(0, len(segments), SEGMENTS_PER_COMMIT):
            part = segments[first : first + SEGMENTS_PER_COMMIT]
            writes = [write for one in part for write in entries(one)]
            await self._ownership.upload(writes, part[-1].end_offset, [uploading(part[0].record.object)])
            self._uploaded(part[0].first_offset, part[-1].end_offset, [one.record.ledger_id for one in part])
        return True

    def _uploaded(self, first: int, end: int, ledger_ids: Sequence[int]) -> None:
        self._moved_on_at = self._clock.monotonic()
        self._history.extend(first, end)
        for ledger_id in ledger_ids:
            self._writer.release(ledger_id, end)

    @property
    def segment_bytes(self) -> int:
        """The segment size of the topic; 0 means the broker's setting."""
        return self._partition.policies.segment_bytes or 0

    async def rewrite(self, writes: Sequence[Put | Delete], compares: Sequence[Compare] = ()) -> None:
        """See `MergeablePartition.rewrite`."""
        async with self._catalog_lock:
            try:
                await self._ownership.rewrite(writes, compares)
            except NotOwner as error:
                raise StaleEpoch(error.message) from None
            self._is_pruned = False

    async def forget_below(self, offset: int) -> None:
        """Remove the segments below `offset`, the new start of the partition, from the catalog, and release the log
        below it."""
        self.release_expired()
        async with self._catalog_lock:
            await self._forget_below(offset)

    async def tidy(self) -> None:
        """Remove segments below the start of the partition that `forget_below` missed: their upload was in progress, or
        the metadata or this broker was unavailable."""
        if self._is_pruned:
            return
        async with self._catalog_lock:
            first = await self._catalog.find(self.topic_id, self.index, 0)
            if first is not None and first.end_offset <= self._stream.start_offset:
                await self._forget_below(self._stream.start_offset)
            self._is_pruned = True

    async def _forget_below(self, offset: int) -> None:
        self._is_pruned = False
        gone: list[CatalogSegment] = []
        async for page in self._catalog.pages(self.topic_id, self.index):
            gone += [one for one in page if one.end_offset <= offset]
            if page[-1].end_offset > offset:
                break
        if gone:
            await self._catalog.remove(gone, self._clock.now_us(), self._ownership.rewrite)
            self._history.trim(gone[-1].end_offset)
        self._is_pruned = True

    def _snapshot_state(self, done: Done = ignore) -> None:
        """Write a snapshot of producers and cursors to the state ledger before the log releases the batches, so that a
        start does not need the object store. `done` is called once there is such a ledger."""
        state = self._partition.state
        if state.ledger_id is None:
            state.barrier(done)  # opens a ledger, with a snapshot
        else:
            state.snapshot()
            done(None)

    def release_expired(self) -> None:
        """Release from the log what retention removed before it was uploaded, once a newer snapshot is written."""
        start = self._stream.start_offset
        if start > self._history.end and self._stream.ledger_ids:
            self._snapshot_state(partial(self._release_below, start))

    def _release_below(self, offset: int, error: DanubeError | None) -> None:
        state_ledger = self._partition.state.ledger_id
        if error is None and state_ledger is not None:
            for ledger_id in self._stream.ledger_ids:
                self._writer.release(ledger_id, offset, state_ledger)

    def carry_forward(self) -> bool:
        """Write the state that former owners left in the log again at its end, so that it pins no old file. Returns
        False if there is none."""
        return self._partition.state.carry_forward()

    @property
    def keeps_slices(self) -> bool:
        """Whether the slices that the partition needs begin far behind those that are put now, and have for long."""
        is_behind = self._ownership.slices_behind > SLICES_BEHIND_MAX or self._ownership.needs_former_slices
        return (
            self._ownership.slices is not None
            and is_behind
            and self._clock.monotonic() - self._moved_on_at > BEHIND_S_MAX
        )

    async def free_slices(self) -> None:
        """Write the state again and, when that counts, let the slices before it go. What is not uploaded still needs
        its slices. Raises what the log and the metadata raise. Cancelled: tried again later."""
        self._moved_on_at = self._clock.monotonic()
        published = self._stream.end_offset
        state = self._partition.state
        # a barrier opens a ledger, with a snapshot
        await outcome_of(state.barrier if state.ledger_id is None else state.snapshot)
        await self._ownership.advance_slices(min(published, self._stream.start_offset))
