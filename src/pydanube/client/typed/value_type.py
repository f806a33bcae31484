"""Value types: how objects of one Python type become payloads, and payloads become objects again.

A value type has the definition that a producer registers. A consumer reads with it what another version wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.model.errors import Invalid
from pydanube.model.schemas import SchemaDefinition

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it; the typing of Python 3.11 knows no defaults

    ValueT = TypeVar("ValueT", default=bytes)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")

T = TypeVar("T")


class WriterSchema:
    """The schema that a batch was written with. It is parsed when a reader needs it."""

    def __init__(self, definition: SchemaDefinition, references: Mapping[str, SchemaDefinition]) -> None:
        self.definition = definition
        self._references = references
        self._parsed: ParsedSchema | None = None

    @property
    def parsed(self) -> ParsedSchema:
        """The parsed schema. Raises Invalid or Refused."""
        if self._parsed is None:
            self._parsed = parse_schema(self.definition, self._references)
        return self._parsed


class ValueType(ABC, Generic[T]):
    """Encodes and decodes the objects of one type."""

    definition: SchemaDefinition
    """What a producer registers."""

    def use_references(self, references: Mapping[str, SchemaDefinition]) -> None:
        """Take the definitions that this one refers to. Called before anything is encoded or decoded, if any are."""

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Return the payload of a value. Raises Invalid with the reason."""

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Return the payloads of many values. Raises Invalid with the place of the first that is wrong."""
        payloads: list[bytes] = []
        for value in values:
            try:
                payloads.append(self.encode(value))
            except Invalid as error:
                raise Invalid(f"value {len(payloads)} of {len(values)}: {error.message}") from error
        return payloads

    @abstractmethod
    def decoder(self) -> Callable[[bytes], T]:
        """Return the function that decodes payloads of this very schema. It may raise any exception."""

    def decoder_of(self, writer: WriterSchema) -> Callable[[bytes], T]:
        """Return the function that decodes payloads of a writer's schema. Raises Invalid if they cannot be read."""
        self.check_format(writer)
        return self.decoder()

    def check_format(self, writer: WriterSchema) -> None:
        written, read = writer.definition.format, self.definition.format
        if written is not read:
            raise Invalid(f"data of the format {written} cannot be read as {read}")


def not_a_value(value: object, kind: type | str) -> Invalid:
    return Invalid(
        f"a {type(value).__name__} is not a value of the schema {kind if isinstance(kind, str) else kind.__name__}"
    )
