"""The compatibility levels: which versions a new definition is compared with, in which direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydanube.formats import ParsedSchema
from pydanube.model.schemas import Compatibility, Incompatibility, SchemaFormat

if TYPE_CHECKING:
    from pydanube.formats.json.schema import JsonSchema

__all__ = ["Incompatibility", "check_compatible", "find_incompatibilities"]


def find_incompatibilities(reader: ParsedSchema, writer: ParsedSchema) -> list[Incompatibility]:
    """Return every reason why payloads written with `writer` may not be readable with `reader`; none: they are."""
    if reader.definition.format is not writer.definition.format:
        return [Incompatibility("$", f"the format was {writer.definition.format} and is {reader.definition.format}")]
    if reader.canonical == writer.canonical:
        return []
    match reader.definition.format:
        case SchemaFormat.PROTOBUF:
            from pydanube.formats.protobuf import compatibility as protobuf

            return protobuf.find(reader, writer)
        case SchemaFormat.AVRO:
            from pydanube.formats.avro import compatibility as avro

            return avro.find(reader, writer)
        case SchemaFormat.JSON:
            from pydanube.formats.json import compatibility as json

            return json.find(cast("JsonSchema", reader), cast("JsonSchema", writer))
    return []


def find_reuse(new: ParsedSchema, old: ParsedSchema) -> list[Incompatibility]:
    """Return everything in `new` that `old` reserved, because versions before it had used it. Protobuf has this.

    It matters in both directions: data of versions before `old` may still be there.
    """
    if new.definition.format is old.definition.format is SchemaFormat.PROTOBUF:
        from pydanube.formats.protobuf import compatibility as protobuf

        return protobuf.find_reuse(new, old)
    return []


def check_compatible(
    level: Compatibility, new: ParsedSchema, earlier: Sequence[tuple[int, ParsedSchema]]
) -> list[Incompatibility]:
    """Return every reason why `new` may not follow the `earlier` versions, which are in ascending order."""
    compared = earlier if level.transitive else earlier[-1:]
    reasons: list[Incompatibility] = []
    for version, other in compared if level is not Compatibility.NONE else ():
        reasons += [one._replace(version=version) for one in find_reuse(new, other)]
        if level.reads_older:
            reasons += [one._replace(version=version) for one in find_incompatibilities(new, other)]
        if level.read_by_older:
            found = find_incompatibilities(other, new)
            reasons += [one._replace(version=version, reason=f"for old readers, {one.reason}") for one in found]
    return reasons
