"""Bytes of many values at once: the parts that the column encoders of all formats are made of.

A column of encoded values is an Arrow array of type binary without nulls, one value per row. Values are joined, row by
row or list by list, without a Python loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.model.errors import Invalid

Write: TypeAlias = Callable[[pa.Array], pa.Array]
"""Encodes a column without nulls. Raises Misfit with the row."""

IntArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Misfit(Exception):
    """A value that cannot be encoded: its row in the column that was passed, its path inside the row, the reason."""

    def __init__(self, row: int, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason
        self.path = path

    def inside(self, name: str, rows: IntArray | None = None) -> Misfit:
        """Return the same for the column around this one; `rows` has, for each row of this one, the row there."""
        return Misfit(self.row if rows is None else int(rows[self.row]), self.reason, name + self.path)

    def as_invalid(self, first_row: int = 0) -> Invalid:
        return Invalid(f"row {first_row + self.row}: {self.path.lstrip('.') or 'the value'} {self.reason}")


def refuse_values(wrong: IntArray, values: pa.Array, reason: str) -> None:
    """Raise Misfit for the first row that is true in `wrong`, if there is one, with its value and the reason."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise Misfit(int(rows[0]), f"is {_shown(values[int(rows[0])].as_py())}, {reason}")


def first_null(values: pa.Array) -> int:
    return int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- arrays of bytes ---------------------------------------------------------------------------------------------------


def from_parts(offsets: IntArray, data: Any) -> pa.Array:
    """Return an array of bytes of Arrow's offsets and data."""
    ends = np.ascontiguousarray(offsets, np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def offsets_of(values: pa.Array) -> IntArray:
    """Return the offsets of an array of bytes, text, lists or maps, which may be a slice."""
    if not len(values):
        return np.zeros(1, np.int32)
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)


def lengths_of(values: pa.Array) -> IntArray:
    offsets = offsets_of(values)
    return offsets[1:] - offsets[:-1]


def as_bytes(values: pa.Array) -> pa.Array:
    """Return text or bytes as an array of bytes."""
    if values.type in (pa.large_string(), pa.large_binary()):
        values = values.cast(pa.string() if values.type == pa.large_string() else pa.binary())
    return values if values.type == pa.binary() else values.view(pa.binary())


def as_text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()) if values.type == pa.large_string() else values


def repeat(value: bytes, count: int) -> pa.Array:
    return from_parts(np.arange(count + 1) * len(value), value * count)


def join(count: int, *parts: pa.Array | bytes) -> pa.Array:
    """Join the parts of each of `count` rows; a part that is bytes is the same in every row."""
    if not count or all(isinstance(one, bytes) for one in parts):
        return repeat(b"".join(one for one in parts if isinstance(one, bytes)), count)
    used = [one for one in parts if not isinstance(one, bytes) or one]
    if len(used) == 1:
        return used[0]
    scalars = [pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in used]
    return pc.binary_join_element_wise(*scalars, pa.scalar(b"", pa.binary()))


def join_runs(values: pa.Array, offsets: IntArray) -> pa.Array:
    """Join consecutive values: row r of the result has values [offsets[r], offsets[r + 1]). Copies no bytes."""
    return from_parts(offsets_of(values)[offsets], values.buffers()[2] or b"")


def choose(mask: IntArray, yes: bytes, no: bytes) -> pa.Array:
    """Return `yes` for the rows that are true in `mask`, `no` for the others."""
    return pick(mask.astype(np.int8), no, yes)


def pick(places: IntArray, *options: bytes) -> pa.Array:
    """Return the option at the place that each row names."""
    indices = pa.array(places.astype(np.int8))
    return pa.DictionaryArray.from_arrays(indices, pa.array(options, pa.binary())).dictionary_decode()


def where_valid(values: pa.Array, write: Write) -> tuple[pa.Array, IntArray | None]:
    """Encode a column that may have nulls. A null becomes no bytes; the second result tells which rows are not null,
    None: all."""
    if not values.null_count:
        return write(values), None
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(valid)
    try:
        written = write(values.filter(pa.array(valid)))
    except Misfit as error:
        raise error.inside("", rows) from None
    lengths = np.zeros(len(values) + 1, np.int64)
    lengths[1:][valid] = lengths_of(written)
    offsets = np.cumsum(lengths) + offsets_of(written)[0]
    return from_parts(offsets, written.buffers()[2] or b""), valid


def flatten(lists: pa.Array) -> tuple[pa.Array, IntArray]:
    """Return the items of a column of lists, and the offsets of each row's items in them."""
    lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def map_parts(maps: pa.Array) -> tuple[pa.Array, pa.Array, IntArray]:
    """Return the keys and the values of a column of maps, and the offsets of each row's entries in them."""
    offsets = offsets_of(maps).astype(np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    return maps.keys.slice(first, end - first), maps.items.slice(first, end - first), offsets - first


def rows_of(offsets: IntArray) -> IntArray:
    """Return, for each item of lists, the row of its list."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


# -- numbers -----------------------------------------------------------------------------------------------------------


def varints(numbers: IntArray) -> pa.Array:
    """Return unsigned numbers as varints of base 128, the lowest bits first."""
    unsigned = numbers.astype(np.uint64)
    most = int(unsigned.max()) if len(unsigned) else 0
    if most < 0x80:
        return from_parts(np.arange(len(unsigned) + 1), unsigned.astype(np.uint8).tobytes())
    width = -(-most.bit_length() // 7)
    lengths = np.ones(len(unsigned), np.int64)
    for place in range(1, width):
        lengths += unsigned >= np.uint64(1 << 7 * place)
    digits = np.empty((len(unsigned), width), np.uint8)
    for place in range(width):
        digits[:, place] = (unsigned >> np.uint64(7 * place)) & np.uint64(0x7F)
        digits[:, place] |= (lengths > place + 1).astype(np.uint8) << 7
    data = digits[np.arange(width) < lengths[:, None]]
    return from_parts(np.concatenate([[0], np.cumsum(lengths)]), data.tobytes())


def zigzag(numbers: IntArray) -> pa.Array:
    """Return signed numbers as zigzag varints."""
    signed = numbers.astype(np.int64)
    return varints(((signed << 1) ^ (signed >> 63)).view(np.uint64))


def fixed_width(numbers: IntArray, kind: str) -> pa.Array:
    """Return numbers in a fixed number of bytes; `kind` is numpy's name of the type, as "<f8"."""
    data = np.ascontiguousarray(numbers, kind)
    return from_parts(np.arange(len(data) + 1) * data.itemsize, data.tobytes())


def numbers_of(values: pa.Array) -> IntArray:
    """Return a column of numbers or truth values without nulls."""
    numbers: IntArray = values.to_numpy(zero_copy_only=False)
    return numbers


def moments_of(values: pa.Array, unit: str) -> IntArray:
    """Return dates, times or timestamps as whole numbers of `unit`, cut to it."""
    kind = values.type
    if pa.types.is_date32(kind):
        return numbers_of(values.view(pa.int32())).astype(np.int64)
    have, want = _PER_SECOND[kind.unit], _PER_SECOND[unit]
    numbers = numbers_of(values.view(pa.int32() if kind.bit_width == 32 else pa.int64())).astype(np.int64)
    return numbers * (want // have) if want >= have else numbers // (have // want)


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
