"""Reads one file of the log from its beginning and says what in it counts.

A record counts when its header is whole, of this file's generation and at the position it names, and its body is whole.
The first that does not is the end of the log, a torn tail, unless its place is known to have been synced: by the file
that follows, by an index written at a clean end, or by a later record of this file that says so. Then it is damage:
under a header that is whole it costs that ledger, and reading goes on behind it; otherwise nobody can tell whose record
it was, and the start is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from crc32c import crc32c

from pydanube.codec.wal import (
    BATCH,
    BATCH_CHECKED_BYTES,
    BATCH_HEADER_BYTES,
    CHECKED,
    FLAGS_KNOWN,
    HEADER,
    KINDS_KNOWN,
    MAGIC,
    RECORD_HEADER_BYTES,
    STAMP,
    STAMP_AT,
    STAMP_CHECK_AT,
    VERSION,
    RecordHeader,
    RecordKind,
    decode_header,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.limits import RECORD_BODY_BYTES_MAX
from pydanube.runtime.disk import DiskFile

from .table import DATA, UNIT_SHIFT, Span, WalFile

REMEDY: Final = "put back a copy of the file, or see docs/log.md, 'Damage'"
_FILE: Final = int(RecordKind.FILE)
_SEAL: Final = int(RecordKind.SEAL)


@dataclass(slots=True)
class Scanned:
    """What a file holds."""

    file: WalFile
    damaged: dict[int, Corrupt] = field(default_factory=dict)
    durable: int = 0
    """Everything below this position is known to have been synced."""
    end: int = 0
    """Where what counts ends."""
    records: int = 0
    torn_bytes: int = 0


class Scanner:
    """One pass over one file. `durable_end` is where a closed file ends; None when only its records can tell."""

    def __init__(self, handle: DiskFile, path: Path, file: WalFile, durable_end: int | None, chunk_bytes: int) -> None:
        self._handle = handle
        self._path = path
        self._file = file
        self._durable_end = durable_end
        self._chunk_bytes = chunk_bytes
        self._size = handle.size()
        self._view = memoryview(b"")
        self._view_at = 0
        self._looked_ahead = False
        self.found = Scanned(file, durable=durable_end or file.base, end=file.base)

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
        return found

    # -- the fast path ---------------------------------------------------------------------------------------------

    def _read_good_records(self, stop_at: int | None) -> None:
        """Go on while every record is good; `found.end` is then at the first that is not, or at the end."""
        found, base, generation = self.found, self._file.base, self._file.generation
        unpack, checksum, whole_batch = HEADER.unpack_from, crc32c, _batch_at
        spans, position, durable, records = self._file.spans, found.end, found.durable, 0
        view, at, have = self._view, position - base - self._view_at, len(self._view)
        limit = stop_at if stop_at is not None else base + self._size
        while position < limit:
            if at < 0 or at + 64 > have:
                view, at, have = self._load(position - base, RECORD_HEADER_BYTES)
                if have < 64:
                    break
            # fmt: off
            (magic, version, kind, flags, written, place, ledger_id, entry_id, said_durable, _, length, body_crc,
             header_crc) = unpack(view, at)
            # fmt: on
            if magic != MAGIC or written != generation or place != position or length > RECORD_BODY_BYTES_MAX:
                break
            if checksum(view[at : at + 60]) != header_crc:
                break
            if version != VERSION or kind not in KINDS_KNOWN or flags & ~FLAGS_KNOWN:
                raise self._unknown(position, version, kind, flags)
            size = (length + 127) & -64
            if at + size > have:
                view, at, have = self._load(position - base, size)
                if size > have:
                    break
            if kind == DATA:
                batch = whole_batch(view, at + 64, length, body_crc)
                if batch is None:
                    break
                count, offset, time = batch
            elif checksum(view[at + 64 : at + 64 + length]) != body_crc:
                break
            else:
                count = offset = time = -1
            if kind != _FILE:
                span = spans.get(ledger_id)
                if span is None or kind == _SEAL or entry_id != span.first_entry + len(span.index.kinds):  # type: ignore[union-attr]
                    span = self._uncommon(kind, ledger_id, entry_id, position)
                if span is not None:
                    _add_row(span, kind, entry_id, (position - base) >> UNIT_SHIFT, length, size, count, offset, time)
            if said_durable > durable:
                durable = said_durable
            records += 1
            position += size
            at += size
        found.end, found.durable, found.records = position, durable, found.records + records

    def _load(self, start: int, needed: int) -> tuple[memoryview, int, int]:
        """The window from this place of the file on, at least `needed` bytes if the file has them."""
        self._view = memoryview(self._handle.pread(max(self._chunk_bytes, needed), start))
        self._view_at = start
        return self._view, 0, len(self._view)

    def _uncommon(self, kind: int, ledger_id: int, entry_id: int, position: int) -> Span | None:
        """A ledger's first record in this file, a seal, or an entry that is not the next one."""
        if kind == _SEAL:
            self._file.seals[ledger_id] = entry_id
            return None
        span = self._file.spans.get(ledger_id)
        if span is None:
            span = self._file.spans[ledger_id] = Span(ledger_id, self._file.generation, entry_id)
            return span
        self._damage(ledger_id, position, f"entry {entry_id} follows entry {span.end_entry - 1}")
        return None

    # -- the rest --------------------------------------------------------------------------------------------------

    def _look_ahead(self) -> None:
        """Look for records behind a bad one: what they say was durable must be there."""
        found, base = self.found, self._file.base
        self._looked_ahead = True
        chunk_bytes = self._chunk_bytes & -64
        for start in range(found.end - base, self._size, chunk_bytes):
            chunk = self._handle.pread(chunk_bytes, start)
            at = chunk.find(MAGIC)
            while at >= 0:
                header = self._header_at(chunk, at, base + start + at) if not at & 63 else None
                if header is not None:
                    found.durable = max(found.durable, header.durable)
                    found.torn_bytes = header.position + 64 + header.body_length - found.end
                at = chunk.find(MAGIC, at + 4)
        if not found.torn_bytes:
            rest = self._handle.pread(chunk_bytes, found.end - base)
            found.torn_bytes = len(rest.rstrip(b"\0")) if rest[:4] != MAGIC else 0

    def _header_at(self, chunk: bytes, at: int, position: int) -> RecordHeader | None:
        try:
            header = decode_header(chunk, at)
        except Refused as error:
            raise Refused(f"{self._path}, position {position}: {error.message}") from None
        if header is None or header.generation != self._file.generation or header.position != position:
            return None
        return header

    def _step_over_damage(self) -> None:
        """The record at `found.end` was durable and is bad now."""
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
        span = self._file.spans.get(header.ledger_id)
        if span is None:
            span = self._file.spans[header.ledger_id] = Span(header.ledger_id, self._file.generation, header.entry_id)
        size = (header.body_length + 127) & -64
        place = (found.end - base) >> UNIT_SHIFT
        kind = header.kind if header.kind != DATA else int(RecordKind.LEDGER_START)
        if header.entry_id == span.end_entry:
            _add_row(span, kind, header.entry_id, place, header.body_length, size, -1, -1, -1)
        found.end += size
        found.records += 1

    def _damage(self, ledger_id: int, position: int, what: str) -> None:
        error = Corrupt(f"ledger {ledger_id}: {what} in {self._path} at position {position}: {REMEDY}")
        self.found.damaged.setdefault(ledger_id, error)

    def _hidden_damage(self, position: int, what: str) -> Corrupt:
        place = position - self._file.base
        return Corrupt(f"{self._path}: {what} at position {position} (byte {place} of the file): {REMEDY}")

    def _unknown(self, position: int, version: int, kind: int, flags: int) -> Refused:
        return Refused(
            f"{self._path}, position {position}: record version {version}, kind {kind}, flags {flags:#06x} "
            "is unknown to this release: start the release that wrote it"
        )


def _batch_at(view: memoryview, at: int, length: int, body_crc: int) -> tuple[int, int, int] | None:
    """Span, base offset and append time of a whole batch; None for anything else."""
    if length < BATCH_HEADER_BYTES:
        return None
    count, own_crc, header_crc = BATCH.unpack_from(view, at)
    offset, time, _, stamp_crc = STAMP.unpack_from(view, at + STAMP_AT)
    if (
        own_crc != body_crc
        or crc32c(view[at : at + BATCH_CHECKED_BYTES]) != header_crc
        or crc32c(view[at + STAMP_AT : at + STAMP_CHECK_AT]) != stamp_crc
        or crc32c(view[at + BATCH_HEADER_BYTES : at + length]) != body_crc
    ):
        return None
    return count, offset, time


def _add_row(
    span: Span, kind: int, entry_id: int, place: int, length: int, size: int, count: int, offset: int, time: int
) -> None:
    index = span.index
    assert index is not None
    index.places.append(place)
    index.lengths.append(length)
    index.kinds.append(kind)
    span.bytes += size
    if kind == DATA:
        index.counts.append(count)
        index.offsets.append(offset)
        if span.first_offset < 0:
            span.begin_data(offset, time)
        span.end_offset = offset + count
        span.last_time = time
    else:
        index.counts.append(0)
        index.offsets.append(span.end_offset)
        span.note_control(kind, entry_id)


assert CHECKED.size == 60
