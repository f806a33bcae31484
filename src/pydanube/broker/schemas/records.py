"""The keys and values of the schema registry in the metadata store. Values are MessagePack maps, to which fields can be
added.

```
/schemas/settings                            SettingsRecord   what applies where a subject sets nothing
/schemas/subjects/<subject>                  SubjectRecord
/schemas/versions/<schema id>/<version>      VersionRecord    the definition as it was registered
/counters/schema                             the last schema id that was given out
/counters/schema-definition                  the last global id that was given out
```

Ids and versions are written in 16 and 8 hexadecimal digits, so that keys sort as the numbers do. A subject's name is
the rest of its key, and may contain slashes. The binding of a topic is part of its TopicRecord (registry.records).

Invariants
    a version is written in one transaction with its subject, which compares the subject's former value; that
    transaction also raises the counters of the ids that it gives out
    the versions of a subject are never used again: `last_version` only rises, also when the last version is deleted
    a subject is removed after its last version; if it is made again, it has another schema id
"""

from __future__ import annotations

from typing import Final

import msgspec

from pydanube.model.schemas import SchemaDefinition, SchemaFormat, SchemaReference

SCHEMA_COUNTER: Final = "schema"
DEFINITION_COUNTER: Final = "schema-definition"

SCHEMAS: Final = "/schemas/"
SETTINGS: Final = "/schemas/settings"
SUBJECTS: Final = "/schemas/subjects/"
VERSIONS: Final = "/schemas/versions/"


class SettingsRecord(msgspec.Struct, omit_defaults=True):
    """The words of model.schemas.Compatibility and RegistryMode; empty: the default of this release."""

    compatibility: str = ""
    mode: str = ""


class SubjectRecord(msgspec.Struct, omit_defaults=True):
    """`deleted` are the versions that are deleted and still stored. `compatibility` and `mode`: see SettingsRecord;
    empty: what the broker's settings record says. `created_by` is the principal whose share of all subjects it takes;
    empty: nobody's."""

    schema_id: int
    last_version: int = 0
    deleted: list[int] = []
    compatibility: str = ""
    mode: str = ""
    created_at: int = 0
    created_by: str = ""


class VersionRecord(msgspec.Struct, omit_defaults=True):
    """One version. `references` are triples of name, subject and version."""

    global_id: int
    format: str
    fingerprint: str
    text: str = ""
    references: list[tuple[str, str, int]] = []
    tags: list[str] = []
    created_at: int = 0
    created_by: str = ""
    description: str = ""

    def definition(self) -> SchemaDefinition:
        references = tuple(SchemaReference(*one) for one in self.references)
        return SchemaDefinition(SchemaFormat.parse(self.format), self.text, references)


class VersionIndex(msgspec.Struct, omit_defaults=True, gc=False):
    """A VersionRecord without its text: what is held in memory of every version. The names are those of the record, so
    that it can be decoded from the same bytes."""

    global_id: int
    format: str
    fingerprint: str
    references: tuple[tuple[str, str, int], ...] = ()
    tags: tuple[str, ...] = ()
    created_at: int = 0


def subject_key(subject: str) -> str:
    return f"{SUBJECTS}{subject}"


def subject_of_key(key: str) -> str:
    return key.removeprefix(SUBJECTS)


def versions_of(schema_id: int) -> str:
    return f"{VERSIONS}{schema_id:016x}/"


def version_key(schema_id: int, version: int) -> str:
    return f"{versions_of(schema_id)}{version:08x}"


def version_of_key(key: str) -> tuple[int, int]:
    """Return the schema id and the version."""
    schema_id, version = key.removeprefix(VERSIONS).split("/")
    return int(schema_id, 16), int(version, 16)
