"""The schema that a read decodes with, and the schemas that it meets on the way.

A read uses one version of the topic's schema: the given one, the one that the topic is pinned to, or the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from pydanube.client.admin.schemas import Schemas
from pydanube.formats.columns import ColumnDecoder, Decoded, column_decoder, column_fields
from pydanube.model.errors import Denied, Invalid, NotFound
from pydanube.model.schemas import SchemaVersion
from pydanube.runtime.tasks import run_together

from .definitions import Definition, TopicForm, VersionKey
from .payloads import PayloadDecoder

SCHEMAS_AT_ONCE: Final = 16

OWN_VERSION: Final[VersionKey] = (0, 0)
"""What messages without a schema have in place of a version: they are read with the version of the read."""


class UnknownVersions(Exception):
    """Raised by `decode` for payloads of versions that have to be passed to `learn` first."""

    def __init__(self, keys: frozenset[VersionKey | int]) -> None:
        super().__init__(keys)
        self.keys = keys


class TypedPayloads:
    """Decodes the payloads of one read. `decode` may run on another thread, `learn` asks the registry."""

    def __init__(self, schemas: Schemas, reader: Definition, form: TopicForm) -> None:
        self.fields = column_fields(reader.parse())
        self._schemas = schemas
        self._reader = reader
        self._form = form
        self._decoders: dict[VersionKey | int, ColumnDecoder | str] = {}
        self._unknown: set[VersionKey | int] = set()
        self._learn(OWN_VERSION, reader)
        self._payloads = PayloadDecoder(reader, self._find)

    @classmethod
    async def open(cls, schemas: Schemas, topic: str, version: int | None) -> TypedPayloads | None:
        """Return the decoding of a topic's payloads; None: no schema is bound to it."""
        binding = await schemas.binding(topic)
        if binding is None:
            if version is not None:
                raise Invalid(f"schema_version is {version}, and no schema is bound to {topic}")
            return None
        found = await schemas.get(binding.subject, version or binding.pinned_version or "latest")
        try:
            return cls(schemas, await _definition(schemas, found), TopicForm.of(binding))
        except Invalid as error:
            what = f"version {found.version} of subject {found.subject!r}"
            raise Invalid(f"{what} has no columns: {error.message}; decode=False reads the payloads") from None

    async def learn(self, keys: Iterable[VersionKey | int]) -> None:
        """Fetch the schemas of versions, or with global ids. What a missing one wrote cannot be decoded."""
        slots = asyncio.Semaphore(SCHEMAS_AT_ONCE)

        async def fetch(key: VersionKey | int) -> None:
            async with slots:
                try:
                    self._learn(key, await self._fetch(key))
                except (Invalid, NotFound, Denied) as error:
                    self._decoders[key] = error.message

        await run_together(fetch(key) for key in keys)

    async def _fetch(self, key: VersionKey | int) -> Definition:
        if isinstance(key, int):
            return await _definition(self._schemas, await self._schemas.by_global_id(key))
        return await _definition(self._schemas, await self._schemas.get_by_id(key[0], key[1] or "latest"))

    def _learn(self, key: VersionKey | int, writer: Definition) -> None:
        own = self._reader.parse()
        self._decoders[key] = column_decoder(own, own if writer == self._reader else writer.parse())

    def _find(self, key: VersionKey | int) -> ColumnDecoder | str:
        known = self._decoders.get(key)
        if known is None:
            self._unknown.add(key)
            return "its schema has to be fetched first"
        return known

    def decode(self, rows: pa.RecordBatch) -> Decoded:
        """Decode the payloads of rows, which have the columns `payloads.NEEDED`. Raises UnknownVersions."""
        self._unknown.clear()
        decoded = self._payloads.decode(rows, self._form)
        if self._unknown:
            raise UnknownVersions(frozenset(self._unknown))
        return decoded

    def columns(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return decoded values as columns, by name."""
        return self._payloads.columns(values)


async def _definition(schemas: Schemas, found: SchemaVersion) -> Definition:
    references = await schemas.references_of(found.definition)
    return Definition(found.definition, tuple(sorted(references.items())))
