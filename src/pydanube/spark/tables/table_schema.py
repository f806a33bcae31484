"""Compares the columns of rows with those of a table, before anything is written.

A column must have the table's type; a smaller number type is widened (int to bigint, float to double). Columns that
rows lack are null in the table. Columns that the table lacks are added if the option `mergeSchema` is true. Everything
else is refused by name: an existing table is never changed in another way, and never overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from pydanube.model.errors import Invalid, Refused

PARTITION_TYPES: Final = "string, int, bigint, boolean and date"

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


@dataclass(frozen=True, slots=True)
class Comparison:
    """How rows fit a table."""

    written: pa.Schema
    """The columns of rows, in the table's order and with its types, then the new ones."""
    added: tuple[pa.Field, ...]
    """The columns that the table lacks."""


def compare_columns(table: pa.Schema, rows: pa.Schema, name: str, merge: bool) -> Comparison:
    """Return how `rows` fit the table `name`. Raises Refused, with each wrong column, if they do not."""
    problems = _case_problems(table, rows)
    for column in table:
        if column.name not in rows.names:
            if not column.nullable:
                problems.append(f"{column.name!r} must not be null in the table, and the rows have no such column")
        elif not can_widen(rows.field(column.name).type, column.type):
            kind = type_name(rows.field(column.name).type)
            problems.append(f"{column.name!r} is {type_name(column.type)} in the table, and {kind} here")
    added = tuple(plain_field(column) for column in rows if column.name not in table.names)
    if added and not merge:
        listed = ", ".join(f"{one.name!r} ({type_name(one.type)})" for one in added)
        problems.append(f"the table has no column {listed}: set mergeSchema=true to add it, or leave it out")
    if problems:
        raise Refused(f"the rows do not fit the table {name}: {'; '.join(problems)}")
    kept = [pa.field(one.name, plain_type(one.type)) for one in table if one.name in rows.names]
    return Comparison(pa.schema([*kept, *added]), added)


def _case_problems(table: pa.Schema, rows: pa.Schema) -> list[str]:
    """Return the columns that differ from one of the table only in case: Delta and Spark take them for the same."""
    lower = {one.lower(): one for one in table.names}
    return [
        f"{one!r} is {lower[one.lower()]!r} in the table"
        for one in rows.names
        if one not in table.names and one.lower() in lower
    ]


def check_spelling(rows: pa.Schema, name: str) -> None:
    """Raise Refused for names that differ only in case, at any depth: a Delta table takes them for the same."""
    _check_fields([rows.field(index) for index in range(len(rows.names))], "", name)


def _check_fields(fields: Sequence[pa.Field], parent: str, table: str) -> None:
    seen: dict[str, str] = {}
    for one in fields:
        if one.name.lower() in seen:
            told = "they differ only in upper and lower case, or not at all: rename one, or leave it out"
            first, second = parent + seen[one.name.lower()], parent + one.name
            raise Refused(f"a Delta table cannot have the columns {first!r} and {second!r} ({table}): {told}")
        seen[one.name.lower()] = one.name
        _check_fields(_fields_inside(one.type), f"{parent}{one.name}.", table)


def _fields_inside(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a record, also of one in a list or a map."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _fields_inside(kind.value_type)
    if pa.types.is_map(kind):
        return [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
    return [kind.field(index) for index in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def check_partition_by(wanted: Sequence[str] | None, existing: Sequence[str], name: str) -> None:
    """Raise Refused if the option `partitionBy` names other columns than the existing table is partitioned by."""
    if wanted is not None and list(wanted) != list(existing):
        by = f"partitioned by {', '.join(existing)}" if existing else "not partitioned"
        raise Refused(f"the table {name} is {by}, and partitionBy says {', '.join(wanted) or 'nothing'}: leave it out")


def check_partition_columns(wanted: Sequence[str], rows: pa.Schema) -> None:
    """Raise Invalid unless the rows have these columns, with types that name directories well, and others too."""
    for one in wanted:
        if one not in rows.names:
            raise Invalid(f"option partitionBy names {one!r}, which is no column: there are {', '.join(rows.names)}")
        kind = plain_type(rows.field(one).type)
        if not (kind in (pa.string(), pa.bool_(), pa.date32()) or kind in _INTEGERS):
            raise Invalid(
                f"option partitionBy names {one!r}, which is {type_name(kind)}: use columns of {PARTITION_TYPES}"
            )
    if wanted and len(wanted) == len(rows.names):
        raise Invalid("option partitionBy names every column: at least one must be left for the files")


def can_widen(kind: pa.DataType, to: pa.DataType) -> bool:
    """Return whether every value of a type is one of the other type."""
    kind, to = plain_type(kind), plain_type(to)
    if kind == to or (kind in _INTEGERS and to in _INTEGERS and _INTEGERS.index(kind) < _INTEGERS.index(to)):
        return True
    if pa.types.is_decimal(kind) and pa.types.is_decimal(to):
        return bool(kind.scale == to.scale and kind.precision <= to.precision)
    return bool(kind == pa.float32() and to == pa.float64())


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without differences that are only of Arrow: large and view types, names of list items."""
    types = pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([plain_field(kind.field(index)) for index in range(kind.num_fields)])
    return kind


def plain_field(column: pa.Field) -> pa.Field:
    """Return the column without metadata; it may be null, as all columns of a data frame."""
    return pa.field(column.name, plain_type(column.type))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([plain_field(one) for one in schema])


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type as Spark writes it."""
    kind = plain_type(kind)
    names = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
    names |= {pa.bool_(): "boolean", pa.date32(): "date", pa.float32(): "float"}
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{','.join(f'{one.name}:{type_name(one.type)}' for one in fields)}>"
    return names.get(kind, str(kind).replace("decimal128", "decimal"))
