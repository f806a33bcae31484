"""Reads Avro's primitive types, fixed and decimals of many payloads as columns, promoted to the reader's type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrow import DECIMAL_DIGITS_MAX, avro_arrow_type
from .check import UUID_KINDS, UUID_PATTERN, UUID_PLACES, Positions
from .types import AvroType, Fixed, fits_precision, value_range
from .walk import Longs, Walk

ReadColumn = Callable[[Walk, Positions, Positions], tuple[pa.Array, Positions]]
"""Reads the values at positions of rows; returns them, of the reader's Arrow type, and the positions behind them."""


def give_up_on(kind: pa.DataType) -> ReadColumn:
    """Return what reads nothing and leaves all rows to be read one by one."""

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        walk.give_up(rows)
        return pa.nulls(len(rows), kind), pos

    return read


def read_primitive(reader: AvroType, writer: AvroType) -> ReadColumn:
    """Return what reads a primitive type, promoted to the reader's, with the reader's logical type."""
    kind = avro_arrow_type(reader)
    match writer.kind:
        case "null":
            return lambda walk, pos, rows: (pa.nulls(len(rows)), pos)
        case "boolean":
            return _read_booleans
        case "int" | "long":
            return _numbers(reader, writer, kind)
        case "float" | "double":
            return _fractions(writer.kind, kind)
        case "string" if writer.logical is not None:
            return _read_uuids if reader.kind == "string" and reader.logical is not None else give_up_on(kind)
    if reader.logical is not None:
        same = reader.kind == writer.kind and reader.logical.same(writer.logical)
        return _decimals(reader, kind) if same and reader.kind == "bytes" else give_up_on(kind)
    if writer.logical is not None:
        return give_up_on(kind)

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        starts, ends = walk.read_slices(pos, rows)
        if writer.kind == "string" or reader.kind == "string":
            texts = walk.take_text(starts, ends, rows)
            return texts if reader.kind == "string" else texts.cast(pa.binary()), ends
        return walk.take_bytes(starts, ends, pa.binary()), ends

    return read


def _read_booleans(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
    values = walk.bytes.take(walk.clip(pos))
    if np.bitwise_or.reduce(values, initial=0) > 1:
        walk.give_up(rows, values > 1)
    return pa.array(values == 1), pos + 1


def _numbers(reader: AvroType, writer: AvroType, kind: pa.DataType) -> ReadColumn:
    low, high = value_range(writer)
    if reader.kind in {"int", "long"}:
        low, high = max(low, value_range(reader)[0]), min(high, value_range(reader)[1])
    factor = 1000 if reader.logical is not None and reader.logical.name.endswith("timestamp-millis") else 1
    narrow = np.int32 if pa.types.is_int32(kind) or pa.types.is_date32(kind) else np.int64

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        numbers, pos = walk.read_longs(pos, rows)
        if len(numbers) and (numbers.min() < low or numbers.max() > high):
            wrong = (numbers < low) | (numbers > high)
            walk.give_up(rows, wrong)
            numbers = np.where(wrong, 0, numbers)
        if reader.kind in {"float", "double"}:
            return pa.array(numbers.astype(np.float64)).cast(kind, safe=False), pos
        return _from_numpy((numbers * factor).astype(narrow), kind), pos

    return read


def _from_numpy(values: Any, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _fractions(written: str, kind: pa.DataType) -> ReadColumn:
    size = 4 if written == "float" else 8

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        words = walk.words[walk.clip(pos)]
        if size == 8:
            return _from_numpy(words, kind), pos + 8
        single = words.astype(np.uint32).view(np.float32)
        if pa.types.is_float32(kind):
            return _from_numpy(single, kind), pos + 4
        with np.errstate(invalid="ignore"):  # some forms of NaN
            return pa.array(single.astype(np.float64)), pos + 4

    return read


def _read_uuids(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
    starts, ends = walk.read_slices(pos, rows)
    kinds = UUID_KINDS.take(walk.bytes.take(walk.clip(starts[:, None] + UUID_PLACES)))
    wrong = (ends - starts != 36) | (kinds != UUID_PATTERN).any(axis=1)
    walk.give_up(rows, wrong)
    return pc.ascii_lower(walk.take_bytes(starts, np.where(wrong, starts, ends), pa.string())), ends


def read_fixed(reader: Fixed, writer: Fixed) -> ReadColumn:
    """Return what reads a fixed type, with the reader's logical type."""
    kind = avro_arrow_type(reader)
    logical = reader.logical.name if reader.logical is not None else ""
    if logical == "decimal" and not (reader.logical is not None and reader.logical.same(writer.logical)):
        return give_up_on(kind)
    if logical == "decimal":
        return _decimals(reader, kind)
    if writer.logical is not None and writer.logical.name == "decimal":
        return give_up_on(kind)

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        starts, ends = walk.bound_slices(pos, np.full(len(pos), reader.size), rows)
        if logical == "uuid":
            return _uuid_texts(walk.bytes.take(walk.clip(starts[:, None] + np.arange(16)))), ends
        return walk.take_bytes(starts, ends, pa.binary()), ends

    return read


_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES: Final = np.array([8, 13, 18, 23])
_DIGITS: Final = np.setdiff1d(UUID_PLACES, _DASHES)


def _uuid_texts(data: Any) -> pa.Array:
    """Return rows of 16 bytes as the texts of UUIDs."""
    texts = np.empty((len(data), 36), np.uint8)
    texts[:, _DASHES] = ord("-")
    texts[:, _DIGITS[0::2]] = _HEX.take(data >> 4)
    texts[:, _DIGITS[1::2]] = _HEX.take(data & 15)
    offsets = np.arange(0, 36 * len(data) + 1, 36, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(data), [None, pa.py_buffer(offsets), pa.py_buffer(texts)])


def _decimals(reader: AvroType, kind: pa.DataType) -> ReadColumn:
    """Return what reads decimals, big-endian numbers of any length, as the 16 bytes of a decimal128."""
    assert reader.logical is not None
    if reader.logical.precision > DECIMAL_DIGITS_MAX:
        return give_up_on(kind)
    always_fits = (reader.logical.precision * 3321928094 // 10**9 + 1) // 8  # log2(10), rounded down; a bit is the sign
    size = reader.size if isinstance(reader, Fixed) else None
    places = np.arange(16)

    def read(walk: Walk, pos: Positions, rows: Positions) -> tuple[pa.Array, Positions]:
        if size is None:
            starts, ends = walk.read_slices(pos, rows)
        else:
            starts, ends = walk.bound_slices(pos, np.full(len(pos), size), rows)
        lengths = ends - starts
        if len(lengths) and lengths.max() > always_fits:
            _check_digits(walk, starts, ends, rows, lengths > always_fits)
        negative = (walk.bytes.take(walk.clip(starts)) > 127) & (lengths > 0)
        sign = np.where(negative, 255, 0).astype(np.uint8)[:, None]
        data = walk.bytes.take(np.clip(ends[:, None] - 1 - places, 0, walk.size))
        numbers = np.where(places < lengths[:, None], data, sign)
        return _from_numpy(np.ascontiguousarray(numbers), kind).slice(0, len(rows)), ends

    def _check_digits(walk: Walk, starts: Longs, ends: Longs, rows: Positions, suspects: Any) -> None:
        for at in np.flatnonzero(suspects).tolist():
            if ends[at] - starts[at] > 16 or not fits_precision(reader, walk.bytes[starts[at] : ends[at]].tobytes()):
                walk.give_up(rows[at : at + 1])

    return read
