"""The nouns of quotas: the subject, the limits, and how much of them is used.

A subject is text: `user:alice`, `service_account:etl`, or the path of a namespace, `/shop`. The name `*` stands for
every principal of a type that has no quota of its own; each of them has these limits for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Self

import msgspec

from .errors import Invalid
from .names import parse_namespace
from .security import SERVICE_ACCOUNT, USER, parse_principal_name
from .written import Written, written

EVERY: Final = "*"
"""The name of a subject that stands for all principals of its type."""

LIMIT_MAX: Final = 2**63 - 1

_NAMESPACE: Final = "namespace"
_PRINCIPAL_TYPES: Final = (USER, SERVICE_ACCOUNT)


@written
class QuotaSubject(Written):
    """What a quota limits: a principal, all principals of a type, or a namespace."""

    type: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `type:name` or `/namespace`; `namespace:name` is the same as the latter, and a name alone is a user's.
        Raises Invalid."""
        if text.startswith("/"):
            return cls(_NAMESPACE, parse_namespace(text[1:]))
        kind, colon, name = text.partition(":")
        if not colon:
            kind, name = USER, text
        if kind == _NAMESPACE:
            return cls(_NAMESPACE, parse_namespace(name))
        if kind not in _PRINCIPAL_TYPES:
            raise Invalid(
                f"{text!r} has no quota: use user:NAME, service_account:NAME, with * as the name for all others of "
                f"the type, or /NAMESPACE"
            )
        return cls(kind, parse_principal_name(name))

    @property
    def is_namespace(self) -> bool:
        return self.type == _NAMESPACE

    @property
    def is_default(self) -> bool:
        """Whether it stands for every principal of its type without a quota of its own."""
        return self.name == EVERY and not self.is_namespace

    def __str__(self) -> str:
        return f"/{self.name}" if self.is_namespace else f"{self.type}:{self.name}"


def namespace_subject(namespace: str) -> QuotaSubject:
    """Return the subject of a namespace, whose name was checked before."""
    return QuotaSubject(_NAMESPACE, namespace)


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """The limits of a quota; 0 is none. Rates hold for each broker by itself."""

    connections_max: int = 0
    """Connections of the principal to one broker; namespaces have none."""
    requests_per_s: int = 0
    publish_bytes_per_s: int = 0
    fetch_bytes_per_s: int = 0
    """Bytes of fetches, and of deliveries to consumers."""
    stored_bytes_max: int = 0
    """Bytes stored of the topics of the namespace, or of those that the principal created."""

    def check(self, subject: QuotaSubject) -> None:
        """Raise Invalid if the subject cannot have these limits."""
        for name in LIMIT_NAMES:
            value = getattr(self, name)
            if not 0 <= value <= LIMIT_MAX:
                raise Invalid(f"{name}={value} is out of range: use 0, which is no limit, to {LIMIT_MAX}")
        if subject.is_namespace and self.connections_max:
            raise Invalid(
                f"connections_max is for principals, and {subject} is a namespace: a connection belongs to none"
            )


LIMIT_NAMES: Final = tuple(one.name for one in fields(QuotaLimits))


class QuotaUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is used of a quota now. Connections and rates are those of the broker that was asked; rates are those of
    about the last ten seconds. Stored bytes are those of the whole cluster, as they were counted last. What has no
    limit is not measured, and shown as 0."""

    connections: int = 0
    requests_per_s: float = 0.0
    publish_bytes_per_s: float = 0.0
    fetch_bytes_per_s: float = 0.0
    stored_bytes: int = 0


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """A quota as it is listed: its limits, and what is used of them."""

    subject: QuotaSubject
    connections_max: int = 0
    requests_per_s: int = 0
    publish_bytes_per_s: int = 0
    fetch_bytes_per_s: int = 0
    stored_bytes_max: int = 0
    version: str = ""
    """Changes with every change of the quota: `expected` of a change or deletion."""
    used: QuotaUsage = msgspec.field(default_factory=QuotaUsage)

    @property
    def limits(self) -> QuotaLimits:
        return QuotaLimits(**{name: getattr(self, name) for name in LIMIT_NAMES})
