"""Which casts of columns Spark can never do, so that `validate` finds them before Spark starts.

A column is a name that may know its kind. Casts whose success depends on the values, such as text to a number, are left
to Spark, and so is everything of which the kind is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    import pyarrow as pa

_NESTED: Final = frozenset({"array", "map", "struct"})
IMPOSSIBLE: Final[Mapping[str, frozenset[str]]] = {
    "string": _NESTED,
    "number": frozenset({"date"}) | _NESTED,
    "boolean": frozenset({"date", "timestamp", "binary"}) | _NESTED,
    "date": frozenset({"number", "boolean", "binary"}) | _NESTED,
    "timestamp": frozenset({"boolean", "binary"}) | _NESTED,
    "binary": frozenset({"number", "boolean", "date", "timestamp"}) | _NESTED,
    "array": frozenset({"number", "boolean", "date", "timestamp", "binary", "map", "struct"}),
    "map": frozenset({"number", "boolean", "date", "timestamp", "binary", "array", "struct"}),
    "struct": frozenset({"number", "boolean", "date", "timestamp", "binary", "array", "map"}),
}
"""By the kind of a column: the kinds that Spark, with ANSI as by default, casts it to in no case."""

_OF_SQL: Final = {
    name: kind
    for kind, names in (
        ("number", "TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL"),
        ("string", "TEXT CHAR VARCHAR"),
        ("boolean", "BOOLEAN"),
        ("date", "DATE"),
        ("timestamp", "TIMESTAMP TIMESTAMPTZ TIMESTAMPLTZ TIMESTAMPNTZ"),
        ("binary", "BINARY VARBINARY"),
        ("array", "ARRAY"),
        ("map", "MAP"),
        ("struct", "STRUCT"),
    )
    for name in names.split()
}
_OF_MESSAGES: Final = {
    **dict.fromkeys(("topic", "key", "producer", "decode_error"), "string"),
    **dict.fromkeys(("partition", "offset", "schema_id", "schema_version"), "number"),
    **dict.fromkeys(("append_time", "publish_time"), "timestamp"),
    "payload": "binary",
    "attributes": "map",
}


class Column(str):
    """The name of a column, with its kind, one of IMPOSSIBLE; empty: not known."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, name: str, kind: str = "") -> Self:
        made = super().__new__(cls, name)
        made.kind = kind
        return made


def kind_of(name: str) -> str:
    """Return the kind of a column; empty: it is not known."""
    return name.kind if isinstance(name, Column) else ""


def message_column(name: str) -> Column:
    return Column(name, _OF_MESSAGES.get(name.lower(), ""))


def field_column(field: pa.Field) -> Column:
    """Return the column of a field of a schema."""
    from pyarrow import types

    tests = {
        "boolean": types.is_boolean,
        "string": types.is_string,
        "binary": types.is_binary,
        "date": types.is_date,
        "timestamp": types.is_timestamp,
        "array": types.is_list,
        "map": types.is_map,
        "struct": types.is_struct,
        "number": lambda one: types.is_integer(one) or types.is_floating(one) or types.is_decimal(one),
    }
    return Column(field.name, next((kind for kind, fits in tests.items() if fits(field.type)), ""))


def kind_of_type(type_: Any) -> str:
    """Return the kind of a type of sqlglot; empty: it is not known here."""
    return _OF_SQL.get(getattr(getattr(type_, "this", None), "name", ""), "")


def refusal(column: str, to: Any) -> str:
    """Return why a column cannot be cast to a type of sqlglot; empty: it can, or that is not known."""
    kind = kind_of(column)
    if kind_of_type(to) not in IMPOSSIBLE.get(kind, ()):
        return ""
    hint = "; cast it to string first" if kind == "binary" and kind_of_type(to) not in _NESTED else ""
    return f"the {kind} {str(column)!r} cannot be cast to {to.sql(dialect='spark').lower()}{hint}"
