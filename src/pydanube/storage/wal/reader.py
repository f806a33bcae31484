"""Reads batches and control entries back. Blocking; any thread but the loop's.

Every record that is handed out was checked: its header (generation, position, ledger, entry), and its body against its
checksums. What is wrong raises Corrupt, naming file, position and remedy.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from pydanube.codec.batch import BatchHeader, read_header
from pydanube.codec.wal import (
    BATCH_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    STAMP,
    STAMP_AT,
    RecordKind,
    body_is_intact,
    decode_header,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import Disk, DiskFile

from .handles import Handles
from .layout import index_path, log_path
from .scan import REMEDY, Scanner
from .settings import WalSettings
from .sidecar import load_rows
from .table import DATA, SNAPSHOT, UNIT_SHIFT, Index, Span, Table, WalFile


class Row(NamedTuple):
    """Where one wanted record lies."""

    entry: int
    place: int
    length: int
    kind: int


class LogReader:
    def __init__(self, disk: Disk, directory: Path, settings: WalSettings, table: Table, handles: Handles) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._table = table
        self._handles = handles
        self._cached: OrderedDict[tuple[int, int], Index] = OrderedDict()
        self._cached_bytes = 0
        self._lock = Lock()

    # -- what callers ask for --------------------------------------------------------------------------------------

    def read(self, ledger_id: int, offset: int, bytes_max: int, written: int, before: int | None) -> list[memoryview]:
        """Batches from the first that ends after `offset`, of offsets below `before`, out of what is `written`."""
        batches: list[memoryview] = []
        for span in self._spans(ledger_id):
            if span.first_offset < 0 or span.end_offset <= offset:
                continue
            rows = self._rows_of_batches(span, offset, bytes_max, written, before)
            batches.extend(self._bodies(span, rows))
            bytes_max -= sum(row.length for row in rows)
            if bytes_max <= 0 or not rows or self._end_of(span, rows[-1]) < span.end_offset:
                break  # going on in the next file would leave out what did not fit
        return batches

    def _end_of(self, span: Span, row: Row) -> int:
        """The offset after this batch."""
        index, number = self._index(span), row.entry - span.first_entry
        return index.offsets[number] + index.counts[number]

    def read_entries(self, ledger_id: int, from_entry: int) -> list[tuple[int, int, bytes]]:
        """Entries other than batches, in order."""
        entries: list[tuple[int, int, bytes]] = []
        for span in self._spans(ledger_id):
            if span.end_entry <= from_entry:
                continue
            index = self._index(span)
            first = max(0, from_entry - span.first_entry)
            rows = [row for row in _rows(span, index, first, len(index.kinds)) if row.kind != DATA]
            for row, body in zip(rows, self._bodies(span, rows), strict=True):
                entries.append((row.entry, row.kind, bytes(body)))
        return entries

    def read_state(self, ledger_id: int) -> tuple[bytes | None, list[bytes]]:
        """The last snapshot, and the deltas after it."""
        snapshot = max((span.snapshot_entry for span in self._spans(ledger_id)), default=-1)
        entries = self.read_entries(ledger_id, max(0, snapshot))
        if snapshot < 0:
            return None, [body for _, _, body in entries]
        assert entries[0][1] == SNAPSHOT
        return entries[0][2], [body for _, _, body in entries[1:]]

    def batch_headers(self, ledger_id: int, from_offset: int, written: int) -> list[BatchHeader]:
        """Headers of the batches that end after an offset; their bodies are not read where they are large."""
        headers: list[BatchHeader] = []
        for span in self._spans(ledger_id):
            if span.first_offset < 0 or span.end_offset <= from_offset:
                continue
            rows = self._rows_of_batches(span, from_offset, 1 << 62, written, None)
            headers.extend(self._headers(span, rows))
        return headers

    def find_time(self, ledger_id: int, time_us: int, written: int) -> int | None:
        """The first offset of the first batch appended at this time or later."""
        for span in self._spans(ledger_id):
            if span.first_offset < 0 or span.last_time < time_us:
                continue
            if span.first_time >= time_us:
                return span.first_offset
            rows = self._rows_of_batches(span, 0, 1 << 62, written, None)
            with self._handles.reading(span.generation) as handle:
                found = bisect_left(rows, time_us, key=lambda row: self._append_time(handle, span, row))
            if found < len(rows):
                entry = rows[found].entry - span.first_entry
                return self._index(span).offsets[entry]
        return None

    # -- rows ------------------------------------------------------------------------------------------------------

    def _spans(self, ledger_id: int) -> list[Span]:
        ledger = self._table.ledgers.get(ledger_id)
        return list(ledger.spans) if ledger is not None else []

    def _rows_of_batches(self, span: Span, offset: int, bytes_max: int, written: int, before: int | None) -> list[Row]:
        index = self._index(span)
        file = self._table.files.get(span.generation)
        if file is None:
            return []
        end = bisect_left(index.places, (written - file.base) >> UNIT_SHIFT)
        if before is not None:
            end = bisect_left(index.offsets, before, hi=min(end, len(index.offsets)))
        at = max(0, bisect_right(index.offsets, offset, hi=min(end, len(index.offsets))) - 1)
        rows: list[Row] = []
        for row in _rows(span, index, at, end):
            number = row.entry - span.first_entry
            if row.kind != DATA or index.offsets[number] + index.counts[number] <= offset:
                continue
            bytes_max -= row.length
            if bytes_max < 0 and rows:
                break
            rows.append(row)
        return rows

    def _index(self, span: Span) -> Index:
        """The rows of a span: in memory while its file is open, else from the cache, the sidecar, or the file."""
        index = span.index
        if index is not None:
            return index
        key = (span.generation, span.ledger_id)
        with self._lock:
            index = self._cached.get(key)
            if index is not None:
                self._cached.move_to_end(key)
                return index
        index = self._load_rows(span) or self._scan_rows(span)
        with self._lock:
            if key not in self._cached:
                self._cached[key] = index
                self._cached_bytes += index.memory_bytes
            while self._cached_bytes > self._settings.index_cache_bytes and len(self._cached) > 1:
                _, dropped = self._cached.popitem(last=False)
                self._cached_bytes -= dropped.memory_bytes
        return index

    def _load_rows(self, span: Span) -> Index | None:
        path = index_path(self._directory, span.generation)
        if not self._disk.exists(path):
            return None
        handle = self._disk.open(path)
        try:
            return load_rows(handle, span)
        finally:
            handle.close()

    def _scan_rows(self, span: Span) -> Index:
        """The sidecar is gone or damaged: make the rows again."""
        file = self._table.files[span.generation]
        path = log_path(self._directory, span.generation)
        with self._handles.reading(span.generation) as handle:
            copy = WalFile(file.generation, file.base)
            Scanner(handle, path, copy, file.end, self._settings.scan_bytes).scan()
        found = copy.spans.get(span.ledger_id)
        if found is None or found.index is None or len(found.index.kinds) != span.count:
            raise Corrupt(f"ledger {span.ledger_id}: {path} and its index contradict each other: {REMEDY}")
        return found.index

    # -- bytes -----------------------------------------------------------------------------------------------------

    def _bodies(self, span: Span, rows: list[Row]) -> list[memoryview]:
        """The checked bodies of these rows, neighbours read together."""
        bodies: list[memoryview] = []
        with self._handles.reading(span.generation) as handle:
            for run in self._runs(rows):
                start = run[0].place << UNIT_SHIFT
                end = (run[-1].place << UNIT_SHIFT) + RECORD_HEADER_BYTES + run[-1].length
                view = memoryview(handle.pread(end - start, start))
                bodies.extend(self._checked(span, row, view[(row.place << UNIT_SHIFT) - start :]) for row in run)
        return bodies

    def _runs(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Rows that are worth one read: close together, and not too much."""
        gap, bytes_max = self._settings.read_gap_bytes, self._settings.read_bytes
        run: list[Row] = []
        start = end = 0
        for row in rows:
            place = row.place << UNIT_SHIFT
            row_end = place + RECORD_HEADER_BYTES + row.length
            if run and (place - end > gap or row_end - start > bytes_max):
                yield run
                run = []
            if not run:
                start = place
            run.append(row)
            end = row_end
        if run:
            yield run

    def _checked(self, span: Span, row: Row, record: memoryview) -> memoryview:
        """The body of the record that begins here, if it is the one that was looked for and is whole."""
        position = self._table.files[span.generation].base + (row.place << UNIT_SHIFT)
        try:
            header = decode_header(record)
        except Refused as error:
            raise Corrupt(self._place(span, row, error.message)) from None
        if header is None or (header.generation, header.position, header.ledger_id, header.entry_id, header.kind) != (
            span.generation,
            position,
            span.ledger_id,
            row.entry,
            row.kind,
        ):
            raise Corrupt(self._place(span, row, "is not where the index says"))
        body = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + row.length]
        if header.body_length != row.length or len(body) != row.length:
            raise Corrupt(self._place(span, row, "is cut short"))
        if not body_is_intact(row.kind, body, header.body_crc):
            raise Corrupt(self._place(span, row, "does not match its checksum"))
        return body

    def _headers(self, span: Span, rows: list[Row]) -> Iterator[BatchHeader]:
        """Batch headers only. Records smaller than a gap are read in runs, larger ones header by header."""
        cut = RECORD_HEADER_BYTES + BATCH_HEADER_BYTES
        with self._handles.reading(span.generation) as handle:
            for run in self._runs([Row(row.entry, row.place, BATCH_HEADER_BYTES, row.kind) for row in rows]):
                start = run[0].place << UNIT_SHIFT
                end = (run[-1].place << UNIT_SHIFT) + cut
                view = memoryview(handle.pread(end - start, start))
                for row in run:
                    at = (row.place << UNIT_SHIFT) - start + RECORD_HEADER_BYTES
                    try:
                        yield read_header(view[at : at + BATCH_HEADER_BYTES], stamped=True)
                    except Corrupt as error:
                        raise Corrupt(self._place(span, row, error.message)) from None

    def _append_time(self, handle: DiskFile, span: Span, row: Row) -> int:
        at = (row.place << UNIT_SHIFT) + RECORD_HEADER_BYTES
        try:
            return read_header(handle.pread(BATCH_HEADER_BYTES, at), stamped=True).append_time
        except Corrupt as error:
            raise Corrupt(self._place(span, row, error.message)) from None

    def _place(self, span: Span, row: Row, what: str) -> str:
        path = log_path(self._directory, span.generation)
        file = self._table.files.get(span.generation)
        position = (file.base if file else 0) + (row.place << UNIT_SHIFT)
        return f"ledger {span.ledger_id}, entry {row.entry} in {path} at position {position}: {what}: {REMEDY}"


def _rows(span: Span, index: Index, start: int, end: int) -> Iterator[Row]:
    columns = zip(index.places[start:end], index.lengths[start:end], index.kinds[start:end], strict=False)
    for entry, (place, length, kind) in enumerate(columns, span.first_entry + start):
        yield Row(entry, place, length, kind)


assert RecordKind.DATA == DATA
assert STAMP.size + STAMP_AT == BATCH_HEADER_BYTES
