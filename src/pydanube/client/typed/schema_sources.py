"""What a user may pass as `schema`:

a msgspec Struct, a dataclass, a pydantic model     JSON; its JSON Schema is generated from the class
A | B, list[A], dict[str, A] and the like of these  JSON; one of pydantic makes it pydantic's, else it is msgspec's
a generated protobuf class                          protobuf; its definition is taken from the class
str, int, float, bytes                              the formats string, number and bytes
a dict, or a schema object of fastavro or avro      an Avro schema or a JSON Schema
a SchemaDefinition                                  a definition of any format
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from types import GenericAlias, UnionType
from typing import Any, Final, Protocol, get_args, get_origin

import msgspec

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.model.errors import Invalid, Refused
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.model.text import one_line

from .json_values import pydantic_values, struct_values
from .value_type import ValueType, WriterSchema, not_a_value


class AvroSchemaObject(Protocol):
    """A schema object of the package avro, which need not be installed."""

    def to_canonical_json(self, names: Any = None) -> Any: ...


SchemaSource = SchemaDefinition | Mapping[str, Any] | AvroSchemaObject | UnionType | GenericAlias
"""A schema that is no class. The values of its messages are what the format has, such as dicts."""

AVRO_TYPES: Final = frozenset({"record", "error", "enum", "fixed", "map"})
"""A dict whose `type` is one of these is an Avro schema: JSON Schema has no such types."""

_FASTAVRO_KEYS: Final = frozenset({"__fastavro_parsed__", "__named_schemas__"})


def value_type_of(schema: Any) -> ValueType[Any]:
    """Return the value type of what a user passes as `schema`.

    Raises Invalid if it is nothing of the kind or cannot be parsed, and Refused if a library for it is missing.
    """
    if get_origin(schema) is not None:
        return _of_annotation(schema)
    if isinstance(schema, type):
        return _of_class(schema)
    if isinstance(schema, Mapping):
        return DefinedValues(_document_definition(schema))
    if isinstance(schema, SchemaDefinition):
        return DefinedValues(schema)
    avro_library = sys.modules.get("avro.schema")
    if avro_library is not None and isinstance(schema, avro_library.Schema):
        return DefinedValues(SchemaDefinition(SchemaFormat.AVRO, str(schema)))
    raise _unknown(schema)


def _of_class(kind: type) -> ValueType[Any]:
    if kind in PRIMITIVES:
        return PrimitiveValues(kind)
    if hasattr(kind, "__pydantic_validator__"):
        return pydantic_values(kind)
    if issubclass(kind, msgspec.Struct) or is_dataclass(kind):
        return struct_values(kind)
    if hasattr(kind, "DESCRIPTOR") and hasattr(kind, "FromString"):
        from .protobuf_values import ProtobufValues

        return ProtobufValues(kind)
    raise _unknown(kind)


def _of_annotation(annotation: Any) -> ValueType[Any]:
    """Return the values of `A | B`, `list[A]` and other types that are made of classes."""
    is_pydantic = any(hasattr(one, "__pydantic_validator__") for one in _parts(annotation))
    return pydantic_values(annotation) if is_pydantic else struct_values(annotation)


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the types that a type is made of."""
    yield annotation
    for one in get_args(annotation):
        yield from _parts(one)


def _document_definition(document: Mapping[str, Any]) -> SchemaDefinition:
    """Return the definition of an Avro schema or a JSON Schema that is a dict."""
    is_avro = bool(document.keys() & _FASTAVRO_KEYS) or document.get("type") in AVRO_TYPES
    plain = {key: value for key, value in document.items() if key not in _FASTAVRO_KEYS}
    try:
        text = json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"the schema cannot be written as JSON: {one_line(error)}") from None
    return SchemaDefinition(SchemaFormat.AVRO if is_avro else SchemaFormat.JSON, text)


def _unknown(schema: object) -> Invalid:
    return Invalid(
        f"schema={one_line(repr(schema))} is not a schema: use the class of a msgspec Struct, a dataclass, a pydantic "
        "model or a protobuf message, A | B or list[A] of such classes, str, int, float, bytes, a dict with an Avro "
        "schema or a JSON Schema, or for the text of a definition SchemaDefinition(SchemaFormat.AVRO, text)"
    )


PRIMITIVES: Final[dict[Any, SchemaFormat]] = {
    str: SchemaFormat.STRING,
    int: SchemaFormat.NUMBER,
    float: SchemaFormat.NUMBER,
    bytes: SchemaFormat.BYTES,
}


class PrimitiveValues(ValueType[Any]):
    """Values of str, int, float or bytes."""

    def __init__(self, kind: type) -> None:
        self.definition = SchemaDefinition(PRIMITIVES[kind], "")
        self._kind = kind
        self._schema = parse_schema(self.definition)

    def encode(self, value: Any) -> bytes:
        if self._kind is float and type(value) is int:  # as type checkers allow
            value = float(value)
        if not isinstance(value, self._kind) or isinstance(value, bool):
            raise not_a_value(value, self._kind)
        return self._schema.encode(value)

    def decoder(self) -> Callable[[bytes], Any]:
        if self._kind is float:
            return lambda payload: float(self._schema.decode(payload))
        return self._decode_whole if self._kind is int else self._schema.decode

    def _decode_whole(self, payload: bytes) -> int:
        value = self._schema.decode(payload)
        if type(value) is not int:
            raise Invalid(f"{value} is not a whole number")
        return value


class DefinedValues(ValueType[Any]):
    """Values of a definition: dicts of Avro records, JSON values, messages of a protobuf definition."""

    def __init__(self, definition: SchemaDefinition) -> None:
        self.definition = definition
        self._schema = None if definition.references else parse_schema(definition)

    def use_references(self, references: Mapping[str, SchemaDefinition]) -> None:
        self._schema = parse_schema(self.definition, references)

    @property
    def _parsed(self) -> ParsedSchema:
        if self._schema is None:
            raise Refused("the definitions that this schema refers to are fetched on opening: use `async with`")
        return self._schema

    def encode(self, value: Any) -> bytes:
        return self._parsed.encode(value)

    def decoder(self) -> Callable[[bytes], Any]:
        return self._parsed.decode

    def decoder_of(self, writer: WriterSchema) -> Callable[[bytes], Any]:
        self.check_format(writer)
        reader = self._parsed
        if self.definition.format is not SchemaFormat.AVRO or writer.parsed.canonical == reader.canonical:
            return reader.decode
        written = writer.parsed
        return lambda payload: reader.decode(payload, written)
