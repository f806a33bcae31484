"""Schemas: what the payloads of a topic look like. Subjects, versions, references, compatibility, bindings.

A subject is a named history of definitions. Its versions count from 1. `schema_id` is the number of the subject, and a
batch carries it with the version; `global_id` is the number of the definition, which the Confluent API calls `id`: the
same definition registered under two subjects has one global id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Self

from .errors import Invalid
from .limits import NAME_CHARACTERS_MAX

_SUBJECT: Final = re.compile(rf"[A-Za-z0-9_.:/@+-]{{1,{NAME_CHARACTERS_MAX}}}")


def parse_subject(text: str) -> str:
    """Return `text` if it names a subject: ASCII letters, digits and `_ . : / @ + -`."""
    if not isinstance(text, str) or not _SUBJECT.fullmatch(text):
        raise Invalid(
            f"subject {text!r} is not a name: use 1 to {NAME_CHARACTERS_MAX} ASCII letters, digits and the characters "
            f"_ . : / @ + -"
        )
    return text


class _Word(Enum):
    """An enumeration whose values are the words that users write."""

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            return cls(text.lower().replace("_", "-"))
        except (ValueError, AttributeError):
            words = ", ".join(str(one) for one in cls)
            raise Invalid(f"{cls.__name__} {text!r} is unknown: use one of {words}") from None

    def __str__(self) -> str:
        return str(self.value)


class SchemaFormat(_Word):
    BYTES = "bytes"
    STRING = "string"
    NUMBER = "number"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compatibility(_Word):
    """What a new version must be able to do with the versions before it.

    backward: read what was written with the last version. forward: be read with the last version. full: both. The
    transitive forms hold for all versions.
    """

    NONE = "none"
    BACKWARD = "backward"
    BACKWARD_TRANSITIVE = "backward-transitive"
    FORWARD = "forward"
    FORWARD_TRANSITIVE = "forward-transitive"
    FULL = "full"
    FULL_TRANSITIVE = "full-transitive"

    @property
    def reads_older(self) -> bool:
        return self in _READS_OLDER

    @property
    def read_by_older(self) -> bool:
        return self in _READ_BY_OLDER

    @property
    def transitive(self) -> bool:
        return self.value.endswith("-transitive")


_READS_OLDER: Final = frozenset(
    {Compatibility.BACKWARD, Compatibility.BACKWARD_TRANSITIVE, Compatibility.FULL, Compatibility.FULL_TRANSITIVE}
)
_READ_BY_OLDER: Final = frozenset(
    {Compatibility.FORWARD, Compatibility.FORWARD_TRANSITIVE, Compatibility.FULL, Compatibility.FULL_TRANSITIVE}
)


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A definition that uses another one: `name` is how the text of the definition names it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A definition as it was registered. `text` of the format protobuf is `.proto` text, or a descriptor set in
    Base64."""

    format: SchemaFormat
    text: str
    references: tuple[SchemaReference, ...] = ()


class Incompatibility(NamedTuple):
    """One reason why data of the writer cannot be read by the reader. `path` names the field, `$` the whole."""

    path: str
    reason: str
    version: int = 0
    """The version it was compared with; 0: none."""

    def __str__(self) -> str:
        against = f" (version {self.version})" if self.version else ""
        return f"{self.path}: {self.reason}{against}"


class RegistryMode(_Word):
    """What may be changed: everything, or nothing."""

    READWRITE = "readwrite"
    READONLY = "readonly"


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """The answer to a registration. `is_new`: this call created the version; otherwise the subject had it already."""

    schema_id: int
    version: int
    global_id: int
    is_new: bool
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject. `deleted`: it is deleted and can still be read by those who ask for deleted ones."""

    subject: str
    schema_id: int
    version: int
    global_id: int
    definition: SchemaDefinition
    fingerprint: str
    tags: tuple[str, ...] = ()
    deleted: bool = False
    created_at: int = 0
    """Microseconds since 1970."""


class VersionNotes(NamedTuple):
    """What the caller who registered a version said about it."""

    description: str = ""
    created_by: str = ""
    """Empty: the principal of the caller."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubjectDescription:
    """A subject without its definitions. `compatibility` is None where the default of the broker applies."""

    subject: str
    schema_id: int
    format: SchemaFormat
    """The format of the newest version."""
    versions: tuple[int, ...]
    deleted_versions: tuple[int, ...]
    compatibility: Compatibility | None
    effective_compatibility: Compatibility
    mode: RegistryMode
    topics: tuple[str, ...] = ()
    """The topics that are bound to the subject, at most a thousand of them."""
    created_at: int = 0


class ValidationPolicy(_Word):
    """What happens to a batch that does not fit the binding of its topic."""

    NONE = "none"
    """Nothing is checked."""
    WARN = "warn"
    """It is stored, counted and logged."""
    ENFORCE = "enforce"
    """It is refused with Invalid."""


class Framing(_Word):
    """What stands before the payload proper."""

    NONE = "none"
    CONFLUENT = "confluent"
    """A zero byte and the global id of the schema in four bytes, as the serializers of Confluent write."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What a topic carries: payloads of one subject, and how that is checked.

    Without `pinned_version` and `minimum_version` every registered version may be used, and a producer that names none
    gets the latest.
    """

    subject: str
    policy: ValidationPolicy = ValidationPolicy.ENFORCE
    validate_payloads: bool = True
    """False: only the schema id and version of each batch are checked."""
    pinned_version: int = 0
    """Only this version may be used; 0: no such rule."""
    minimum_version: int = 0
    """Only this version and later ones may be used; 0: no such rule."""
    tombstones: bool = False
    """Whether an empty payload is allowed; it is not validated then. It is invalid otherwise."""
    framing: Framing = Framing.NONE

    def __post_init__(self) -> None:
        parse_subject(self.subject)
        if self.pinned_version < 0 or self.minimum_version < 0:
            raise Invalid("the version of a binding is 1 or more")
        if self.pinned_version and self.minimum_version:
            raise Invalid("a binding has a pinned version or a minimum version, not both")

    @property
    def rule(self) -> str:
        """The versions that may be used, in words."""
        if self.pinned_version:
            return f"version {self.pinned_version} of subject {self.subject!r}"
        if self.minimum_version:
            return f"versions from {self.minimum_version} on of subject {self.subject!r}"
        return f"all versions of subject {self.subject!r}"

    def allows(self, version: int) -> bool:
        """Return whether batches of this version may be published, if it is registered."""
        return version >= self.minimum_version and self.pinned_version in (0, version)
