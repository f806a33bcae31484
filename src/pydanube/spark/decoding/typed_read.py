"""What the driver hands to tasks for decoding. Everything here is pickled with the reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.model.errors import Refused
from pydanube.model.schemas import Binding, Framing, SchemaDefinition
from pydanube.spark.options import OnDecodeError
from pydanube.spark.schema import ARROW_TYPES

DECODE_ERROR: Final = "decode_error"
PAYLOAD: Final = "payload"
_FOR_DECODING: Final = ("topic", "partition", "offset", PAYLOAD, "schema_id", "schema_version")

VersionKey = tuple[int, int]
"""A schema id and a version, as batches carry them."""


class Definition(NamedTuple):
    """A definition with those that it refers to."""

    own: SchemaDefinition
    references: tuple[tuple[str, SchemaDefinition], ...] = ()

    def parse(self) -> ParsedSchema:
        """Parse the definition. The result is kept in this process: every task of a micro-batch needs it again."""
        return _parse(self)


@lru_cache(maxsize=200)
def _parse(definition: Definition) -> ParsedSchema:
    return parse_schema(definition.own, dict(definition.references))


class TopicForm(NamedTuple):
    """How the payloads of a topic are written."""

    framed: bool = False
    """Each payload begins with the prefix of Confluent's serializers, which says its schema."""
    tombstones: bool = False
    """An empty payload is a message without a value, and not an error."""

    @classmethod
    def of(cls, binding: Binding | None) -> TopicForm:
        if binding is None:
            return cls()
        framed = binding.framing is Framing.CONFLUENT
        return cls(framed, binding.tombstones or framed)


@dataclass(frozen=True, slots=True)
class TypedRead:
    """How a query decodes: the version it reads with, and what was known when it started."""

    subject: str
    version: VersionKey
    reader: Definition
    known: Mapping[VersionKey, Definition]
    """The subject's versions when the query started, the newest of them if there are many."""
    topics: Mapping[str, TopicForm]
    """The topics that the query had when it started."""
    message_columns: tuple[str, ...]
    """The columns of messages that were asked for."""
    fields: Mapping[str, pa.DataType]
    """The columns of the schema."""
    columns: tuple[str, ...]
    """All columns of the query, in order."""
    on_error: OnDecodeError

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns of messages that decoding needs, and those that were asked for."""
        return tuple(dict.fromkeys((*self.message_columns, *_FOR_DECODING)))

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([(name, self.column_type(name)) for name in self.columns])

    def column_type(self, name: str) -> pa.DataType:
        if name in self.message_columns:
            return ARROW_TYPES[name]
        if name in self.fields:
            return self.fields[name]
        return pa.string() if name == DECODE_ERROR else ARROW_TYPES[PAYLOAD]


def unbound_error(topics: Iterable[str]) -> Refused:
    return Refused(
        f"no schema is bound to {', '.join(topics)}: bind it (danube schemas bind), or name a subject by the option "
        f"subject"
    )
