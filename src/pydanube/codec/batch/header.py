"""The header of a batch: 128 bytes, little-endian. It has what a reader needs to know before it reads the body.

```
   0  4 magic "DBAT"           4  1 version = 1            5  1 codec                 6  2 flags
   8  4 columns               12  4 count                 16  4 span                 20  4 stored length
  24  4 plain length          28  4 attribute entries     32  8 producer id          40  8 first sequence
  48  4 producer epoch        52  4 schema version        56  8 schema id            64  8 min publish time
  72  8 max publish time      80  8 max deliver-at        88  2 producer name length 90  6 zero
  96  4 CRC32C of the body as stored                     100  4 CRC32C of bytes 0..100
 ------------------------------------------------------------------- above: the producer's; below: the broker's stamp
 104  8 base offset          112  8 append time          120  4 owner epoch         124  4 CRC32C of bytes 104..124
```

The stamp is all zero until the batch is appended. Then it is written in place: nothing above it changes, so the
checksums there stay right. Times are microseconds since 1970 in UTC.

Invariants of a header that `read_header` returned
    every length and count is within `model.limits`, and the fixed section fits into the body
    a batch without the OFFSETS column has space left for it, so that a selection of its rows is never too large to send
"""

from __future__ import annotations

import struct
import sys
from typing import Final, TypeAlias

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt
from pydanube.model.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, PRODUCER_NAME_BYTES_MAX
from pydanube.model.text import Word

from .layout import (
    APPEND_TIME,
    ATTRIBUTES,
    COLUMNS_KNOWN,
    DELIVER_AT,
    HEADER_BYTES,
    KEY,
    KEY_VALIDITY,
    OFFSETS,
    PUBLISH_TIME,
    padded,
)
from .layout import layout as layout_of

MAGIC: Final = b"DBAT"
VERSION: Final = 1
DERIVED: Final = 1
"""Flag: the batch is a copy of rows of one or several stored batches, made for one delivery; it is never stored."""

FLAGS_KNOWN: Final = DERIVED
TIME_MIN: Final = -62_135_596_800_000_000
TIME_MAX: Final = 253_402_300_799_999_999
"""The years 1 to 9999, the range of a datetime."""

SCHEMA_ID_MAX: Final = 2**63 - 1
SCHEMA_VERSION_MAX: Final = 2**31 - 1
"""The largest values of their Arrow columns."""

OFFSET_MAX: Final = 2**63 - 1

_FIELDS: Final = (
    ("magic", "4s"),
    ("version", "B"),
    ("codec", "B"),
    ("flags", "H"),
    ("columns", "I"),
    ("count", "I"),
    ("span", "I"),
    ("stored_length", "I"),
    ("plain_length", "I"),
    ("attribute_entries", "I"),
    ("producer_id", "Q"),
    ("first_sequence", "q"),
    ("producer_epoch", "I"),
    ("schema_version", "I"),
    ("schema_id", "Q"),
    ("publish_time_min", "q"),
    ("publish_time_max", "q"),
    ("deliver_at_max", "q"),
    ("producer_name_length", "H"),
    ("zero", "H"),
    ("also_zero", "I"),
    ("body_crc", "I"),
    ("header_crc", "I"),
    ("base_offset", "q"),
    ("append_time", "q"),
    ("owner_epoch", "I"),
    ("stamp_crc", "I"),
)
"""Name and struct format of every field, in order. This is the only place that states them: positions are derived."""

_FORMATS: Final = dict(_FIELDS)
_STARTS: Final = {
    name: struct.calcsize("<" + "".join(kind for _, kind in _FIELDS[:index])) for index, (name, _) in enumerate(_FIELDS)
}


def field_start(name: str) -> int:
    """Return the position of a header field, counted from the first byte of the batch."""
    return _STARTS[name]


def fields_struct(*names: str, start: int = 0, end: int | None = None) -> struct.Struct:
    """Return a struct that reads or writes the named header fields, in the order of the header, and skips the others.

    The struct begins at position `start` of the header and ends at `end`: by default at the end of the last field.
    """
    parts, at = ["<"], start
    for name in names:
        if _STARTS[name] > at:
            parts.append(f"{_STARTS[name] - at}x")
        assert _STARTS[name] >= at, f"{name} lies before the field named in front of it"
        parts.append(_FORMATS[name])
        at = _STARTS[name] + struct.calcsize("<" + _FORMATS[name])
    if end is not None and end > at:
        parts.append(f"{end - at}x")
    return struct.Struct("".join(parts))


STAMP_START: Final = field_start("base_offset")
HEADER_CRC_START: Final = field_start("header_crc")
"""The header's checksum covers the bytes before it."""

STAMP_CRC_START: Final = field_start("stamp_crc")
"""The stamp's checksum covers the bytes from STAMP_START up to it."""

_STAMP: Final = fields_struct("base_offset", "append_time", "owner_epoch", "stamp_crc", start=STAMP_START)
_WHOLE: Final = fields_struct(*_FORMATS)
_HEADER: Final = fields_struct(*[name for name in _FORMATS if _STARTS[name] < STAMP_START])
_STAMPED: Final = fields_struct("base_offset", "append_time", "owner_epoch", start=STAMP_START)
_CRC: Final = struct.Struct("<I")
_BODY_BYTES_MAX: Final = BATCH_BYTES_MAX - HEADER_BYTES

assert _HEADER.size == STAMP_START
assert _WHOLE.size == HEADER_BYTES
assert sys.byteorder == "little", "columns are read in place, and they are little-endian"

ByteBuffer: TypeAlias = bytes | bytearray | memoryview


class Codec(Word):
    """How the variable section is compressed. Only NONE is false. A number never gets another meaning."""

    NONE = 0
    LZ4 = 1
    """One LZ4 block, without a size in front of it."""
    ZSTD = 2
    """One Zstandard frame."""


_CODECS: Final = {int(codec): codec for codec in Codec}


class BatchHeader(msgspec.Struct, gc=False):
    """The fields of a header. The last three are the stamp, which is written when the batch is appended."""

    codec: Codec
    flags: int
    columns: int
    count: int
    span: int
    """How many offsets the batch takes: more than `count` if rows were left out."""
    stored_length: int
    plain_length: int
    attribute_entries: int
    producer_id: int
    first_sequence: int
    producer_epoch: int
    schema_version: int
    schema_id: int
    publish_time_min: int
    publish_time_max: int
    deliver_at_max: int
    producer_name_length: int
    body_crc: int
    base_offset: int = 0
    append_time: int = 0
    owner_epoch: int = 0

    @property
    def batch_bytes(self) -> int:
        """The stored size of the whole batch."""
        return HEADER_BYTES + self.stored_length

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.span

    @property
    def derived(self) -> bool:
        return bool(self.flags & DERIVED)

    @property
    def publishable(self) -> bool:
        """Whether a producer may publish the batch: no row is left out, and it is not derived."""
        return not self.flags & DERIVED and not self.columns & OFFSETS


def read_header(buffer: ByteBuffer, *, stamped: bool = False) -> BatchHeader:
    """Return the header at the start of `buffer`. Every field is checked; the stamp is checked if `stamped`."""
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    if len(view) < HEADER_BYTES:
        raise Corrupt(f"batch header is cut short at {len(view)} bytes")
    # fmt: off
    (magic, version, codec, flags, columns, count, span, stored_length, plain_length, attribute_entries, producer_id,
     first_sequence, producer_epoch, schema_version, schema_id, publish_time_min, publish_time_max, deliver_at_max,
     name_length, zero, also_zero, body_crc, header_crc, base_offset, append_time, owner_epoch, _,
    ) = _WHOLE.unpack_from(view)
    # fmt: on
    if magic != MAGIC:
        raise Corrupt(f"batch does not begin with {MAGIC!r} but with {magic!r}")
    if version != VERSION:
        raise Corrupt(f"batch format version {version} is unknown to this release, which reads version {VERSION}")
    if crc32c(view[:HEADER_CRC_START]) != header_crc:
        raise Corrupt("batch header does not match its checksum")
    known_codec = _CODECS.get(codec)
    if known_codec is None:
        raise Corrupt(f"batch codec {codec} is unknown to this release")
    if flags & ~FLAGS_KNOWN:
        raise Corrupt(f"batch flag {_bit_numbers(flags & ~FLAGS_KNOWN)} is unknown to this release")
    if columns & ~COLUMNS_KNOWN:
        raise Corrupt(f"batch column {_bit_numbers(columns & ~COLUMNS_KNOWN)} is unknown to this release")
    if zero or also_zero:
        raise Corrupt("batch header bytes 90 to 96 are in use, which this release does not know of")
    # fmt: off
    header = BatchHeader(
        known_codec, flags, columns, count, span, stored_length, plain_length, attribute_entries, producer_id,
        first_sequence, producer_epoch, schema_version, schema_id, publish_time_min, publish_time_max, deliver_at_max,
        name_length, body_crc, base_offset, append_time, owner_epoch,
    )
    # fmt: on
    _check_sizes(header)
    _check_values(header)
    if stamped:
        check_stamp(view, header)
    return header


def _check_sizes(header: BatchHeader) -> None:
    """Check counts and lengths, each by itself and against each other."""
    columns, count, plain_length, stored_length = (
        header.columns,
        header.count,
        header.plain_length,
        header.stored_length,
    )
    if not 1 <= count <= BATCH_MESSAGES_MAX:
        raise Corrupt(f"batch of {count} messages is outside 1..{BATCH_MESSAGES_MAX}")
    if header.span < count:
        raise Corrupt(f"batch of {count} messages cannot span {header.span} offsets")
    if not columns & OFFSETS and (header.span != count or header.flags):
        raise Corrupt("batch with rows left out has no offset column")
    if columns & APPEND_TIME and not header.flags & DERIVED:
        raise Corrupt("batch has an append time column, and it is not derived from several")
    if columns & KEY_VALIDITY and not columns & KEY:
        raise Corrupt("batch has a key validity column without keys")
    if header.attribute_entries and not columns & ATTRIBUTES:
        raise Corrupt(f"batch has {header.attribute_entries} attribute entries and no attribute column")
    if header.producer_name_length > PRODUCER_NAME_BYTES_MAX:
        raise Corrupt(f"producer name of {header.producer_name_length} bytes is over {PRODUCER_NAME_BYTES_MAX}")
    room = _BODY_BYTES_MAX if columns & OFFSETS else _BODY_BYTES_MAX - padded(4 * count)
    if plain_length > room or stored_length > _BODY_BYTES_MAX:
        raise Corrupt(f"batch body of {stored_length} bytes, {plain_length} uncompressed, is over {room}")
    fixed = layout_of(columns, count, header.attribute_entries, header.producer_name_length).end - HEADER_BYTES
    if header.codec:
        if stored_length <= fixed or plain_length <= fixed:
            raise Corrupt(f"compressed batch body of {stored_length} bytes cannot hold {fixed} of columns and data")
    elif stored_length != plain_length or plain_length < fixed:
        raise Corrupt(f"batch body of {stored_length} bytes cannot hold {plain_length}, {fixed} of them columns")


def _check_values(header: BatchHeader) -> None:
    """Check the values that `verify` compares with the columns later."""
    earliest, latest = header.publish_time_min, header.publish_time_max
    if not TIME_MIN <= earliest <= latest <= TIME_MAX or (earliest != latest and not header.columns & PUBLISH_TIME):
        raise Corrupt(f"publish times {earliest}..{latest} of the batch are impossible")
    if not 0 <= header.deliver_at_max <= TIME_MAX or (header.deliver_at_max and not header.columns & DELIVER_AT):
        raise Corrupt(f"latest deliver-at {header.deliver_at_max} of the batch is impossible")
    if not -1 <= header.first_sequence <= OFFSET_MAX - header.span:
        raise Corrupt(f"first sequence {header.first_sequence} of the batch is neither possible nor -1 for none")
    if header.schema_id > SCHEMA_ID_MAX or header.schema_version > SCHEMA_VERSION_MAX:
        raise Corrupt(f"schema {header.schema_id} version {header.schema_version} is out of range")


def check_stamp(view: memoryview, header: BatchHeader) -> None:
    """Raise Corrupt unless the stamp has the right checksum and possible values."""
    if crc32c(view[STAMP_START:STAMP_CRC_START]) != _CRC.unpack_from(view, STAMP_CRC_START)[0]:
        raise Corrupt("batch stamp (base offset, append time, owner epoch) does not match its checksum")
    if not 0 <= header.base_offset <= OFFSET_MAX - header.span or not 0 <= header.append_time <= TIME_MAX:
        raise Corrupt(f"batch stamp (offset {header.base_offset}, append time {header.append_time}) is impossible")


def trust_header(view: memoryview) -> BatchHeader:
    """Return the header of a batch that this process has verified before; nothing is checked."""
    fields = _WHOLE.unpack_from(view)
    return BatchHeader(_CODECS[fields[2]], *(fields[3:19] + fields[21:22] + fields[23:26]))


def write_header(batch: bytearray, header: BatchHeader) -> None:
    """Write the producer's part of `header`, with its checksum, over the first bytes of `batch`."""
    # fmt: off
    _HEADER.pack_into(
        batch, 0, MAGIC, VERSION, header.codec, header.flags, header.columns, header.count, header.span,
        header.stored_length, header.plain_length, header.attribute_entries, header.producer_id, header.first_sequence,
        header.producer_epoch, header.schema_version, header.schema_id, header.publish_time_min,
        header.publish_time_max, header.deliver_at_max, header.producer_name_length, 0, 0, header.body_crc, 0,
    )
    # fmt: on
    _CRC.pack_into(batch, HEADER_CRC_START, crc32c(memoryview(batch)[:HEADER_CRC_START]))


def stamp(batch: bytearray | memoryview, base_offset: int, append_time: int, owner_epoch: int) -> None:
    """Write the broker's part of the header, with its checksum, in place."""
    assert base_offset >= 0
    assert 0 <= append_time <= TIME_MAX
    checksum = crc32c(_STAMPED.pack(base_offset, append_time, owner_epoch))
    _STAMP.pack_into(batch, STAMP_START, base_offset, append_time, owner_epoch, checksum)


def _bit_numbers(bits: int) -> str:
    """Return the numbers of the bits that are set, as text."""
    return ", ".join(str(bit) for bit in range(bits.bit_length()) if bits >> bit & 1)


def blank_header() -> bytes:
    """Return a stamped header of zeros with both checksums right.

    The CRC of bytes that end in their own CRC is the same for all bytes. So the CRC of this header is the CRC of every
    intact header, and one pass over a header checks both of its checksums.
    """
    producer, stamped = bytes(HEADER_CRC_START), bytes(STAMP_CRC_START - STAMP_START)
    return producer + _CRC.pack(crc32c(producer)) + stamped + _CRC.pack(crc32c(stamped))


# -- single fields, without opening the batch -------------------------------------------------------------------------

_BASE_OFFSET: Final = fields_struct("base_offset", start=STAMP_START)
_APPEND_TIME_START: Final = field_start("append_time")
_APPEND_TIME: Final = fields_struct("append_time", start=_APPEND_TIME_START)
_SPAN_START: Final = field_start("span")
_SPAN: Final = fields_struct("span", start=_SPAN_START)
_COUNT_START: Final = field_start("count")
_COUNT_AND_SPAN: Final = fields_struct("count", "span", start=_COUNT_START)
_CODEC_START: Final = field_start("codec")
_PLAIN_LENGTH_START: Final = field_start("plain_length")
_PLAIN_LENGTH: Final = fields_struct("plain_length", start=_PLAIN_LENGTH_START)
_SEQUENCE_START: Final = field_start("producer_id")
_SEQUENCE: Final = fields_struct("producer_id", "first_sequence", "producer_epoch", start=_SEQUENCE_START)


def offsets_of(batch: memoryview) -> tuple[int, int]:
    """Return the offsets [base, end) of a stamped, verified batch."""
    base: int = _BASE_OFFSET.unpack_from(batch, STAMP_START)[0]
    return base, base + int(_SPAN.unpack_from(batch, _SPAN_START)[0])


def append_time_of(batch: memoryview) -> int:
    """Return when a stamped, verified batch was appended, in microseconds."""
    return int(_APPEND_TIME.unpack_from(batch, _APPEND_TIME_START)[0])


def is_dense(batch: memoryview) -> bool:
    """Return whether every offset of a verified batch has a row."""
    count, span = _COUNT_AND_SPAN.unpack_from(batch, _COUNT_START)
    return bool(count == span)


def unpacked_bytes(batch: memoryview) -> int:
    """Return the uncompressed size that the header of an unverified batch states; 0 when it is not compressed, or too
    short to be a batch.

    A batch that states more than the limit is refused when it is opened, before anything is decompressed.
    """
    if len(batch) < HEADER_BYTES or not batch[_CODEC_START]:
        return 0
    return min(int(_PLAIN_LENGTH.unpack_from(batch, _PLAIN_LENGTH_START)[0]), BATCH_BYTES_MAX)


def with_producer(batch: ByteBuffer, producer_id: int, producer_epoch: int, first_sequence: int) -> bytearray:
    """Return a copy of the batch that names another producer and sequence. Its body keeps its checksum; its header gets
    a new one."""
    copy = bytearray(batch)
    _SEQUENCE.pack_into(copy, _SEQUENCE_START, producer_id, first_sequence, producer_epoch)
    _CRC.pack_into(copy, HEADER_CRC_START, crc32c(memoryview(copy)[:HEADER_CRC_START]))
    return copy
