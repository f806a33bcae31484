"""Where the metadata is in an etcd: `etcd://host:2379,host:2379/prefix`, and how to get in.

What a store writes to etcd lies below its prefix, so that several stores and other applications can share one etcd:

    /PREFIX/store       which store this is, in JSON: {"format":1,"store_id":"5f0c...","succeeds":[["81ab...",1234]]}
    /PREFIX/keysKEY     the value of KEY, for example /danube/keys/topics/default/orders
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydanube.model.errors import Invalid, Unavailable

SCHEME: Final = "etcd://"
DEFAULT_PORT: Final = 2379
DEFAULT_PREFIX: Final = "danube"
MEMBERS_MAX: Final = 16
"""The most addresses of one store; etcd itself advises seven members at most."""

_HOST: Final = re.compile(r"([A-Za-z0-9._-]{1,255}|\[[A-Za-z0-9:.%]+\])(?::([0-9]{1,5}))?")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. Without `ca` the certificates of the system count; `certificate` and `key` are the client's own."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """An etcd, the prefix of a store in it, and the credentials. Holding one means that it is well-formed."""

    members: tuple[str, ...]
    """host:port of each member, in the order in which they are tried."""
    prefix: str = DEFAULT_PREFIX
    tls: TlsFiles | None = None
    """None: connections are not encrypted."""
    user: str = ""
    password: str = field(default="", repr=False)
    timeout_s: float = 10.0
    """How long a request may take, all attempts together."""

    @property
    def store_key(self) -> bytes:
        return f"/{self.prefix}/store".encode()

    @property
    def keys_prefix(self) -> bytes:
        """What precedes every key of the store in etcd."""
        return f"/{self.prefix}/keys".encode()

    def __str__(self) -> str:
        return f"{SCHEME}{','.join(self.members)}/{self.prefix}"


def parse_members(url: str) -> tuple[tuple[str, ...], str]:
    """Return the members and the prefix of a URL. Raises Invalid, without repeating what may be a password."""
    if not url.startswith(SCHEME):
        raise Invalid(f"metadata.url={url.split('@')[-1]!r} is unknown: use etcd://host:2379,host:2379/prefix")
    hosts, _, prefix = url.removeprefix(SCHEME).partition("/")
    if "@" in url:
        raise Invalid("metadata.url has no user: set metadata.user, and the variable DANUBE_METADATA_PASSWORD")
    prefix = prefix.rstrip("/") or DEFAULT_PREFIX
    if not _PREFIX.fullmatch(prefix):
        raise Invalid(f"metadata prefix {prefix!r}: use up to 64 ASCII letters, digits, '.', '_' and '-'")
    members = tuple(map(_parse_member, hosts.split(",")))
    if len(members) > MEMBERS_MAX or len(set(members)) < len(members):
        raise Invalid(f"metadata URL {url!r}: name each member of etcd once, and at most {MEMBERS_MAX} of them")
    return members, prefix


def _parse_member(text: str) -> str:
    found = _HOST.fullmatch(text.strip())
    port = int(found[2] or DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= 65_535:
        raise Invalid(f"{text!r} is no address of an etcd member: use host:port, for example 10.0.0.1:{DEFAULT_PORT}")
    return f"{found[1]}:{port}"


def older_copy(place: object, shown: str) -> Unavailable:
    """Return why nothing is done any more with an etcd that was put back under its users; `shown` says how that is
    known."""
    return Unavailable(
        f"{place} was put back to an older copy: {shown}; this broker changes and acks nothing any more. Stop all "
        f"brokers, put back the newest copy of the etcd, and start them again; without one, restore from the object "
        f"store with `danube storage restore`"
    )
