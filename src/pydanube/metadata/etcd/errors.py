"""What an error of etcd means: whether the request may have been executed, and what the caller is told.

etcd tells its errors apart by a gRPC status and a text ("etcdserver: no leader"); several texts share one status, so
both are looked at. A status that is not known here counts as one after which the request may have been executed.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final

import grpc

from pydanube.model.errors import DanubeError, Denied, Invalid, Unauthenticated, Unavailable

from .place import EtcdPlace


class Verdict(Enum):
    NOT_EXECUTED = "not executed"
    """The member refused before it looked at the request: send it to another member."""
    NEW_TOKEN = "new token"  # noqa: S105 - the name of a verdict
    """Not executed, because the token is no longer valid: authenticate again."""
    IN_DOUBT = "in doubt"
    """It may have been executed."""
    FINAL = "final"
    """Another attempt would get the same answer."""


_NOT_EXECUTED: Final = ("no leader", "too many requests", "not capable", "raft: proposal dropped", "is a learner")
NEW_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
NO_USER: Final = ("user name is empty", "user name not found")
WRONG_PASSWORD: Final = "authentication failed"  # noqa: S105 - a text of etcd
NOT_ENABLED: Final = "authentication is not enabled"
NO_SPACE: Final = "database space exceeded"
LEASE_NOT_FOUND: Final = "requested lease not found"
COMPACTED: Final = "required revision has been compacted"
FUTURE_REVISION: Final = "required revision is a future revision"
_PREAMBLE: Final = re.compile(r"(etcdserver: |UNKNOWN: |ipv[46]:\S+: )+")
TOO_LARGE: Final = "message larger than max"
"""What gRPC says about a reply that is larger than the client accepts."""

_FINAL: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)


def text_of(error: Any) -> str:
    """Return what etcd or gRPC says about an error, without what every such text begins with."""
    text: str = error.details() or error.code().name
    return _PREAMBLE.sub("", text.rpartition("last error: ")[2]).rstrip(". ")


def judge(error: Any) -> Verdict:
    """Return what can be said about a request that failed with this error."""
    text = text_of(error)
    if any(one in text for one in NEW_TOKEN):
        return Verdict.NEW_TOKEN
    if any(one in text for one in _NOT_EXECUTED):
        return Verdict.NOT_EXECUTED
    return Verdict.FINAL if error.code() in _FINAL else Verdict.IN_DOUBT


def refusal(place: EtcdPlace, text: str, *, denied: bool) -> DanubeError:
    """Return the error for a final answer of etcd, with its remedy. `denied`: etcd said "permission denied"."""
    if denied:
        who = f"user {place.user!r}" if place.user else "a request without a user"
        return Denied(
            f"{place} refuses {who} ({text}): grant a role that may read and write the prefix /{place.prefix}/"
        )
    if any(one in text for one in NO_USER):
        return Unauthenticated(
            f"{place} wants a user and a password: set metadata.user, and the variable DANUBE_METADATA_PASSWORD"
        )
    if WRONG_PASSWORD in text:
        return Unauthenticated(
            f"{place} does not accept user {place.user!r} with this password: correct metadata.user or the variable "
            f"DANUBE_METADATA_PASSWORD"
        )
    if NO_SPACE in text:
        return Unavailable(
            f"{place} is out of space: compact and defragment etcd or raise its --quota-backend-bytes, then run "
            f"'etcdctl alarm disarm'"
        )
    if "request is too large" in text or "too many operations" in text:
        return Invalid(
            f"{place} refuses a transaction ({text}): its --max-request-bytes and --max-txn-ops must not be below "
            f"their defaults"
        )
    return Unavailable(f"{place} answers: {text}")
