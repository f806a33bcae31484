"""The log of one `stored` partition: its records go to the local log and, in slices, to the object store.

The local log serves readers and uploads while this broker lives. What counts after it is in the slices alone.

Invariants
    a record is done when its slice counts and the local log has written it, so that readers find it
    `lowest` is never above a slice that holds a batch which is not uploaded, or state that is in no newer snapshot that
    counts; what is uploaded is known from the partition's record alone
    `lowest` is never above a slice that does not count yet: so every slice below it is there, and all takers that seal
    the sequence, from whichever partition's lowest slice they begin, find the same end
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import NamedTuple, Protocol

from pydanube.codec.batch.header import offsets_of
from pydanube.codec.slice import SliceRecord
from pydanube.codec.wal import ByteBuffer, RecordKind, record_bytes
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.storage.slices import SliceWriter
from pydanube.storage.wal import DurabilityLevel, LogWriter
from pydanube.storage.wal.committer import Done

from .unlisted_bytes import PartitionUnlistedBytes, UnlistedBytes


class AppendLog(Protocol):
    """Where the records of a partition go: the local log, or both that and slices."""

    def append(
        self,
        kind: int,
        ledger_id: int,
        entry_id: int,
        owner_epoch: int,
        body: ByteBuffer,
        body_crc: int,
        level: DurabilityLevel,
        done: Done,
    ) -> None:
        """See LogWriter.append."""

    def sync(self, done: Done) -> None:
        """See LogWriter.sync."""


class _DataSlice(NamedTuple):
    """Batches up to `end_offset`, and after those of the entry before, are in this slice."""

    end_offset: int
    number: int


class SlicedLog:
    """What one partition appends, under one owner."""

    def __init__(
        self, writer: LogWriter, slices: SliceWriter, state_interval_s: float, unlisted: UnlistedBytes
    ) -> None:
        """`state_interval_s`: how long a change of the state may wait for something more urgent. `unlisted`: of the
        broker."""
        self._writer = writer
        self._slices = slices
        self._state_interval_s = state_interval_s
        self.unlisted = PartitionUnlistedBytes(unlisted)
        self._data: deque[_DataSlice] = deque()
        self._snapshot: int | None = None
        """The slice of the newest snapshot of the state that counts, or of the first one."""

    @property
    def incarnation(self) -> int:
        return self._slices.incarnation

    @property
    def counted_end(self) -> int:
        return self._slices.counted_end

    @property
    def trouble(self) -> str:
        """See SliceWriter.trouble."""
        return self._slices.trouble

    def is_proven(self) -> bool:
        """Return whether this broker surely has the partition now, by its slices alone: see SliceWriter.is_proven."""
        return self._slices.is_proven()

    def check_puts(self) -> None:
        """Raise Unavailable while slices cannot be put: what counts is then not known well enough for a record to begin
        there, because slices behind it may be deleted already."""
        if self.trouble:
            raise Unavailable(f"{self.trouble}; try again later")

    def check_room(self, body_bytes: int) -> None:
        """Raise the reason if a batch of this size cannot be appended now."""
        refused = self._slices.refusal(record_bytes(body_bytes)) or self.unlisted.refusal()
        if refused is not None:
            raise refused

    def append(
        self,
        kind: int,
        ledger_id: int,
        entry_id: int,
        owner_epoch: int,
        body: ByteBuffer,
        body_crc: int,
        level: DurabilityLevel,
        done: Done,
    ) -> None:
        """Append one record; see LogWriter.append. `done` is called once its slice counts."""
        record = SliceRecord(kind, ledger_id, entry_id, owner_epoch, body, body_crc)
        if kind == RecordKind.STATE_SNAPSHOT:
            done = partial(self._snapshot_done, self._slices.next_number, done)
        done = _WhenBoth(done)
        delay_s = 0.0 if level is DurabilityLevel.SYNC else self._state_interval_s
        try:
            number = self._slices.append(record, done, delay_s)
        except DanubeError as error:
            done(error)
            return
        if kind == RecordKind.DATA:
            self._note_batch(offsets_of(memoryview(body))[1], number, len(body))
        elif kind == RecordKind.STATE_SNAPSHOT and self._snapshot is None:
            self._snapshot = number
        self._writer.append(kind, ledger_id, entry_id, owner_epoch, body, body_crc, DurabilityLevel.WRITE, done)

    def sync(self, done: Done) -> None:
        """Call `done` once everything appended so far counts, or has failed."""
        self._slices.when_counted(done)

    def uploaded(self, end: int) -> None:
        """Take note that the record of the partition says so: everything below `end` is in the catalog."""
        while self._data and self._data[0].end_offset <= end:
            self._data.popleft()

    def lowest(self, unneeded_below: int) -> int:
        """Return the lowest slice that is still needed if no offset below `unneeded_below` is. This changes nothing:
        the transaction that says so may fail, and then everything is needed as before."""
        needed = [self._slices.counted_end]
        needed += next(([one.number] for one in self._data if one.end_offset > unneeded_below), [])
        if self._snapshot is not None:
            needed.append(self._snapshot)
        return min(needed)

    def _note_batch(self, end_offset: int, number: int, size: int) -> None:
        self.unlisted.add(end_offset, number, size)
        if self._data and self._data[-1].number == number:
            self._data.pop()
        self._data.append(_DataSlice(end_offset, number))

    def _snapshot_done(self, number: int, done: Done, error: DanubeError | None) -> None:
        if error is None:
            self._snapshot = number
        done(error)


class _WhenBoth:
    """Calls `done` when it was called twice without an error, or with the first error."""

    __slots__ = ("_done", "_left")

    def __init__(self, done: Done) -> None:
        self._done = done
        self._left = 2

    def __call__(self, error: DanubeError | None) -> None:
        if self._left <= 0:
            return
        self._left = 0 if error is not None else self._left - 1
        if self._left == 0:
            self._done(error)
