"""Arrow columns as payloads: the opposite of `columns`.

```python
encoder = column_encoder(schema, frame_type)    # Invalid names a column that is missing, unknown or of another type
payloads = encoder.encode(rows)                 # Invalid names the row and the field
```

The columns are the fields of a record, in any order, in a struct; a schema that is not a record takes the value itself.
The types are those of `columns.arrow_type`, and narrower ones that lose nothing. Each format has a module `encoding`.

Values are joined, row by row or list by list, without a Python loop over rows. Errors name the column by its path, and
types by their names in SQL, because columns come from Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaFormat
from pydanube.model.text import did_you_mean

from .all_formats import ParsedSchema, shown

if TYPE_CHECKING:
    from pydanube.formats.avro.schema import AvroSchema
    from pydanube.formats.json.schema import JsonSchema
    from pydanube.formats.protobuf.schema import ParsedProtobuf


class ColumnEncoder(Protocol):
    """Encodes columns of one type with one schema."""

    def encode(self, rows: pa.Array, first_row: int = 0) -> pa.Array:
        """Return the payload of each row, as a binary array without nulls. Raises Invalid with the row and field; rows
        are counted from `first_row`."""
        ...


class _Encoder:
    def __init__(self, write: Write) -> None:
        self._write = write

    def encode(self, rows: pa.Array, first_row: int = 0) -> pa.Array:
        try:
            return self._write(rows)
        except Misfit as error:
            raise error.as_invalid(first_row) from None


def column_encoder(schema: ParsedSchema, given: pa.DataType) -> ColumnEncoder:
    """Return the encoder of columns of type `given`. Raises Invalid with the column that does not fit the schema."""
    match schema.definition.format:
        case SchemaFormat.AVRO:
            from pydanube.formats.avro.encoding import avro_writer

            return _Encoder(avro_writer(cast("AvroSchema", schema), given))
        case SchemaFormat.JSON:
            from pydanube.formats.json.encoding import json_writer

            return _Encoder(json_writer(cast("JsonSchema", schema), given))
        case SchemaFormat.PROTOBUF:
            from pydanube.formats.protobuf.encoding import proto_writer

            return _Encoder(proto_writer(cast("ParsedProtobuf", schema), given))
        case SchemaFormat.NUMBER:
            return _Encoder(without_nulls(_number_writer(given)))
        case kind:
            fits, name = (is_text, "string") if kind is SchemaFormat.STRING else (is_bytes, "binary")
            if not fits(given):
                raise wrong_type("", given, name)
            return _Encoder(without_nulls(as_bytes))


def _number_writer(given: pa.DataType) -> Write:
    from pydanube.formats.json.encoding import write_float, write_number

    if types.is_floating(given):
        return write_float
    if not is_whole(given) and not types.is_decimal(given):
        raise wrong_type("", given, "double")
    return write_number


def without_nulls(write: Write, reason: str = "is null, and the schema does not allow that") -> Write:
    """Return the function for a column that may have no nulls; `reason` says why."""

    def write_values(values: pa.Array) -> pa.Array:
        if values.null_count:
            raise Misfit(first_null(values), reason)
        return write(values)

    return write_values


def check_payloads(schema: ParsedSchema, payloads: pa.Array, first_row: int = 0) -> None:
    """Raise Invalid with the row if a payload is not what the whole schema demands, as ranges and patterns in JSON."""
    found = schema.check(cast("list[Any]", payloads.to_pylist()))
    if found is not None:
        raise Invalid(f"row {first_row + found.row}: {found.reason}")


# -- the columns that are given, and the fields of a schema ------------------------------------------------------------


_NAMES: Final = {
    pa.null(): "void",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}


def type_name(given: pa.DataType) -> str:
    """Return the name of an Arrow type in SQL."""
    if types.is_list(given):
        return f"array<{type_name(given.value_type)}>"
    if types.is_map(given):
        return f"map<{type_name(given.key_type)},{type_name(given.item_type)}>"
    if types.is_struct(given):
        return f"struct<{','.join(f'{one.name}:{type_name(one.type)}' for one in given)}>"
    if types.is_timestamp(given):
        return "timestamp" if given.tz else "timestamp_ntz"
    if types.is_decimal(given):
        return f"decimal({given.precision},{given.scale})"
    return _NAMES.get(given, str(given))


def wrong_type(path: str, given: pa.DataType, wanted: str) -> Invalid:
    return Invalid(f"column {path or 'value'!r} is {type_name(given)}, and must be {wanted}")


def match_fields(path: str, given: pa.DataType, known: Sequence[str], what: str) -> dict[str, pa.Field]:
    """Return the given fields by name. Raises Invalid for one that `what`, the record of the schema, does not have."""
    if not types.is_struct(given):
        raise wrong_type(path, given, f"a struct, for {what}")
    fields: dict[str, pa.Field] = {}
    for one in given:
        name = step(path, one.name)
        if one.name in fields:
            raise Invalid(f"column {name!r} is there more than once: select one of them")
        if one.name not in known:
            hint = did_you_mean(one.name, known, otherwise=f"it has {', '.join(known) or 'no field'}")
            raise Invalid(f"column {name!r} is no field of {what}: {hint}")
        fields[one.name] = one
    return fields


def refuse_missing(path: str, why: str) -> NoReturn:
    raise Invalid(f"column {path!r} is missing: {why}")


def step(path: str, name: str) -> str:
    """Return the path of a field inside `path`; empty is the whole value."""
    return f"{path}.{name}" if path else name


def is_text(given: pa.DataType) -> bool:
    return bool(types.is_string(given) or types.is_large_string(given))


def is_bytes(given: pa.DataType) -> bool:
    return bool(types.is_binary(given) or types.is_large_binary(given))


def is_whole(given: pa.DataType, bits: int = 64) -> bool:
    """Say whether a type has whole numbers with a sign, of at most `bits`."""
    return bool(types.is_signed_integer(given)) and given.bit_width <= bits


def is_real(given: pa.DataType, bits: int = 64) -> bool:
    """Say whether numbers of a type are exact in a float of `bits`: shorter floats, and integers of half the bits."""
    if types.is_floating(given):
        return bool(given.bit_width <= bits)
    return is_whole(given, bits // 2)


# -- encoded values: arrays of bytes without nulls, one value per row --------------------------------------------------


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

    def as_invalid(self, first_row: int = 0) -> Invalid:
        return Invalid(f"row {first_row + self.row}: {self.path.lstrip('.') or 'the value'} {self.reason}")


@contextmanager
def inside(name: str, offsets: IntArray | None = None) -> Iterator[None]:
    """Turn a Misfit of a column into one of the column around it, whose lists have these offsets if it has lists."""
    try:
        yield
    except Misfit as error:
        row = error.row if offsets is None else int(np.searchsorted(offsets, error.row, "right")) - 1
        raise Misfit(row, error.reason, name + error.path) from None


def refuse_values(wrong: IntArray, values: pa.Array, reason: str) -> None:
    """Raise Misfit for the first row that is true in `wrong`, if there is one, with its value and the reason."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise Misfit(int(rows[0]), f"is {shown(values[int(rows[0])].as_py())}, {reason}")


def first_null(values: pa.Array) -> int:
    return int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])


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
        raise Misfit(int(rows[error.row]), error.reason, error.path) from None
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
