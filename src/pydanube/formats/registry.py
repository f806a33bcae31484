"""What every format offers: a parsed schema, which checks and decodes payloads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

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
    match definition.format:
        case SchemaFormat.BYTES | SchemaFormat.STRING | SchemaFormat.NUMBER:
            from . import primitives

            return primitives.parse(definition)
        case SchemaFormat.PROTOBUF:
            try:
                from pydanube.formats.protobuf import schema as protobuf
            except ImportError as error:
                raise missing_library(error) from None
            return protobuf.parse(definition, references or {})
        case SchemaFormat.AVRO:
            try:
                from pydanube.formats.avro import schema as avro
            except ImportError as error:
                raise missing_library(error) from None
            return avro.parse(definition, references or {})
        case SchemaFormat.JSON:
            try:
                from pydanube.formats.json import schema as json
            except ImportError as error:
                raise missing_library(error) from None
            return json.parse(definition, references or {})
        case unsupported:
            raise Refused(f"schemas of the format {unsupported} are not supported")


def missing_library(error: ImportError) -> Refused:
    """Return the error that says what to install for a format whose libraries are missing."""
    return Refused(
        f"the schema formats avro, json and protobuf need more libraries ({error}): pip install 'pydanube[schemas]'"
    )
