"""Schemas: what the payloads of a topic look like. Subjects, versions, references, compatibility, bindings.

A subject is a named history of definitions. Its versions count from 1. `schema_id` is the number of the subject, and a
batch carries it with the version; `global_id` is the number of the definition, which the Confluent API calls `id`: the
same definition registered under two subjects has one global id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from .errors import Invalid
from .limits import NAME_CHARACTERS_MAX

_SUBJECT: Final = re.compile(rf"[A-Za-z0-9_.:/@+-]{{1,{NAME_CHARACTERS_MAX}}}")


def parse_subject(text: str) -> str:
    """Return `text` if it names a subject: letters, digits and `_ . : / @ + -`."""
    if not isinstance(text, str) or not _SUBJECT.fullmatch(text):
        raise Invalid(
            f"subject {text!r} is not a name: use 1 to {NAME_CHARACTERS_MAX} letters, digits and the characters "
            f"_ . : / @ + -"
        )
    return text


class _Word(Enum):
    """An enumeration whose values are the words that users write."""

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return cls(text.lower().replace("_", "-"))
        except (ValueError, AttributeError):
            words = ", ".join(str(one) for one in cls)
            raise Invalid(f"{cls.__name__} {text!r} is unknown: use one of {words}") from None

    def __str__(self) -> str:
        return str(self.value)


class SchemaFormat(_Word):
    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compatibility(_Word):
    """What a new version must be able to do with the versions before it.

    backward: read what was written with the last version. forward: be read with the last version. full: both. The
    transitive forms hold for all versions.
    """

    NONE = "none"
    BACKWARD = "backward"
    BACKWARD_TRANSITIVE = "backward-transitive"
    FORWARD = "forward"
    FORWARD_TRANSITIVE = "forward-transitive"
    FULL = "full"
    FULL_TRANSITIVE = "full-transitive"

    @property
    def reads_older(self) -> bool:
        return self in _READS_OLDER

    @property
    def read_by_older(self) -> bool:
        return self in _READ_BY_OLDER

    @property
    def transitive(self) -> bool:
        return self.value.endswith("-transitive")


_READS_OLDER: Final = frozenset(
    {Compatibility.BACKWARD, Compatibility.BACKWARD_TRANSITIVE, Compatibility.FULL, Compatibility.FULL_TRANSITIVE}
)
_READ_BY_OLDER: Final = frozenset(
    {Compatibility.FORWARD, Compatibility.FORWARD_TRANSITIVE, Compatibility.FULL, Compatibility.FULL_TRANSITIVE}
)


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A definition that uses another one: `name` is how the text of the definition names it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A definition as it was registered. `text` of the format protobuf is `.proto` text, or a descriptor set in
    Base64."""

    format: SchemaFormat
    text: str
    references: tuple[SchemaReference, ...] = ()
