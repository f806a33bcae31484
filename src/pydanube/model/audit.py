"""Audit events: who was refused something, who changed something, who published and consumed.

docs/security.md lists the fields.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

AuditKind: TypeAlias = Literal["refused", "administration", "security", "session"]
"""`refused`: a rule of access said no. `administration`: something was created, deleted or administered. `security`:
roles, bindings and keys, and credentials that were not accepted or ended. `session`: publishing and consuming."""

AuditOutcome: TypeAlias = Literal["done", "denied", "unauthenticated", "failed"]


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event, as it is written: a JSON object without the fields that do not apply. It never holds a secret."""

    time: str
    """RFC 3339, in UTC, with microseconds."""
    broker: str
    kind: AuditKind
    outcome: AuditOutcome
    operation: str
    """The name in the table of the listener, such as `CreateTopic` or `createTopic`."""
    principal: str = ""
    """As rules of access name it: `user:alice`; empty: it is not known."""
    method: str = ""
    """How the caller has proven who it is; see core.identity.Identity."""
    address: str = ""
    listener: str = ""
    """`native`, `grpc`, `admin` or `http`."""
    action: str = ""
    resource: str = ""
    detail: str = ""
    """What was changed, where the resource does not say it: a role, a binding, a key."""
    reason: str = ""
    """The error, with its class."""
    session: str = ""
    """The same in the two events of one session."""
    phase: Literal["", "opened", "ended"] = ""
    partition: int | None = None
    messages: int | None = None
    bytes: int | None = None
