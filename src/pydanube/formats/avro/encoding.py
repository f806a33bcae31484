"""Encodes Arrow columns as Avro, without a loop over rows for all types but decimals of more than 38
digits and UUIDs in bytes.

Takes the types of `arrow`, and narrower ones that lose nothing: an int for a long, a float for a double. A field
with a default, or that may be null, need not have a column. Times are cut to the unit of the schema.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pydanube.formats.encoding import (
    Misfit,
    Write,
    as_bytes,
    as_text,
    choose,
    fixed_width,
    flatten,
    from_parts,
    inside,
    is_bytes,
    is_real,
    is_text,
    is_whole,
    join,
    join_runs,
    lengths_of,
    map_parts,
    match_fields,
    moments_of,
    numbers_of,
    refuse_missing,
    refuse_values,
    step,
    where_valid,
    without_nulls,
    wrong_type,
    zigzag,
)

from .arrow import DECIMAL_DIGITS_MAX, branch_names
from .read import default_value
from .schema import AvroSchema
from .types import Array, AvroType, EnumType, Field, Fixed, Logical, Map, Record, Union, value_range

_UUID: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def avro_writer(schema: AvroSchema, given: pa.DataType) -> Write:
    """Return the function that encodes columns of type `given`. Raises Invalid with the field that does not fit."""
    return _Writers(schema).part(schema.root, given, "")


class _Writers:
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def part(self, avro_type: AvroType, given: pa.DataType, path: str) -> Write:
        """Return the function for a column that may have nulls."""
        null = _null_branch(avro_type)
        if null is not None:
            return self._nullable(avro_type, null, given, path)
        return without_nulls(self._make(avro_type, given, path))

    def _nullable(self, avro_type: AvroType, null: bytes, given: pa.DataType, path: str) -> Write:
        if types.is_null(given):
            return lambda values: join(len(values), null)
        write = self._make(avro_type, given, path)

        def write_nullable(values: pa.Array) -> pa.Array:
            written, valid = where_valid(values, write)
            return written if valid is None else join(len(values), choose(valid, b"", null), written)

        return write_nullable

    def _make(self, avro_type: AvroType, given: pa.DataType, path: str) -> Write:
        """Return the function for values that are not null."""
        match avro_type:
            case Record():
                return self._record(avro_type, given, path)
            case Union():
                return self._union(avro_type, given, path)
            case Array():
                if not types.is_list(given):
                    raise wrong_type(path, given, "an array")
                return partial(_write_array, self.part(avro_type.items, given.value_type, f"{path}[]"))
            case Map():
                if not types.is_map(given) or not is_text(given.key_type):
                    raise wrong_type(path, given, "a map with keys of type string")
                return partial(_write_map, self.part(avro_type.values, given.item_type, f"{path}{{}}"))
            case _:
                return _scalar(avro_type, given, path)

    def _union(self, union: Union, given: pa.DataType, path: str) -> Write:
        """Return the function for values of a union that are not null."""
        branches = [index for index, one in enumerate(union.branches) if one.kind != "null"]
        if len(branches) == 1:
            return partial(_write_branch, branches[0], self._make(union.branches[branches[0]], given, path))
        names = branch_names(union)
        columns = match_fields(path, given, [one for one in names if one is not None], f"the {union.title}")
        writes: dict[str, Write] = {
            name: partial(
                _write_branch,
                names.index(name),
                self._make(union.branches[names.index(name)], one.type, step(path, name)),
            )
            for name, one in columns.items()
            if not types.is_null(one.type)
        }
        return partial(_write_union, writes)

    def _record(self, record: Record, given: pa.DataType, path: str) -> Write:
        columns = match_fields(path, given, [one.name for one in record.fields], f"the {record.title}")
        return partial(
            _write_record,
            [
                (
                    one.name,
                    self.part(one.type, columns[one.name].type, step(path, one.name))
                    if one.name in columns
                    else self._absent(one, step(path, one.name)),
                )
                for one in record.fields
            ],
        )

    def _absent(self, field: Field, path: str) -> bytes:
        """Return the bytes of a field that has no column: its default, or null."""
        if field.has_default:
            return AvroSchema(self._schema.definition, field.type).encode(default_value(field))
        null = _null_branch(field.type)
        if null is None:
            refuse_missing(path, "the schema has no default for it, and it must not be null")
        return null


def _null_branch(avro_type: AvroType) -> bytes | None:
    """Return the bytes of a null; None if the type has none."""
    if avro_type.kind == "null":
        return b""
    if isinstance(avro_type, Union):
        for index, one in enumerate(avro_type.branches):
            if one.kind == "null":
                return _number(index)
    return None


def _number(number: int) -> bytes:
    encoded: bytes = zigzag(np.array([number]))[0].as_py()
    return encoded


def _write_record(writes: list[tuple[str, Write | bytes]], values: pa.Array) -> pa.Array:
    parts: list[pa.Array | bytes] = []
    for name, write in writes:
        if isinstance(write, bytes):
            parts.append(write)
            continue
        with inside(f".{name}"):
            parts.append(write(values.field(name)))
    return join(len(values), *parts)


def _write_branch(index: int, write: Write, values: pa.Array) -> pa.Array:
    return join(len(values), _number(index), write(values))


def _write_union(writes: dict[str, Write], values: pa.Array) -> pa.Array:
    parts: list[pa.Array | bytes] = []
    chosen = np.zeros(len(values), np.int64)
    for name, write in writes.items():
        column = values.field(name)
        chosen += numbers_of(column.is_valid())
        with inside(f".{name}"):
            parts.append(where_valid(column, write)[0])
    refuse_values(chosen != 1, values, "and exactly one field of a union must have a value")
    return join(len(values), *parts)


def _write_array(write: Write, values: pa.Array) -> pa.Array:
    items, offsets = flatten(values)
    with inside("[]", offsets):
        return _blocks(write(items), offsets)


def _write_map(write: Write, values: pa.Array) -> pa.Array:
    keys, items, offsets = map_parts(values)
    with inside("{}", offsets):
        return _blocks(join(len(keys), _write_bytes(keys), write(items)), offsets)


def _blocks(items: pa.Array, offsets: Any) -> pa.Array:
    """Return the items of each row as one block, with the count before it and a zero behind it; none is a zero."""
    counts = np.diff(offsets)
    return join(len(counts), zigzag(counts), join_runs(items, offsets), choose(counts > 0, b"\0", b""))


# -- values ------------------------------------------------------------------------------------------------------------


def _scalar(avro_type: AvroType, given: pa.DataType, path: str) -> Write:
    if isinstance(avro_type, EnumType):
        if not is_text(given):
            raise wrong_type(path, given, "string")
        return partial(_write_enum, avro_type)
    logical = avro_type.logical
    if logical is not None and logical.name == "decimal":
        return _decimal(avro_type, given, path)
    if logical is not None and logical.name == "uuid":
        if not is_text(given):
            raise wrong_type(path, given, "string")
        return partial(_write_uuid, avro_type)
    if avro_type.kind in ("int", "long"):
        return _whole(avro_type, given, path)
    fits, wanted, write = _PLAIN[avro_type.kind]
    if not fits(given):
        raise wrong_type(path, given, wanted)
    return partial(_write_fixed, avro_type) if isinstance(avro_type, Fixed) else write


def _whole(avro_type: AvroType, given: pa.DataType, path: str) -> Write:
    """Return the function for an int or a long, which may be a date or a time."""
    name = avro_type.logical.name if avro_type.logical is not None else ""
    is_long = avro_type.kind == "long"
    wanted = "bigint" if is_long else "int"
    read: Any = numbers_of
    unit = name.rpartition("-")[2]
    if name == "date":
        fits, wanted, read = types.is_date32(given), "date", partial(moments_of, unit="")
    elif "timestamp-mi" in name:
        zoned = not name.startswith("local")
        fits = types.is_timestamp(given) and bool(given.tz) == zoned
        wanted = "timestamp" if zoned else "timestamp_ntz"
        read = partial(moments_of, unit="ms" if unit == "millis" else "us")
    else:
        fits = is_whole(given, 64 if is_long else 32)
    if not fits:
        raise wrong_type(path, given, wanted)
    low, high = value_range(avro_type)

    def write(values: pa.Array) -> pa.Array:
        numbers = read(values)
        if name and len(numbers) and not low <= int(numbers.min()) <= int(numbers.max()) <= high:
            refuse_values((numbers < low) | (numbers > high), values, f"which is out of the range of {name}")
        return zigzag(numbers)

    return write


def _write_bytes(values: pa.Array) -> pa.Array:
    data = as_bytes(values)
    return join(len(data), zigzag(lengths_of(data)), data)


def _write_fixed(avro_type: AvroType, values: pa.Array) -> pa.Array:
    assert isinstance(avro_type, Fixed)
    data = as_bytes(values)
    refuse_values(lengths_of(data) != avro_type.size, values, f"and {avro_type.title} has {avro_type.size} bytes")
    return data


def _write_enum(avro_type: EnumType, values: pa.Array) -> pa.Array:
    found = pc.index_in(as_text(values), value_set=pa.array(avro_type.symbols, pa.string()))
    if found.null_count:
        known = ", ".join(avro_type.symbols[:20])
        refuse_values(numbers_of(found.is_null()), values, f"which is no symbol of {avro_type.title}: {known}")
    return zigzag(numbers_of(found))


def _write_uuid(avro_type: AvroType, values: pa.Array) -> pa.Array:
    texts = as_text(values)
    wrong = pc.invert(pc.match_substring_regex(texts, _UUID))
    refuse_values(numbers_of(wrong), values, "which is no UUID")
    if avro_type.kind == "string":
        return _write_bytes(texts)
    return pa.array([UUID(one).bytes for one in texts.to_pylist()], pa.binary())


def _decimal(avro_type: AvroType, given: pa.DataType, path: str) -> Write:
    logical = avro_type.logical
    assert logical is not None
    if logical.precision > DECIMAL_DIGITS_MAX:
        if not is_text(given):
            raise wrong_type(path, given, "string, the decimal in text")
    elif not types.is_decimal(given) or not (
        given.scale <= logical.scale and given.precision - given.scale <= logical.precision - logical.scale
    ):
        raise wrong_type(path, given, f"decimal({logical.precision},{logical.scale})")
    size = avro_type.size if isinstance(avro_type, Fixed) else 0
    if is_text(given):
        return partial(_write_decimal_texts, logical, size)
    kind = pa.decimal128(logical.precision, logical.scale)
    return lambda values: _write_decimals(values.cast(kind), size)


def _write_decimals(values: pa.Array, size: int) -> pa.Array:
    """Write the unscaled numbers, the highest byte first: in `size` bytes, or 0: in as few as possible."""
    count = len(values)
    if not count:
        return join(0, b"")
    data = np.frombuffer(values.buffers()[1], np.uint8, 16 * count, 16 * values.offset).reshape(count, 16)[:, ::-1]
    signs = np.where(data[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    if size:
        padded = np.hstack([np.repeat(signs, max(0, size - 16), axis=1), data])
        return from_parts(np.arange(count + 1) * size, np.ascontiguousarray(padded[:, padded.shape[1] - size :]))
    first = np.where((data != signs).any(axis=1), (data != signs).argmax(axis=1), 15)
    needs_sign = np.take_along_axis(data, first[:, None], axis=1)[:, 0] >> 7 != signs[:, 0] >> 7
    first = np.maximum(first - needs_sign, 0)
    offsets = np.concatenate([[0], np.cumsum(16 - first)])
    return _write_bytes(from_parts(offsets, data[np.arange(16) >= first[:, None]].tobytes()))


def _write_decimal_texts(logical: Logical, size: int, values: pa.Array) -> pa.Array:
    made: list[bytes] = []
    for row, one in enumerate(values.to_pylist()):
        try:
            unscaled = _unscaled(Decimal(one), logical.precision, logical.scale)
        except (InvalidOperation, ValueError):
            raise Misfit(row, f"is {one!r}, which is no decimal({logical.precision},{logical.scale})") from None
        made.append(unscaled.to_bytes(size or unscaled.bit_length() // 8 + 1, "big", signed=True))
    data = pa.array(made, pa.binary())
    return data if size else _write_bytes(data)


def _unscaled(value: Decimal, precision: int, scale: int) -> int:
    """Return the digits of a decimal as a whole number. Raises ValueError if it has more of them than the type."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent < -scale:
        raise ValueError("not finite, or too many digits behind the point")
    number: int = int("".join(map(str, digits)) or "0") * 10 ** min(exponent + scale, precision + 1)
    if number >= 10**precision:
        raise ValueError("too many digits")
    return -number if sign else number


def _write_boolean(values: pa.Array) -> pa.Array:
    return fixed_width(numbers_of(values), "u1")


def _write_float(values: pa.Array) -> pa.Array:
    return fixed_width(numbers_of(values), "<f4")


def _write_double(values: pa.Array) -> pa.Array:
    return fixed_width(numbers_of(values), "<f8")


_PLAIN: Final[dict[str, tuple[Any, str, Write]]] = {
    "boolean": (types.is_boolean, "boolean", _write_boolean),
    "float": (partial(is_real, bits=32), "float", _write_float),
    "double": (is_real, "double", _write_double),
    "string": (is_text, "string", _write_bytes),
    "bytes": (is_bytes, "binary", _write_bytes),
    "fixed": (is_bytes, "binary", _write_bytes),
}
"""Of each kind: whether a type fits, the name of the type, and the function that writes it."""
