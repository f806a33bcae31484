"""The formats bytes (anything), string (UTF-8 text) and number (one number in decimal text, as JSON writes it)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

from .registry import AnyBytes, InvalidRow, ParsedSchema

_number = msgspec.json.Decoder(int | float)
_numbers = msgspec.json.Decoder(list[int | float])

_NUMBER_BYTES_MAX: Final = 400
"""Longer than any number that a double holds, or that is of use; the time to read digits grows with their square."""


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
        if self._are_valid(payloads):
            return None
        for row, payload in enumerate(payloads):
            try:
                self.decode(payload)
            except Invalid as error:
                return InvalidRow(row, error.message)
        return None

    def _are_valid(self, payloads: Sequence[AnyBytes]) -> bool:
        """Say whether all payloads are valid, by one call for all of them."""
        try:
            match self.definition.format:
                case SchemaFormat.STRING:
                    # Every payload ends before a newline and begins after one, so none completes another.
                    b"\n".join(payloads).decode()
                case SchemaFormat.NUMBER:
                    if max(map(len, payloads), default=0) > _NUMBER_BYTES_MAX:
                        return False
                    # An empty element is an error, so that as many numbers as payloads means one in each.
                    return len(_numbers.decode(b"[%b]" % b",".join(payloads))) == len(payloads)
        except (UnicodeDecodeError, msgspec.DecodeError):
            return False
        return True

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        kind = self.definition.format
        if writer is not None and writer.definition.format is not kind:
            raise Invalid(f"data of the format {writer.definition.format} cannot be read as {kind}")
        if kind is SchemaFormat.BYTES:
            return bytes(payload)
        if kind is SchemaFormat.STRING:
            try:
                return str(payload, "utf-8")
            except UnicodeDecodeError as error:
                raise Invalid(f"the payload is not UTF-8 text: {error.reason} at byte {error.start}") from None
        if len(payload) > _NUMBER_BYTES_MAX:
            raise Invalid(f"the payload has {len(payload)} bytes; a number has at most {_NUMBER_BYTES_MAX}")
        try:
            return _number.decode(payload)
        except msgspec.DecodeError as error:
            raise Invalid(f"the payload is not a number in decimal text: {error}") from None

    def encode(self, value: Any) -> bytes:
        kind = self.definition.format
        if kind is SchemaFormat.BYTES and isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if kind is SchemaFormat.STRING and isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError as error:
                raise Invalid(f"the text cannot be written: {error.reason} at character {error.start}") from None
        if kind is SchemaFormat.NUMBER and isinstance(value, int | float) and not isinstance(value, bool):
            return _write_number(value)
        raise Invalid(f"a {type(value).__name__} is not a value of the format {kind}")


def _write_number(value: int | float) -> bytes:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{value} is not a number in decimal text")
        return msgspec.json.encode(float(value))
    if value.bit_length() > 1000:
        raise Invalid(f"a number of {value.bit_length()} bits is too long: it may have 1000")
    return b"%d" % value
