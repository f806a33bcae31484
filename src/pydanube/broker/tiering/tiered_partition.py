"""A partition on its way to object storage: what of it waits, and what becomes of it once it is uploaded."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Final

from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.partitions.state_ledger import Done
from pydanube.codec.batch import read_header
from pydanube.core.producers import ProducerTable
from pydanube.core.tiering import WaitingUpload
from pydanube.metadata.store import Delete, Put
from pydanube.model.errors import DanubeError, StaleEpoch
from pydanube.model.ledgers import ProducerEntry
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.storage.stream import LoggedStream
from pydanube.storage.tiering.catalog import Catalog, CatalogSegment, entries
from pydanube.storage.tiering.history import PartitionHistory
from pydanube.storage.tiering.uploader import elapsed_us
from pydanube.storage.wal import LogWriter

SEGMENTS_PER_COMMIT: Final = 50
"""A transaction has room for so many and their owner's record."""


def _nobody_waits(_: DanubeError | None) -> None: ...


class KnownProducers:
    """What a partition knew of its producers where its uploaded part ends, and a little further."""

    def __init__(self, known: list[ProducerEntry], remembered_max: int, kept: Collection[int]) -> None:
        self._table = ProducerTable(remembered_max, pinned=kept)
        self._table.restore(known)

    def replay(self, batch: memoryview) -> None:
        self._table.replay(read_header(batch, stamped=True))

    def entries(self) -> list[ProducerEntry]:
        return self._table.entries()


class TieredPartition:
    """One partition, as the uploader sees it."""

    def __init__(
        self,
        topic_id: int,
        partition: Partition,
        ownership: Ownership,
        past: PartitionHistory,
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
        self._past = past
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._remembered_max = remembered_max
        self._oldest_us = 0
        self._known: list[ProducerEntry] | None = None
        self._fenced = False
        self._epochs: dict[int, int] = {}
        self._cataloguing = asyncio.Lock()
        """Held by whoever changes the partition's part of the catalog."""
        self._is_tidy = False
        """The catalog lists nothing that ends before the partition begins."""

    def waiting(self, below: int | None = None) -> WaitingUpload | None:
        """Return what is not uploaded yet, of the offsets below `below`; None if that is no message."""
        stream = self._stream
        first, end = max(self._past.end, stream.start_offset), stream.end_offset
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

    async def producers(self) -> KnownProducers:
        if self._known is None:
            self._known = await self._past.producers()
            self._epochs = {ledger_id: one.epoch for ledger_id, one in await self._ownership.ledgers()}
        return KnownProducers(self._known, self._remembered_max, self._partition.remembered.pinned)

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        return await self._stream.read(offset, bytes_max)

    def ledger_of(self, offset: int) -> tuple[int, int]:
        ledger_id = self._stream.ledger_of(offset)
        return ledger_id, self._epochs.get(ledger_id, self._ownership.epoch)

    async def commit(self, segments: list[CatalogSegment], producers: list[ProducerEntry]) -> None:
        """Cancelled: it is in the catalog, or not."""
        self._known = None  # until all of it is there; the last segment's footer knows it too
        try:
            async with self._cataloguing:
                is_new = await self._commit(segments)
                self._is_tidy = False  # retention may have passed it on its way
        except StaleEpoch:
            self._fenced = True  # nothing that this owner uploads counts any more
            raise
        self._known, self._oldest_us = producers if is_new else None, 0
        self._remember()

    async def _commit(self, segments: list[CatalogSegment]) -> bool:
        """False: an earlier try had been written although it failed, and this one is surplus."""
        await self._ownership.remove_doubts()
        if self._ownership.uploaded_end > self._past.end:
            self._uploaded(segments[0].first_offset, self._ownership.uploaded_end, self._stream.ledger_ids)
            return False
        total = await self._past.total()
        for one in segments:
            total = one.record.total = total + one.bytes
        for first in range(0, len(segments), SEGMENTS_PER_COMMIT):
            part = segments[first : first + SEGMENTS_PER_COMMIT]
            await self._ownership.upload([write for one in part for write in entries(one)], part[-1].end_offset)
            self._uploaded(part[0].first_offset, part[-1].end_offset, [one.record.ledger_id for one in part])
        return True

    def _uploaded(self, first: int, end: int, ledger_ids: Sequence[int]) -> None:
        if self._past.end == 0:
            self._past.start = first
        self._past.end = end
        for ledger_id in ledger_ids:
            self._writer.release(ledger_id, end)

    @property
    def segment_bytes(self) -> int:
        """How large its segments should be; 0: as everybody's."""
        return self._partition.policies.segment_bytes or 0

    async def rewrite(self, writes: Sequence[Put | Delete]) -> None:
        """Change the catalog, comparing the owner's epoch. Raises StaleEpoch."""
        async with self._cataloguing:
            await self._ownership.rewrite(writes)
            self._is_tidy = False

    async def forget_below(self, offset: int) -> None:
        """The partition begins at `offset` now: segments that end before it leave the catalog, and what never became
        one the log."""
        self.release_expired()
        async with self._cataloguing:
            await self._forget_below(offset)

    async def tidy(self) -> None:
        """Forget what was on its way into the catalog when retention passed it, or could not be forgotten then because
        the metadata or this broker was away."""
        if self._is_tidy:
            return
        async with self._cataloguing:
            first = await self._catalog.find(self.topic_id, self.index, 0)
            if first is not None and first.end_offset <= self._stream.start_offset:
                await self._forget_below(self._stream.start_offset)
            self._is_tidy = True

    async def _forget_below(self, offset: int) -> None:
        self._is_tidy = False
        gone: list[CatalogSegment] = []
        async for page in self._catalog.pages(self.topic_id, self.index):
            gone += [one for one in page if one.end_offset <= offset]
            if page[-1].end_offset > offset:
                break
        if gone:
            await self._catalog.remove(gone, self._clock.now_us())
            self._past.start = max(self._past.start, gone[-1].end_offset)
        self._is_tidy = True

    def _remember(self, done: Done = _nobody_waits) -> None:
        """What batches taught the partition goes with them when the log lets go: the state ledger keeps it, so that a
        start needs no object store. `done` once there is such a ledger."""
        state = self._partition.state
        if state.ledger_id is None:
            state.barrier(done)  # opens one, with a snapshot
        else:
            state.snapshot()
            done(None)

    def release_expired(self) -> None:
        """What retention took before it was uploaded: files go once a newer snapshot has what these batches taught."""
        start = self._stream.start_offset
        if start > self._past.end and self._stream.ledger_ids:
            self._remember(partial(self._release_below, start))

    def _release_below(self, offset: int, error: DanubeError | None) -> None:
        state_ledger = self._partition.state.ledger_id
        if error is None and state_ledger is not None:
            for ledger_id in self._stream.ledger_ids:
                self._writer.release(ledger_id, offset, state_ledger)

    def carry_forward(self) -> bool:
        """Move what former owners left in the log to its end, so that it pins no file. False when there is nothing."""
        return self._partition.state.carry_forward()
