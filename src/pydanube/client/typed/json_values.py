"""Objects of Python classes as JSON: msgspec structs and dataclasses (by msgspec), pydantic models (by pydantic).

The registered JSON Schema is generated from the class. It is closed: objects have the fields of the class and no other
properties, as this class writes them, so that a later version of the class may add a field with a default. Reading is
more tolerant: both libraries ignore fields that the class does not have, unless it says otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec

from pydanube.formats.json.documents import DRAFT_2020_12, has_infinite
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.text import one_line

from .struct_schemas import struct_schema
from .value_type import ValueType, not_a_value

_MAPS: Final = ("$defs", "properties")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties")
_read: Final = msgspec.json.Decoder().decode
_SAYS_TYPE: Final = frozenset({"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"})


class JsonValues(ValueType[Any]):
    """Values of one class, written and read by the functions of a library.

    `dump` returns the JSON of a value, `load` reads it, and `to_plain` returns what the JSON stands for: dicts, lists
    and so on.
    """

    def __init__(
        self,
        kind: Any,
        document: dict[str, Any],
        dump: Callable[[Any], bytes],
        load: Callable[[bytes], Any],
        to_plain: Callable[[Any], Any],
    ) -> None:
        schemas = list(_subschemas(document))
        for one in schemas:
            if "properties" in one:
                one.setdefault("additionalProperties", False)
        self.definition = SchemaDefinition(SchemaFormat.JSON, json.dumps({"$schema": DRAFT_2020_12} | document))
        self._name = _name(kind)
        self._classes = frozenset(_classes(kind))
        self._dump = dump
        self._load = load
        self._to_plain = to_plain
        self._has_floats = any(map(_may_be_float, schemas))

    def encode(self, value: Any) -> bytes:
        if type(value) not in self._classes:  # a subclass has fields that would be lost, or that the schema has not
            raise not_a_value(value, self._name)
        try:
            payload = self._dump(value)
        except Exception as error:  # whatever the value makes the library raise
            raise Invalid(f"the {self._name} cannot be written as JSON: {one_line(error)}") from error
        if self._has_floats and not self._is_finite(value, payload):
            raise Invalid(f"the {self._name} has a number that JSON does not have: NaN or infinity")
        return payload

    def encode_many(self, values: Sequence[Any]) -> list[bytes]:
        if set(map(type, values)) <= self._classes:
            try:
                payloads = list(map(self._dump, values))
            except Exception:
                return super().encode_many(values)  # which says which one is wrong
            if not self._has_floats or b"null" not in b"".join(payloads):
                return payloads
            if all(map(self._is_finite, values, payloads)):
                return payloads
        return super().encode_many(values)

    def _is_finite(self, value: Any, payload: bytes) -> bool:
        """Return whether a value is without NaN and infinity, which both libraries write as null."""
        if b"null" not in payload:
            return True
        plain = self._to_plain(value)
        return bool(plain == _read(payload)) or not has_infinite(plain)

    def decoder(self) -> Callable[[bytes], Any]:
        return self._load


def struct_values(kind: Any) -> JsonValues:
    """Return the values of a msgspec Struct or a dataclass. Raises Invalid if msgspec does not support a field."""
    try:
        document = struct_schema(kind)
        load: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
    except Exception as error:  # TypeError, NameError of annotations, and others
        raise _unsupported(kind, error) from error
    to_plain = partial(msgspec.to_builtins, str_keys=True)
    return JsonValues(kind, document, msgspec.json.Encoder().encode, load, to_plain)


def pydantic_values(kind: Any) -> JsonValues:
    """Return the values of a pydantic model or dataclass. Raises Invalid if it has no JSON Schema."""
    from pydantic import TypeAdapter  # installed, because the class is one of its own

    from .pydantic_schemas import WrittenSchema

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        document = adapter.json_schema(by_alias=True, mode="serialization", schema_generator=WrittenSchema)
    except Exception as error:
        raise _unsupported(kind, error) from error
    dump = partial(adapter.serializer.to_json, by_alias=True, round_trip=True, warnings="error")
    to_plain = partial(adapter.serializer.to_python, mode="json", by_alias=True, round_trip=True, warnings=False)
    return JsonValues(kind, document, dump, adapter.validator.validate_json, to_plain)


def _unsupported(kind: Any, error: Exception) -> Invalid:
    return Invalid(f"{_name(kind)} has no JSON Schema: {one_line(error)}")


def _name(kind: Any) -> str:
    """Return what errors call a type: Order, or shop.Order | shop.Refund."""
    return kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)


def _classes(kind: Any) -> Iterator[type]:
    """Yield the classes that values of a type have."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        for one in get_args(kind):
            yield from _classes(one)
    elif origin is Annotated:
        yield from _classes(get_args(kind)[0])
    elif origin is Literal:
        yield from map(type, get_args(kind))
    else:
        found = kind if origin is None else origin
        yield found if isinstance(found, type) else object


def _subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a generated JSON Schema and all schemas inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in _MAPS:
        for one in schema.get(keyword, {}).values():
            yield from _subschemas(one)
    for keyword in _LISTS:
        for one in schema.get(keyword, ()):
            yield from _subschemas(one)
    for keyword in _SINGLE:
        yield from _subschemas(schema.get(keyword))


def _may_be_float(schema: dict[str, Any]) -> bool:
    """Say whether values of a schema may be floats, or hold some that no schema inside it describes."""
    match schema.get("type"):
        case "number":
            return True
        case "object":
            return "properties" not in schema or schema.get("additionalProperties", False) is True
        case "array":
            return "items" not in schema and "prefixItems" not in schema
        case str():
            return False
    return not schema.keys() & (_SAYS_TYPE - {"type"})
