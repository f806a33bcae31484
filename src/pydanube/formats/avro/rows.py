"""Reads single Avro payloads as values that `pyarrow.array` takes for the type of `avro_arrow_type`.

The values are those of `AvroSchema.decode`, in another form: unions of several types are dictionaries with the name of
the branch, maps are lists of pairs, UUIDs and very long decimals are text, times of day are numbers.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from .arrow import DECIMAL_DIGITS_MAX, branch_names, value_branches
from .read import Read, Resolution, convert_raw
from .types import Array, AvroType, EnumType, Field, Map, Record, Union, choose_branch, default_datum


class ArrowResolution(Resolution):
    """Builds readers of single payloads."""

    def build(self, reader: AvroType, writer: AvroType) -> Read:
        if isinstance(reader, Union) and not isinstance(writer, Union) and len(value_branches(reader)) > 1:
            branch = choose_branch(reader, writer)
            if branch is not None and branch.kind != "null":
                return _named(branch_name(reader, branch), super().build(branch, writer))
        return super().build(reader, writer)

    def build_primitive(self, reader: AvroType, writer: AvroType) -> Read:
        read = super().build_primitive(reader, writer)
        if reader.logical is None:
            return read

        def read_logical(data: bytes, pos: int) -> tuple[Any, int]:
            value, pos = read(data, pos)
            return _arrow_scalar(reader, value), pos

        return read_logical

    def build_map(self, read_value: Read) -> Read:
        read = super().build_map(read_value)

        def read_pairs(data: bytes, pos: int) -> tuple[Any, int]:
            value, pos = read(data, pos)
            return list(value.items()), pos

        return read_pairs

    def default_of(self, field: Field) -> Any:
        return _arrow_datum(field.type, *default_datum(field.type, field.default))


def branch_name(union: Union, branch: AvroType) -> str:
    """Return the name of the struct's field for a branch that is not null."""
    found = next(name for name, one in zip(branch_names(union), union.branches, strict=True) if one is branch)
    assert found is not None
    return found


def _named(name: str, read: Read) -> Read:
    def read_named(data: bytes, pos: int) -> tuple[Any, int]:
        value, pos = read(data, pos)
        return {name: value}, pos

    return read_named


def _arrow_scalar(reader: AvroType, value: Any) -> Any:
    """Return a value of a type with a logical type, as Arrow takes it."""
    assert reader.logical is not None
    match value:
        case datetime.time():
            micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
            return micros // 1000 if reader.kind == "int" else micros
        case UUID():
            return str(value)
        case bytes() if reader.logical.name == "uuid":
            return str(UUID(bytes=value))
        case Decimal() if reader.logical.precision > DECIMAL_DIGITS_MAX:
            return f"{value:f}"
    return value


def _arrow_datum(declared: AvroType, avro_type: AvroType, raw: Any) -> Any:
    """Return a default as Arrow takes it; `avro_type` is the branch of `declared` if that is a union."""
    match avro_type:
        case Record():
            types = {one.name: one.type for one in avro_type.fields}
            value: Any = {key: _arrow_datum(types[key], *one) for key, one in raw.items()}
        case Map():
            value = [(key, _arrow_datum(avro_type.values, *one)) for key, one in raw.items()]
        case Array():
            value = [_arrow_datum(avro_type.items, *one) for one in raw]
        case EnumType():
            value = raw
        case _:
            value = convert_raw(avro_type, raw)
            if avro_type.logical is not None:
                value = _arrow_scalar(avro_type, value)
    if isinstance(declared, Union) and len(value_branches(declared)) > 1 and avro_type.kind != "null":
        return {branch_name(declared, avro_type): value}
    return value
