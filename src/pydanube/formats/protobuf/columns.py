"""Decodes protobuf payloads to Arrow columns: each payload becomes a message, and the fields of all messages become
columns, by the functions that `_Columns` builds for each field of the definition once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from pydanube.formats.columns import Decoded, decode_one_by_one, list_array, make_columns, map_array, struct_array
from pydanube.model.errors import Invalid
from pydanube.model.text import one_line

from .arrow import (
    JSON_MESSAGES,
    TIMESTAMP,
    TIMESTAMP_MESSAGE,
    UNSIGNED_LONG,
    WRAPPERS,
    is_map,
    is_repeated,
    proto_arrow_type,
)

if TYPE_CHECKING:
    from .schema import ParsedProtobuf

MakeColumn = Callable[[list[Any]], pa.Array]
"""Makes a column of values, or of None for null."""

_UNSIGNED: Final = (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_FIXED64)
_SECONDS: Final = (-62_135_596_800, 253_402_300_799)  # years 1 to 9999, which is the range of Timestamp


class ProtobufColumnDecoder:
    """Decodes payloads as the first message of a definition, whatever version they were written with."""

    def __init__(self, schema: ParsedProtobuf) -> None:
        self._schema = schema
        descriptor = schema.message_at((0,)).DESCRIPTOR
        self._column = _Columns(schema).build_message(descriptor, proto_arrow_type(descriptor))

    def decode(self, payloads: pa.Array) -> Decoded:
        errors: dict[int, str] = {}
        messages = decode_one_by_one(payloads.to_pylist(), self._schema.decode, errors, _explain)
        return make_columns(messages, self._column, errors, _explain)


def _explain(error: Exception) -> str:
    return error.message if isinstance(error, Invalid) else one_line(error)


class _Columns:
    """Builds the functions that make columns of messages."""

    def __init__(self, schema: ParsedProtobuf) -> None:
        self._schema = schema

    def build_message(self, descriptor: Any, kind: pa.DataType) -> MakeColumn:
        fields = [self._field(one, kind.field(at).type) for at, one in enumerate(descriptor.fields)]

        def make(values: list[Any]) -> pa.Array:
            return struct_array(kind, [field(values) for field in fields], [one is None for one in values])

        return make

    def _field(self, field: Any, kind: pa.DataType) -> MakeColumn:
        """Return what makes the column of a field, of the messages that have it."""
        name = field.name
        if is_map(field):
            return self._map(field, kind)
        if is_repeated(field):
            make_items = self._value(field, kind.value_type)

            def make_lists(messages: list[Any]) -> pa.Array:
                lists = [None if one is None else getattr(one, name) for one in messages]
                return list_array(kind, lists, make_items(list(chain.from_iterable(one or () for one in lists))))

            return make_lists
        make_values = self._value(field, kind)
        if field.has_presence and not (field.message_type is None and field.has_default_value):

            def make_present(messages: list[Any]) -> pa.Array:
                has = (one is not None and one.HasField(name) for one in messages)
                return make_values(
                    [getattr(one, name) if set_ else None for one, set_ in zip(messages, has, strict=True)]
                )

            return make_present
        return lambda messages: make_values([None if one is None else getattr(one, name) for one in messages])

    def _map(self, field: Any, kind: pa.DataType) -> MakeColumn:
        name = field.name
        key, value = (field.message_type.fields_by_name[one] for one in ("key", "value"))
        make_keys, make_items = self._value(key, kind.key_type), self._value(value, kind.item_type)

        def make(messages: list[Any]) -> pa.Array:
            maps = [None if one is None else getattr(one, name) for one in messages]
            entries = [(key, one[key]) for one in maps if one is not None for key in one]
            return map_array(
                kind, maps, make_keys([key for key, _ in entries]), make_items([value for _, value in entries])
            )

        return make

    def _value(self, field: Any, kind: pa.DataType) -> MakeColumn:
        """Return what makes a column of single values of a field."""
        message = field.message_type
        if message is None:
            return _scalars(field, kind)
        if message.full_name == TIMESTAMP_MESSAGE:
            return _timestamps
        if message.full_name in JSON_MESSAGES:
            return self._json_texts
        if message.full_name in WRAPPERS:
            inner = _scalars(message.fields_by_name["value"], kind)
            return lambda values: inner([None if one is None else one.value for one in values])
        return self.build_message(message, kind)

    def _json_texts(self, values: list[Any]) -> pa.Array:
        texts = [None if one is None else msgspec.json.encode(self._schema.to_json(one)) for one in values]
        return pa.array(texts, pa.string())


def _scalars(field: Any, kind: pa.DataType) -> MakeColumn:
    if field.type in _UNSIGNED:
        return lambda values: pa.array(values, pa.uint64()).cast(UNSIGNED_LONG)
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
        return lambda values: pa.array([None if one is None else names.get(one) or str(one) for one in values], kind)
    return lambda values: pa.array(values, kind)


def _timestamps(values: list[Any]) -> pa.Array:
    low, high = _SECONDS
    for one in values:
        if one is not None and not (low <= one.seconds <= high and 0 <= one.nanos < 1_000_000_000):
            raise Invalid(f"a timestamp of {one.seconds} seconds and {one.nanos} nanoseconds is out of range")
    micros = [None if one is None else one.seconds * 1_000_000 + one.nanos // 1000 for one in values]
    return pa.array(micros, pa.int64()).view(TIMESTAMP)
