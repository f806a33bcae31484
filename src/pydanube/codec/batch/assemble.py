"""Writes checked columns as a batch. The cost is per batch plus loops that run in C.

```
 EncodedRows + Origin  -->  Draft: fixed parts, variable parts  -->  header | fixed section | variable section
```

The maker of the `EncodedRows` has checked every row. Only the size of the whole can still be wrong, and that is known
before anything is copied.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from crc32c import crc32c

from pydanube.model.errors import Invalid
from pydanube.model.limits import BATCH_BYTES_MAX

from .compression import compress
from .header import BatchHeader, ByteBuffer, Codec, write_header
from .layout import ATTRIBUTES, DELIVER_AT, HEADER_BYTES, KEY, KEY_VALIDITY, OFFSETS, PUBLISH_TIME, layout, padded

FEW: Final = 32
"""Up to this many rows a plain Python loop is quicker than numpy."""

Joinable: TypeAlias = "ByteBuffer | array[int]"

_HEADER_ROOM: Final = bytes(HEADER_BYTES)
_ZEROS: Final = tuple(bytes(length) for length in range(8))
SINGLE_OFFSETS: Final = struct.Struct("<ii")
"""The offset column of a single row: 0, and where it ends."""


class KeyColumn(NamedTuple):
    """A key column that is ready to be written: every row has a key."""

    text: bytes
    offsets: np.ndarray[Any, np.dtype[np.int32]]
    hashes: np.ndarray[Any, np.dtype[np.uint32]]


class EncodedRows(NamedTuple):
    """Columns of at least one row, each of the same length. Keys and attributes are already UTF-8."""

    payloads: Sequence[ByteBuffer]
    publish_times: int | array[int]
    keys: Sequence[bytes | None] | KeyColumn | None = None
    attribute_counts: Sequence[int] | None = None
    """How many attributes each row has. `attribute_keys` and `attribute_values` hold those of all rows, in order."""
    attribute_keys: Sequence[bytes] = ()
    attribute_values: Sequence[bytes] = ()
    deliver_at: array[int] | None = None
    payload_lengths: list[int] | None = None
    """If the caller knows them already."""


class Origin(NamedTuple):
    """The producer and the schema of a batch: the same for every row."""

    name: bytes = b""
    producer_id: int = 0
    producer_epoch: int = 0
    first_sequence: int = -1
    schema_id: int = 0
    schema_version: int = 0


class Draft:
    """The parts of a batch in order, padded; `finish` joins them once."""

    __slots__ = ("fixed", "variable", "variable_bytes")

    def __init__(self) -> None:
        self.fixed: list[Joinable] = [_HEADER_ROOM]
        self.variable: list[Joinable] = []
        self.variable_bytes = 0

    def add_fixed(self, column: Joinable, length: int) -> None:
        self.fixed.append(column)
        if length & 7:
            self.fixed.append(_ZEROS[-length & 7])

    def add_variable(self, parts: Sequence[Joinable], length: int) -> None:
        self.variable.extend(parts)
        if length & 7:
            self.variable.append(_ZEROS[-length & 7])
        self.variable_bytes += padded(length)

    def add_offsets(self, lengths: Sequence[int]) -> int:
        """Add an offset column for values of these lengths; return where the last value ends."""
        count = len(lengths)
        if count <= FEW:
            ends = list(accumulate(lengths, initial=0))
            total = _fitting(ends[-1])
            self.add_fixed(array("i", ends), 4 * count + 4)
        elif (width := lengths[0]) and lengths.count(width) == count:
            total = _fitting(width * count)
            self.add_fixed(np.arange(0, total + 1, width, dtype=np.int32).data, 4 * count + 4)
        else:
            offsets = np.zeros(count + 1, np.int64)
            np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
            total = _fitting(int(offsets[-1]))
            self.add_fixed(offsets.astype(np.int32).data, 4 * count + 4)
        return total

    def add_texts(self, texts: Sequence[ByteBuffer], lengths: list[int] | None = None) -> None:
        """Add a column of byte strings: offsets to the fixed section, bytes to the variable section."""
        self.add_variable(texts, self.add_offsets(list(map(len, texts)) if lengths is None else lengths))

    def finish(self, header: BatchHeader) -> bytearray:
        """Return the batch; fill in the fields of `header` that describe the body.

        `header.codec` becomes NONE if compression does not make the data smaller.
        """
        place = layout(header.columns, header.count, header.attribute_entries, header.producer_name_length)
        header.plain_length = place.end - HEADER_BYTES + self.variable_bytes
        reserve = 0 if header.columns & OFFSETS else padded(4 * header.count)
        _fitting(HEADER_BYTES + header.plain_length + reserve)
        batch = bytearray().join([*self.fixed, *self._stored(header)])
        header.stored_length = len(batch) - HEADER_BYTES
        assert header.codec or header.stored_length == header.plain_length
        header.body_crc = crc32c(memoryview(batch)[HEADER_BYTES:])
        write_header(batch, header)
        return batch

    def _stored(self, header: BatchHeader) -> list[Joinable]:
        """Return the variable section, compressed if `header` asks for it and it becomes smaller."""
        if not header.codec:
            return self.variable
        plain = b"".join(self.variable)
        packed = compress(header.codec, plain) if plain else plain
        if len(packed) < len(plain):
            return [packed]
        header.codec = Codec.NONE
        return [plain]


def assemble(rows: EncodedRows, origin: Origin, codec: Codec) -> bytearray:
    """Return the batch, not yet stamped. Raises Invalid if it is too large."""
    draft = Draft()
    columns, deliver_at_max = 0, 0
    draft.add_texts(rows.payloads, rows.payload_lengths)
    if rows.keys is not None:
        columns |= _add_keys(draft, rows.keys)
    earliest, latest = bounds(rows.publish_times)
    if earliest != latest:
        assert not isinstance(rows.publish_times, int)
        columns |= PUBLISH_TIME
        draft.fixed.append(rows.publish_times)
    if rows.attribute_counts is not None:
        columns |= ATTRIBUTES
        draft.add_offsets(rows.attribute_counts)
        draft.add_texts(rows.attribute_keys)
        draft.add_texts(rows.attribute_values)
    if rows.deliver_at is not None:
        columns |= DELIVER_AT
        draft.fixed.append(rows.deliver_at)
        deliver_at_max = bounds(rows.deliver_at)[1]
    draft.add_fixed(origin.name, len(origin.name))
    count = len(rows.payloads)
    # fmt: off
    header = BatchHeader(
        codec, 0, columns, count, count, 0, 0, len(rows.attribute_keys), origin.producer_id, origin.first_sequence,
        origin.producer_epoch, origin.schema_version, origin.schema_id, earliest, latest, deliver_at_max,
        len(origin.name), 0,
    )
    # fmt: on
    return draft.finish(header)


def assemble_single(payload: ByteBuffer, publish_time: int, origin: Origin) -> bytearray:
    """Return the same bytes as `assemble` for one row that has only a payload, but faster: a producer that sends one
    message at a time waits for this. A payload within its limit always fits."""
    name, length = origin.name, len(payload)
    offsets, name_padding, padding = SINGLE_OFFSETS.pack(0, length), _ZEROS[-len(name) & 7], _ZEROS[-length & 7]
    batch = bytearray().join((_HEADER_ROOM, offsets, name, name_padding, payload, padding))
    body_length = len(batch) - HEADER_BYTES
    # fmt: off
    header = BatchHeader(
        Codec.NONE, 0, 0, 1, 1, body_length, body_length, 0, origin.producer_id, origin.first_sequence,
        origin.producer_epoch, origin.schema_version, origin.schema_id, publish_time, publish_time, 0, len(name),
        crc32c(memoryview(batch)[HEADER_BYTES:]),
    )
    # fmt: on
    write_header(batch, header)
    return batch


def _add_keys(draft: Draft, keys: Sequence[bytes | None] | KeyColumn) -> int:
    """Add the key columns; return their column flags."""
    if isinstance(keys, KeyColumn):
        draft.add_fixed(keys.offsets.data, 4 * len(keys.offsets))
        draft.add_fixed(keys.hashes.data, 4 * len(keys.hashes))
        draft.add_variable([keys.text], _fitting(len(keys.text)))
        return KEY
    columns, count = KEY, len(keys)
    texts: Sequence[bytes]
    if None in keys:
        columns |= KEY_VALIDITY
        texts = [key or b"" for key in keys]
        validity = np.packbits(np.fromiter((key is not None for key in keys), np.bool_, count), bitorder="little")
        draft.add_fixed(validity.data, len(validity))
    else:
        texts = keys  # type: ignore[assignment]  # none of them is None
    draft.add_texts(texts)
    hashes = map(zlib.crc32, texts)
    draft.add_fixed(array("I", hashes) if count <= FEW else np.fromiter(hashes, np.uint32, count).data, 4 * count)
    return columns


def bounds(times: int | array[int]) -> tuple[int, int]:
    """Return the earliest and the latest time."""
    if isinstance(times, int):
        return times, times
    if len(times) <= FEW:
        return min(times), max(times)
    column = np.frombuffer(times, np.int64)
    return int(np.minimum.reduce(column)), int(np.maximum.reduce(column))


def _fitting(length: int) -> int:
    if length > BATCH_BYTES_MAX:
        raise Invalid(f"batch of {length} bytes is over the limit of {BATCH_BYTES_MAX}: publish fewer messages in one")
    return length
