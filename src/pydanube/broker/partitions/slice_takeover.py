"""Takes a `stored` partition over from the slices of its former owners.

```
 record: [sequence of incarnation 3, from slice 17, no end]
   seal(3) ─► end 24 ─► the record has the end: all later owners agree on it
   slices 17..23 ─► the partition's batches, producer table and cursors
   batches that are not in the catalog ─► segments ─► catalog
   open: everything before is in the catalog; the state goes into the first slice of the new owner
   that slice counts ─► the sequence leaves the record
```

A taker that dies anywhere in between leaves the next one everything. A restart of the same broker is a takeover too: of
what its local log holds, nothing is used.

Invariants
    nothing is read before every sequence has an end that the record names
    a sequence leaves the record only after its batches are in the catalog and a newer snapshot of the state counts
    a ledger ends where the next one begins: batches behind that were rolled back by their owner
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import NamedTuple

import msgspec

from pydanube.broker.registry.records import LedgerRecord, SequenceRecord
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.slice import SliceRecord
from pydanube.codec.state import CursorChange, Delta, LedgerStart, StateSnapshot, decode
from pydanube.codec.wal import RecordKind
from pydanube.model.errors import Corrupt, DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.segments.recovered_upload import RecoveredSection
from pydanube.storage.slices import SliceReader, SliceWriter, seal
from pydanube.storage.slices.slice_reader import SliceRange

Ledgers = Sequence[tuple[int, LedgerRecord]]
"""The ids and records of a partition's ledgers, oldest first."""


class SlicedState(NamedTuple):
    """What the slices of former owners hold of one partition."""

    sections: list[RecoveredSection]
    """The batches. A gap, which was reported, is between two sections."""
    starts: list[LedgerStart]
    """The first entries of data ledgers, as far as they are still there."""
    snapshot: StateSnapshot | None
    changes: list[CursorChange]
    """What happened to the cursors after the snapshot."""


class SliceTakeover:
    """Seals the sequences of former owners and reads their slices, each once for all partitions."""

    def __init__(self, objects: ObjectStore, own: Callable[[], SliceWriter], tasks: Tasks, clock: Clock) -> None:
        """`own` returns the writer of this broker's slices."""
        self._objects = objects
        self._own = own
        self._tasks = tasks
        self._reader = SliceReader(objects, clock)
        self._sealing: dict[int, asyncio.Task[tuple[int, int] | DanubeError]] = {}
        """By incarnation: from where its sequence was last searched and the end that was found, or why it could not be
        sealed."""
        self._running = 0

    async def end_all(self, sequences: Sequence[SequenceRecord]) -> list[SequenceRecord]:
        """Return the sequences, each with its end. One that has none is sealed first."""
        return [one if one.end >= 0 else msgspec.structs.replace(one, end=await self._end(one)) for one in sequences]

    async def _end(self, sequence: SequenceRecord) -> int:
        own = self._own()
        if sequence.incarnation == own.incarnation:  # this broker closed the partition, and goes on with others
            await own.flush()
            return own.counted_end
        return await self._sealed_end(sequence.incarnation, sequence.lowest)

    async def _sealed_end(self, incarnation: int, lowest: int) -> int:
        """Return the end of a former owner's sequence, for a partition that needs it from `lowest` on.

        An end that was found for another partition is right for this one only if the search met this one's slices: that
        owner may have had slices on their way below the first one that the other partition needs.
        """
        sealing = self._sealing.get(incarnation)
        if sealing is not None:
            await asyncio.wait([sealing])
            found = DanubeError("cancelled") if sealing.cancelled() else sealing.result()
            if not isinstance(found, DanubeError) and found[0] <= lowest <= found[1]:
                return found[1]
        if self._sealing.get(incarnation) is sealing:  # else another partition seals it anew already
            self._sealing[incarnation] = self._tasks.spawn(self._seal(incarnation, lowest), "sealing slices")
            found = await asyncio.shield(self._sealing[incarnation])
            if isinstance(found, DanubeError):
                raise copy(found)
            return found[1]
        return await self._sealed_end(incarnation, lowest)

    async def _seal(self, incarnation: int, lowest: int) -> tuple[int, int] | DanubeError:
        """Return from where the sequence was searched, and its end; or why it is not known, for all callers."""
        try:
            return lowest, await seal(self._objects, incarnation, lowest, self._own().incarnation)
        except DanubeError as error:
            return error

    async def read(
        self, sequences: Sequence[SequenceRecord], ledgers: Ledgers, from_offset: int, reserved_end: int = 0
    ) -> SlicedState:
        """Return what the slices hold of the partition: batches from `from_offset` on, and the state.

        Raises Corrupt if a slice is missing or damaged, or if batches are missing between those that are there, except
        below `reserved_end`, up to where a gap was reported.
        """
        ranges = [SliceRange(one.incarnation, one.lowest, one.end) for one in sequences]
        records = await self._reader.records(ranges, {ledger_id for ledger_id, _ in ledgers})
        data = [(ledger_id, one.epoch) for ledger_id, one in ledgers if one.kind == "data"]
        sections, starts = _sections(data, records, from_offset, reserved_end)
        snapshot, changes = _state([ledger_id for ledger_id, one in ledgers if one.kind == "state"], records)
        return SlicedState(sections, starts, snapshot, changes)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a partition that is being taken over. After the last one, the slices that were read are dropped."""
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._reader.forget()


def _sections(
    ledgers: Sequence[tuple[int, int]],
    records: Mapping[int, Sequence[SliceRecord]],
    from_offset: int,
    reserved_end: int,
) -> tuple[list[RecoveredSection], list[LedgerStart]]:
    starts: list[LedgerStart] = []
    batches: list[tuple[int, int, memoryview]] = []
    """Ledger id, epoch and batch."""
    for ledger_id, epoch in ledgers:
        for record in records.get(ledger_id, ()):
            if record.kind == RecordKind.LEDGER_START:
                start = decode(memoryview(record.body), LedgerStart)
                starts.append(start)
                batches = [one for one in batches if offsets_of(one[2])[0] < start.next_offset]
            elif record.kind == RecordKind.DATA:
                batches.append((ledger_id, epoch, memoryview(record.body)))
    sections: list[RecoveredSection] = []
    position = from_offset
    for ledger_id, epoch, view in batches:
        base, end = offsets_of(view)
        if end <= from_offset:
            continue
        is_gap = position < base <= reserved_end
        if (base > position and not is_gap) or (sections and base < position):  # retention may begin within the first
            raise Corrupt(
                f"the slices have offset {base} of ledger {ledger_id} where {position} should follow: put back the "
                f"objects that are missing"
            )
        if not sections or is_gap or sections[-1].ledger_id != ledger_id:
            sections.append(RecoveredSection(ledger_id, epoch, []))
        sections[-1].batches.append(view)
        position = end
    return sections, starts


def _state(
    ledger_ids: Sequence[int], records: Mapping[int, Sequence[SliceRecord]]
) -> tuple[StateSnapshot | None, list[CursorChange]]:
    """Return the last snapshot of the newest state ledger that has one, and the changes after it."""
    for ledger_id in reversed(ledger_ids):
        snapshot: StateSnapshot | None = None
        changes: list[CursorChange] = []
        for record in records.get(ledger_id, ()):
            if record.kind == RecordKind.STATE_SNAPSHOT:
                snapshot, changes = decode(memoryview(record.body), StateSnapshot), []
            elif record.kind == RecordKind.STATE_DELTA:
                changes += decode(memoryview(record.body), Delta).changes
        if snapshot is not None:
            return snapshot, changes
    return None, []
