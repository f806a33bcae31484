"""The schema registry as listeners call it: `broker.schemas`.

Each call names a principal, and the authorizer is asked first. The resource of a subject is `schema:<subject>`, that of
the whole registry is the cluster. A subject that a topic is bound to may be described by those that may describe the
topic: producers and consumers need no more than their topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, NamedTuple
from weakref import WeakValueDictionary

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.security.audit_operations import note_change
from pydanube.broker.security.visibility import hide
from pydanube.core.access import BROKER, Action, Principal
from pydanube.formats import ParsedSchema
from pydanube.formats.all_formats import fingerprint
from pydanube.formats.compatibility import check_compatible
from pydanube.model.errors import Invalid, NotFound, Refused, Unavailable
from pydanube.model.limits import (
    MIB,
    NAME_CHARACTERS_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_REFERENCE_BYTES_MAX,
    SCHEMA_REFERENCES_MAX,
    SCHEMA_TAGS_MAX,
)
from pydanube.model.names import TopicName
from pydanube.model.schemas import (
    Binding,
    Compatibility,
    Incompatibility,
    RegisteredVersion,
    RegistryMode,
    SchemaDefinition,
    SchemaFormat,
    SchemaVersion,
    SubjectDescription,
    ValidationPolicy,
    VersionNotes,
    parse_subject,
)
from pydanube.model.security import subject_resource
from pydanube.runtime.budget import Budget
from pydanube.runtime.long_work import Slices
from pydanube.runtime.telemetry import get_logger

from .definitions import ENTRY_BYTES, Definitions
from .subjects import Subject, Subjects, no_global_id, no_schema_id
from .validation import BoundTopic, PartitionIntake, Validations

log = get_logger(__name__)

AnyVersion = int | Literal["latest"]

REASONS_MAX: Final = 500
"""The most reasons in the message of a refused registration. `check` returns all of them."""

WAITING_BYTES_MAX: Final = 64 * MIB
"""How much text the definitions have, together, that are being registered, checked and looked up. Parsing takes long,
and requests whose clients are gone are still executed."""

DESCRIPTION_CHARACTERS_MAX: Final = 4_000
"""With the largest definition and all tags, it fits one metadata value."""

TOPICS_MAX: Final = 1_000
"""The most topics in the description of a subject."""


class CompatibilityReport(NamedTuple):
    """What a subject, or the broker, sets itself (None: nothing), and the level in force."""

    own: Compatibility | None
    effective: Compatibility


class ModeReport(NamedTuple):
    """What a subject, or the broker, sets itself (None: nothing), and the mode in force."""

    own: RegistryMode | None
    effective: RegistryMode


class ChosenVersion(NamedTuple):
    """What a producer writes into its batches."""

    schema_id: int
    version: int


class Schemas:
    """Registers, reads and deletes schemas. Loaded by `start`, before the listeners open."""

    def __init__(self, context: BrokerContext, partitions: Partitions) -> None:
        store, registry, clock = context.store, context.registry, context.clock
        tasks, metrics = context.tasks, context.metrics
        self._registry = registry
        self._violations = metrics.schema_violations
        self._partitions = partitions
        self._authorizer = context.authorizer
        self._clock = clock
        self._subjects = Subjects(store, clock, registry.follower)
        self._definitions = Definitions(self._subjects, tasks)
        self.validations = Validations(clock, tasks)
        self._waiting = Budget(WAITING_BYTES_MAX)
        self._bound: WeakValueDictionary[int, BoundTopic] = WeakValueDictionary()
        """By topic id, as long as a partition of the topic is open."""
        partitions.on_opened = self._partition_opened

    def check_complete(self) -> None:
        """Raise Corrupt if something is missing of what was listed at the start."""
        self._subjects.check_complete()

    # -- registering ---------------------------------------------------------------------------------------------------

    async def register(
        self,
        principal: Principal,
        subject: str,
        definition: SchemaDefinition,
        notes: VersionNotes = VersionNotes(),  # noqa: B008 - immutable
        version: int | None = None,
    ) -> RegisteredVersion:
        """Make a definition the next version of a subject, and return the version. It is durable on return.

        A definition that the subject has already, perhaps written differently, is found and nothing changes: to see the
        subject is enough for that, so that producers may register what was registered for them. Raises
        Invalid for a definition that cannot be parsed, and Refused, with every reason, for one that is not compatible
        with the versions before it. `notes` are kept with a new version. With a `version`, Invalid is raised if the
        definition has or would get another one. Cancelled: the version may be registered; registering again finds it.
        """
        may_create = self._authorizer.allows(principal, Action.CREATE, _resource(subject))
        if not may_create and not self._may_describe(principal, subject):
            self._check(principal, Action.CREATE, subject)
        _check_definition(definition)
        self._check_may_refer(principal, definition)
        notes = _checked_notes(notes, principal)
        with self._held(definition):
            if not may_create:
                found = await self._find_registered(principal, subject, definition)
            else:
                found = await self._register(subject, definition, notes, version, self._user(principal))
            _check_version(version, found.version)
            return found

    async def _find_registered(
        self, principal: Principal, subject: str, definition: SchemaDefinition
    ) -> RegisteredVersion:
        """Return the version that has the definition already, for callers that may create none. Raises Denied."""
        mark = fingerprint(await self._definitions.parse(definition))
        await self._find_subject(subject)
        if (found := self._registered(subject, definition, mark)) is None:
            self._check(principal, Action.CREATE, subject)
            raise AssertionError("the caller may not create the subject")
        return found

    def _check_may_refer(self, principal: Principal, definition: SchemaDefinition) -> None:
        """Raise Denied if a definition refers to a subject that the caller may not see."""
        for one in definition.references:
            self._check(principal, Action.DESCRIBE, one.subject)

    async def _register(
        self, subject: str, definition: SchemaDefinition, notes: VersionNotes, version: int | None, user: str
    ) -> RegisteredVersion:
        parsed = await self._definitions.parse(definition)
        mark = fingerprint(parsed)
        if (found := self._registered(subject, definition, mark)) is not None:
            return found
        return await self._subjects.change(lambda: self._add(subject, definition, parsed, mark, notes, version, user))

    async def _add(
        self,
        subject: str,
        definition: SchemaDefinition,
        parsed: ParsedSchema,
        mark: str,
        notes: VersionNotes,
        wanted: int | None,
        user: str,
    ) -> RegisteredVersion:
        """Check and store a version, within `Subjects.change`."""
        if (found := self._registered(subject, definition, mark)) is not None:
            return found  # by another caller or another broker, meanwhile
        note_change(Action.CREATE, _resource(subject))
        await self._check_references(definition)
        former = self._subjects.find(subject)
        if self._subjects.mode(former)[1] is RegistryMode.READONLY:
            raise Refused(f"subject {subject!r} is read-only: set its mode to readwrite first")
        _check_version(wanted, former.record.last_version + 1 if former is not None else 1)
        reasons = await self._compare(former, parsed, None, None)
        if reasons:
            level = self._subjects.compatibility(former)[1]
            listed = "; ".join(map(str, reasons[:REASONS_MAX]))
            if len(reasons) > REASONS_MAX:
                listed += f"; and {len(reasons) - REASONS_MAX} more"
            raise Refused(f"the definition is not compatible ({level}) with subject {subject!r}: {listed}")
        version = await self._subjects.add(subject, definition, mark, notes, user)
        log.info("schema.registered", subject=subject, version=version, format=str(definition.format))
        registered = self._registered(subject, definition, mark)
        if registered is None:
            raise NotFound(f"subject {subject!r} has no version {version}: it was deleted meanwhile")
        return RegisteredVersion(registered.schema_id, version, registered.global_id, True, mark)

    async def check(
        self,
        principal: Principal,
        subject: str,
        definition: SchemaDefinition,
        version: AnyVersion | None = None,
        level: Compatibility | None = None,
    ) -> list[Incompatibility]:
        """Return every reason why a definition may not be registered; none: it may be.

        With a `version`, it is compared with that version only. `level` is used in place of the subject's own.
        """
        self._check(principal, Action.DESCRIBE, subject)
        _check_definition(definition)
        self._check_may_refer(principal, definition)
        with self._held(definition):
            parsed = await self._definitions.parse(definition)
            if version is None:
                return await self._compare(self._subjects.find(subject), parsed, None, level)
            found, number = await self._find(subject, version, deleted=False)
            return await self._compare(found, parsed, number, level)

    async def lookup(
        self, principal: Principal, subject: str, definition: SchemaDefinition, deleted: bool = False
    ) -> SchemaVersion:
        """Return the version of a subject that has this definition, perhaps written differently. Raises NotFound."""
        self._check(principal, Action.DESCRIBE, subject)
        _check_definition(definition)
        self._check_may_refer(principal, definition)
        await self._find_subject(subject)
        self._subjects.subject(subject, deleted)
        with self._held(definition):
            mark = fingerprint(await self._definitions.parse(definition))
        found = self._subjects.subject(subject, deleted)
        version = found.find(mark, _triples(definition), deleted)
        if not version:
            await self._subjects.refresh(subject)
            found = self._subjects.subject(subject, deleted)
            version = found.find(mark, _triples(definition), deleted)
        if not version:
            raise NotFound(f"subject {subject!r} has no version with this definition")
        return await self._read(found, version)

    @contextmanager
    def _held(self, definition: SchemaDefinition) -> Iterator[None]:
        """Count a definition as long as it is worked on. Raises Unavailable if there are too many."""
        size = len(definition.text) + ENTRY_BYTES
        if not self._waiting.take(size):
            raise Unavailable("too many definitions are being registered at once: send the request again, later")
        try:
            yield
        finally:
            self._waiting.give_back(size)

    def _registered(self, subject: str, definition: SchemaDefinition, mark: str) -> RegisteredVersion | None:
        found = self._subjects.find(subject)
        version = found.find(mark, _triples(definition)) if found is not None else 0
        if found is None or not version:
            return None
        return RegisteredVersion(found.schema_id, version, found.versions[version].global_id, False, mark)

    async def _check_references(self, definition: SchemaDefinition) -> None:
        for one in definition.references:
            try:
                await self._find(one.subject, one.version, deleted=False)
            except NotFound as error:
                raise Invalid(f"reference {one.name!r} cannot be resolved: {error.message}") from None

    async def _compare(
        self, subject: Subject | None, parsed: ParsedSchema, version: int | None, level: Compatibility | None
    ) -> list[Incompatibility]:
        """Compare with one version, or with those that the level asks for. Runs on a thread, because it may take
        long."""
        chosen = level or self._subjects.compatibility(subject)[1]
        if subject is None or not (chosen.reads_older or chosen.read_by_older):
            return []
        versions = [version] if version else subject.live if chosen.transitive else subject.live[-1:]
        earlier = [(one, await self._definitions.parsed(subject, one)) for one in versions]
        return await asyncio.to_thread(check_compatible, chosen, parsed, earlier) if earlier else []

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(
        self, principal: Principal, subject: str, version: AnyVersion = "latest", deleted: bool = False
    ) -> SchemaVersion:
        """Return one version. With `deleted`, a deleted one is found as well, until it is removed for good."""
        self._check(principal, Action.DESCRIBE, subject)
        return await self._read(*await self._find(subject, version, deleted))

    async def parsed(self, principal: Principal, subject: str, version: AnyVersion = "latest") -> ParsedSchema:
        """Return one version, parsed with everything it refers to; also a deleted one."""
        self._check(principal, Action.DESCRIBE, subject)
        return await self._definitions.parsed(*await self._find(subject, version, deleted=True))

    async def get_by_id(self, principal: Principal, schema_id: int, version: AnyVersion = "latest") -> SchemaVersion:
        """Return the version that a batch with this schema id and version was written with, also a deleted one."""
        await self._subjects.refresh_ids(schema_id=schema_id)
        subject = self._subjects.by_schema_id(schema_id)
        if not self._may_describe(principal, subject.name):
            hide(principal, Action.DESCRIBE, _resource(subject.name))
            raise no_schema_id(schema_id)
        return await self._read(*await self._find(subject.name, version, deleted=True))

    async def by_global_id(self, principal: Principal, global_id: int) -> SchemaVersion:
        """Return the first version with this global id that the caller may see, also a deleted one."""
        name, version = (await self._places_of(principal, global_id))[0]
        return await self._read(*self._version(name, version, deleted=True))

    async def versions_of_global_id(
        self, principal: Principal, global_id: int, deleted: bool = False
    ) -> list[tuple[str, int]]:
        """Return the subjects that the caller may see and the versions that have this global id. Raises NotFound if it
        may see none of them, deleted or not."""
        places = await self._places_of(principal, global_id)
        return [
            (name, version)
            for name, version in places
            if deleted or version not in self._subjects.subject(name, deleted=True).deleted
        ]

    async def _places_of(self, principal: Principal, global_id: int) -> list[tuple[str, int]]:
        await self._subjects.refresh_ids(global_id=global_id)
        places = self._subjects.by_global_id(global_id)
        seen = [(name, version) for name, version in places if self._may_describe(principal, name)]
        if not seen:
            hide(principal, Action.DESCRIBE, _resource(places[0][0]))
            raise no_global_id(global_id)
        return seen

    async def notes(self, principal: Principal, subject: str, version: int) -> VersionNotes:
        """Return what was said about a version when it was registered, with the tags that it has now; also of a deleted
        one."""
        self._check(principal, Action.DESCRIBE, subject)
        found, number = await self._find(subject, version, deleted=True)
        record = await self._subjects.read(found, number)
        return VersionNotes(record.description, record.created_by, tuple(record.tags))

    async def subjects(self, principal: Principal, prefix: str = "", deleted: bool = False) -> list[str]:
        """Return the subjects that the caller may see and whose names begin with `prefix`; with `deleted`, also those
        that are deleted."""
        names = self._subjects.names(prefix, deleted)
        if self._authorizer.allows(principal, Action.DESCRIBE, BROKER):
            return names
        slices, found = Slices(self._clock), list[str]()
        for name in names:
            if self._may_describe(principal, name):
                found.append(name)
            await slices.pause_if_spent()
        return found

    async def versions(self, principal: Principal, subject: str, deleted: bool = False) -> list[int]:
        self._check(principal, Action.DESCRIBE, subject)
        found, _ = await self._find(subject, "latest", deleted)
        return list(found.versions) if deleted else found.live

    async def describe(self, principal: Principal, subject: str) -> SubjectDescription:
        """Describe a subject without its definitions, also a deleted one."""
        self._check(principal, Action.DESCRIBE, subject)
        found, _ = await self._find(subject, "latest", deleted=True)
        newest = found.versions[found.latest or max(found.versions)]
        own, effective = self._subjects.compatibility(found)
        return SubjectDescription(
            subject,
            found.schema_id,
            SchemaFormat.parse(newest.format),
            tuple(found.live),
            tuple(sorted(found.deleted)),
            own,
            effective,
            self._subjects.mode(found)[1],
            tuple(self._visible_topics(principal, subject)[:TOPICS_MAX]),
            found.record.created_at,
        )

    async def referenced_by(self, principal: Principal, subject: str, version: AnyVersion) -> list[int]:
        """Return the global ids of the versions that refer to this one and that the caller may see."""
        self._check(principal, Action.DESCRIBE, subject)
        found, number = await self._find(subject, version, deleted=True)
        places = self._subjects.referrers((found.name, number))
        seen = [(name, one) for name, one in places if self._may_describe(principal, name)]
        return sorted({self._subjects.subject(name, True).versions[one].global_id for name, one in seen})

    # -- deleting ------------------------------------------------------------------------------------------------------

    async def delete_version(
        self, principal: Principal, subject: str, version: AnyVersion, permanent: bool = False
    ) -> int:
        """Delete a version, and return it. It can still be read by its ids.

        With `permanent`, a deleted version is removed for good. Raises Refused if another version refers to it.
        """
        self._check(principal, Action.DELETE, subject)

        async def attempt() -> int:
            found, number = await self._find(subject, version, deleted=permanent)
            if found.live == [number] or list(found.versions) == [number]:
                self._check_unbound(principal, subject)
            self._check_unpinned(principal, subject, number)
            self._check_deletable(principal, found, [number], permanent)
            await self._delete(principal, found, [number], permanent)
            return number

        number = await self._subjects.change(attempt)
        log.info("schema.deleted", subject=subject, version=number, permanent=permanent)
        return number

    async def delete_subject(self, principal: Principal, subject: str, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject, and return those that were deleted by this call.

        With `permanent`, a deleted subject is removed for good; made again, it gets another schema id.
        """
        self._check(principal, Action.DELETE, subject)

        async def attempt() -> list[int]:
            await self._find_subject(subject)
            found = self._subjects.subject(subject, deleted=permanent)
            self._check_unbound(principal, subject)
            versions = list(found.versions) if permanent else found.live
            self._check_deletable(principal, found, versions, permanent)
            await self._delete(principal, found, versions, permanent)
            return versions

        versions = await self._subjects.change(attempt)
        log.info("subject.deleted", subject=subject, versions=len(versions), permanent=permanent)
        return versions

    async def _delete(self, principal: Principal, subject: Subject, versions: Sequence[int], permanent: bool) -> None:
        """Delete versions. Another broker may have bound a topic, or registered a version that refers to them, at the
        same moment: so what uses them is looked for once more, and the deletion is taken back if there is something."""
        if permanent:
            await self._subjects.remove(subject, versions)
            return
        name = subject.name
        await self._subjects.set_deleted(subject, versions)
        await self._subjects.reload()
        await self._registry.reload_topics()
        try:
            current = self._subjects.find(name)
            if current is not None:
                if not current.live:
                    self._check_unbound(principal, name)
                for version in versions:
                    self._check_unpinned(principal, name, version)
                self._subjects.check_unreferenced(current, versions, partial(self._may_describe, principal))
        except Refused:
            await self._subjects.set_live(name, versions)
            raise

    def _check_deletable(
        self, principal: Principal, subject: Subject, versions: Sequence[int], permanent: bool
    ) -> None:
        live = [version for version in versions if version not in subject.deleted]
        if permanent and live:
            raise Refused(
                f"version {live[0]} of subject {subject.name!r} is not deleted: delete it first, then permanently"
            )
        if self._subjects.mode(subject)[1] is RegistryMode.READONLY:
            raise Refused(f"subject {subject.name!r} is read-only: set its mode to readwrite first")
        self._subjects.check_unreferenced(subject, versions, partial(self._may_describe, principal))

    def _check_unbound(self, principal: Principal, subject: str) -> None:
        if bound := self._registry.bound_topics(subject):
            topic = self._in_words(principal, bound)
            raise Refused(f"{topic} is bound to subject {subject!r}: unbind it first, then delete the subject")

    def _check_unpinned(self, principal: Principal, subject: str, version: int) -> None:
        bound = [(one, self._registry.topic(one).binding) for one in self._registry.bound_topics(subject)]
        pinned = [topic for topic, binding in bound if binding is not None and binding.pinned_version == version]
        if pinned:
            topic = self._in_words(principal, pinned)
            raise Refused(f"{topic} takes only version {version} of subject {subject!r}: bind it anew first")

    def _in_words(self, principal: Principal, topics: Sequence[TopicName]) -> str:
        """Return one of these topics as an error names it: one that the caller may see, if there is one."""
        seen = (one for one in topics if self._authorizer.allows(principal, Action.DESCRIBE, str(one)))
        first = next(seen, None)
        return "a topic that you may not see" if first is None else f"topic {first}"

    # -- topics --------------------------------------------------------------------------------------------------------

    async def bind(self, principal: Principal, topic: TopicName, binding: Binding, expected: str = "") -> None:
        """Bind a topic to a subject, or change how that is checked. It applies to what is published from now on.

        Raises Refused if the topic is bound to another subject, and NotFound if the subject or a version that the
        binding names does not exist. Raises Conflict if the topic does not have the version `expected`.
        """
        self._authorizer.check(principal, Action.ADMINISTER, str(topic))
        self._check(principal, Action.DESCRIBE, binding.subject)  # whoever sees the topic sees the subject from now on
        await self._registry.refresh_topic(topic)

        async def attempt() -> None:
            await self._find(binding.subject, binding.pinned_version or binding.minimum_version or "latest", False)
            unchanged = self._subjects.unchanged(binding.subject)
            await self._registry.set_binding(topic, binding, expected=expected, compares=[unchanged])

        await self._subjects.change(attempt)
        log.info("topic.bound", topic=str(topic), subject=binding.subject, policy=str(binding.policy))

    async def unbind(self, principal: Principal, topic: TopicName, expected: str = "") -> None:
        """Let the topic carry anything again. Raises NotFound if it is not bound."""
        self._authorizer.check(principal, Action.ADMINISTER, str(topic))
        if await self._registry.binding(topic) is None:
            raise NotFound(f"topic {topic} is not bound to a subject")
        await self._registry.set_binding(topic, None, expected=expected)
        log.info("topic.unbound", topic=str(topic))

    async def binding(self, principal: Principal, topic: TopicName) -> Binding | None:
        """Return the binding of a topic; None: it carries anything."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        return await self._registry.binding(topic)

    def check_of(self, topic: TopicName) -> BoundTopic | None:
        """Return what batches of the topic are checked against; None: nothing is checked."""
        record = self._registry.topic(topic)
        binding = record.binding
        if binding is None or binding.policy is ValidationPolicy.NONE:
            return None
        subject = self._subjects.find(binding.subject)
        former = self._bound.get(record.topic_id)
        if former is not None and former.is_for(binding, subject):
            return former
        warned = former.warned if former is not None else None
        bound = BoundTopic(str(topic), binding, subject, self._definitions, self._clock, self._violations, warned)
        self._bound[record.topic_id] = bound
        return bound

    def apply(self, topic: TopicName) -> None:
        """Check what is published to open partitions as the binding says now, which has changed here or at another
        broker. What waits is checked as before."""
        if (record := self._registry.find_topic(topic)) is None:
            return
        bound = self.check_of(topic)
        for partition in self._partitions.open_of(record.topic_id):
            self._attach(partition, bound)

    def _partition_opened(self, topic: TopicName, partition: Partition) -> None:
        self._attach(partition, self.check_of(topic))

    def _attach(self, partition: Partition, bound: BoundTopic | None) -> None:
        if partition.intake is not None:
            partition.intake.schema = bound
        elif bound is not None:
            partition.intake = PartitionIntake(partition.index, bound, self.validations)

    async def choose(
        self, principal: Principal, topic: TopicName, subject: str, version: int = 0, minimum: int = 0
    ) -> ChosenVersion:
        """Return the version that a producer of a topic uses: `version`, or the latest, which must not be older than
        `minimum`. The first producer that names a subject binds the topic to it, without a policy.

        Raises NotFound for an unknown subject or version, and Refused if the topic is bound to another subject or does
        not take this version.
        """
        self._authorizer.check(principal, Action.PRODUCE, str(topic))
        self._check(principal, Action.DESCRIBE, subject)
        await self._registry.refresh_topic(topic)

        async def attempt() -> tuple[Subject, int, Binding]:
            found, chosen = await self._find(subject, version or "latest", deleted=False)
            if chosen < minimum:
                await self._subjects.refresh(subject)
                found, chosen = self._version(subject, "latest", deleted=False)
            if chosen < minimum:
                raise NotFound(f"subject {subject!r} has no version {minimum} or later: its latest is {chosen}")
            binding = self._registry.topic(topic).binding
            if binding is None or binding.subject != subject:
                binding = await self._bind_first(topic, subject)
            return found, chosen, binding

        found, chosen, binding = await self._subjects.change(attempt)
        if not version and not minimum and binding.pinned_version:
            found, chosen = await self._find(subject, binding.pinned_version, deleted=False)
        if not binding.allows(chosen):
            raise Refused(f"topic {topic} takes {binding.rule}, not version {chosen}")
        return ChosenVersion(found.schema_id, chosen)

    async def _bind_first(self, topic: TopicName, subject: str) -> Binding:
        """Bind a topic that is not bound yet, without a policy, and return its binding."""
        wanted = Binding(subject, ValidationPolicy.NONE)
        unchanged = self._subjects.unchanged(subject)
        binding = await self._registry.set_binding(topic, wanted, first=True, compares=[unchanged])
        assert binding is not None
        log.info("topic.bound", topic=str(topic), subject=subject, policy=str(wanted.policy))
        return binding

    # -- settings ------------------------------------------------------------------------------------------------------

    async def compatibility(self, principal: Principal, subject: str | None = None) -> CompatibilityReport:
        """Return the level of a subject, or without one the default of the broker."""
        found = self._named(principal, Action.DESCRIBE, subject)
        return CompatibilityReport(*self._subjects.compatibility(found))

    async def compatibility_version(self, principal: Principal, subject: str | None = None) -> str:
        """Return the version of the settings of a subject, or without one of the broker: `expected` of
        `set_compatibility`. Empty: the subject does not exist."""
        found = self._named(principal, Action.DESCRIBE, subject)
        return "" if subject is not None and found is None else self._subjects.record_version(found)

    async def set_compatibility(
        self, principal: Principal, subject: str | None, level: Compatibility | None, expected: str = ""
    ) -> CompatibilityReport:
        """Set the level of a subject (None: the default applies again), or without a subject the default. It applies to
        later registrations. A subject may be set before its first version is registered. Raises Conflict if the version
        is not `expected`."""
        self._named(principal, Action.ADMINISTER, subject)
        user = self._user(principal)
        await self._subjects.change(lambda: self._subjects.set_compatibility(subject, level, expected, user))
        log.info("schemas.compatibility_set", subject=subject or "", level=str(level or ""))
        return CompatibilityReport(*self._subjects.compatibility(self._subjects.find(subject) if subject else None))

    async def mode(self, principal: Principal, subject: str | None = None) -> ModeReport:
        found = self._named(principal, Action.DESCRIBE, subject)
        return ModeReport(*self._subjects.mode(found))

    async def set_mode(self, principal: Principal, subject: str | None, mode: RegistryMode | None) -> ModeReport:
        """Set whether versions may be registered and deleted, of a subject (None: the default applies again) or without
        one of all subjects that set nothing."""
        self._named(principal, Action.ADMINISTER, subject)
        await self._subjects.change(lambda: self._subjects.set_mode(subject, mode, self._user(principal)))
        log.info("schemas.mode_set", subject=subject or "", mode=str(mode or ""))
        return ModeReport(*self._subjects.mode(self._subjects.find(subject) if subject else None))

    async def set_tags(self, principal: Principal, subject: str, version: AnyVersion, tags: Sequence[str]) -> None:
        """Replace the tags of a version."""
        self._check(principal, Action.ADMINISTER, subject)
        chosen = _checked_tags(tags)

        async def attempt() -> None:
            await self._subjects.set_tags(*await self._find(subject, version, deleted=False), chosen)

        await self._subjects.change(attempt)

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _user(self, principal: Principal) -> str:
        """Return whose share of all subjects a new one takes; empty: that of nobody, as who administers the cluster may
        make all of them."""
        return "" if self._authorizer.allows(principal, Action.ADMINISTER, BROKER) else principal.id

    def _check(self, principal: Principal, action: Action, subject: str) -> None:
        resource = _resource(subject)
        if action is Action.DESCRIBE and self._may_describe(principal, subject):
            return
        self._authorizer.check(principal, action, resource)

    def _may_describe(self, principal: Principal, subject: str) -> bool:
        """Return whether the caller may see a subject, or a topic that is bound to it."""
        if self._authorizer.allows(principal, Action.DESCRIBE, _resource(subject)):
            return True
        bound = self._registry.bound_topics(subject)
        return any(self._authorizer.allows(principal, Action.DESCRIBE, str(topic)) for topic in bound)

    def _visible_topics(self, principal: Principal, subject: str) -> list[str]:
        bound = map(str, self._registry.bound_topics(subject))
        return [one for one in bound if self._authorizer.allows(principal, Action.DESCRIBE, one)]

    def _named(self, principal: Principal, action: Action, subject: str | None) -> Subject | None:
        """Check the action on a subject, or without one on the broker, and return the subject if it exists."""
        if subject is None:
            self._authorizer.check(principal, action, BROKER)
            return None
        self._check(principal, action, subject)
        return self._subjects.find(subject)

    async def _find(self, subject: str, version: AnyVersion, deleted: bool) -> tuple[Subject, int]:
        """Return a subject and one of its versions. In a cluster, the store is asked for one that is not known here."""
        try:
            return self._version(subject, version, deleted)
        except NotFound:
            await self._subjects.refresh(subject)
            return self._version(subject, version, deleted)

    async def _find_subject(self, subject: str) -> None:
        """In a cluster, ask the store about a subject that is not known here."""
        if self._subjects.find(subject) is None:
            await self._subjects.refresh(subject)

    def _version(self, subject: str, version: AnyVersion, deleted: bool) -> tuple[Subject, int]:
        if version == "latest":
            return self._subjects.version(subject, 0, deleted)
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 2**31:
            raise Invalid(f"version {version!r} of subject {subject!r}: use a number from 1 on, or latest")
        return self._subjects.version(subject, version, deleted)

    async def _read(self, subject: Subject, version: int) -> SchemaVersion:
        definition = await self._definitions.get(subject, version)
        if version not in subject.versions:
            raise NotFound(f"subject {subject.name!r} has no version {version}: it was deleted meanwhile")
        return self._subjects.describe(subject, version, definition)


def _checked_tags(tags: Sequence[str]) -> list[str]:
    """Return the tags, each once. Raises Invalid if there are too many or one is too long."""
    chosen = list(dict.fromkeys(tags))
    if len(chosen) > SCHEMA_TAGS_MAX or not all(0 < len(tag) <= NAME_CHARACTERS_MAX for tag in chosen):
        raise Invalid(f"a version has at most {SCHEMA_TAGS_MAX} tags of 1 to {NAME_CHARACTERS_MAX} characters")
    return chosen


def _resource(subject: str) -> str:
    """Return the resource of a subject. Raises Invalid for a name that is none."""
    return subject_resource(parse_subject(subject))


def _checked_notes(notes: VersionNotes, principal: Principal) -> VersionNotes:
    if len(notes.description) > DESCRIPTION_CHARACTERS_MAX or len(notes.created_by) > NAME_CHARACTERS_MAX:
        raise Invalid(
            f"the description of a version has at most {DESCRIPTION_CHARACTERS_MAX} characters, and the name of who "
            f"created it at most {NAME_CHARACTERS_MAX}"
        )
    return VersionNotes(notes.description, notes.created_by or str(principal), tuple(_checked_tags(notes.tags)))


def _triples(definition: SchemaDefinition) -> list[tuple[str, str, int]]:
    return [(one.name, one.subject, one.version) for one in definition.references]


def _check_version(wanted: int | None, version: int) -> None:
    """Raise Invalid if a definition has or gets another version than the one that was asked for."""
    if wanted is not None and wanted != version:
        raise Invalid(f"the version of this definition is {version}, not {wanted}: leave the version away")


def _check_definition(definition: SchemaDefinition) -> None:
    """Raise Invalid for a definition that is too large to be looked at."""
    try:
        size = len(definition.text.encode())
        longest = max((len(one.name.encode()) for one in definition.references), default=1)
    except UnicodeEncodeError:
        raise Invalid("a definition is text that can be written in UTF-8") from None
    if size > SCHEMA_BYTES_MAX:
        raise Invalid(f"a definition of {size} bytes is larger than a schema may be, which is {SCHEMA_BYTES_MAX}")
    if len(definition.references) > SCHEMA_REFERENCES_MAX:
        raise Invalid(f"a definition refers to more than {SCHEMA_REFERENCES_MAX} others")
    if longest > SCHEMA_REFERENCE_BYTES_MAX:
        raise Invalid(f"the name of a reference has {longest} bytes: at most {SCHEMA_REFERENCE_BYTES_MAX} are allowed")
    for one in definition.references:
        parse_subject(one.subject)
