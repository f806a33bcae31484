"""Encodes Arrow columns as JSON, without a loop over rows for all types but JSON text.

Takes the types of `arrow`, narrower numbers, decimals for numbers, and dates and timestamps for strings, which are
written as in ISO 8601. A property that is null is left out; it is written as null where the schema requires it and
allows null. What else the schema demands, such as ranges and patterns, is not checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec
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
    first_null,
    flatten,
    inside,
    is_text,
    is_whole,
    join,
    map_parts,
    match_fields,
    numbers_of,
    pick,
    refuse_missing,
    refuse_values,
    step,
    where_valid,
    without_nulls,
    wrong_type,
)

from .arrow import Kind, Shape, allows_null, applied_schemas, find_shape
from .documents import Node
from .schema import JsonSchema

_ISO: Final = "%Y-%m-%dT%H:%M:%S"
_encode = msgspec.json.Encoder().encode
_raw = msgspec.json.Decoder(msgspec.Raw).decode


def json_writer(schema: JsonSchema, given: pa.DataType) -> Write:
    """Return the function that encodes columns of type `given`. Raises Invalid with the property that does not fit."""
    write = _make(find_shape(schema.root), [schema.root], given, "")
    return partial(_or_null, write) if allows_null([schema.root]) else without_nulls(write)


def _make(shape: Shape, schemas: Sequence[Node], given: pa.DataType, path: str) -> Write:
    """Return the function for values that are not null; `schemas` are those that apply to the value."""
    if types.is_null(given):
        return lambda values: join(len(values), b"null")
    match shape.kind:
        case Kind.OBJECT:
            return _object(shape, schemas, given, path)
        case Kind.ARRAY:
            if not types.is_list(given):
                raise wrong_type(path, given, "an array")
            assert shape.items is not None
            items = [node["items"] for node in applied_schemas(schemas) if "items" in node]
            return partial(_write_array, _make(shape.items, items, given.value_type, f"{path}[]"))
        case Kind.MAP:
            if not types.is_map(given) or not is_text(given.key_type):
                raise wrong_type(path, given, "a map with keys of type string")
            assert shape.items is not None
            inner = [one["additionalProperties"] for one in applied_schemas(schemas) if "additionalProperties" in one]
            return partial(_write_map, _make(shape.items, inner, given.item_type, f"{path}{{}}"))
        case kind:
            return _scalar(kind, given, path)


def _scalar(kind: Kind, given: pa.DataType, path: str) -> Write:
    match kind:
        case Kind.BOOLEAN if types.is_boolean(given):
            return lambda values: choose(numbers_of(values), b"true", b"false")
        case Kind.INTEGER if is_whole(given) or (types.is_decimal(given) and given.scale == 0):
            return write_number
        case Kind.NUMBER if is_whole(given) or types.is_decimal(given):
            return write_number
        case Kind.NUMBER if types.is_floating(given):
            return write_float
        case Kind.STRING if is_text(given):
            return _write_text
        case Kind.TIMESTAMP | Kind.DATE | Kind.DECIMAL if is_text(given):
            return _write_text
        case Kind.STRING | Kind.DATE if types.is_date32(given):
            return lambda values: _quoted(values.cast(pa.string()))
        case Kind.DECIMAL if types.is_decimal(given) or is_whole(given):
            return lambda values: _quoted(values.cast(pa.string()))
        case Kind.STRING | Kind.TIMESTAMP if types.is_timestamp(given):
            form = f"{_ISO}Z" if given.tz else _ISO
            moment = pa.timestamp(given.unit, "UTC") if given.tz else given
            return lambda values: _quoted(pc.strftime(values.cast(moment), form))
        case Kind.TEXT if is_text(given):
            return _write_json_text
    raise wrong_type(path, given, _WANTED[kind])


_WANTED: Final = {
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "bigint",
    Kind.NUMBER: "double",
    Kind.STRING: "string",
    Kind.TIMESTAMP: "timestamp",
    Kind.DATE: "date",
    Kind.DECIMAL: "decimal",
    Kind.TEXT: "string, with JSON in it: the schema allows values of several types",
}


# -- objects, arrays, maps ---------------------------------------------------------------------------------------------


class _Property:
    """How one property of an object is written."""

    def __init__(self, name: str, write: Write, required: bool, nullable: bool) -> None:
        self.name = name
        self.label = _encode(name) + b":"
        self._write = write
        self._required = required
        self._nullable = nullable

    def write(self, column: pa.Array) -> tuple[pa.Array, Any]:
        """Return the values, and which rows have the property; None: all of them."""
        if column.null_count and self._required:
            if not self._nullable:
                raise Misfit(first_null(column), "is null, and the schema requires it")
            return _or_null(self._write, column), None
        return where_valid(column, self._write)


def _object(shape: Shape, schemas: Sequence[Node], given: pa.DataType, path: str) -> Write:
    columns = match_fields(path, given, list(shape.properties), "the schema")
    nodes = applied_schemas(schemas)
    required = {name for node in nodes for name in node.get("required", ())}
    for name in sorted(required - columns.keys()):
        refuse_missing(step(path, name), "the schema requires it")
    properties = []
    for name, column in columns.items():
        inner = [node["properties"][name] for node in nodes if name in node.get("properties", ())]
        write = _make(shape.properties[name], inner, column.type, step(path, name))
        properties.append(_Property(name, write, name in required, allows_null(inner)))
    return partial(_write_object, properties)


def _write_object(properties: list[_Property], values: pa.Array) -> pa.Array:
    parts: list[pa.Array | bytes] = [b"{"]
    begun: Any = np.zeros(len(values), bool)
    for one in properties:
        with inside(f".{one.name}"):
            written, present = one.write(values.field(one.name))
        parts += [_label(one.label, present, begun), written]
        begun = True if present is None or begun is True else begun | present
    return join(len(values), *parts, b"}")


def _label(label: bytes, present: Any, begun: Any) -> pa.Array | bytes:
    """Return the name of a member, with a comma before it if it is not the first, where it is present."""
    if present is None and (begun is True or not begun.any()):
        return b"," + label if begun is True else label
    places = (np.ones_like(begun, np.int8) if present is None else present.astype(np.int8)) * (1 + np.int8(1) * begun)
    return pick(places, b"", label, b"," + label)


def _write_array(write: Write, values: pa.Array) -> pa.Array:
    items, offsets = flatten(values)
    with inside("[]", offsets):
        written = _or_null(write, items)
    return join(len(values), b"[", _joined(written, offsets), b"]")


def _write_map(write: Write, values: pa.Array) -> pa.Array:
    keys, items, offsets = map_parts(values)
    with inside("{}", offsets):
        written = join(len(keys), _write_text(keys), b":", _or_null(write, items))
    return join(len(values), b"{", _joined(written, offsets), b"}")


def _joined(items: pa.Array, offsets: Any) -> pa.Array:
    """Join the items of each row with commas."""
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), items)
    return pc.binary_join(lists, pa.scalar(b",", pa.binary()))


def _or_null(write: Write, values: pa.Array) -> pa.Array:
    """Encode a column; null is written as null."""
    written, valid = where_valid(values, write)
    return written if valid is None else join(len(values), choose(valid, b"", b"null"), written)


# -- values ------------------------------------------------------------------------------------------------------------


def write_number(values: pa.Array) -> pa.Array:
    return as_bytes(values.cast(pa.string()))


def write_float(values: pa.Array) -> pa.Array:
    finite = np.isfinite(numbers_of(values))
    if not finite.all():
        refuse_values(~finite, values, "which JSON cannot write")
    return write_number(values)


def _quoted(values: pa.Array) -> pa.Array:
    return join(len(values), b'"', as_bytes(values), b'"')


def _write_text(values: pa.Array) -> pa.Array:
    texts = as_text(values)
    if _needs_no_escapes(texts):
        return _quoted(texts)
    return pa.array([_encode(one) for one in texts.to_pylist()], pa.binary())


def _needs_no_escapes(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return True
    view = np.frombuffer(data, np.uint8)
    used = view[slice(*_range(texts))]
    if not len(used):
        return True
    return int(used.min()) >= 0x20 and not _has(used, b'"') and not _has(used, b"\\")


def _range(texts: pa.Array) -> tuple[int, int]:
    offsets = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset)
    return int(offsets[0]), int(offsets[-1])


def _has(data: Any, byte: bytes) -> bool:
    return bool((data == byte[0]).any())


def _write_json_text(values: pa.Array) -> pa.Array:
    """Return texts that are JSON as they are, without line breaks and the like around them."""
    made = []
    for row, one in enumerate(as_bytes(values).to_pylist()):
        try:
            made.append(bytes(_raw(one)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Misfit(row, f"is no JSON: {error}") from None
    return pa.array(made, pa.binary())
