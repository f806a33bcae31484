"""Lists a log directory record by record, for operators. Only reads: takes no lock, repairs nothing, and goes on after
damage.

States
    ok       the record counts
    torn     at the end of the log, written and never synced: it does not count
    damaged  it was synced and is not what was written
    stale    whole, but no longer part of the log: from an earlier use of the file, behind the end at which the file was
             closed or abandoned, or behind its ledger's seal
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydanube.codec.batch import BatchHeader, read_header
from pydanube.codec.wal import (
    MAGIC,
    RECORD_HEADER_BYTES,
    RecordHeader,
    RecordKind,
    body_is_intact,
    decode_header,
    record_bytes,
)
from pydanube.model.errors import Corrupt, Refused
from pydanube.model.limits import ALIGNMENT
from pydanube.runtime.disk import Disk, DiskFile, read_whole

from .log_files import DURABLE, generations, log_path
from .mark import decode_slots

State = Literal["ok", "torn", "damaged", "stale"]
_CHUNK_BYTES = 1 << 20
_FIRST = (RecordKind.FILE, RecordKind.SEAL)


@dataclass(frozen=True, slots=True)
class InspectedRecord:
    generation: int
    """The generation of the file."""
    file: str
    position: int
    """The log position at which it was found."""
    kind: str
    """Empty when the header cannot be read."""
    ledger_id: int
    entry_id: int
    owner_epoch: int
    body_length: int
    durable: int
    state: State
    detail: str = ""
    """What is wrong with it."""
    batch: BatchHeader | None = None
    """The batch header of a DATA record, if it can be read."""


def records(disk: Disk, directory: Path) -> Iterator[InspectedRecord]:
    """Yield every record of every log file, oldest file first."""
    found = generations(disk.list(directory), "wal", "log")
    bases: dict[int, int] = {}
    seals: dict[int, int] = {}
    for generation in found:
        for header in _first_records(disk, directory, generation):
            if header.kind == RecordKind.FILE:
                bases[generation] = header.position
            else:
                seals[header.ledger_id] = header.entry_id
    mark = decode_slots(read_whole(disk, directory / DURABLE)) if disk.exists(directory / DURABLE) else None
    for generation in found:
        marked = mark.position if mark is not None and mark.generation == generation else 0
        handle = disk.open(log_path(directory, generation))
        try:
            base, end = bases.get(generation, 0), bases.get(generation + 1)
            yield from _FileInspection(handle, directory, generation, base, end, seals, marked).records()
        finally:
            handle.close()


def _first_records(disk: Disk, directory: Path, generation: int) -> Iterator[RecordHeader]:
    """Yield the headers of the FILE record and of the seals, which come before all other records of a file."""
    handle = disk.open(log_path(directory, generation))
    try:
        place = 0
        header = _header(handle.pread(RECORD_HEADER_BYTES, place))
        while not isinstance(header, str) and header.kind in _FIRST and header.generation == generation:
            yield header
            place += record_bytes(header.body_length)
            header = _header(handle.pread(RECORD_HEADER_BYTES, place))
    finally:
        handle.close()


def _header(head: bytes | memoryview) -> RecordHeader | str:
    """Return the header, or a text that says why there is none."""
    try:
        return decode_header(head) or "no record header"
    except Refused as error:
        return error.message


class _FileInspection:
    def __init__(
        self,
        handle: DiskFile,
        directory: Path,
        generation: int,
        base: int,
        end: int | None,
        seals: dict[int, int],
        marked: int,
    ) -> None:
        self._handle = handle
        self._generation = generation
        self._name = log_path(directory, generation).name
        self._base = base
        self._end = end
        self._seals = seals
        self._size = handle.size()
        self._durable_end = end if end is not None else max(self._claimed_durable(0), marked)

    def records(self) -> Iterator[InspectedRecord]:
        place = 0
        counts = True
        while place < self._size:
            header = _header(self._handle.pread(RECORD_HEADER_BYTES, place))
            position = self._base + place
            if isinstance(header, str):
                following = self._next_header(place + ALIGNMENT)
                if position < self._durable_end or (counts and following is not None):
                    state: State = "damaged" if position < self._durable_end else "torn"
                    yield self._gap(position, (following or self._size) - place, state, header)
                counts = counts and position < self._durable_end
                if following is None:
                    return
                place = following
                continue
            record = self._inspect(header, place, counts)
            counts = counts and record.state != "torn"
            yield record
            place += record_bytes(header.body_length)

    def _inspect(self, header: RecordHeader, place: int, counts: bool) -> InspectedRecord:
        position = self._base + place
        body = memoryview(self._handle.pread(header.body_length, place + RECORD_HEADER_BYTES))
        state: State = "ok"
        detail = ""
        if (header.generation, header.position) != (self._generation, position):
            state, detail = "stale", f"written at position {header.position} of generation {header.generation}"
        elif self._end is not None and position >= self._end:
            state, detail = "stale", f"the file ends at position {self._end}"
        elif len(body) < header.body_length or not body_is_intact(header.kind, body, header.body_crc):
            state = "damaged" if position < self._durable_end else "torn"
            detail = "the body is not what was written"
        elif not counts:
            state, detail = "torn", "behind a torn record"
        elif header.kind not in _FIRST and header.entry_id > self._seals.get(header.ledger_id, header.entry_id):
            state, detail = "stale", f"the ledger was sealed at entry {self._seals[header.ledger_id]}"
        batch = _batch_header(body) if header.kind == RecordKind.DATA else None
        return InspectedRecord(
            generation=self._generation,
            file=self._name,
            position=position,
            kind=RecordKind(header.kind).name,
            ledger_id=header.ledger_id,
            entry_id=header.entry_id,
            owner_epoch=header.owner_epoch,
            body_length=header.body_length,
            durable=header.durable,
            state=state,
            detail=detail,
            batch=batch,
        )

    def _gap(self, position: int, length: int, state: State, detail: str) -> InspectedRecord:
        """Describe bytes that are no record."""
        return InspectedRecord(self._generation, self._name, position, "", 0, 0, 0, length, 0, state, detail)

    def _next_header(self, place: int) -> int | None:
        """Return where the next readable header lies, of any generation."""
        for at, _ in self._headers(place):
            return at
        return None

    def _claimed_durable(self, place: int) -> int:
        """Return the position up to which the file was synced, according to its own records."""
        own = (header for at, header in self._headers(place) if header.generation == self._generation)
        return max((header.durable for header in own), default=0)

    def _headers(self, place: int) -> Iterator[tuple[int, RecordHeader]]:
        for start in range(place, self._size, _CHUNK_BYTES):
            chunk = self._handle.pread(_CHUNK_BYTES, start)
            at = chunk.find(MAGIC)
            while at >= 0:
                if not (start + at) % ALIGNMENT:
                    header = _header(chunk[at : at + RECORD_HEADER_BYTES])
                    if isinstance(header, RecordHeader):
                        yield start + at, header
                at = chunk.find(MAGIC, at + 1)


def _batch_header(body: memoryview) -> BatchHeader | None:
    try:
        return read_header(body)
    except Corrupt:
        return None
