"""The formats: what each of them offers, which is a parsed schema, and those that need no library."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from pydanube.model.errors import Invalid, Refused
from pydanube.model.limits import SCHEMA_BYTES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat

AnyBytes = bytes | memoryview


class InvalidRow(NamedTuple):
    """The first payload of a list that the schema does not allow, and why."""

    row: int
    reason: str


class ParsedSchema(Protocol):
    """A definition that was parsed with the definitions it refers to. Immutable."""

    @property
    def definition(self) -> SchemaDefinition: ...

    @property
    def canonical(self) -> bytes:
        """The canonical form: the same for definitions that mean the same and are only written differently."""
        ...

    def check(self, payloads: Sequence[AnyBytes]) -> InvalidRow | None:
        """Return the first payload that is not valid, or None. The caller bounds the time by the length of the list."""
        ...

    def decode(self, payload: AnyBytes, writer: ParsedSchema | None = None) -> Any:
        """Return the value of a payload. With `writer`, it was written with that schema of the same format and is
        resolved to this one. Raises Invalid with the reason."""
        ...

    def encode(self, value: Any) -> bytes:
        """Return the payload of a value. Raises Invalid with the reason."""
        ...


def fingerprint(schema: ParsedSchema) -> str:
    """Return the fingerprint of the canonical form, as Danube writes it: `sha256:<hex>`."""
    digest = hashlib.sha256(f"{schema.definition.format}\n".encode() + schema.canonical)
    return f"sha256:{digest.hexdigest()}"


def parse_schema(
    definition: SchemaDefinition, references: Mapping[str, SchemaDefinition] | None = None
) -> ParsedSchema:
    """Parse a definition. `references` has the definition of each name it refers to, also indirectly.

    Raises Invalid with what is wrong, and Refused if the libraries of the format are not installed. Time and memory are
    bounded whatever the text is.
    """
    try:
        size = len(definition.text.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"the definition is not text: {error.reason} at character {error.start}") from None
    if size > SCHEMA_BYTES_MAX:
        raise Invalid(f"a definition of {size} bytes is larger than a schema may be, which is {SCHEMA_BYTES_MAX}")
    try:
        match definition.format:
            case SchemaFormat.BYTES | SchemaFormat.STRING | SchemaFormat.NUMBER:
                return _parse_primitive(definition)
            case SchemaFormat.PROTOBUF:
                from pydanube.formats.protobuf import schema as protobuf

                return protobuf.parse(definition, references or {})
            case SchemaFormat.AVRO:
                from pydanube.formats.avro import schema as avro

                return avro.parse(definition, references or {})
            case SchemaFormat.JSON:
                from pydanube.formats.json import schema as json

                return json.parse(definition, references or {})
            case unsupported:
                raise Refused(f"schemas of the format {unsupported} are not supported")
    except ImportError as error:
        raise missing_library(error) from None


def shown(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def missing_library(error: ImportError) -> Refused:
    """Return the error that says what to install for a format whose libraries are missing."""
    return Refused(
        f"the schema formats avro, json and protobuf need more libraries ({error}): pip install 'pydanube[schemas]'"
    )


# -- the formats bytes (anything), string (UTF-8 text), number (in decimal text, as JSON writes it) --------------------

_number = msgspec.json.Decoder(int | float)
_numbers = msgspec.json.Decoder(list[int | float])

_NUMBER_BYTES_MAX: Final = 400
"""Longer than any number that a double holds, or that is of use; the time to read digits grows with their square."""


def _parse_primitive(definition: SchemaDefinition) -> ParsedSchema:
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
