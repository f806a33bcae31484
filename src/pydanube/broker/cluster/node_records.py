"""The keys and values of brokers in the metadata store. Values are MessagePack maps, to which fields can be added.

```
/identity                    the founder's identity, as JSON; its `cluster` is the id of the cluster
/nodes/<name>                NodeRecord           the log of the broker of this name, for ever
/logs/<log>                  a number             the newest file of this log at its last start; the founder has /log
/brokers/sessions/<name>     BrokerSession        bound to the lease of the session, written once
/brokers/coordinator         CoordinatorRecord    bound to the lease of that broker's session
```
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Corrupt

IDENTITY_KEY: Final = "/identity"
"""The key of the founder's identity; a broker alone is the founder. It shows when metadata and data directory belong to
different clusters."""

FOUNDER_LOG_KEY: Final = "/log"
"""The generation of the file that the founder's log began at the last start. A log without it is older."""

SESSIONS: Final = "/brokers/sessions/"
COORDINATOR: Final = "/brokers/coordinator"
NODES: Final = "/nodes/"
INCARNATION_COUNTER: Final = "incarnation"


class NodeRecord(msgspec.Struct, omit_defaults=True):
    """A broker of the cluster, whether or not it lives. `away_since`: since when the others have seen no session of it,
    in microseconds since 1970; 0 while it has one, and until the coordinator has seen that it has none.
    `drained_since`: since when it gives its partitions away and is given none; 0: it is given some. From feature level
    3 on."""

    log: str
    away_since: int = 0
    drained_since: int = 0


class CoordinatorRecord(msgspec.Struct):
    """The session that does what only one broker should do."""

    name: str
    incarnation: int


def session_key(name: str) -> str:
    return f"{SESSIONS}{name}"


def node_key(name: str) -> str:
    return f"{NODES}{name}"


def log_key(log: str) -> str:
    """Return the key of a log that is not the founder's."""
    return f"/logs/{log}"


def pack(record: msgspec.Struct | BrokerSession) -> bytes:
    return msgspec.msgpack.encode(record)


def unpack_session(key: str, value: bytes) -> BrokerSession:
    """Return the session; fields that this release does not know are passed over. Raises Corrupt."""
    return _decode(key, value, BrokerSession)


def unpack_node(key: str, value: bytes) -> NodeRecord:
    return _decode(key, value, NodeRecord)


def unpack_coordinator(key: str, value: bytes) -> CoordinatorRecord:
    return _decode(key, value, CoordinatorRecord)


def changed(value: bytes, **fields: object) -> bytes:
    """Return a packed record with other values of these fields. Fields that this release does not know are kept."""
    record: dict[str, Any] = msgspec.msgpack.decode(value, type=dict[str, Any])
    return msgspec.msgpack.encode({**record, **fields})


T = TypeVar("T")


def _decode(key: str, value: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"metadata key {key} cannot be read ({error}): restore the metadata from a backup") from None
