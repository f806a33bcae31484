"""The compatibility levels: which versions a new definition is compared with, in which direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from pydanube.codec.schemas import ParsedSchema
from pydanube.model.schemas import Compatibility, SchemaFormat

if TYPE_CHECKING:
    from pydanube.codec.schemas.json_schema import JsonSchema


class Incompatibility(NamedTuple):
    """One reason why data of the writer cannot be read by the reader. `path` names the field, `$` the whole."""

    path: str
    reason: str
    version: int = 0
    """The version it was compared with; 0: none."""

    def __str__(self) -> str:
        against = f" (version {self.version})" if self.version else ""
        return f"{self.path}: {self.reason}{against}"


def find_incompatibilities(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """Return every reason why payloads written with `writer` may not be readable with `reader`; none: they are."""
    if reader.definition.format is not writer.definition.format:
        return [Incompatibility("$", f"the format was {writer.definition.format} and is {reader.definition.format}")]
    match reader.definition.format:
        case SchemaFormat.JSON:
            from . import json_schema

            return json_schema.find(cast("JsonSchema", reader), cast("JsonSchema", writer))
        case _:
            return []


def check_compatible(
    level: Compatibility, new: ParsedSchema, earlier: Sequence[tuple[int, ParsedSchema]]
) -> list[Incompatibility]:
    """Return every reason why `new` may not follow the `earlier` versions, which are in ascending order."""
    compared = earlier if level.transitive else earlier[-1:]
    reasons: list[Incompatibility] = []
    for version, other in compared:
        if level.reads_older:
            reasons += [one._replace(version=version) for one in find_incompatibilities(new, other)]
        if level.read_by_older:
            found = find_incompatibilities(other, new)
            reasons += [one._replace(version=version, reason=f"{one.reason}, read with the old") for one in found]
    return reasons
