"""Reads batches and control entries from the log. Methods block, and are called in any thread but the loop's.

Every returned record was checked: its header (generation, position, ledger, entry), and its body against its checksums.
Otherwise Corrupt is raised, with file, position and remedy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

from crc32c import crc32c

from pydanube.codec.batch import BatchHeader, read_header
from pydanube.codec.wal import (
    BATCH_HEADER_BYTES,
    HEADERS,
    HEADERS_BYTES,
    HEADERS_RESIDUE,
    RECORD_HEADER_BYTES,
    body_is_intact,
    decode_header,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.cache import Cache
from pydanube.runtime.disk import Disk, DiskFile

from .handles import Handles
from .log_contents import DATA, SNAPSHOT, UNIT_SHIFT, LedgerSpan, LogTable, SpanIndex, WalFile
from .log_files import index_path, log_path
from .scan import REMEDY, Scanner
from .sidecar import load_rows

Row: TypeAlias = tuple[int, int, int, int]
"""Where one record lies: entry, place in the file in units of 64 bytes, length of its body, kind."""

_ROWS_AT_ONCE: Final = 512
_EVERYTHING: Final = 1 << 62


class LogReader:
    def __init__(self, disk: Disk, directory: Path, settings: LogSettings, table: LogTable, handles: Handles) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._table = table
        self._handles = handles
        self._cached: Cache[tuple[int, int], SpanIndex] = Cache(settings.index_cache_bytes)
        self._lock = Lock()

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, ledger_id: int, offset: int, bytes_max: int, written: int, before: int | None) -> list[memoryview]:
        """Return batches from the first that ends after `offset` on, with offsets below `before`; at least one if there
        is any, otherwise at most `bytes_max`. Records at or after log position `written` are not read."""
        batches: list[memoryview] = []
        for span in self._spans(ledger_id):
            if span.first_offset < 0 or span.end_offset <= offset:
                continue
            rows, size = self._rows_of_batches(span, offset, bytes_max, written, before)
            if batches and size > bytes_max:
                break
            batches.extend(self._bodies(span, rows))
            bytes_max -= size
            if bytes_max <= 0 or not rows or self._end_of(span, rows[-1]) < span.end_offset:
                break  # the rest of this span did not fit: the next file would leave a gap
        return batches

    def _end_of(self, span: LedgerSpan, row: Row) -> int:
        """Return the offset after this batch."""
        index, number = self._index(span), row[0] - span.first_entry
        return index.offsets[number] + index.counts[number]

    def read_entries(self, ledger_id: int, from_entry: int) -> list[tuple[int, int, bytes]]:
        """Return (entry, kind, body) of all records that are not batches, in order."""
        entries: list[tuple[int, int, bytes]] = []
        for span in self._spans(ledger_id):
            if span.end_entry <= from_entry:
                continue
            index = self._index(span)
            first = max(0, from_entry - span.first_entry)
            rows = [row for row in _rows(span, index, first, len(index.kinds)) if row[3] != DATA]
            bodies = self._bodies(span, rows)
            entries.extend((row[0], row[3], bytes(body)) for row, body in zip(rows, bodies, strict=True))
        return entries

    def read_state(self, ledger_id: int) -> tuple[bytes | None, list[bytes]]:
        """Return the last snapshot, if any, and the deltas after it."""
        snapshot = max((span.snapshot_entry for span in self._spans(ledger_id)), default=-1)
        entries = self.read_entries(ledger_id, max(0, snapshot))
        if snapshot < 0:
            return None, [body for _, _, body in entries]
        assert entries[0][1] == SNAPSHOT
        return entries[0][2], [body for _, _, body in entries[1:]]

    def batch_headers(self, ledger_id: int, from_offset: int, written: int) -> list[BatchHeader]:
        """Return the headers of the batches that end after `from_offset`. Large bodies are not read."""
        headers: list[BatchHeader] = []
        for span in self._spans(ledger_id):
            if span.first_offset < 0 or span.end_offset <= from_offset:
                continue
            rows, _ = self._rows_of_batches(span, from_offset, _EVERYTHING, written, None)
            headers.extend(self._headers(span, rows))
        return headers

    def find_time(self, ledger_id: int, time_us: int, written: int) -> int | None:
        """Return the first offset of the first batch appended at `time_us` or later."""
        for span in self._spans(ledger_id):
            if span.first_offset < 0 or span.last_time < time_us:
                continue
            if span.first_time >= time_us:
                return span.first_offset
            rows, _ = self._rows_of_batches(span, 0, _EVERYTHING, written, None)
            with self._handles.reading(span.generation) as handle:
                found = bisect_left(rows, time_us, key=lambda row: self._append_time(handle, span, row))
            if found < len(rows):
                return self._index(span).offsets[rows[found][0] - span.first_entry]
        return None

    # -- rows ------------------------------------------------------------------------------------------------------

    def _spans(self, ledger_id: int) -> list[LedgerSpan]:
        ledger = self._table.ledgers.get(ledger_id)
        spans = ledger.spans if ledger is not None else []
        return [span for span in spans if not self._handles.is_released(span.generation)]

    def _rows_of_batches(
        self, span: LedgerSpan, offset: int, bytes_max: int, written: int, before: int | None
    ) -> tuple[list[Row], int]:
        """Return the rows of at least one batch, if there is any, and of as many as fit; and the size of all bodies."""
        index = self._index(span)
        file = self._table.files.get(span.generation)
        if file is None:
            return [], 0
        offsets, counts = index.offsets, index.counts
        end = bisect_left(index.places, (written - file.base) >> UNIT_SHIFT)
        if before is not None:
            end = bisect_left(offsets, before, hi=min(end, len(offsets)))
        start = max(0, bisect_right(offsets, offset, hi=min(end, len(offsets))) - 1)
        rows: list[Row] = []
        size = 0
        for row in _rows(span, index, start, end):
            number = row[0] - span.first_entry
            if row[3] != DATA or offsets[number] + counts[number] <= offset:
                continue
            if rows and size + row[2] > bytes_max:
                break
            rows.append(row)
            size += row[2]
        return rows, size

    def _index(self, span: LedgerSpan) -> SpanIndex:
        """Return the rows of a span: from memory while its file is open, else from cache, index or file."""
        index = span.index
        if index is not None:
            return index
        key = (span.generation, span.ledger_id)
        with self._lock:
            index = self._cached.get(key)
        if index is None:
            index = self._load_rows(span) or self._scan_rows(span)
            with self._lock:
                self._cached.put(key, index, index.memory_bytes)
        return index

    def _load_rows(self, span: LedgerSpan) -> SpanIndex | None:
        try:
            handle = self._disk.open(index_path(self._directory, span.generation))
        except FileNotFoundError:
            return None
        try:
            return load_rows(handle, span)
        finally:
            handle.close()

    def _scan_rows(self, span: LedgerSpan) -> SpanIndex:
        """Make the rows again from the file, because the index is missing or damaged."""
        path = log_path(self._directory, span.generation)
        with self._handles.reading(span.generation) as handle:
            file = self._table.files[span.generation]
            copy = WalFile(file.generation, file.base)
            Scanner(handle, path, copy, file.end, self._settings.scan_bytes).scan()
        found = copy.spans.get(span.ledger_id)
        if found is None or found.index is None or len(found.index.kinds) != span.count:
            raise Corrupt(f"ledger {span.ledger_id}: {path} and its index contradict each other: {REMEDY}")
        return found.index

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _bodies(self, span: LedgerSpan, rows: list[Row]) -> list[memoryview]:
        """Return the checked bodies of these rows. Rows close to each other are read with one call."""
        bodies: list[memoryview] = []
        with self._handles.reading(span.generation) as handle:
            base = self._table.files[span.generation].base
            for run in self._runs(rows):
                start = run[0][1] << UNIT_SHIFT
                end = (run[-1][1] << UNIT_SHIFT) + RECORD_HEADER_BYTES + run[-1][2]
                view = memoryview(handle.pread(end - start, start))
                self._add_bodies(span, base, run, view, bodies)
        return bodies

    def _add_bodies(
        self, span: LedgerSpan, base: int, run: list[Row], view: memoryview, bodies: list[memoryview]
    ) -> None:
        """Check the records of one run and append their bodies to `bodies`. A batch takes the fast path: one checksum
        over both headers and one over the body; other records, and batches that fail there, are checked one by one."""
        start, have = run[0][1], len(view)
        unpack, checksum, generation, ledger_id = HEADERS.unpack_from, crc32c, span.generation, span.ledger_id
        for row in run:
            entry, place, length, kind = row
            at = (place - start) << UNIT_SHIFT
            end = at + RECORD_HEADER_BYTES + length
            if kind == DATA and end <= have:
                fields = unpack(view, at)
                body = view[at + RECORD_HEADER_BYTES : end]
                if (
                    fields[4:8] == (generation, base + (place << UNIT_SHIFT), ledger_id, entry)
                    and fields[10] == length
                    and fields[11] == fields[14]
                    and checksum(view[at : at + HEADERS_BYTES]) == HEADERS_RESIDUE
                    and checksum(body[BATCH_HEADER_BYTES:]) == fields[11]
                ):
                    bodies.append(body)
                    continue
            bodies.append(self._checked(span, row, view[at:end]))

    def _runs(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Split the rows into runs that are read with one call: close together, and not too large."""
        gap, bytes_max = self._settings.read_gap_bytes, self._settings.read_bytes
        first = start = end = 0
        for number, (_, unit, length, _) in enumerate(rows):
            place = unit << UNIT_SHIFT
            row_end = place + RECORD_HEADER_BYTES + length
            if number > first and (place - end > gap or row_end - start > bytes_max):
                yield rows[first:number]
                first = number
            if number == first:
                start = place
            end = row_end
        if rows:
            yield rows[first:]

    def _checked(self, span: LedgerSpan, row: Row, record: memoryview) -> memoryview:
        """Return the body of `record`; raises Corrupt if it is not the record of this row, or not whole."""
        entry, place, length, kind = row
        position = self._table.files[span.generation].base + (place << UNIT_SHIFT)
        wanted = (span.generation, position, span.ledger_id, entry, kind)
        try:
            header = decode_header(record)
        except Refused as error:
            raise Corrupt(self._describe(span, row, error.message)) from None
        if header is None:
            raise Corrupt(self._describe(span, row, "its header cannot be read"))
        if (header.generation, header.position, header.ledger_id, header.entry_id, header.kind) != wanted:
            raise Corrupt(self._describe(span, row, "another record is in its place"))
        body = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + length]
        if header.body_length != length or len(body) != length:
            raise Corrupt(self._describe(span, row, "it is cut short"))
        if not body_is_intact(kind, body, header.body_crc):
            raise Corrupt(self._describe(span, row, "it does not match its checksum"))
        return body

    def _headers(self, span: LedgerSpan, rows: list[Row]) -> Iterator[BatchHeader]:
        """Yield only the batch headers. Small records are read in runs, large ones header by header."""
        with self._handles.reading(span.generation) as handle:
            for run in self._runs([(entry, place, BATCH_HEADER_BYTES, kind) for entry, place, _, kind in rows]):
                start = run[0][1] << UNIT_SHIFT
                end = (run[-1][1] << UNIT_SHIFT) + HEADERS_BYTES
                view = memoryview(handle.pread(end - start, start))
                for row in run:
                    at = (row[1] << UNIT_SHIFT) - start + RECORD_HEADER_BYTES
                    yield self._header(span, row, view[at : at + BATCH_HEADER_BYTES])

    def _append_time(self, handle: DiskFile, span: LedgerSpan, row: Row) -> int:
        at = (row[1] << UNIT_SHIFT) + RECORD_HEADER_BYTES
        return self._header(span, row, memoryview(handle.pread(BATCH_HEADER_BYTES, at))).append_time

    def _header(self, span: LedgerSpan, row: Row, batch: memoryview) -> BatchHeader:
        try:
            return read_header(batch, stamped=True)
        except Corrupt as error:
            raise Corrupt(self._describe(span, row, error.message)) from None

    def _describe(self, span: LedgerSpan, row: Row, what: str) -> str:
        path = log_path(self._directory, span.generation)
        file = self._table.files.get(span.generation)
        position = (file.base if file else 0) + (row[1] << UNIT_SHIFT)
        return f"ledger {span.ledger_id}, entry {row[0]} in {path} at position {position}: {what}: {REMEDY}"


def _rows(span: LedgerSpan, index: SpanIndex, start: int, end: int) -> Iterator[Row]:
    """Yield the rows numbered [start, end). They are copied in small parts, since most readers stop early."""
    for first in range(start, end, _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, end)
        entries = range(span.first_entry + first, span.first_entry + last)
        yield from zip(
            entries, index.places[first:last], index.lengths[first:last], index.kinds[first:last], strict=False
        )
