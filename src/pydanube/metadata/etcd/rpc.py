"""The messages and methods of etcd's API that the store uses, from the descriptor set of `etcd.proto`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydanube.runtime.descriptor_sets import ProtobufSchema, ServiceMethod

_PACKAGE: Final = "pydanube.etcd"
_WIRE_PACKAGE: Final = "etcdserverpb"
"""What etcd calls the package of its services."""

SCHEMA: Final = ProtobufSchema.load(Path(__file__).with_name("etcd.binpb"))
_MESSAGES: Final = SCHEMA.messages(_PACKAGE)


def message(name: str) -> Any:
    """Return the class of a message of etcd by its short name."""
    return _MESSAGES[name]


def method(service: str, name: str) -> ServiceMethod:
    """Return a method of etcd, with the path by which etcd knows it."""
    return SCHEMA.methods(f"{_PACKAGE}.{service}", path_of=f"{_WIRE_PACKAGE}.{service}")[name]


AuthenticateRequest: Final = message("AuthenticateRequest")
CompactionRequest: Final = message("CompactionRequest")
CompareMessage: Final = message("Compare")
DeleteRangeRequest: Final = message("DeleteRangeRequest")
EventMessage: Final = message("Event")
LeaseGrantRequest: Final = message("LeaseGrantRequest")
LeaseKeepAliveRequest: Final = message("LeaseKeepAliveRequest")
LeaseRevokeRequest: Final = message("LeaseRevokeRequest")
PutRequest: Final = message("PutRequest")
RangeRequest: Final = message("RangeRequest")
RequestOp: Final = message("RequestOp")
TxnRequest: Final = message("TxnRequest")
WatchCreateRequest: Final = message("WatchCreateRequest")
WatchRequest: Final = message("WatchRequest")

RANGE: Final = method("KV", "Range")
TXN: Final = method("KV", "Txn")
COMPACT: Final = method("KV", "Compact")
WATCH: Final = method("Watch", "Watch")
LEASE_GRANT: Final = method("Lease", "LeaseGrant")
LEASE_REVOKE: Final = method("Lease", "LeaseRevoke")
LEASE_KEEP_ALIVE: Final = method("Lease", "LeaseKeepAlive")
AUTHENTICATE: Final = method("Auth", "Authenticate")
