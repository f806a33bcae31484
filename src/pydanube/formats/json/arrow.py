"""The Arrow types of JSON Schemas. `find_shape` finds what the values of a schema have in common, if they do.

    boolean, string                 bool, string
    string of the format date-time  timestamp in UTC; without an offset it counts as UTC
    string of the format date       date32
    string of the format decimal    decimal128(38, 18)
    integer, number                 int64, float64
    array with `items`              list
    object with `properties`        struct of these properties; others are left out
    object with `additionalProperties` only     map of string to values
    null beside another type        that type: every column is nullable
    anything else                   string: the JSON text as it was sent

Anything else is: several types, alternatives of different types, arrays of tuples, objects of which nothing is said,
and a schema inside itself. `$ref` and `allOf` are followed. A property that is missing is null, as one that is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from pydanube.formats.columns import FieldCounter
from pydanube.model.errors import Invalid

from .documents import Node


class Kind(Enum):
    """What the values of a shape are. TEXT is JSON text: any value."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    TIMESTAMP = "date-time"
    DATE = "date"
    DECIMAL = "decimal"
    ARRAY = "array"
    MAP = "map"
    OBJECT = "object"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Shape:
    """What all values of a schema have in common."""

    kind: Kind
    items: Shape | None = None
    """Of the items of an array, or the values of a map."""
    properties: dict[str, Shape] = field(default_factory=dict)
    """Of an object."""

    @property
    def arrow(self) -> pa.DataType:
        match self.kind:
            case Kind.ARRAY:
                assert self.items is not None
                return pa.list_(self.items.arrow)
            case Kind.MAP:
                assert self.items is not None
                return pa.map_(pa.string(), self.items.arrow)
            case Kind.OBJECT:
                return pa.struct([(name, one.arrow) for name, one in self.properties.items()])
            case kind:
                return _SCALARS[kind]


_SCALARS: Final = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.INTEGER: pa.int64(),
    Kind.NUMBER: pa.float64(),
    Kind.STRING: pa.string(),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.DATE: pa.date32(),
    Kind.DECIMAL: pa.decimal128(38, 18),
    Kind.TEXT: pa.string(),
}
_OF_FORMAT: Final = {one.value: one for one in (Kind.TIMESTAMP, Kind.DATE, Kind.DECIMAL)}
"""Strings whose `format` says that they stand for something else; of other formats, such as uuid, they stay strings."""
_TEXT: Final = Shape(Kind.TEXT)
_FRACTION: Final = "fraction"
"""A number that is no integer: the type `number` is these two."""
_TYPES: Final = frozenset({"null", "boolean", "integer", _FRACTION, "string", "array", "object"})
_OF_PYTHON: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: _FRACTION,
    str: "string",
    list: "array",
    dict: "object",
}
_Nodes = Sequence[dict[str, Any]]


def find_shape(root: Node) -> Shape:
    """Return the shape of a schema. Raises Invalid if it has too many fields."""
    return _Shapes().find([root])


class _Shapes:
    def __init__(self) -> None:
        self._counter = FieldCounter()
        self._path: list[int] = []

    def find(self, schemas: Sequence[Node]) -> Shape:
        """Return the shape of values to which all of the schemas apply."""
        self._counter.add()
        nodes = [node for one in schemas for node in _applied(one)]
        if any(id(node) in self._path for node in nodes):
            return _TEXT
        depth = len(self._path)
        self._path += [id(node) for node in nodes]
        try:
            return self._find(nodes)
        finally:
            del self._path[depth:]

    def _find(self, nodes: _Nodes) -> Shape:
        types = _value_types(nodes) - {"null"}
        if _FRACTION in types and types <= {"integer", _FRACTION}:
            return Shape(Kind.NUMBER)
        if len(types) != 1:
            return self._of_alternatives(nodes)
        match next(iter(types)):
            case "object":
                return self._object(nodes)
            case "array":
                return self._array(nodes)
            case "string":
                formats = {node["format"] for node in nodes if "format" in node}
                return Shape(_OF_FORMAT.get(formats.pop(), Kind.STRING) if len(formats) == 1 else Kind.STRING)
            case name:
                return Shape(Kind(name))

    def _of_alternatives(self, nodes: _Nodes) -> Shape:
        """Return the shape of a schema that says no type itself: that of all its alternatives, if it is one."""
        groups = [node[keyword] for node in nodes for keyword in ("anyOf", "oneOf") if keyword in node]
        if len(groups) != 1:
            return _TEXT
        chosen = [one for one in groups[0] if one is not False and not _is_null(one)]
        shapes = [self.find([one]) for one in chosen]
        if shapes and all(one.kind in (Kind.INTEGER, Kind.NUMBER) for one in shapes):
            return Shape(Kind.INTEGER if all(one.kind is Kind.INTEGER for one in shapes) else Kind.NUMBER)
        return shapes[0] if shapes and all(one == shapes[0] for one in shapes) else _TEXT

    def _object(self, nodes: _Nodes) -> Shape:
        names = dict.fromkeys(name for node in nodes for name in node.get("properties", ()))
        if names:
            for name in names:
                _check_name(name)
            found = {
                name: self.find([node["properties"][name] for node in nodes if name in node.get("properties", ())])
                for name in names
            }
            return Shape(Kind.OBJECT, properties=found)
        values = [node["additionalProperties"] for node in nodes if "additionalProperties" in node]
        plain = not any(key in node for node in nodes for key in ("patternProperties", "anyOf", "oneOf"))
        if plain and values and all(isinstance(one, dict) for one in values):
            return Shape(Kind.MAP, self.find(values))
        return self._of_alternatives(nodes)

    def _array(self, nodes: _Nodes) -> Shape:
        items = [node["items"] for node in nodes if "items" in node]
        if items and not any("prefixItems" in node for node in nodes):
            return Shape(Kind.ARRAY, self.find(items))
        return self._of_alternatives(nodes)


def _check_name(name: str) -> None:
    if any(one in '"\\' or one < " " for one in name):
        raise Invalid(
            f"the property {name!r} cannot be a column: names of columns have no quotes, backslashes and control "
            f"characters"
        )


def _applied(schema: Node) -> Iterator[dict[str, Any]]:
    """Yield a schema and those that it applies to the same value whatever the value is. They end: a schema that
    applies itself to the same value is refused when it is registered."""
    if isinstance(schema, bool):
        return
    yield schema
    if "$ref" in schema:
        yield from _applied(schema["$ref"])
    for one in schema.get("allOf", ()):
        yield from _applied(one)


def _value_types(nodes: _Nodes) -> frozenset[str]:
    """Return the types that values can have; where none is named, those that other keywords are for."""
    types = _TYPES
    for node in nodes:
        if "type" in node:
            named = node["type"]
            named = frozenset([named] if isinstance(named, str) else named)
            types &= named | {"integer", _FRACTION} if "number" in named else named
        values = [node["const"]] if "const" in node else node.get("enum")
        if values is not None:
            types &= frozenset(_OF_PYTHON[type(one)] for one in values)
    if types == _TYPES:
        if any("properties" in node for node in nodes):
            return frozenset({"object"})
        if any("items" in node for node in nodes):
            return frozenset({"array"})
    return types


def _is_null(schema: Node) -> bool:
    return isinstance(schema, dict) and _value_types(list(_applied(schema))) <= {"null"}


def applied_schemas(schemas: Sequence[Node]) -> list[dict[str, Any]]:
    """Return all schemas that apply to a value to which `schemas` apply: `$ref` and `allOf` are followed."""
    return [node for one in schemas for node in _applied(one)]


def allows_null(schemas: Sequence[Node]) -> bool:
    """Say whether null may be a value to which all of the schemas apply; alternatives are not looked at."""
    return "null" in _value_types(applied_schemas(schemas))
