"""The definitions that payloads are decoded with, and how the payloads of a topic are written. All can be pickled."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.model.schemas import Binding, Framing, SchemaDefinition

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
