"""The Arrow types of Avro's types.

null, boolean, int, long        null, bool, int32, int64
float, double, bytes, string    float32, float64, binary, string
enum, uuid                      string
fixed, duration                 binary
date                            date32
time-millis, time-micros        int32, int64: milliseconds and microseconds since midnight
timestamp-millis, -micros       timestamp of microseconds in UTC; local-timestamp-*: without a time zone
timestamp-nanos                 int64: nanoseconds since 1970, local or not
decimal                         decimal128; a string where the precision is more than 38
array, map, record              list, map of string to values, struct
union                           its one type beside null; of several types a struct, in which only the field of the
                                type that was written is not null. Fields are named after the types: `long`, `Order`
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pyarrow as pa

from pydanube.formats.columns import FieldCounter
from pydanube.model.errors import Invalid

from .types import Array, AvroType, EnumType, Fixed, Logical, Map, Named, Record, Union

DECIMAL_DIGITS_MAX: Final = 38
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
LOCAL_TIMESTAMP: Final = pa.timestamp("us")

_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "local-timestamp-millis": LOCAL_TIMESTAMP,
    "local-timestamp-micros": LOCAL_TIMESTAMP,
    "uuid": pa.string(),
}


def avro_arrow_type(root: AvroType) -> pa.DataType:
    """Return the Arrow type of an Avro type. Raises Invalid with the place for a record that contains itself."""
    return _arrow_type(root, "$", [], FieldCounter())


def branch_names(union: Union) -> list[str | None]:
    """Return the name of the struct's field for each branch of a union; None for null.

    A named type has its name without the namespace, or with it if two of them would have one name.
    """
    short = [one.short_name if isinstance(one, Named) else one.kind for one in union.branches]
    counts = Counter(one.lower() for one in short)
    return [
        None if one.kind == "null" else one.name if isinstance(one, Named) and counts[name.lower()] > 1 else name
        for one, name in zip(union.branches, short, strict=True)
    ]


def value_branches(union: Union) -> list[AvroType]:
    """Return the branches of a union other than null."""
    return [one for one in union.branches if one.kind != "null"]


def _arrow_type(avro_type: AvroType, where: str, path: list[AvroType], counter: FieldCounter) -> pa.DataType:
    counter.add()
    match avro_type:
        case Record():
            if any(one is avro_type for one in path):
                raise Invalid(
                    f"{where[:200]}: {avro_type.name} contains itself, and columns cannot: its type has no end"
                )
            inner = [*path, avro_type]
            return pa.struct(
                [(one.name, _arrow_type(one.type, f"{where}.{one.name}", inner, counter)) for one in avro_type.fields]
            )
        case Array():
            return pa.list_(_arrow_type(avro_type.items, f"{where}[]", path, counter))
        case Map():
            return pa.map_(pa.string(), _arrow_type(avro_type.values, f"{where}{{}}", path, counter))
        case Union():
            values = value_branches(avro_type)
            if len(values) <= 1:
                return _arrow_type(values[0], where, path, counter) if values else pa.null()
            return pa.struct(
                [
                    (name, _arrow_type(one, f"{where}.{name}", path, counter))
                    for name, one in zip(branch_names(avro_type), avro_type.branches, strict=True)
                    if name is not None
                ]
            )
        case EnumType():
            return pa.string()
    if avro_type.logical is not None:
        return _logical_type(avro_type, avro_type.logical)
    return pa.binary() if isinstance(avro_type, Fixed) else _PRIMITIVES[avro_type.kind]


def _logical_type(avro_type: AvroType, logical: Logical) -> pa.DataType:
    if logical.name == "decimal":
        exact = logical.precision <= DECIMAL_DIGITS_MAX
        return pa.decimal128(logical.precision, logical.scale) if exact else pa.string()
    found = _LOGICAL.get(logical.name)
    if found is not None:
        return found
    return pa.binary() if isinstance(avro_type, Fixed) else _PRIMITIVES[avro_type.kind]
