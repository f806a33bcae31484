"""Encodes Arrow columns as protobuf messages, without a loop over rows for all types but unsigned 64-bit numbers and
JSON text.

Takes the types of `arrow` and narrower ones that lose nothing. A field without a column, or that is null, is not
set. Fields are written in the order of their numbers, and those without presence only if they are not the default, as
protobuf's own libraries do.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import FieldDescriptor
from pyarrow import types

from pydanube.formats.encoding import (
    IntArray,
    Misfit,
    Write,
    as_bytes,
    as_text,
    choose,
    first_null,
    fixed_width,
    flatten,
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
    varints,
    where_valid,
    without_nulls,
    wrong_type,
    zigzag,
)

from .arrow import JSON_MESSAGES, TIMESTAMP_MESSAGE, WRAPPERS, is_map
from .schema import ParsedProtobuf

_F: Final = FieldDescriptor
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_WIRE: Final = {
    _F.TYPE_DOUBLE: _FIXED64,
    _F.TYPE_FIXED64: _FIXED64,
    _F.TYPE_SFIXED64: _FIXED64,
    _F.TYPE_FLOAT: _FIXED32,
    _F.TYPE_FIXED32: _FIXED32,
    _F.TYPE_SFIXED32: _FIXED32,
    _F.TYPE_STRING: _LENGTH,
    _F.TYPE_BYTES: _LENGTH,
    _F.TYPE_MESSAGE: _LENGTH,
    _F.TYPE_GROUP: _START_GROUP,
}
_SECONDS_RANGE: Final = (-62_135_596_800, 253_402_300_799)
"""Of a Timestamp: years 1 to 9999."""


def proto_writer(schema: ParsedProtobuf, given: pa.DataType) -> Write:
    """Return the function that encodes columns of type `given`. Raises Invalid with the field that does not fit."""
    write = _message(schema.message_at((0,)).DESCRIPTOR, given, "")
    return without_nulls(write, "is null, and a message cannot be")


def _message(descriptor: Any, given: pa.DataType, path: str) -> Write:
    fields = {one.name: one for one in sorted(descriptor.fields, key=lambda one: int(one.number))}
    columns = match_fields(path, given, list(fields), f"message {descriptor.full_name}")
    for name, one in fields.items():
        if one.is_required and name not in columns:
            refuse_missing(step(path, name), "the message requires it")
    writes = {
        name: _field(one, columns[name].type, step(path, name))
        for name, one in fields.items()
        if name in columns and not types.is_null(columns[name].type)
    }
    oneofs = [[one.name for one in group.fields if one.name in writes] for group in descriptor.oneofs]
    return partial(_write_message, writes, [names for names in oneofs if len(names) > 1])


def _write_message(writes: dict[str, Write], oneofs: list[list[str]], values: pa.Array) -> pa.Array:
    for names in oneofs:
        chosen = np.sum([numbers_of(values.field(name).is_valid()) for name in names], axis=0)
        refuse_values(chosen > 1, values, f"and only one of {', '.join(names)} may have a value")
    parts: list[pa.Array | bytes] = []
    for name, write in writes.items():
        with inside(f".{name}"):
            parts.append(write(values.field(name)))
    return join(len(values), *parts)


# -- fields ------------------------------------------------------------------------------------------------------------


def _field(field: Any, given: pa.DataType, path: str) -> Write:
    """Return the function for a field with its tag, whose column may have nulls."""
    if is_map(field):
        return _map(field, given, path)
    if field.is_repeated:
        if not types.is_list(given):
            raise wrong_type(path, given, "an array")
        value = _value(field, given.value_type, f"{path}[]")
        return partial(_write_packed if field.is_packed else _write_repeated, field, value)
    value = _value(field, given, path)
    return partial(_write_single, field, value, field.has_presence)


def _write_single(field: Any, value: Write, presence: bool, values: pa.Array) -> pa.Array:
    if values.null_count and field.is_required:
        raise Misfit(first_null(values), "is null, and the message requires it")
    if not presence:
        values = _without_defaults(field, values)
    return where_valid(values, partial(_tagged, field, value))[0]


def _without_defaults(field: Any, values: pa.Array) -> pa.Array:
    """Return a column in which values that need not be written are null."""
    kind = values.type
    if types.is_boolean(kind):
        keep = values
    elif field.type == _F.TYPE_ENUM:
        keep = pc.not_equal(values, pa.scalar(field.enum_type.values_by_number[0].name, kind))
    elif types.is_floating(kind):
        bits = numbers_of(values.fill_null(0.0)).view(f"u{kind.bit_width // 8}")
        keep = pa.array(bits != 0)  # -0.0 is not the default
    elif is_text(kind) or is_bytes(kind):
        keep = pc.greater(pc.binary_length(values), 0)
    else:
        keep = pc.not_equal(values, pa.scalar(0, kind))
    return pc.if_else(keep, values, pa.scalar(None, kind))


def _tagged(field: Any, value: Write, values: pa.Array) -> pa.Array:
    written = value(values)
    if field.type == _F.TYPE_GROUP:
        return join(len(values), _tag(field, _START_GROUP), written, _tag(field, _END_GROUP))
    wire = _WIRE.get(field.type, _VARINT)
    if wire == _LENGTH:
        return join(len(values), _tag(field, wire), varints(lengths_of(written)), written)
    return join(len(values), _tag(field, wire), written)


def _tag(field: Any, wire: int) -> bytes:
    encoded: bytes = varints(np.array([field.number << 3 | wire]))[0].as_py()
    return encoded


def _write_packed(field: Any, value: Write, values: pa.Array) -> pa.Array:
    items, offsets = _items(values)
    packed = join_runs(_write_items(value, items, offsets), offsets)
    filled = np.diff(offsets) > 0
    lengths, _ = where_valid(_masked(lengths_of(packed), filled), lambda some: varints(numbers_of(some)))
    return join(len(values), choose(filled, _tag(field, _LENGTH), b""), lengths, packed)


def _write_repeated(field: Any, value: Write, values: pa.Array) -> pa.Array:
    items, offsets = _items(values)
    return join_runs(_write_items(partial(_tagged, field, value), items, offsets), offsets)


def _items(lists: pa.Array) -> tuple[pa.Array, IntArray]:
    """Return the items of lists, and the offsets of each row's items; a null has none."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return (flatten(lists.drop_null())[0] if lists.null_count else flatten(lists)[0]), _offsets(lengths)


def _offsets(lengths: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _masked(numbers: IntArray, mask: IntArray) -> pa.Array:
    return pa.array(numbers, mask=~mask)


def _write_items(write: Write, items: pa.Array, offsets: IntArray) -> pa.Array:
    with inside("[]", offsets):
        return without_nulls(write, "is null, and an item cannot be")(items)


def _map(field: Any, given: pa.DataType, path: str) -> Write:
    if not types.is_map(given):
        raise wrong_type(path, given, "a map")
    key, value = (field.message_type.fields_by_name[one] for one in ("key", "value"))
    write_key = partial(_tagged, key, _value(key, given.key_type, f"{path}{{}}"))
    write_value = without_nulls(
        partial(_tagged, value, _value(value, given.item_type, f"{path}{{}}")),
        "is null, and a value of a map cannot be",
    )

    def write_entries(maps: pa.Array) -> pa.Array:
        keys, items, offsets = map_parts(maps)
        with inside("{}", offsets):
            entries = join(len(keys), write_key(keys), write_value(items))
        each = join(len(keys), _tag(field, _LENGTH), varints(lengths_of(entries)), entries)
        return join_runs(each, offsets)

    return lambda values: where_valid(values, write_entries)[0]


# -- values ------------------------------------------------------------------------------------------------------------


def _value(field: Any, given: pa.DataType, path: str) -> Write:
    """Return the function for values that are not null, without tag and length."""
    message = field.message_type
    if message is None:
        return _scalar(field, given, path)
    if message.full_name == TIMESTAMP_MESSAGE:
        if not types.is_timestamp(given) or not given.tz:
            raise wrong_type(path, given, "timestamp")
        return partial(_write_timestamp, message)
    if message.full_name in JSON_MESSAGES:
        if not is_text(given):
            raise wrong_type(path, given, "string, with JSON in it")
        return partial(_write_json, message_factory.GetMessageClass(message))
    if message.full_name in WRAPPERS:
        inner = message.fields_by_name["value"]
        return partial(_write_single, inner, _value(inner, given, path), False)
    return _message(message, given, path)


def _write_timestamp(message: Any, values: pa.Array) -> pa.Array:
    micros = moments_of(values, "us")
    seconds, nanos = micros // 1_000_000, micros % 1_000_000 * 1_000
    low, high = _SECONDS_RANGE
    refuse_values((seconds < low) | (seconds > high), values, "which is not in the years 1 to 9999")
    fields = message.fields_by_name
    return join(
        len(values),
        _write_single(fields["seconds"], _varints, False, pa.array(seconds)),
        _write_single(fields["nanos"], _varints, False, pa.array(nanos)),
    )


def _write_json(kind: Any, values: pa.Array) -> pa.Array:
    made = []
    for row, text in enumerate(values.to_pylist()):
        try:
            made.append(json_format.Parse(text, kind()).SerializeToString(deterministic=True))
        except (json_format.ParseError, ValueError, RecursionError) as error:
            raise Misfit(row, f"is no JSON for a {kind.DESCRIPTOR.full_name}: {error}") from None
    return pa.array(made, pa.binary())


def _scalar(field: Any, given: pa.DataType, path: str) -> Write:
    match field.type:
        case _F.TYPE_ENUM:
            if not is_text(given):
                raise wrong_type(path, given, "string, the name of a value")
            return partial(_write_enum, field.enum_type)
        case _F.TYPE_UINT64 | _F.TYPE_FIXED64:
            if not is_whole(given) and not (types.is_decimal(given) and given.scale == 0):
                raise wrong_type(path, given, "decimal(20,0)")
            return partial(_write_unsigned, field.type)
    fits, wanted, write = _SCALARS[field.type]
    if not fits(given):
        raise wrong_type(path, given, wanted)
    return write


def _write_enum(enum: Any, values: pa.Array) -> pa.Array:
    names = list(enum.values_by_name)
    places = pc.index_in(as_text(values), value_set=pa.array(names, pa.string()))
    numbers = np.array([enum.values_by_name[name].number for name in names], np.int64)
    if not places.null_count:
        return _varints(pa.array(numbers[numbers_of(places)]))
    found = []
    for row, text in enumerate(values.to_pylist()):
        value = enum.values_by_name.get(text)
        number = value.number if value is not None else None if enum.is_closed else _small_number(text)
        if number is None:
            raise Misfit(row, f"is {text!r}, which is no value of {enum.full_name}: {', '.join(names[:20])}")
        found.append(number)
    return _varints(pa.array(found, pa.int64()))


def _small_number(text: str) -> int | None:
    """Return the number of an enum value that has no name, as the text of a column has it."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 10):
        return None
    return int(text) if -(2**31) <= int(text) < 2**31 else None


def _write_unsigned(kind: int, values: pa.Array) -> pa.Array:
    plain = [int(one) for one in values.to_pylist()]
    wrong = np.array([not 0 <= one < 2**64 for one in plain], bool)
    refuse_values(wrong, values, "which is not between 0 and 2^64 - 1")
    numbers = np.array(plain, np.uint64)
    return varints(numbers) if kind == _F.TYPE_UINT64 else fixed_width(numbers, "<u8")


def _varints(values: pa.Array) -> pa.Array:
    """Return signed numbers as protobuf's int32 and int64: negative ones take ten bytes."""
    return varints(numbers_of(values).astype(np.int64).view(np.uint64))


def _unsigned_32(values: pa.Array) -> IntArray:
    numbers = numbers_of(values).astype(np.int64)
    refuse_values((numbers < 0) | (numbers >= 2**32), values, "which is not between 0 and 2^32 - 1")
    return numbers


def _zigzags(values: pa.Array) -> pa.Array:
    return zigzag(numbers_of(values))


def _fixed(kind: str, values: pa.Array) -> pa.Array:
    return fixed_width(numbers_of(values), kind)


_INT: Final = partial(is_whole, bits=32)
_SCALARS: Final[dict[int, tuple[Any, str, Write]]] = {
    _F.TYPE_DOUBLE: (is_real, "double", partial(_fixed, "<f8")),
    _F.TYPE_FLOAT: (partial(is_real, bits=32), "float", partial(_fixed, "<f4")),
    _F.TYPE_BOOL: (types.is_boolean, "boolean", partial(_fixed, "u1")),
    _F.TYPE_INT32: (_INT, "int", _varints),
    _F.TYPE_SINT32: (_INT, "int", _zigzags),
    _F.TYPE_SFIXED32: (_INT, "int", partial(_fixed, "<i4")),
    _F.TYPE_INT64: (is_whole, "bigint", _varints),
    _F.TYPE_SINT64: (is_whole, "bigint", _zigzags),
    _F.TYPE_SFIXED64: (is_whole, "bigint", partial(_fixed, "<i8")),
    _F.TYPE_UINT32: (is_whole, "bigint", lambda values: varints(_unsigned_32(values))),
    _F.TYPE_FIXED32: (is_whole, "bigint", lambda values: fixed_width(_unsigned_32(values), "<u4")),
    _F.TYPE_STRING: (is_text, "string", as_bytes),
    _F.TYPE_BYTES: (is_bytes, "binary", as_bytes),
}
"""Of each type: whether a column fits, the name of the type in SQL, and the function that writes it."""
