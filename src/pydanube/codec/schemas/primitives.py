"""The formats bytes (anything), string (UTF-8 text) and number (one number in decimal text, as JSON writes it)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

if TYPE_CHECKING:
    from .parsed import AnyBytes, InvalidRow, ParsedSchema

_number = msgspec.json.Decoder(int | float)


def parse(definition: SchemaDefinition) -> ParsedSchema:
    """Return the schema of a primitive format. Its definition is empty, or says in free words what the payload is."""
    if definition.references:
        raise Invalid(f"a schema of the format {definition.format} has no references")
    return PrimitiveSchema(definition)


@dataclass(frozen=True, slots=True)
class PrimitiveSchema:
    """A schema without structure: all definitions of one format mean the same."""

    definition: SchemaDefinition

    @property
    def canonical(self) -> bytes:
        return b""

    def check(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        from .parsed import InvalidRow

        if self.definition.format is SchemaFormat.BYTES:
            return None
        for row, payload in enumerate(payloads):
            try:
                self.decode(payload)
            except Invalid as error:
                return InvalidRow(row, error.message)
        return None

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        if self.definition.format is SchemaFormat.BYTES:
            return bytes(payload)
        if self.definition.format is SchemaFormat.STRING:
            try:
                return str(payload, "utf-8")
            except UnicodeDecodeError as error:
                raise Invalid(f"the payload is not UTF-8 text: {error.reason} at byte {error.start}") from None
        try:
            return _number.decode(payload)
        except msgspec.DecodeError as error:
            raise Invalid(f"the payload is not a number in decimal text: {error}") from None

    def encode(self, value: Any) -> bytes:
        kind = self.definition.format
        if kind is SchemaFormat.BYTES and isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if kind is SchemaFormat.STRING and isinstance(value, str):
            return value.encode()
        if kind is SchemaFormat.NUMBER and isinstance(value, int | float) and not isinstance(value, bool):
            return msgspec.json.encode(value)
        raise Invalid(f"a {type(value).__name__} is not a value of the format {kind}")
