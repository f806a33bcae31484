"""Reads one file of the log from its beginning and decides which records count.

A record counts when its header is whole, of this file's generation and at the position it names, and its body is whole.
The first record that does not count is the end of the log (a torn tail), unless its position is known to have been
synced: by the next file, by an index written at a clean end, by the durable mark, or by a later record of this file.
Then it is damage. If its header is whole, only that ledger is damaged, and reading continues behind the record;
otherwise its ledger is unknown, and the start is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from crc32c import crc32c

from pydanube.codec.state import ledger_stamp
from pydanube.codec.wal import (
    GENERATION,
    GENERATION_AT,
    HEADERS,
    HEADERS_BYTES,
    HEADERS_RESIDUE,
    MAGIC,
    PEEK,
    RECORD_HEADER_BYTES,
    RECORD_HEADER_RESIDUE,
    VERSION,
    RecordHeader,
    RecordKind,
    body_is_intact,
    decode_header,
    record_bytes,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import DiskFile

from .log_contents import DATA, UNIT_SHIFT, LedgerSpan, WalFile

REMEDY: Final = "put back a copy of the file, or see docs/log.md, 'Damage'"
_FILE: Final = int(RecordKind.FILE)
_SEAL: Final = int(RecordKind.SEAL)
_PLAIN: Final = frozenset({int(RecordKind.LEDGER_START), int(RecordKind.STATE_DELTA), int(RecordKind.STATE_SNAPSHOT)})


_Add: TypeAlias = Callable[[int], None]
_Rows: TypeAlias = tuple[LedgerSpan, bytearray, _Add, _Add, _Add, _Add]
"""A span, its kinds, and the append methods of its other columns: places, lengths, counts, offsets."""


@dataclass(slots=True)
class Scanned:
    """The result of scanning one file."""

    file: WalFile
    damaged: dict[int, Corrupt] = field(default_factory=dict)
    durable: int = 0
    """Everything below this position is known to have been synced."""
    end: int = 0
    """The position after the last record that counts."""
    stamps: dict[str, int] = field(default_factory=dict)
    """The newest metadata revision that LEDGER_START records of this file name, by store id."""
    records: int = 0
    torn_bytes: int = 0


class Scanner:
    """Scans one file once. `durable_end` is where a closed file ends; None for the last file, of which only its records
    and `marked`, the position of the durable mark, say how far it was synced."""

    def __init__(
        self, handle: DiskFile, path: Path, file: WalFile, durable_end: int | None, chunk_bytes: int, marked: int = 0
    ) -> None:
        self._handle = handle
        self._path = path
        self._file = file
        self._durable_end = durable_end
        self._chunk_bytes = chunk_bytes
        self._size = handle.size()
        self._view = memoryview(b"")
        self._view_at = 0
        self._looked_ahead = False
        self._rows: dict[int, _Rows] = {}
        self.found = Scanned(file, durable=durable_end or max(file.base, marked), end=file.base)

    def scan(self) -> Scanned:
        found, stop_at = self.found, self._durable_end
        while stop_at is None or found.end < stop_at:
            self._read_good_records(stop_at)
            if found.end == stop_at:
                break
            if found.end >= found.durable and not self._looked_ahead:
                self._look_ahead()
            if found.end >= found.durable:
                break
            self._step_over_damage()
        if stop_at is not None and found.end > stop_at:
            raise self._hidden_damage(stop_at, "a record reaches over the end of the file")
        for span in self._file.spans.values():
            span.measure()
        return found

    # -- records that count ----------------------------------------------------------------------------------------

    def _read_good_records(self, stop_at: int | None) -> None:
        """Read records while they are good; afterwards `found.end` is at the first bad one, or at the end."""
        limit = stop_at if stop_at is not None else self._file.base + self._size
        while self.found.end < limit:
            self._read_plain_records(limit)
            if self.found.end >= limit or not self._read_one_record():
                return

    def _read_plain_records(self, limit: int) -> None:
        """Read records on the fast path: whole records in the window, of ledgers already known. Stop at any other."""
        found, base, generation = self.found, self._file.base, self._file.generation
        view, at = self._window(found.end - base, limit - found.end)
        unpack, checksum, known = HEADERS.unpack_from, crc32c, self._rows
        position, durable, last, end, records = found.end, found.durable, len(view) - HEADERS_BYTES, len(view), 0
        while at <= last:
            # fmt: off
            (_, version, kind, flags, written, place, ledger_id, entry_id, said_durable, _, length, body_crc, _,
             count, batch_crc, offset, time) = unpack(view, at)
            # fmt: on
            size = (length + 127) & -64
            if place != position or written != generation or version != VERSION or flags or at + size > end:
                break
            rows = known.get(ledger_id)
            if rows is None:
                break
            span, kinds, add_place, add_length, add_count, add_offset = rows
            if entry_id != span.first_entry + len(kinds):
                break
            if kind == DATA:
                if checksum(view[at : at + 192]) != HEADERS_RESIDUE or batch_crc != body_crc or length < 128:
                    break
                if checksum(view[at + 192 : at + 64 + length]) != body_crc:
                    break
                if span.first_offset < 0:
                    span.begin_data(offset, time)
                span.end_offset = offset + count
                span.last_time = time
            else:
                if checksum(view[at : at + 64]) != RECORD_HEADER_RESIDUE or kind not in _PLAIN:
                    break
                if checksum(view[at + 64 : at + 64 + length]) != body_crc:
                    break
                count, offset = 0, span.end_offset
                span.note_control(kind, entry_id)
            add_place((position - base) >> UNIT_SHIFT)
            add_length(length)
            add_count(count)
            add_offset(offset)
            kinds.append(kind)
            if said_durable > durable:
                durable = said_durable
            records += 1
            position += size
            at += size
        found.end, found.durable, found.records = position, durable, found.records + records

    def _window(self, place: int, most: int) -> tuple[memoryview, int]:
        """Return a part of the file that contains `place`, and the index of `place` in it."""
        at = place - self._view_at
        if not 0 <= at <= len(self._view) - HEADERS_BYTES:
            self._view = memoryview(self._handle.pread(min(self._chunk_bytes, most), place))
            self._view_at, at = place, 0
        return self._view, at

    def _read_one_record(self) -> bool:
        """Read the record at `found.end` with all checks; return False when it does not count."""
        found, position = self.found, self.found.end
        place = position - self._file.base
        header = self._header_at(self._handle.pread(RECORD_HEADER_BYTES, place), 0, position)
        if header is None:
            return False
        size = record_bytes(header.body_length)
        record = memoryview(self._handle.pread(size, place))
        body = record[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.body_length]
        if len(record) < size or not body_is_intact(header.kind, body, header.body_crc):
            return False
        if header.kind == _SEAL:
            self._file.seals[header.ledger_id] = header.entry_id
        elif header.kind != _FILE:
            self._add(header, body)
        found.durable = max(found.durable, header.durable)
        found.records += 1
        found.end += size
        return True

    def _span(self, header: RecordHeader) -> LedgerSpan:
        """Return the span of a record's ledger; begin it with the first record of the ledger in this file."""
        rows = self._rows.get(header.ledger_id)
        if rows is None:
            span = LedgerSpan(header.ledger_id, self._file.generation, header.entry_id)
            self._file.spans[header.ledger_id] = span
            index = span.index
            assert index is not None
            columns = (index.places.append, index.lengths.append, index.counts.append, index.offsets.append)
            rows = self._rows[header.ledger_id] = (span, index.kinds, *columns)
        return rows[0]

    def _add(self, header: RecordHeader, body: memoryview) -> None:
        span = self._span(header)
        if header.entry_id != span.end_entry:
            what = f"entry {header.entry_id} follows entry {span.end_entry - 1}"
            self._damage(header.ledger_id, header.position, what)
            return
        place = (header.position - self._file.base) >> UNIT_SHIFT
        batch = PEEK.unpack_from(body) if header.kind == DATA else None
        if header.kind == RecordKind.LEDGER_START and (stamp := ledger_stamp(body)) is not None:
            self.found.stamps[stamp[0]] = max(stamp[1], self.found.stamps.get(stamp[0], 0))
        span.add(header.kind, header.entry_id, place, header.body_length, batch)

    # -- behind the last good record -------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Search for records behind a bad one: what their headers name as durable must be readable."""
        found, base = self.found, self._file.base
        self._looked_ahead = True
        place = found.end - base
        chunk_bytes = self._chunk_bytes & -64
        while place < self._size:
            chunk = self._handle.pread(chunk_bytes, place)
            at = chunk.find(MAGIC)
            while at >= 0:
                header = self._header_at(chunk, at, base + place + at) if not at & 63 else None
                if header is None:
                    at = chunk.find(MAGIC, at + 4)
                    continue
                found.durable = max(found.durable, header.durable)
                found.torn_bytes = header.position + RECORD_HEADER_BYTES + header.body_length - found.end
                at = at + record_bytes(header.body_length)  # skip the body: what looks like a record inside it is none
                if at >= len(chunk):
                    break
                at = chunk.find(MAGIC, at)
            place += max(len(chunk), at)
        if not found.torn_bytes:
            self._measure_rest(found.end - base)

    def _measure_rest(self, place: int) -> None:
        """Measure the torn bytes when no header of this file follows. Zeros or a record of an earlier use of the file
        are not torn."""
        rest = self._handle.pread(self._chunk_bytes, place)
        is_record = len(rest) >= RECORD_HEADER_BYTES and rest.startswith(MAGIC)
        if not is_record or GENERATION.unpack_from(rest, GENERATION_AT)[0] == self._file.generation:
            self.found.torn_bytes = len(rest.rstrip(b"\0"))

    def _header_at(self, chunk: bytes, at: int, position: int) -> RecordHeader | None:
        """Return the header at this place if it has this file's generation and this position. Raises Refused when a
        later release wrote it."""
        try:
            return decode_header(chunk, at, (self._file.generation, position))
        except Refused as error:
            where = f"{self._path}, position {position}"
            raise Refused(f"{where}: {error.message}: start the release that wrote it") from None

    def _step_over_damage(self) -> None:
        """Note that the record at `found.end`, which was synced, is damaged, and continue behind it if possible."""
        found, base = self.found, self._file.base
        head = self._handle.pread(RECORD_HEADER_BYTES, found.end - base)
        header = self._header_at(head, 0, found.end)
        if header is None:
            cut = found.end - base + RECORD_HEADER_BYTES > self._size
            what = f"the file is cut short at {self._size} bytes" if cut else "a record that was synced cannot be read"
            raise self._hidden_damage(found.end, what)
        if header.kind in (_FILE, _SEAL):
            raise self._hidden_damage(found.end, f"a {RecordKind(header.kind).name} record is damaged")
        self._damage(header.ledger_id, found.end, f"entry {header.entry_id} is damaged")
        span = self._span(header)
        place = (found.end - base) >> UNIT_SHIFT
        if header.entry_id == span.end_entry:
            span.add(header.kind, header.entry_id, place, header.body_length, None)
        found.end += record_bytes(header.body_length)
        found.records += 1

    def _damage(self, ledger_id: int, position: int, what: str) -> None:
        error = Corrupt(f"ledger {ledger_id}: {what} in {self._path} at position {position}: {REMEDY}")
        self.found.damaged.setdefault(ledger_id, error)

    def _hidden_damage(self, position: int, what: str) -> Corrupt:
        place = position - self._file.base
        return Corrupt(f"{self._path}: {what} at position {position} (byte {place} of the file): {REMEDY}")
