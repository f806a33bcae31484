"""Header and trailer of a segment object: 64 bytes each, little-endian. All parts start on multiples of 64.

```
 0         64          section 1         section 2        footer start            size - 64    size
 +---------+-----------+-----------------+----------------+-----------------------+------------+
 | header  | batch, zeros to 64, batch, zeros to 64, ...  | footer, zeros to 64   | trailer    |
 +---------+-----------+-----------------+----------------+-----------------------+------------+

 header      0  4 magic "DSEG"   4  1 version = 1   5  1 zero   6  2 flags (none is known yet)
             8  8 created at (microseconds since 1970)         16 44 zero             60  4 CRC32C of bytes 0..60

 trailer     0  8 footer start    8  4 footer length          12  4 CRC32C of the footer
            16  4 sections       20  4 zero                   24  8 size of the object
            32  1 version = 1    33  1 zero                   34  2 flags            36 20 zero
            56  4 magic "DEND"                                60  4 CRC32C of bytes 0..60
```

Readers begin at the trailer, which contains all that the header does; the header is for people and for verification of
whole objects. The footer length does not include the padding after the footer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from pydanube.codec.batch.header import ByteBuffer as ByteBuffer
from pydanube.model.errors import Corrupt
from pydanube.model.limits import ALIGNMENT, MIB

MAGIC: Final = b"DSEG"
END_MAGIC: Final = b"DEND"
VERSION: Final = 1
FLAGS_KNOWN: Final = 0

HEADER_BYTES: Final = 64
TRAILER_BYTES: Final = 64
END_BYTES: Final = 64 * 1024
"""Size of the first read, from the end of an object: contains the trailer, and the footer unless it has many
producers."""

FOOTER_BYTES_MAX: Final = 256 * MIB
"""Enough for the producer tables of thousands of busy partitions."""

SECTIONS_MAX: Final = 65_536

OBJECT_BYTES_MAX: Final = 2**62

_HEADER: Final = struct.Struct("<4sBBHq44s")
_TRAILER: Final = struct.Struct("<QIIIIQBBH20s4s")
_CRC: Final = struct.Struct("<I")
_ZEROS: Final = bytes(64)


assert _HEADER.size + _CRC.size == HEADER_BYTES == ALIGNMENT
assert _TRAILER.size + _CRC.size == TRAILER_BYTES == ALIGNMENT


def padding(length: int) -> bytes:
    """Return zeros up to the next multiple of 64."""
    return _ZEROS[: -length % ALIGNMENT]


def aligned(length: int) -> int:
    """Return `length` rounded up to a multiple of 64."""
    return (length + ALIGNMENT - 1) & -ALIGNMENT


@dataclass(frozen=True, slots=True)
class Trailer:
    """Where the footer of an object is. Its numbers were checked against the size of the object."""

    footer_start: int
    footer_length: int
    footer_crc: int
    sections: int
    object_size: int
    name: str = "segment"
    """The name of the object, for error messages."""

    @property
    def footer_end(self) -> int:
        return self.footer_start + self.footer_length

    def footer_in(self, tail: ByteBuffer) -> memoryview | None:
        """Return the footer from `tail`, the last bytes of the object; None unless `tail` contains all of it."""
        start = self.footer_start - (self.object_size - len(tail))
        return memoryview(tail)[start : start + self.footer_length] if start >= 0 else None


def encode_header(created_at_us: int) -> bytes:
    checked = _HEADER.pack(MAGIC, VERSION, 0, 0, created_at_us, _ZEROS[:44])
    return checked + _CRC.pack(crc32c(checked))


def check_header(head: ByteBuffer, name: str = "segment") -> int:
    """Return when the object was made. Raises Corrupt unless `head` is the header of a segment that this release
    reads."""
    if len(head) < HEADER_BYTES:
        raise Corrupt(f"{name}: header is cut short at {len(head)} bytes")
    magic, version, zero, flags, created_at_us, zeros = _HEADER.unpack_from(head)
    if magic != MAGIC:
        raise Corrupt(f"{name}: does not begin with {MAGIC!r} but with {magic!r}: it is no segment")
    _check_end(head, 0, version, flags, name, "header")
    if zero or any(zeros):
        raise Corrupt(f"{name}: unused bytes of the header are in use, which this release does not know of")
    return int(created_at_us)


def encode_trailer(footer_start: int, footer: bytes, sections: int) -> bytes:
    size = aligned(footer_start + len(footer)) + TRAILER_BYTES
    checked = _TRAILER.pack(
        footer_start, len(footer), crc32c(footer), sections, 0, size, VERSION, 0, 0, _ZEROS[:20], END_MAGIC
    )
    return checked + _CRC.pack(crc32c(checked))


def read_trailer(tail: ByteBuffer, object_size: int, name: str = "segment") -> Trailer:
    """Decode the trailer from `tail`, the last bytes of an object of this size; `tail` may be longer than the trailer.

    Raises only Corrupt, with `name` in the message.
    """
    if len(tail) < TRAILER_BYTES:
        raise Corrupt(f"{name}: trailer is cut short at {len(tail)} bytes of an object of {object_size}")
    at = len(tail) - TRAILER_BYTES
    (footer_start, footer_length, footer_crc, sections, zero, size, version, also_zero, flags, zeros, magic) = (
        _TRAILER.unpack_from(tail, at)
    )
    if magic != END_MAGIC:
        raise Corrupt(f"{name}: does not end like a segment: it is none, or it is cut short at {object_size} bytes")
    _check_end(tail, at, version, flags, name, "trailer")
    if zero or also_zero or any(zeros):
        raise Corrupt(f"{name}: unused bytes of the trailer are in use, which this release does not know of")
    if size != object_size or size > OBJECT_BYTES_MAX:
        raise Corrupt(f"{name}: is {object_size} bytes long and was {size} when it was written")
    if not 1 <= sections <= SECTIONS_MAX:
        raise Corrupt(f"{name}: {sections} sections are outside 1..{SECTIONS_MAX}")
    if not 1 <= footer_length <= FOOTER_BYTES_MAX:
        raise Corrupt(f"{name}: footer of {footer_length} bytes is outside 1..{FOOTER_BYTES_MAX}")
    if footer_start <= HEADER_BYTES or footer_start % ALIGNMENT:
        raise Corrupt(f"{name}: footer cannot start at {footer_start}")
    if aligned(footer_start + footer_length) + TRAILER_BYTES != size:
        raise Corrupt(f"{name}: footer of {footer_length} bytes at {footer_start} does not end at the trailer")
    return Trailer(footer_start, footer_length, footer_crc, sections, size, name)


def _check_end(buffer: ByteBuffer, at: int, version: int, flags: int, name: str, what: str) -> None:
    """Check the checksum, version and flags of a header or trailer."""
    checked = at + HEADER_BYTES - _CRC.size
    if crc32c(memoryview(buffer)[at:checked]) != _CRC.unpack_from(buffer, checked)[0]:
        raise Corrupt(f"{name}: {what} does not match its checksum")
    if version != VERSION:
        raise Corrupt(f"{name}: segment version {version} is unknown to this release, which reads version {VERSION}")
    if flags & ~FLAGS_KNOWN:
        raise Corrupt(f"{name}: segment flags {flags:#06x} are unknown to this release")
