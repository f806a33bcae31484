"""The schema registry: `client.schemas`.

```python
registered = await client.schemas.register("orders", '{"type": "string"}', format="json")
await client.schemas.bind("/default/orders", "orders", policy="enforce")
```

Requests that may be executed twice are repeated after a disconnect until they are answered; so are registrations, which
find what was registered before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydanube.client.settings import check_count
from pydanube.client.typed.schema_sources import SchemaSource, value_type_of
from pydanube.model.errors import Invalid
from pydanube.model.limits import SCHEMA_REFERENCES_MAX
from pydanube.model.names import TopicName
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    Framing,
    Incompatibility,
    RegisteredVersion,
    SchemaDefinition,
    SchemaFormat,
    SchemaReference,
    SchemaVersion,
    SubjectDescription,
    ValidationPolicy,
    parse_subject,
)
from pydanube.operations import schemas

from .area import Area

SUBJECTS_AT_ONCE: Final = 1000

AnyVersion = int | Literal["latest"]
AnyDefinition = str | type | SchemaSource


class Schemas(Area):
    """The schema registry of a client's cluster. Made by `client.schemas`.

    A definition is what `client.producer` takes as `schema`, such as a class, a dict or a `SchemaDefinition`; or it is
    text, and `format` says what it is (avro, json, protobuf, string, number, bytes) and `references` which other
    subjects it uses.
    """

    async def register(
        self,
        subject: str,
        definition: AnyDefinition,
        *,
        format: SchemaFormat | str | None = None,  # noqa: A002  the word of the command line
        references: Iterable[SchemaReference] = (),
    ) -> RegisteredVersion:
        """Make a definition the next version of a subject, and return its ids and version.

        If the subject has the definition already, perhaps written differently, that version is returned. Raises Invalid
        if it cannot be parsed, and Refused with the reasons if it is not compatible with earlier versions.
        """
        request = schemas.RegisterSchema(
            subject=parse_subject(subject), definition=_definition(definition, format, references)
        )
        return (await self._client._do(request)).registered

    async def check(
        self,
        subject: str,
        definition: AnyDefinition,
        *,
        format: SchemaFormat | str | None = None,  # noqa: A002
        references: Iterable[SchemaReference] = (),
        version: AnyVersion | None = None,
        level: Compatibility | str | None = None,
    ) -> list[Incompatibility]:
        """Return every reason why a definition may not be registered; none: it may be.

        With `version`, it is compared with that version only. `level` is used in place of the subject's own.
        """
        request = schemas.CheckSchema(
            subject=parse_subject(subject),
            definition=_definition(definition, format, references),
            version=0 if version is None else _number(version),
            level=None if level is None else _level(level),
        )
        answer = await self._client._do(request)
        if answer.left_out:
            return [*answer.reasons, Incompatibility("$", f"and {answer.left_out} more reasons")]
        return answer.reasons

    async def lookup(
        self,
        subject: str,
        definition: AnyDefinition,
        *,
        format: SchemaFormat | str | None = None,  # noqa: A002
        references: Iterable[SchemaReference] = (),
        deleted: bool = False,
    ) -> SchemaVersion:
        """Return the version of a subject that has this definition, perhaps written differently. Raises NotFound."""
        request = schemas.LookUpSchema(
            subject=parse_subject(subject), definition=_definition(definition, format, references), deleted=deleted
        )
        return (await self._client._do(request)).schema

    async def get(self, subject: str, version: AnyVersion = "latest", *, deleted: bool = False) -> SchemaVersion:
        """Return a version of a subject. With `deleted`, a deleted one is found as well."""
        number = 0 if version == "latest" else _number(version)
        request = schemas.GetSchema(subject=parse_subject(subject), version=number, deleted=deleted)
        return (await self._client._do(request)).schema

    async def get_by_id(self, schema_id: int, version: AnyVersion = "latest") -> SchemaVersion:
        """Return the version that a message with this `schema_id` and `schema_version` was written with."""
        check_count("schema_id", schema_id, 1, 2**63 - 1)
        request = schemas.GetSchema(schema_id=schema_id, version=0 if version == "latest" else _number(version))
        return (await self._client._do(request)).schema

    async def by_global_id(self, global_id: int) -> SchemaVersion:
        """Return the first version with this global id, which the Confluent API calls `id`."""
        check_count("global_id", global_id, 1, 2**31 - 1)
        return (await self._client._do(schemas.GetSchema(global_id=global_id))).schema

    async def references_of(self, definition: SchemaDefinition) -> dict[str, SchemaDefinition]:
        """Return the definitions that one refers to, also indirectly, by the names that the texts use.

        Raises NotFound if one of them was deleted for good.
        """
        found: dict[str, SchemaDefinition] = {}
        waiting = list(definition.references)
        while waiting:
            one = waiting.pop()
            if one.name in found:
                continue
            if len(found) >= SCHEMA_REFERENCES_MAX:
                raise Invalid(f"a definition refers to more than {SCHEMA_REFERENCES_MAX} others, also indirectly")
            found[one.name] = (await self.get(one.subject, one.version, deleted=True)).definition
            waiting += found[one.name].references
        return found

    async def subjects(self, prefix: str = "", *, deleted: bool = False) -> list[str]:
        """Return the names of the subjects; with `deleted`, also of those that are deleted."""
        found: list[str] = []
        while True:
            after = found[-1] if found else ""
            request = schemas.ListSubjects(prefix=prefix, deleted=deleted, after=after, count=SUBJECTS_AT_ONCE)
            names = (await self._client._do(request)).names
            found += names
            if len(names) < SUBJECTS_AT_ONCE:
                return found

    async def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        request = schemas.ListSchemaVersions(subject=parse_subject(subject), deleted=deleted)
        return (await self._client._do(request)).versions

    async def describe(self, subject: str) -> SubjectDescription:
        """Describe a subject without its definitions: its ids, versions, compatibility, and the topics bound to it."""
        request = schemas.DescribeSubject(subject=parse_subject(subject))
        return (await self._client._do(request)).subject

    async def delete(self, subject: str, version: AnyVersion | None = None, *, permanent: bool = False) -> list[int]:
        """Delete a version, or without one the subject, and return the versions that were deleted.

        Deleted versions can still be read by their ids. With `permanent`, what is deleted is removed for good.
        """
        number = 0 if version is None else _number(version)
        request = schemas.DeleteSchema(subject=parse_subject(subject), version=number, permanent=permanent)
        return (await self._client._do(request)).versions

    async def compatibility(self, subject: str | None = None) -> Compatibility:
        """Return the compatibility level in force for a subject, or without one the default of the broker."""
        request = schemas.GetCompatibility(subject="" if subject is None else parse_subject(subject))
        return (await self._client._do(request)).effective

    async def compatibility_version(self, subject: str | None = None) -> str:
        """Return the version of what a subject, or without one the broker, sets: `expected` of `set_compatibility`."""
        request = schemas.GetCompatibility(subject="" if subject is None else parse_subject(subject))
        return (await self._client._do(request)).version

    async def set_compatibility(
        self, subject: str | None, level: Compatibility | str | None, *, expected: str = ""
    ) -> Compatibility:
        """Set the level of a subject, or (None) the default of the broker, and return the level in force.

        Without a level, the default applies again. Raises Conflict if the version is not `expected` any more.
        """
        request = schemas.SetCompatibility(
            subject="" if subject is None else parse_subject(subject),
            level=None if level is None else _level(level),
            expected=expected,
        )
        return (await self._client._do(request)).effective

    async def set_tags(self, subject: str, version: AnyVersion, tags: Sequence[str]) -> None:
        """Replace the tags of a version."""
        request = schemas.SetSchemaTags(subject=parse_subject(subject), version=_number(version), tags=list(tags))
        await self._client._do(request)

    async def referenced_by(self, subject: str, version: AnyVersion) -> list[int]:
        """Return the global ids of the versions that refer to a version."""
        request = schemas.ListReferrers(subject=parse_subject(subject), version=_number(version))
        return (await self._client._do(request)).global_ids

    async def bind(
        self,
        topic: str,
        subject: str,
        *,
        policy: ValidationPolicy | str = ValidationPolicy.ENFORCE,
        validate_payloads: bool = True,
        pinned_version: int = 0,
        minimum_version: int = 0,
        tombstones: bool = False,
        framing: Framing | str = Framing.NONE,
        expected: str = "",
    ) -> None:
        """Bind a topic to a subject, or change how that is checked. It applies to what is published from now on.

        policy                  "enforce": a batch that does not fit is refused with Invalid; "warn": it is stored,
                                counted and logged; "none": nothing is checked
        validate_payloads       False: only the schema id and version of each batch are checked
        pinned_version, minimum_version     which versions may be used; 0: all
        tombstones              whether empty payloads are allowed
        framing                 "confluent": each payload begins with a zero byte and the global id in four bytes
        expected                the version of the topic (see `client.describe_topic`); another one raises Conflict
        """
        binding = Binding(
            subject,
            policy if isinstance(policy, ValidationPolicy) else ValidationPolicy.parse(policy),
            validate_payloads,
            pinned_version,
            minimum_version,
            tombstones,
            framing if isinstance(framing, Framing) else Framing.parse(framing),
        )
        request = schemas.BindTopic(topic=TopicName.parse(topic), binding=binding, expected=expected)
        await self._client._do(request)

    async def unbind(self, topic: str, *, expected: str = "") -> None:
        """Let a topic carry anything again. Raises NotFound if it is not bound. `expected` as in `bind`."""
        request = schemas.UnbindTopic(topic=TopicName.parse(topic), expected=expected)
        await self._client._do(request)

    async def binding(self, topic: str) -> Binding | None:
        """Return the binding of a topic; None: it carries anything."""
        request = schemas.GetBinding(topic=TopicName.parse(topic))
        return (await self._client._do(request)).binding


def _definition(
    definition: AnyDefinition, kind: SchemaFormat | str | None, references: Iterable[SchemaReference]
) -> SchemaDefinition:
    if not isinstance(definition, str):
        if kind is not None or references:
            raise Invalid("only text takes a format and references: a SchemaDefinition, class or dict has them already")
        return definition if isinstance(definition, SchemaDefinition) else value_type_of(definition).definition
    if kind is None:
        raise Invalid("a definition that is text needs a format: avro, json, protobuf, string, number or bytes")
    chosen = kind if isinstance(kind, SchemaFormat) else SchemaFormat.parse(kind)
    return SchemaDefinition(chosen, definition, tuple(references))


def _number(version: AnyVersion) -> int:
    """Return a version as it is sent: -1 for the latest."""
    if version == "latest":
        return -1
    check_count("version", version, 1, 2**31 - 1)
    return version


def _level(level: Compatibility | str) -> Compatibility:
    return level if isinstance(level, Compatibility) else Compatibility.parse(level)
