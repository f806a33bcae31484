"""Definitions of versions: read from the metadata store, parsed together with what they refer to, and cached.

Thousands of clients may ask for large definitions at once. What they ask for is read once for all of them, and few
reads run at a time: what was read is in memory before anybody can count it as an answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from pydanube.formats import ParsedSchema, parse_schema
from pydanube.model.errors import Invalid, NotFound, Refused
from pydanube.model.limits import MIB, SCHEMA_BYTES_MAX, SCHEMA_REFERENCES_MAX
from pydanube.model.schemas import SchemaDefinition, SchemaFormat
from pydanube.runtime.cache import LoadingCache
from pydanube.runtime.tasks import Tasks

from .subjects import Subject, Subjects

CACHED_BYTES: Final = 16 * MIB
"""How much text of definitions is cached, and how much text the cached parsed schemas were made of."""

READS_AT_ONCE: Final = 8
"""How many definitions are read from the metadata store at the same time, each of up to SCHEMA_BYTES_MAX."""

TOGETHER_BYTES_MAX: Final = 4 * SCHEMA_BYTES_MAX
"""The largest text of a definition with everything that it refers to."""

ENTRY_BYTES: Final = 4096
"""What an entry of a cache counts beside its text."""

_PLAIN: Final = frozenset({SchemaFormat.BYTES, SchemaFormat.STRING, SchemaFormat.NUMBER})
"""Formats whose definitions take no time to parse."""


class _Parsed(NamedTuple):
    schema: ParsedSchema
    text_bytes: int


class Definitions:
    """The definitions of all versions. A schema id with a version is never used again, so nothing cached goes stale."""

    def __init__(self, subjects: Subjects, tasks: Tasks) -> None:
        self._subjects = subjects
        self._reads = asyncio.Semaphore(READS_AT_ONCE)
        self._texts: LoadingCache[tuple[int, int], SchemaDefinition] = LoadingCache(tasks, CACHED_BYTES, _weight)
        self._parsed: LoadingCache[tuple[int, int], _Parsed] = LoadingCache(tasks, CACHED_BYTES, _weight_parsed)

    async def get(self, subject: Subject, version: int) -> SchemaDefinition:
        """Return the definition of a version, as it was registered."""
        return await self._texts.get((subject.schema_id, version), partial(self._read, subject, version))

    async def _read(self, subject: Subject, version: int) -> SchemaDefinition:
        async with self._reads:
            return (await self._subjects.read(subject, version)).definition()

    async def parsed(self, subject: Subject, version: int) -> ParsedSchema:
        """Return the parsed schema of a version."""
        loaded = await self._parsed.get((subject.schema_id, version), partial(self._parse_version, subject, version))
        return loaded.schema

    async def _parse_version(self, subject: Subject, version: int) -> _Parsed:
        definition = await self.get(subject, version)
        references = await self._resolve(definition)
        return _Parsed(await _parse(definition, references), _size(definition, references))

    async def parse(self, definition: SchemaDefinition) -> ParsedSchema:
        """Parse a definition that is not registered. Raises Invalid, and Refused if its libraries are missing."""
        return await _parse(definition, await self._resolve(definition))

    async def _resolve(self, definition: SchemaDefinition) -> dict[str, SchemaDefinition]:
        """Return what the definition refers to, also indirectly, by name. Raises Invalid for what cannot be found."""
        found: dict[str, SchemaDefinition] = {}
        places: dict[str, tuple[str, int]] = {}
        waiting = list(definition.references)
        while waiting:
            one = waiting.pop()
            place = (one.subject, one.version)
            if places.setdefault(one.name, place) != place:
                raise Invalid(
                    f"reference {one.name!r} means both {places[one.name]} and {place}: use one version everywhere"
                )
            if one.name in found:
                continue
            if len(places) > SCHEMA_REFERENCES_MAX:
                raise Invalid(f"a definition refers to more than {SCHEMA_REFERENCES_MAX} others, also indirectly")
            if one.version < 1:
                raise Invalid(f"reference {one.name!r}: {one.version} is not a version")
            try:
                # A deleted version is found as well: what was registered before its deletion must stay readable.
                subject, version = self._subjects.version(one.subject, one.version, deleted=True)
                found[one.name] = await self.get(subject, version)
            except NotFound as error:
                raise Invalid(f"reference {one.name!r} cannot be resolved: {error.message}") from None
            if _size(definition, found) > TOGETHER_BYTES_MAX:
                raise Invalid(f"a definition and all that it refers to have more than {TOGETHER_BYTES_MAX} bytes")
            waiting += found[one.name].references
        return found


def _weight(definition: SchemaDefinition) -> int:
    return len(definition.text) + ENTRY_BYTES


def _weight_parsed(loaded: _Parsed) -> int:
    return loaded.text_bytes + ENTRY_BYTES


def _size(definition: SchemaDefinition, references: dict[str, SchemaDefinition]) -> int:
    return len(definition.text) + sum(len(one.text) for one in references.values())


async def _parse(definition: SchemaDefinition, references: dict[str, SchemaDefinition]) -> ParsedSchema:
    """Parse on a thread, because a large definition takes long. Cancelled: the thread ends by itself."""
    if definition.format in _PLAIN:
        return parse_schema(definition, references)
    try:
        return await asyncio.to_thread(parse_schema, definition, references)
    except Refused as error:
        raise Refused(f"in the environment of the broker: {error.message}") from None
