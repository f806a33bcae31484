"""Turns lines of JSON into payloads of a schema, and payloads into JSON: `produce --schema` and `consume --decode`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pydanube.cli.messages.input_lines import InputMessages
from pydanube.cli.output import note
from pydanube.cli.schemas.bindings import find_binding
from pydanube.cli.values import SchemaName
from pydanube.formats import ParsedSchema, parse_schema
from pydanube.formats.json_form import decode_json, encode_json
from pydanube.model.errors import DanubeError, Denied, Invalid, NotFound, Refused
from pydanube.model.schemas import Binding, Framing, SchemaFormat, SchemaVersion

if TYPE_CHECKING:
    from pydanube.client import Client, ReceivedBatch

PREFIX_BYTES: Final = 5
"""Confluent's framing: a zero byte, and the global id in four bytes, the highest first."""
SCHEMAS_KEPT: Final = 1_000
NOTES_MAX: Final = 10
"""How many payloads that cannot be decoded are reported."""

_TEXTS: Final = (SchemaFormat.STRING, SchemaFormat.BYTES)


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of the registry, parsed with what it refers to."""

    version: SchemaVersion
    parsed: ParsedSchema


async def parse_registered(client: Client, version: SchemaVersion) -> RegisteredSchema:
    """Parse a version with everything it refers to. Raises Refused if the libraries of its format are missing."""
    references = await client.schemas.references_of(version.definition)
    return RegisteredSchema(version, parse_schema(version.definition, references))


class PayloadEncoder:
    """Encodes JSON texts with one version of a subject."""

    def __init__(self, schema: RegisteredSchema, framed: bool) -> None:
        self.schema = schema
        self._prefix = b"\0" + schema.version.global_id.to_bytes(4) if framed else b""

    @classmethod
    async def open(cls, client: Client, topic: str, name: SchemaName) -> PayloadEncoder:
        """Find the schema: the version that is named, the one that the topic is pinned to, or the latest."""
        binding = await find_binding(client, topic)
        if binding is not None and binding.subject != name.subject:
            raise Refused(f"topic {topic} is bound to subject {binding.subject!r}, not to {name.subject!r}")
        pinned = binding.pinned_version if binding is not None else 0
        found = await client.schemas.get(name.subject, name.version or pinned or "latest")
        framed = binding is not None and binding.framing is Framing.CONFLUENT
        return cls(await parse_registered(client, found), framed)

    async def encoded(self, source: AsyncIterator[InputMessages], *, all_keyed: bool) -> AsyncIterator[InputMessages]:
        """Yield the messages with encoded payloads. Raises Invalid with the line.

        An empty payload with a key is a tombstone, and stays empty; without a key it is an empty line, and passed over.
        `all_keyed`: every message has a key, though it is not in `InputMessages`.
        """
        keeps_all = all_keyed or self.schema.parsed.definition.format in _TEXTS
        async for messages in source:
            kept = messages if keeps_all else messages.without_empty()
            yield replace(kept, payloads=self._encode_all(kept))

    def _encode_all(self, messages: InputMessages) -> list[bytes]:
        return [self._encode(messages.place(row), payload) for row, payload in enumerate(messages.payloads)]

    def _encode(self, place: str, payload: bytes) -> bytes:
        if not payload:
            return payload
        try:
            return self._prefix + encode_json(self.schema.parsed, payload, framed=bool(self._prefix))
        except Invalid as error:
            version = self.schema.version
            raise Invalid(
                f"{place} does not fit version {version.version} of subject {version.subject!r}: {error.message}"
            ) from None


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """The payloads of a batch as JSON texts, with their subjects; None where a payload stays as it is."""

    texts: list[bytes | None]
    subjects: list[str | None]


class PayloadDecoder:
    """Decodes the payloads of batches with the schemas that they were written with."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._by_id: dict[tuple[int, int], RegisteredSchema | DanubeError] = {}
        self._by_global_id: dict[int, RegisteredSchema | DanubeError] = {}
        self._bindings: dict[str, Binding | None] = {}
        self._failures = 0

    async def decode(self, batch: ReceivedBatch) -> DecodedBatch:
        """Decode a batch. A payload without a schema stays as it is; so does one that cannot be decoded, which is
        reported on stderr."""
        binding = await self._binding(batch.topic)
        if binding is not None and binding.framing is Framing.CONFLUENT:
            return await self._decode_framed(batch, binding.subject)
        if not batch.schema_id:
            return DecodedBatch([None] * len(batch), [None] * len(batch))
        schema = await self._find_by_id(batch.schema_id, batch.schema_version)
        tombstones = binding is not None and binding.tombstones
        texts = [
            None
            if not payload and (tombstones or not _may_be_empty(schema))
            else self._decode(batch, row, schema, payload)
            for row, payload in enumerate(batch.payloads)
        ]
        return DecodedBatch(texts, [_subject(schema)] * len(batch))

    async def _decode_framed(self, batch: ReceivedBatch, subject: str) -> DecodedBatch:
        """Decode payloads that name their schemas. A global id may be of several subjects: it is that of the topic."""
        decoded = DecodedBatch([], [])
        for row, payload in enumerate(batch.payloads):
            schema: RegisteredSchema | DanubeError
            if len(payload) >= PREFIX_BYTES and not payload[0]:
                schema = await self._find_by_global_id(int.from_bytes(payload[1:PREFIX_BYTES]))
            else:
                schema = Invalid("it does not begin with the prefix of Confluent, a zero byte and a schema id")
            text = self._decode(batch, row, schema, payload[PREFIX_BYTES:], True) if payload else None  # a tombstone
            decoded.texts.append(text)
            decoded.subjects.append(None if isinstance(schema, DanubeError) else subject)
        return decoded

    def _decode(
        self,
        batch: ReceivedBatch,
        row: int,
        schema: RegisteredSchema | DanubeError,
        payload: bytes,
        framed: bool = False,
    ) -> bytes | None:
        try:
            if isinstance(schema, DanubeError):
                raise schema
            return decode_json(schema.parsed, payload, framed=framed)
        except DanubeError as error:
            self._report(batch, row, error)
            return None

    def _report(self, batch: ReceivedBatch, row: int, error: DanubeError) -> None:
        self._failures += 1
        if self._failures <= NOTES_MAX:
            place = f"offset {batch.offset_at(row)} of partition {batch.partition} of {batch.topic}"
            note(f"{place} stays as it is: {error.message}")
        if self._failures == NOTES_MAX:
            note("further payloads that cannot be decoded are not reported")

    async def _binding(self, topic: str) -> Binding | None:
        if topic not in self._bindings:
            self._bindings[topic] = await find_binding(self._client, topic)
        return self._bindings[topic]

    async def _find_by_id(self, schema_id: int, version: int) -> RegisteredSchema | DanubeError:
        key = (schema_id, version)
        if key not in self._by_id:
            if len(self._by_id) >= SCHEMAS_KEPT:
                self._by_id.clear()
            try:
                found = await self._client.schemas.get_by_id(schema_id, version or "latest")
                self._by_id[key] = await parse_registered(self._client, found)
            except (Invalid, NotFound, Denied) as error:  # not: libraries that are missing
                self._by_id[key] = error
        return self._by_id[key]

    async def _find_by_global_id(self, global_id: int) -> RegisteredSchema | DanubeError:
        if global_id not in self._by_global_id:
            if len(self._by_global_id) >= SCHEMAS_KEPT:
                self._by_global_id.clear()
            try:
                found = await self._client.schemas.by_global_id(global_id)
                self._by_global_id[global_id] = await parse_registered(self._client, found)
            except (Invalid, NotFound, Denied) as error:  # not: libraries that are missing
                self._by_global_id[global_id] = error
        return self._by_global_id[global_id]


def _subject(schema: RegisteredSchema | DanubeError) -> str | None:
    return schema.version.subject if isinstance(schema, RegisteredSchema) else None


def _may_be_empty(schema: RegisteredSchema | DanubeError) -> bool:
    """Return whether the empty payload is a value: of protobuf, the message with every field at its default."""
    return isinstance(schema, RegisteredSchema) and schema.version.definition.format is SchemaFormat.PROTOBUF
