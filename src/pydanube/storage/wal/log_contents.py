"""The contents of the log, in memory: files, ledgers, and where each record lies.

A `LedgerSpan` is one ledger's records in one file. The `SpanIndex` of a span, one row per record, is kept for the open
file only; those of closed files are in their index files. The thread that owns the engine changes all of this; other
threads read it, which is safe because rows are only added at the end, or cut off there when a file is abandoned.

Invariants
    the files are without a gap in generation and in position: each begins where the one before it ends
    a ledger's spans are in log order and without a gap in entries
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import numpy as np

from pydanube.codec.wal import RECORD_HEADER_BYTES, RecordKind, record_bytes
from pydanube.model.limits import ALIGNMENT

DATA: Final = int(RecordKind.DATA)
LEDGER_START: Final = int(RecordKind.LEDGER_START)
SNAPSHOT: Final = int(RecordKind.STATE_SNAPSHOT)
STATE_KINDS: Final = 1 << RecordKind.STATE_DELTA | 1 << RecordKind.STATE_SNAPSHOT
UNIT_SHIFT: Final = 6
"""Places in a file are counted in units of 64 bytes, so that 32 bits are enough."""


assert array("I").itemsize == 4


class SpanIndex:
    """One row per record of a span."""

    __slots__ = ("counts", "kinds", "lengths", "offsets", "places")

    def __init__(self) -> None:
        self.places = array("I")
        """Where the record begins in its file, in units of 64 bytes."""
        self.lengths = array("I")
        """The length of the body in bytes."""
        self.counts = array("I")
        """How many offsets the record takes; 0 if it is not a batch."""
        self.offsets = array("q")
        """The first of these offsets; if the record is not a batch, the end offset of the batch before it."""
        self.kinds = bytearray()

    @property
    def memory_bytes(self) -> int:
        return len(self.places) * 21 + 500


class LedgerSpan:
    """One ledger's records in one file."""

    __slots__ = (
        "bytes",
        "count",
        "end_offset",
        "first_entry",
        "first_offset",
        "first_time",
        "generation",
        "index",
        "kinds",
        "last_time",
        "ledger_id",
        "section_at",
        "section_crc",
        "snapshot_entry",
    )

    def __init__(self, ledger_id: int, generation: int, first_entry: int, end_offset: int = 0) -> None:
        self.ledger_id = ledger_id
        self.generation = generation
        self.first_entry = first_entry
        self.count = 0
        """The number of records, once the file is closed; while it is open, `index` has them."""
        self.kinds = 0
        """One bit for each kind of record in the span."""
        self.first_offset = -1
        """-1: the span has no batch."""
        self.end_offset = end_offset
        self.first_time = 0
        self.last_time = 0
        self.bytes = 0
        self.snapshot_entry = -1
        self.index: SpanIndex | None = SpanIndex()
        self.section_at = 0
        self.section_crc = 0

    @property
    def end_entry(self) -> int:
        return self.first_entry + (self.count if self.index is None else len(self.index.kinds))

    def begin_data(self, offset: int, time: int) -> None:
        """Note the first batch of the span."""
        self.first_offset = offset
        self.first_time = time
        self.kinds |= 1 << DATA

    def note_control(self, kind: int, entry_id: int) -> None:
        self.kinds |= 1 << kind
        if kind == SNAPSHOT:
            self.snapshot_entry = entry_id

    def add(self, kind: int, entry_id: int, place: int, length: int, batch: tuple[int, int, int] | None) -> None:
        """Add one record. `batch` is (number of offsets, first offset, append time); None if it is not a batch."""
        index = self.index
        assert index is not None
        count, offset, time = batch if batch is not None else (0, self.end_offset, 0)
        index.places.append(place)
        index.lengths.append(length)
        index.counts.append(count)
        index.offsets.append(offset)
        index.kinds.append(kind)
        self.bytes += record_bytes(length)
        if batch is None:
            self.note_control(kind, entry_id)
            return
        if self.first_offset < 0:
            self.begin_data(offset, time)
        self.end_offset = offset + count
        self.last_time = time

    def measure(self) -> None:
        """Compute `bytes` from the index."""
        assert self.index is not None
        lengths = np.frombuffer(self.index.lengths, np.uint32).astype(np.int64)
        self.bytes = int(((lengths + RECORD_HEADER_BYTES + ALIGNMENT - 1) & -ALIGNMENT).sum())

    def cut(self, place_end: int) -> None:
        """Drop every record that begins at or after `place_end`, in units of 64 bytes."""
        assert self.index is not None
        self.keep(bisect_left(self.index.places, place_end))

    def keep(self, keep: int) -> None:
        """Drop every record but the first `keep`."""
        index = self.index
        assert index is not None
        for column in (index.places, index.lengths, index.counts, index.offsets, index.kinds):
            del column[keep:]
        kinds = index.kinds
        self.kinds = sum(1 << kind for kind in set(kinds))
        self.measure()
        self.snapshot_entry = self.first_entry + last if (last := kinds.rfind(SNAPSHOT)) >= 0 else -1
        last = kinds.rfind(DATA)
        if last >= 0:
            self.end_offset = index.offsets[last] + index.counts[last]
        elif self.first_offset >= 0:
            self.end_offset, self.first_offset = self.first_offset, -1


class WalFile:
    """One file of the log. `end` is where the next file begins; None while this one is written."""

    __slots__ = ("base", "end", "generation", "seals", "spans")

    def __init__(self, generation: int, base: int, end: int | None = None) -> None:
        self.generation = generation
        self.base = base
        self.end = end
        self.spans: dict[int, LedgerSpan] = {}
        self.seals: dict[int, int] = {}
        """The ledgers sealed by records of this file, with the last entry of each that counts."""


class Ledger:
    __slots__ = ("forgotten", "released_below", "sealed", "spans", "state_ledger")

    def __init__(self) -> None:
        self.spans: list[LedgerSpan] = []
        self.sealed = False
        self.forgotten = False
        self.released_below = -1
        """Batches that end at or below this offset are no longer needed in the log."""
        self.state_ledger: int | None = None
        """A file with records of this ledger is released only when that ledger has a newer snapshot."""

    @property
    def end_entry(self) -> int:
        return self.spans[-1].end_entry if self.spans else 0


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What the log holds of a ledger: offsets in [first_offset, end_offset), entries up to last_entry."""

    ledger_id: int
    first_entry: int
    last_entry: int
    """-1: no entry counts."""
    first_offset: int
    end_offset: int
    """Equal to first_offset when there is no batch."""
    records: int
    bytes: int
    """The size of its records with their headers and padding."""
    first_time: int
    """Append time of the first batch; 0 when there is none."""
    last_time: int
    sealed: bool
    has_state: bool
    """It holds state records, so it is a state ledger."""


def summarize(ledger_id: int, spans: list[LedgerSpan], sealed: bool) -> LedgerSummary:
    spans = [span for span in spans if span.end_entry > span.first_entry]
    data = [span for span in spans if span.first_offset >= 0]
    end_offset = data[-1].end_offset if data else 0
    return LedgerSummary(
        ledger_id=ledger_id,
        first_entry=spans[0].first_entry if spans else 0,
        last_entry=spans[-1].end_entry - 1 if spans else -1,
        first_offset=data[0].first_offset if data else end_offset,
        end_offset=end_offset,
        records=sum(span.end_entry - span.first_entry for span in spans),
        bytes=sum(span.bytes for span in spans),
        first_time=data[0].first_time if data else 0,
        last_time=data[-1].last_time if data else 0,
        sealed=sealed,
        has_state=any(span.kinds & STATE_KINDS for span in spans),
    )


class LogTable:
    """All files and ledgers of the log."""

    def __init__(self) -> None:
        self.files: dict[int, WalFile] = {}
        self.ledgers: dict[int, Ledger] = {}
        self.oldest = 1
        self.newest = 0
        """As in the manifest, or in the one that is about to be written."""

    def add_file(self, file: WalFile) -> None:
        assert file.generation == self.newest + 1
        self.files[file.generation] = file
        self.newest = file.generation

    def open_span(self, file: WalFile, ledger_id: int, entry_id: int) -> LedgerSpan:
        """Begin the span of a ledger in the open file, with the entry `entry_id`."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = Ledger()
        assert not ledger.sealed, f"ledger {ledger_id} is sealed: entry {entry_id} belongs into a new one"
        assert not ledger.spans or entry_id == ledger.end_entry, f"ledger {ledger_id}: entry {entry_id} out of order"
        end_offset = ledger.spans[-1].end_offset if ledger.spans else 0
        span = file.spans[ledger_id] = LedgerSpan(ledger_id, file.generation, entry_id, end_offset)
        ledger.spans.append(span)
        return span

    def seal(self, ledger_id: int) -> None:
        self.ledgers.setdefault(ledger_id, Ledger()).sealed = True

    def cut(self, file: WalFile, end: int) -> None:
        """End the file at this log position; drop the records behind it."""
        file.end = end
        for ledger_id, span in list(file.spans.items()):
            span.cut((end - file.base) >> UNIT_SHIFT)
            if span.end_entry == span.first_entry:
                del file.spans[ledger_id]
                self.ledgers[ledger_id].spans.remove(span)

    def cut_ledger(self, ledger_id: int, end_entry: int) -> int | None:
        """Drop the entries from `end_entry` on; return the oldest generation that held any of them, or None."""
        ledger = self.ledgers.get(ledger_id)
        oldest: int | None = None
        while ledger is not None and ledger.end_entry > end_entry:
            span = ledger.spans[-1]
            oldest = span.generation
            if span.first_entry >= end_entry:
                ledger.spans.pop()
                del self.files[span.generation].spans[ledger_id]
            else:
                span.keep(end_entry - span.first_entry)
        return oldest

    def drop_file(self, file: WalFile) -> None:
        """Remove the oldest file, which was released."""
        assert file.generation == self.oldest
        del self.files[file.generation]
        self.oldest += 1
        for ledger_id, span in file.spans.items():
            ledger = self.ledgers[ledger_id]
            assert ledger.spans[0] is span
            ledger.spans = ledger.spans[1:]
            if not ledger.spans and (ledger.forgotten or ledger.sealed):
                del self.ledgers[ledger_id]
