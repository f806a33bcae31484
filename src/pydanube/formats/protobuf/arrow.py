"""The Arrow types of protobuf messages.

    double, float, bool             float64, float32, bool
    int32, sint32, sfixed32         int32;  uint32, fixed32: int64
    int64, sint64, sfixed64         int64;  uint64, fixed64: decimal128(20, 0)
    string, bytes                   string, binary
    enum                            string: the name of the value, or the number where the schema has no name for it
    message, group                  struct
    repeated, map                   list, map
    oneof                           its fields are columns as others are; those that are not set are null
    google.protobuf.Timestamp       timestamp of microseconds in UTC
    google.protobuf.*Value          the type inside, null if it is not set (the wrappers: Int64Value, StringValue ...)
    google.protobuf.Struct, Value, ListValue    string: JSON text

A field that is not set is null where protobuf can tell (`optional`, oneof, messages, proto2), unless the definition
has a default for it; otherwise it is 0, "" or false, as protobuf has it.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

from pydanube.formats.columns import FieldCounter
from pydanube.model.errors import Invalid

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
UNSIGNED_LONG: Final = pa.decimal128(20, 0)

_Field: Final = FieldDescriptor
SCALARS: Final[dict[int, pa.DataType]] = {
    _Field.TYPE_DOUBLE: pa.float64(),
    _Field.TYPE_FLOAT: pa.float32(),
    _Field.TYPE_BOOL: pa.bool_(),
    _Field.TYPE_INT32: pa.int32(),
    _Field.TYPE_SINT32: pa.int32(),
    _Field.TYPE_SFIXED32: pa.int32(),
    _Field.TYPE_UINT32: pa.int64(),
    _Field.TYPE_FIXED32: pa.int64(),
    _Field.TYPE_INT64: pa.int64(),
    _Field.TYPE_SINT64: pa.int64(),
    _Field.TYPE_SFIXED64: pa.int64(),
    _Field.TYPE_UINT64: UNSIGNED_LONG,
    _Field.TYPE_FIXED64: UNSIGNED_LONG,
    _Field.TYPE_STRING: pa.string(),
    _Field.TYPE_BYTES: pa.binary(),
    _Field.TYPE_ENUM: pa.string(),
}
JSON_MESSAGES: Final = frozenset(f"google.protobuf.{one}" for one in ("Struct", "Value", "ListValue"))
WRAPPERS: Final = frozenset(
    f"google.protobuf.{one}Value"
    for one in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
TIMESTAMP_MESSAGE: Final = "google.protobuf.Timestamp"


def proto_arrow_type(descriptor: Any) -> pa.DataType:
    """Return the Arrow type of a message. Raises Invalid with the place for a message that contains itself."""
    return pa.struct(_fields(descriptor, "$", [], FieldCounter()))


def is_repeated(field: Any) -> bool:
    """Say whether a field of a descriptor is repeated. Maps are too. Older releases of protobuf have only the label."""
    found = getattr(field, "is_repeated", None)
    return field.label == _Field.LABEL_REPEATED if found is None else bool(found)


def is_map(field: Any) -> bool:
    message = field.message_type
    return message is not None and bool(message.GetOptions().map_entry)


def _fields(descriptor: Any, where: str, path: list[str], counter: FieldCounter) -> list[tuple[str, pa.DataType]]:
    name = descriptor.full_name
    if name in path:
        raise Invalid(f"{where[:200]}: {name} contains itself, and columns cannot: its type has no end")
    inner = [*path, name]
    return [(one.name, _field_type(one, f"{where}.{one.name}", inner, counter)) for one in descriptor.fields]


def _field_type(field: Any, where: str, path: list[str], counter: FieldCounter) -> pa.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[one] for one in ("key", "value"))
        return pa.map_(_value_type(key, where, path, counter), _value_type(value, where, path, counter))
    single = _value_type(field, where, path, counter)
    return pa.list_(single) if is_repeated(field) else single


def _value_type(field: Any, where: str, path: list[str], counter: FieldCounter) -> pa.DataType:
    counter.add()
    message = field.message_type
    if message is None:
        return SCALARS[field.type]
    if message.full_name == TIMESTAMP_MESSAGE:
        return TIMESTAMP
    if message.full_name in JSON_MESSAGES:
        return pa.string()
    if message.full_name in WRAPPERS:
        return SCALARS[message.fields_by_name["value"].type]
    return pa.struct(_fields(message, where, path, counter))
