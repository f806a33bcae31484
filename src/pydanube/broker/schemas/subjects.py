"""The subjects and their versions, in memory and in the metadata store.

All versions are indexed in memory, without their definitions, which are read from the store when they are needed. In a
cluster, memory follows the store by watch. Changes are made one at a time, by `change`. They go to the store first, and
compare what memory says; when another broker was faster, everything is read and tried again.

Invariants
    memory agrees with the store: after a write that failed, the store is asked whether it was written after all
    versions with the same format, canonical form and references have the same global id, in all subjects
    a version that another one refers to is not deleted
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from pydanube.metadata.following import Follower, KeyMirror
from pydanube.metadata.id_counters import counter_key, last_id
from pydanube.metadata.packing import pack, pack_over, unpack, version_of
from pydanube.metadata.record_table import check_version
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put, list_all
from pydanube.metadata.writes import Outrun, try_again, write_surely
from pydanube.model.errors import Corrupt, Full, NotFound, Refused
from pydanube.model.limits import METADATA_OPERATIONS_MAX, SCHEMA_SUBJECTS_MAX, SCHEMA_VERSIONS_MAX
from pydanube.model.schemas import Compatibility, RegistryMode, SchemaDefinition, SchemaVersion, VersionNotes
from pydanube.runtime.budget import fits_share
from pydanube.runtime.clock import Clock

from . import records
from .records import DEFINITION_COUNTER, SCHEMA_COUNTER, SettingsRecord, SubjectRecord, VersionIndex, VersionRecord

GLOBAL_ID_MAX: Final = 2**31 - 1
"""The Confluent API and its framing have 32 bits for an id."""

REFERENCES_COMPARED: Final = 100
"""How many of the subjects that a definition refers to are compared when it is registered: a transaction has no room
for many more. Of the others, one that is deleted at the same moment at another broker is not noticed."""

assert REFERENCES_COMPARED + 5 <= METADATA_OPERATIONS_MAX

_decode_index = msgspec.msgpack.Decoder(VersionIndex).decode

Result = TypeVar("Result")

Place = tuple[str, int]
"""A subject and a version."""

References = Sequence[tuple[str, str, int]]


class Subject:
    """One subject: its record, and the index of its versions in ascending order."""

    __slots__ = ("deleted", "name", "record", "stored", "versions")

    def __init__(self, name: str, record: SubjectRecord, stored: bytes) -> None:
        """`stored` are the bytes of the record in the store, which may have fields of a later release."""
        self.name = name
        self.versions: dict[int, VersionIndex] = {}
        self.replace(record, stored)

    def replace(self, record: SubjectRecord, stored: bytes) -> None:
        self.record = record
        self.stored = stored
        self.deleted = frozenset(record.deleted)

    @property
    def schema_id(self) -> int:
        return self.record.schema_id

    @property
    def live(self) -> list[int]:
        """The versions that are not deleted, in ascending order."""
        if not self.deleted:
            return list(self.versions)
        return [version for version in self.versions if version not in self.deleted]

    @property
    def latest(self) -> int:
        """The newest version that is not deleted; 0 if there is none."""
        for version in reversed(self.versions):
            if version not in self.deleted:
                return version
        return 0

    def find(self, fingerprint: str, references: References, deleted: bool = False) -> int:
        """Return the newest version of this definition; 0 if there is none."""
        wanted = sorted(references)
        for version, one in reversed(self.versions.items()):
            is_visible = deleted or version not in self.deleted
            if is_visible and one.fingerprint == fingerprint and sorted(one.references) == wanted:
                return version
        return 0

    def by_global_id(self, global_id: int) -> int:
        """Return the newest version with this global id that is not deleted; 0 if there is none."""
        for version, one in reversed(self.versions.items()):
            if one.global_id == global_id and version not in self.deleted:
                return version
        return 0


class Subjects:
    """All subjects of the registry. Listed at the start; every change is written through to the store."""

    def __init__(self, store: MetadataStore, clock: Clock, follower: Follower) -> None:
        self._store = store
        self._clock = clock
        self._changing = asyncio.Lock()
        self._settings = SettingsRecord()
        self._stored_settings: bytes | None = None
        self._counters = KeyMirror(counter_key(SCHEMA_COUNTER), self._take_counter)
        """Both counters. They are read before the versions, and heard of after them: memory has every version up to
        these ids."""
        self._keys = KeyMirror(records.SCHEMAS, self._take)
        self._counters.follow(follower)
        self._keys.follow(follower)
        self._orphans: dict[int, dict[int, VersionIndex]] = {}
        """By schema id: versions whose subject was not heard of yet."""
        self._subjects: dict[str, Subject] = {}
        self._by_schema_id: dict[int, Subject] = {}
        self._created: Counter[str] = Counter()
        """How many subjects each principal has made that has a share."""
        self._by_global_id: dict[int, list[Place]] = {}
        """The versions with each global id, in the order of their registration as far as that is known."""
        self._global_ids: dict[str, int] = {}
        """By the identity of a definition: its fingerprint, and its references if it has any."""
        self._referrers: dict[Place, set[Place]] = {}
        """By a version: the versions that refer to it."""
        self._last_schema_id = 0
        self._last_global_id = 0

    def check_complete(self) -> None:
        """Raise Corrupt if something is missing of what the follower has listed; for the start."""
        for schema_id, versions in self._orphans.items():
            key = records.version_key(schema_id, min(versions))
            raise Corrupt(f"metadata: {key} belongs to no subject: put back a good copy of the metadata")
        for places in self._by_global_id.values():
            if len(places) > 1:
                places.sort(key=lambda place: (self._subjects[place[0]].versions[place[1]].created_at, place))

    async def change(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Make a change, which checks and writes; other changes wait. Cancelled: the broker is closing, and the change
        may be made."""

        async def once() -> Result:
            try:
                return await attempt()
            except Outrun:
                await self.reload()
                raise

        async with self._changing:
            return await try_again(once)

    async def reload(self) -> None:
        """Read everything again."""
        await self._counters.reload(self._store)
        await self._keys.reload(self._store)

    async def refresh(self, name: str) -> None:
        """Ask the store about a subject of which something was not found."""
        found = await self._keys.refresh(self._store, records.subject_key(name))
        if found is not None:
            schema_id = unpack(found.value, SubjectRecord).schema_id
            async for one in list_all(self._store, records.versions_of(schema_id)):
                self._keys.learn(one.key, one.value, one.mod_revision)

    async def refresh_ids(self, schema_id: int = 0, global_id: int = 0) -> None:
        """Read everything again if one of these ids was given out by another broker, and not heard of."""
        if schema_id <= self._last_schema_id and global_id <= self._last_global_id:
            return
        known = await last_id(self._store, SCHEMA_COUNTER), await last_id(self._store, DEFINITION_COUNTER)
        if schema_id <= known[0] and global_id <= known[1]:
            await self.reload()

    # -- reading -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._subjects)

    def names(self, prefix: str = "", deleted: bool = False) -> list[str]:
        """Return the subjects that begin with `prefix`; with `deleted`, also those that have no live version."""
        return sorted(
            name
            for name, subject in self._subjects.items()
            if name.startswith(prefix) and (subject.versions if deleted else subject.latest)
        )

    def find(self, name: str) -> Subject | None:
        return self._subjects.get(name)

    def subject(self, name: str, deleted: bool = False) -> Subject:
        """Return a subject; one without live versions only with `deleted`."""
        subject = self._subjects.get(name)
        if subject is None or not (subject.versions if deleted else subject.latest):
            raise NotFound(f"subject {name!r} does not exist: register a schema, `danube schemas register {name} FILE`")
        return subject

    def version(self, name: str, version: int, deleted: bool = False) -> tuple[Subject, int]:
        """Return a subject and one of its versions, with 0 the latest. Raises NotFound."""
        subject = self.subject(name, deleted)
        chosen = version or subject.latest or (max(subject.versions, default=0) if deleted else 0)
        if chosen not in subject.versions or (chosen in subject.deleted and not deleted):
            raise NotFound(f"subject {name!r} has no version {chosen}: it has {_some(subject.live)}")
        return subject, chosen

    def by_schema_id(self, schema_id: int) -> Subject:
        subject = self._by_schema_id.get(schema_id)
        if subject is None:
            raise no_schema_id(schema_id)
        return subject

    def by_global_id(self, global_id: int) -> list[Place]:
        """Return the versions with this global id, with deleted ones. Raises NotFound."""
        places = self._by_global_id.get(global_id)
        if not places:
            raise no_global_id(global_id)
        return places

    def referrers(self, place: Place) -> list[Place]:
        """Return the versions that refer to this one."""
        return sorted(self._referrers.get(place, ()))

    def compatibility(self, subject: Subject | None) -> tuple[Compatibility | None, Compatibility]:
        """Return what the subject sets itself (None: nothing), and what applies; without a subject, the default."""
        default = self._settings.compatibility
        if subject is None:
            own = default
        else:
            own = subject.record.compatibility
        effective = own or default
        return (
            Compatibility.parse(own) if own else None,
            Compatibility.parse(effective) if effective else Compatibility.BACKWARD,
        )

    def mode(self, subject: Subject | None) -> tuple[RegistryMode | None, RegistryMode]:
        """Return what the subject sets itself (None: nothing), and what applies; without a subject, the default."""
        default = self._settings.mode
        own = default if subject is None else subject.record.mode
        effective = own or default
        return (
            RegistryMode.parse(own) if own else None,
            RegistryMode.parse(effective) if effective else RegistryMode.READWRITE,
        )

    async def read(self, subject: Subject, version: int) -> VersionRecord:
        """Return the record of a version, with its definition, from the store."""
        found = await self._store.get(records.version_key(subject.schema_id, version))
        if found is None:
            raise NotFound(f"subject {subject.name!r} has no version {version}: it was deleted meanwhile")
        return unpack(found.value, VersionRecord)

    def describe(self, subject: Subject, version: int, definition: SchemaDefinition) -> SchemaVersion:
        index = subject.versions[version]
        return SchemaVersion(
            subject.name,
            subject.schema_id,
            version,
            index.global_id,
            definition,
            index.fingerprint,
            index.tags,
            version in subject.deleted,
            index.created_at,
        )

    # -- writing, within `change`; each raises Outrun if another broker was faster -------------------------------------

    async def add(
        self, name: str, definition: SchemaDefinition, fingerprint: str, notes: VersionNotes, user: str = ""
    ) -> int:
        """Store a new version, and return it. It is durable on return. A subject that is new takes the share of `user`;
        empty: nobody's.

        The subject, the version and the ids are written in one transaction, which compares what was there before.
        Cancelled: the broker is closing, and the version may be stored.
        """
        former = self._subjects.get(name)
        self._check_room(former, user)
        if former is not None and len(former.versions) >= SCHEMA_VERSIONS_MAX:
            raise Full(
                f"subject {name!r} has {len(former.versions)} versions, and no more are possible: delete some for good"
            )
        now, references = self._clock.now_us(), [(one.name, one.subject, one.version) for one in definition.references]
        compares = [self._unchanged(records.SETTINGS)]
        writes: list[Put | Delete] = []
        if former is None:
            compares.append(Compare.missing(records.subject_key(name)))
            _raise_counter(SCHEMA_COUNTER, self._last_schema_id, compares, writes)
            record = SubjectRecord(self._last_schema_id + 1, 1, created_at=now, created_by=user)
        else:
            compares.append(self._unchanged(records.subject_key(name)))
            record = msgspec.structs.replace(former.record, last_version=former.record.last_version + 1)
        identity = _identity(fingerprint, references)
        global_id = self._global_ids.get(identity, 0)
        if not global_id:
            global_id = self._last_global_id + 1
            if global_id > GLOBAL_ID_MAX:
                raise Full(f"{self._last_global_id} schemas were registered, and there are no more ids of 32 bits")
            _raise_counter(DEFINITION_COUNTER, self._last_global_id, compares, writes)
        else:  # it stays the id of this definition only as long as a version has it
            holder, number = self._by_global_id[global_id][0]
            compares.append(self._unchanged(records.version_key(self._subjects[holder].schema_id, number)))
        targets = sorted({subject for _, subject, _ in references if subject != name})[:REFERENCES_COMPARED]
        compares += [self._unchanged(records.subject_key(subject)) for subject in targets]
        stored = VersionRecord(
            global_id,
            str(definition.format),
            fingerprint,
            definition.text,
            references,
            created_at=now,
            tags=list(notes.tags),
            created_by=notes.created_by,
            description=notes.description,
        )
        version = record.last_version
        first = Put(records.version_key(record.schema_id, version), pack(stored))
        compares.append(Compare.missing(first.key))
        value = pack(record) if former is None else pack_over(former.stored, record)
        await self._write(compares, [first, Put(records.subject_key(name), value), *writes])
        return version

    async def set_deleted(self, subject: Subject, versions: Iterable[int]) -> None:
        """Mark versions as deleted. They can still be read by those who ask for deleted ones."""
        deleted = sorted({*subject.deleted, *versions})
        await self._replace(subject, msgspec.structs.replace(subject.record, deleted=deleted))

    async def set_live(self, name: str, versions: Iterable[int]) -> None:
        """Take back a `set_deleted`."""
        if (subject := self._subjects.get(name)) is not None:
            deleted = sorted(subject.deleted.difference(versions))
            await self._replace(subject, msgspec.structs.replace(subject.record, deleted=deleted))

    async def remove(self, subject: Subject, versions: Sequence[int]) -> None:
        """Remove deleted versions for good, and the subject with its last one.

        Cancelled or failed: some of them may be removed; the others can be removed again.
        """
        assert subject.deleted.issuperset(versions)
        for start in range(0, len(versions), METADATA_OPERATIONS_MAX // 2):
            some = versions[start : start + METADATA_OPERATIONS_MAX // 2]
            writes: list[Put | Delete] = [Delete(records.version_key(subject.schema_id, one)) for one in some]
            key = records.subject_key(subject.name)
            if len(some) == len(subject.versions):
                writes.append(Delete(key))
            else:
                left = [one for one in subject.record.deleted if one not in some]
                record = msgspec.structs.replace(subject.record, deleted=left)
                writes.append(Put(key, pack_over(subject.stored, record)))
            await self._write([self._unchanged(key)], writes)

    async def set_tags(self, subject: Subject, version: int, tags: list[str]) -> None:
        key = records.version_key(subject.schema_id, version)
        found = await self._keys.refresh(self._store, key)
        if found is None:
            raise NotFound(f"subject {subject.name!r} has no version {version}: it was deleted meanwhile")
        record = msgspec.structs.replace(unpack(found.value, VersionRecord), tags=tags)
        compare = Compare.mod_revision(key, found.mod_revision)
        await self._write([compare], [Put(key, pack_over(found.value, record))])

    def record_version(self, subject: Subject | None) -> str:
        """Return the version of the record of a subject, or without one of the settings of all."""
        return version_of(self._settings if subject is None else subject.record)

    async def set_compatibility(
        self, name: str | None, level: Compatibility | None, expected: str = "", user: str = ""
    ) -> None:
        """Set the level of a subject, which need not have a version yet, or without a name the default of all. Raises
        Conflict if the record does not have the version `expected`; empty: any."""
        word = "" if level is None else str(level)
        if name is None:
            record = msgspec.structs.replace(self._settings, compatibility=word)
            await self._replace_settings(record, expected)
            return
        known = self._subjects.get(name)
        check_version(None if known is None else known.record, expected, f"subject {name!r}")
        if known is not None or level is not None:
            subject = await self._made(name, user)
            await self._replace_or_remove(subject, msgspec.structs.replace(subject.record, compatibility=word))

    async def set_mode(self, name: str | None, mode: RegistryMode | None, user: str = "") -> None:
        """Set the mode of a subject, which need not have a version yet, or without a name the default of all."""
        word = "" if mode is None else str(mode)
        if name is None:
            await self._replace_settings(msgspec.structs.replace(self._settings, mode=word))
        elif name in self._subjects or mode is not None:
            subject = await self._made(name, user)
            await self._replace_or_remove(subject, msgspec.structs.replace(subject.record, mode=word))

    def check_unreferenced(self, subject: Subject, versions: Iterable[int], is_seen: Callable[[str], bool]) -> None:
        """Raise Refused if a version of another subject, or another one of this, refers to one of these versions. The
        error names those subjects of which `is_seen` is true."""
        chosen = set(versions)
        for version in sorted(chosen):
            others = [
                place
                for place in self.referrers((subject.name, version))
                if not (place[0] == subject.name and place[1] in chosen)
            ]
            if others:
                seen = [f"{name!r} version {number}" for name, number in others if is_seen(name)]
                named = ", ".join(seen[:10]) or "subjects that you may not see"
                raise Refused(f"version {version} of subject {subject.name!r} is used by {named}: delete those first")

    def _check_room(self, former: Subject | None, user: str) -> None:
        free, own = SCHEMA_SUBJECTS_MAX - len(self._subjects), self._created[user]
        if former is None and free <= 0:
            raise Full(f"there are {len(self._subjects)} subjects, and no more are possible: delete some for good")
        if former is None and user and not fits_share(own, 1, free):
            raise Full(f"{user} has made {own} subjects, and the {free} that are left are for others: delete some")

    async def _made(self, name: str, user: str) -> Subject:
        """Return the subject, and make it first if it does not exist: without a version."""
        former = self._subjects.get(name)
        if former is not None:
            return former
        self._check_room(None, user)
        key, record = (
            records.subject_key(name),
            SubjectRecord(self._last_schema_id + 1, created_at=self._clock.now_us(), created_by=user),
        )
        compares, writes = [Compare.missing(key)], list[Put | Delete]([Put(key, pack(record))])
        _raise_counter(SCHEMA_COUNTER, self._last_schema_id, compares, writes)
        await self._write(compares, writes)
        if (made := self._subjects.get(name)) is None:
            raise Outrun  # another broker has removed it already
        return made

    async def _replace(self, subject: Subject, record: SubjectRecord) -> None:
        key = records.subject_key(subject.name)
        await self._write([self._unchanged(key)], [Put(key, pack_over(subject.stored, record))])

    async def _replace_or_remove(self, subject: Subject, record: SubjectRecord) -> None:
        """Replace the record, and remove a subject that has neither a version nor a setting any more."""
        if subject.versions or record.compatibility or record.mode:
            await self._replace(subject, record)
            return
        key = records.subject_key(subject.name)
        await self._write([self._unchanged(key)], [Delete(key)])

    async def _replace_settings(self, record: SettingsRecord, expected: str = "") -> None:
        check_version(self._settings, expected, "the default of all subjects")
        former = self._stored_settings
        value = pack(record) if former is None else pack_over(former, record)
        await self._write([self._unchanged(records.SETTINGS)], [Put(records.SETTINGS, value)])

    def unchanged(self, name: str) -> Compare:
        """Return the comparison of a subject's record with what memory has of it."""
        return self._unchanged(records.subject_key(name))

    def _unchanged(self, key: str) -> Compare:
        """Return the comparison of a key with what memory has of it."""
        return Compare.mod_revision(key, self._keys.revisions.get(key, 0))

    async def _write(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
        """Write, and take it over into memory."""
        revision = await write_surely(self._store, self._clock, compares, writes)
        if not revision:
            await self._keys.reload(self._store)
            return
        for write in writes:
            mirror = self._keys if write.key.startswith(self._keys.prefix) else self._counters
            mirror.learn(write.key, write.value if isinstance(write, Put) else None, revision)

    # -- memory --------------------------------------------------------------------------------------------------------

    def _take_counter(self, key: str, value: bytes | None) -> None:
        number = int(value or b"0")
        if key == counter_key(SCHEMA_COUNTER):
            self._last_schema_id = max(self._last_schema_id, number)
        elif key == counter_key(DEFINITION_COUNTER):
            self._last_global_id = max(self._last_global_id, number)

    def _take(self, key: str, value: bytes | None) -> None:
        """Take over a key, which this broker or another one has written."""
        if key.startswith(records.SUBJECTS):
            self._take_subject(records.subject_of_key(key), value)
        elif key.startswith(records.VERSIONS):
            self._take_version(*records.version_of_key(key), key, value)
        elif key == records.SETTINGS:
            self._settings = SettingsRecord() if value is None else unpack(value, SettingsRecord)
            self._stored_settings = value

    def _take_subject(self, name: str, value: bytes | None) -> None:
        record = None if value is None else unpack(value, SubjectRecord)
        former = self._subjects.get(name)
        if former is not None and (record is None or record.schema_id != former.schema_id):
            for version in list(former.versions):
                self._drop(former, version)
            del self._subjects[name], self._by_schema_id[former.schema_id]
            self._created[former.record.created_by] -= 1
            if not self._created[former.record.created_by]:
                del self._created[former.record.created_by]
            former = None
        if record is None or value is None:
            return
        if former is not None:
            former.replace(record, value)
            return
        self._created[record.created_by] += 1
        subject = self._subjects[name] = self._by_schema_id[record.schema_id] = Subject(name, record, value)
        for version, index in sorted(self._orphans.pop(record.schema_id, {}).items()):
            self._add(subject, version, index)

    def _take_version(self, schema_id: int, version: int, key: str, value: bytes | None) -> None:
        subject = self._by_schema_id.get(schema_id)
        if value is None:
            if subject is not None and version in subject.versions:
                self._drop(subject, version)
            self._drop_orphan(schema_id, version)
            return
        try:
            index = _decode_index(value)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"metadata: {key} cannot be read ({error}); restore it from a backup") from None
        if subject is None:
            self._orphans.setdefault(schema_id, {})[version] = index
        elif version in subject.versions:
            subject.versions[version] = index  # only its tags change
        else:
            self._add(subject, version, index)

    def _drop_orphan(self, schema_id: int, version: int) -> None:
        if (versions := self._orphans.get(schema_id)) is not None:
            versions.pop(version, None)
            if not versions:
                del self._orphans[schema_id]

    # -- the index -----------------------------------------------------------------------------------------------------

    def _add(self, subject: Subject, version: int, index: VersionIndex) -> None:
        is_newest = version > max(subject.versions, default=0)
        subject.versions[version] = index
        if not is_newest:
            subject.versions = dict(sorted(subject.versions.items()))
        place = (subject.name, version)
        self._by_global_id.setdefault(index.global_id, []).append(place)
        self._global_ids[_identity(index.fingerprint, index.references)] = index.global_id
        if index.references:
            for target in _targets(index):
                self._referrers.setdefault(target, set()).add(place)

    def _drop(self, subject: Subject, version: int) -> None:
        index, place = subject.versions.pop(version), (subject.name, version)
        places = self._by_global_id[index.global_id]
        places.remove(place)
        if not places:  # registered again, the definition gets another id
            del self._by_global_id[index.global_id]
            del self._global_ids[_identity(index.fingerprint, index.references)]
        for target in _targets(index):
            self._referrers[target].discard(place)
            if not self._referrers[target]:
                del self._referrers[target]


def _targets(index: VersionIndex) -> Iterator[Place]:
    return ((subject, version) for _, subject, version in index.references)


def _identity(fingerprint: str, references: References) -> str:
    """Return text that is the same for definitions that mean the same."""
    if not references:
        return fingerprint
    return f"{fingerprint} {msgspec.json.encode(sorted(references)).decode()}"


def _raise_counter(name: str, last: int, compares: list[Compare], writes: list[Put | Delete]) -> None:
    """Add to a transaction that it takes the next number of a counter."""
    key = counter_key(name)
    compares.append(Compare.value(key, b"%d" % last) if last else Compare.missing(key))
    writes.append(Put(key, b"%d" % (last + 1)))


def _some(versions: list[int]) -> str:
    """Return text that names versions, at most a few of them."""
    if not versions:
        return "none"
    newest = versions[bisect_left(versions, versions[-1] - 9) :]
    text = ", ".join(map(str, newest[-10:]))
    return text if len(newest) == len(versions) else f"{versions[0]} to {text}"


def no_schema_id(schema_id: int) -> NotFound:
    return NotFound(f"schema id {schema_id} was never given out, or is deleted")


def no_global_id(global_id: int) -> NotFound:
    return NotFound(f"global schema id {global_id} was never given out, or is deleted")
