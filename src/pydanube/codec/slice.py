"""Slices as bytes: a slice holds what the `stored` partitions of one broker appended to the log, in order.

```
  0  4 magic "DSLC"     4  1 version = 1     5  1 kind: 0 slice, 1 marker     6  2 flags (none is known yet)
  8  8 incarnation of the broker that wrote it     16  8 number in the sequence of this incarnation
 24  8 writer: of a slice a random number, of a marker the incarnation that sealed the sequence
 32  4 number of records     36  4 zero     40  8 bytes of the records     48  4 CRC32C of all record headers
 52  8 counted: the slices below this number counted when it was made (0 in slices of earlier releases)
 60  4 CRC32C of bytes 0..60
 64  records as in the log (codec.wal), each a header of 64 bytes, a body, and zeros up to the next multiple of 64
```

In the header of a record, the generation is the number of the slice and the position is that within the slice. A marker
has no records: it ends the sequence, and nothing behind it counts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from pydanube.model.errors import Corrupt, Refused
from pydanube.model.limits import ALIGNMENT

from .wal import RECORD_HEADER_BYTES, ByteBuffer, body_is_intact, decode_header, encode_header, record_bytes

MAGIC: Final = b"DSLC"
VERSION: Final = 1
HEADER: Final = struct.Struct("<4sBBHqqQIIqIQ")
CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = 64
PREFIX: Final = "slices/"

assert HEADER.size + CHECKSUM.size == HEADER_BYTES == ALIGNMENT


class SliceKind(IntEnum):
    SLICE = 0
    MARKER = 1


class SliceHeader(NamedTuple):
    """The first 64 bytes of a slice or a marker, whose checksum matched."""

    kind: int
    incarnation: int
    number: int
    writer: int
    records: int
    records_bytes: int
    headers_crc: int
    counted: int = 0
    """Slices below this number counted when this one was made; 0 where that is not known, and of a marker."""


class SliceRecord(NamedTuple):
    """One entry of a ledger, on its way into a slice or read from one."""

    kind: int
    ledger_id: int
    entry_id: int
    owner_epoch: int
    body: ByteBuffer
    body_crc: int

    @property
    def size(self) -> int:
        """The bytes that it takes in a slice."""
        return record_bytes(len(self.body))


def sequence_prefix(incarnation: int) -> str:
    """Return what the keys of all slices of an incarnation begin with."""
    return f"{PREFIX}{incarnation:016x}/"


def slice_key(incarnation: int, number: int) -> str:
    return f"{sequence_prefix(incarnation)}{number:016x}"


def parse_slice_key(key: str) -> tuple[int, int] | None:
    """Return the incarnation and the number that a key names; None: no slice has such a key."""
    incarnation, _, number = key.removeprefix(PREFIX).partition("/")
    try:
        found = int(incarnation, 16), int(number, 16)
    except ValueError:
        return None
    return found if slice_key(*found) == key else None


def encode_slice(
    incarnation: int, number: int, writer: int, records: Sequence[SliceRecord], counted: int = 0
) -> list[ByteBuffer]:
    """Return a slice in pieces; the bodies are not copied. `counted`: the slices below this number count."""
    pieces: list[ByteBuffer] = [b""]
    position = HEADER_BYTES
    headers_crc = 0
    for one in records:
        length = len(one.body)
        header = encode_header(
            one.kind, number, position, one.ledger_id, one.entry_id, 0, one.owner_epoch, length, one.body_crc
        )
        headers_crc = crc32c(header, headers_crc)
        pieces += [header, one.body]
        if padding := -length % ALIGNMENT:
            pieces.append(bytes(padding))
        position += record_bytes(length)
    size = position - HEADER_BYTES
    pieces[0] = _encode_header(
        SliceHeader(SliceKind.SLICE, incarnation, number, writer, len(records), size, headers_crc, counted)
    )
    return pieces


def encode_marker(incarnation: int, number: int, sealed_by: int) -> bytes:
    """Return the marker that ends a sequence before `number`."""
    return _encode_header(SliceHeader(SliceKind.MARKER, incarnation, number, sealed_by, 0, 0, 0))


def _encode_header(header: SliceHeader) -> bytes:
    kind, incarnation, number, writer, records, records_bytes, headers_crc, counted = header
    checked = HEADER.pack(
        MAGIC, VERSION, kind, 0, incarnation, number, writer, records, 0, records_bytes, headers_crc, counted
    )
    return checked + CHECKSUM.pack(crc32c(checked))


def _damaged(incarnation: int, number: int, reason: str) -> Corrupt:
    return Corrupt(
        f"the object {slice_key(incarnation, number)} (slice {number} of incarnation {incarnation}) {reason}: put the "
        f"slice back, or see `danube storage repair-slice`"
    )


def decode_slice_header(data: ByteBuffer, incarnation: int, number: int) -> SliceHeader:
    """Return the header of what is stored under this number. Raises Corrupt if it is not what was written there, and
    Refused if a later release wrote it."""
    damaged = partial(_damaged, incarnation, number)
    if len(data) < HEADER_BYTES:
        raise damaged(f"has only {len(data)} bytes")
    view = memoryview(data)[:HEADER_BYTES]
    if CHECKSUM.unpack_from(view, HEADER.size)[0] != crc32c(view[: HEADER.size]):
        raise damaged("has a header that does not match its checksum")
    magic, version, kind, flags, *numbers = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise damaged("is not a slice")
    if version != VERSION or flags or kind not in (SliceKind.SLICE, SliceKind.MARKER):
        raise Refused(
            f"the object {slice_key(incarnation, number)} has version {version}, kind {kind} and flags {flags}, "
            f"unknown to this release"
        )
    found_incarnation, found_number, writer, records, _, records_size, headers_crc, counted = numbers
    if (found_incarnation, found_number) != (incarnation, number):
        raise damaged(f"holds slice {found_number} of incarnation {found_incarnation}")
    return SliceHeader(kind, found_incarnation, found_number, writer, records, records_size, headers_crc, counted)


def decode_slice(data: ByteBuffer, incarnation: int, number: int) -> Iterator[SliceRecord]:
    """Yield the records of a slice, in order; the bodies are views of `data`. Raises Corrupt."""
    header = decode_slice_header(data, incarnation, number)
    damaged = partial(_damaged, incarnation, number)
    view = memoryview(data)
    if header.kind != SliceKind.SLICE or len(view) != HEADER_BYTES + header.records_bytes:
        raise damaged(f"has {len(view)} bytes and should have {HEADER_BYTES + header.records_bytes}")
    position, headers_crc = HEADER_BYTES, 0
    for _ in range(header.records):
        record = decode_header(view, position, (number, position))
        start = position + RECORD_HEADER_BYTES
        if record is None or start + record.body_length > len(view):
            raise damaged(f"is damaged at byte {position}")
        body = view[start : start + record.body_length]
        if not body_is_intact(record.kind, body, record.body_crc):
            raise damaged(f"is damaged at byte {start}")
        headers_crc = crc32c(view[position:start], headers_crc)
        yield SliceRecord(record.kind, record.ledger_id, record.entry_id, record.owner_epoch, body, record.body_crc)
        position += record_bytes(record.body_length)
    if position != len(view) or headers_crc != header.headers_crc:
        raise damaged("does not have the records that its header names")
