"""Values of str, int, float and bytes, and values of definitions, which are what the format has: dicts, for example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.model.errors import Invalid, Refused
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

from .value_type import ValueType, WriterSchema, not_a_value

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
