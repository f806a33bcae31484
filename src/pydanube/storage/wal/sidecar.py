"""The index of a closed file, stored beside it. It is made from the file, and made again if it is missing or damaged.

```
  0  4 magic "DIDX"    4  4 version = 1    8  8 generation   16  8 base position   24  8 end position
 32  4 spans          36  4 seals         40  8 length of everything
 48  4 CRC32C of the directory            52  4 zero         56  4 zero            60  4 CRC32C of bytes 0..60
 64  directory: one row of 96 bytes per span
       0  8 ledger id      8  8 first entry   16  8 first offset (-1: no batch)   24  8 end offset
      32  8 first time    40  8 last time     48  8 bytes       56  8 last snapshot entry (-1: none)
      64  8 section at    72  4 records       76  4 kinds (a bit for each)        80  4 CRC32C of the section
     then one row of 16 bytes per seal: ledger id, last entry that counts
 ..  sections: one per span, columns of a row per record, each padded to 8
       places u32 (in units of 64 bytes), body lengths u32, offset counts u32, offsets i64, kinds u8
```
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Final

from crc32c import crc32c

from pydanube.runtime.disk import Disk, DiskFile, write_all

from .log_contents import LedgerSpan, SpanIndex, WalFile
from .log_files import index_path

_HEADER: Final = struct.Struct("<4sIqqqIIqIIII")
_ROW: Final = struct.Struct("<qqqqqqqqqIII12x")
_SEAL: Final = struct.Struct("<qq")
_MAGIC: Final = b"DIDX"
_VERSION: Final = 1
_DIRECTORY_BYTES_MAX: Final = 256 * 1024 * 1024
"""An upper bound: more than a file in which every record is as small as possible and of another ledger needs."""

assert _HEADER.size == 64
assert _ROW.size == 96


def write_sidecar(disk: Disk, directory: Path, file: WalFile) -> None:
    """Write the index of a closed file whose spans still have their rows in memory; afterwards these can be dropped.

    The directory is not synced: an index that is lost is made again.
    """
    path = index_path(directory, file.generation)
    temporary = path.with_name(path.name + ".tmp")
    if disk.exists(temporary):
        disk.unlink(temporary)
    handle = disk.create(temporary)
    try:
        write_all(handle, encode_sidecar(file), 0)
        handle.sync_data()
    finally:
        handle.close()
    disk.rename(temporary, path)


def encode_sidecar(file: WalFile) -> list[bytes]:
    assert file.end is not None
    seals = file.seals
    at = _HEADER.size + len(file.spans) * _ROW.size + len(seals) * _SEAL.size
    rows, sections = [], []
    for span in file.spans.values():
        assert span.index is not None
        section = _encode_section(span.index)
        span.count = len(span.index.kinds)
        span.section_at, span.section_crc = at, crc32c(section)
        rows.append(_encode_row(span))
        sections.append(section)
        at += len(section)
    rows.extend(_SEAL.pack(ledger_id, entry) for ledger_id, entry in seals.items())
    directory = b"".join(rows)
    # fmt: off
    head = _HEADER.pack(_MAGIC, _VERSION, file.generation, file.base, file.end, len(file.spans), len(seals), at,
                        crc32c(directory), 0, 0, 0)
    # fmt: on
    head = head[:60] + struct.pack("<I", crc32c(head[:60]))
    return [head, directory, b"".join(sections)]


def _encode_row(span: LedgerSpan) -> bytes:
    # fmt: off
    return _ROW.pack(span.ledger_id, span.first_entry, span.first_offset, span.end_offset, span.first_time,
                     span.last_time, span.bytes, span.snapshot_entry, span.section_at, span.count, span.kinds,
                     span.section_crc)
    # fmt: on


def _encode_section(index: SpanIndex) -> bytes:
    columns = [index.places, index.lengths, index.counts, index.offsets, index.kinds]
    return b"".join(_padded(bytes(column)) for column in columns)


def _padded(column: bytes) -> bytes:
    return column + bytes(-len(column) % 8)


def load_sidecar(disk: Disk, directory: Path, generation: int) -> WalFile | None:
    """Return the file as its index describes it, without rows; None when the index is missing or damaged."""
    path = index_path(directory, generation)
    if not disk.exists(path):
        return None
    handle = disk.open(path)
    try:
        return _decode_directory(handle, generation)
    finally:
        handle.close()


def _decode_directory(handle: DiskFile, generation: int) -> WalFile | None:
    head = handle.pread(_HEADER.size, 0)
    if len(head) < _HEADER.size or crc32c(head[:60]) != struct.unpack_from("<I", head, 60)[0]:
        return None
    magic, version, written, base, end, spans, seals, length, crc, *_ = _HEADER.unpack(head)
    size = spans * _ROW.size + seals * _SEAL.size
    if (magic, version, written) != (_MAGIC, _VERSION, generation) or size > _DIRECTORY_BYTES_MAX:
        return None
    rows = handle.pread(size, _HEADER.size)
    if len(rows) != size or crc32c(rows) != crc or handle.size() != length:
        return None
    file = WalFile(generation, base, end)
    for fields in _ROW.iter_unpack(rows[: spans * _ROW.size]):
        span = _decode_row(fields, generation)
        file.spans[span.ledger_id] = span
    file.seals = dict(_SEAL.iter_unpack(rows[spans * _ROW.size :]))
    return file


def _decode_row(fields: tuple[int, ...], generation: int) -> LedgerSpan:
    span = LedgerSpan(fields[0], generation, fields[1])
    # fmt: off
    (span.first_offset, span.end_offset, span.first_time, span.last_time, span.bytes, span.snapshot_entry,
     span.section_at, span.count, span.kinds, span.section_crc) = fields[2:12]
    # fmt: on
    span.index = None
    return span


def load_rows(handle: DiskFile, span: LedgerSpan) -> SpanIndex | None:
    """Return the rows of one span from the open index file; None when they are damaged."""
    count = span.count
    wide, narrow = _padded_length(4 * count), _padded_length(count)
    section = handle.pread(3 * wide + 8 * count + narrow, span.section_at)
    if crc32c(section) != span.section_crc:
        return None
    index = SpanIndex()
    index.places = array("I", section[: 4 * count])
    index.lengths = array("I", section[wide : wide + 4 * count])
    index.counts = array("I", section[2 * wide : 2 * wide + 4 * count])
    index.offsets = array("q", section[3 * wide : 3 * wide + 8 * count])
    index.kinds = bytearray(section[3 * wide + 8 * count : 3 * wide + 9 * count])
    return index


def _padded_length(length: int) -> int:
    return (length + 7) & -8
