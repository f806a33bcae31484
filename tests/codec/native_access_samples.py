"""Golden bytes of what the native protocol says about access: roles, bindings, API keys and quotas."""

from __future__ import annotations

import msgspec
from native_samples import VERSION

from pydanube.model.quotas import Quota, QuotaSubject, QuotaUsage
from pydanube.model.security import (
    AccessAnswer,
    ApiKey,
    Binding,
    BoundSubject,
    CallerIdentity,
    NewApiKey,
    ResourcePattern,
    Role,
)
from pydanube.operations import access

ALICE = BoundSubject("user", "alice")
BINDING = Binding("b-orders", ALICE, ("producer",), ResourcePattern("/default/orders-*"))
KEY = ApiKey("5d3f1c0e7a0b4a51", ALICE, ("ops",), 1_700_000_000_000_000, 1_800_000_000_000_000, "laptop")
QUOTA = Quota(
    QuotaSubject("user", "alice"),
    20,
    100,
    1_000_000,
    2_000_000,
    1 << 40,
    VERSION,
    QuotaUsage(2, 1.5, 731204.5, 0.0, 1 << 30),
)

ACCESS_HEADS: list[msgspec.Struct] = [
    access.ListRoles(),
    access.GetRole(name="loader"),
    access.CreateRole(name="loader", actions=["produce", "create"]),
    access.ChangeRole(name="loader", actions=["produce"], expected=VERSION),
    access.DeleteRole(name="loader", expected=VERSION),
    Role("loader", ("produce",), version=VERSION),
    access.RolesListed([Role("monitor", ("describe",), built_in=True)]),
    access.ListAccessBindings(subject="group:ops", resource="/default", after="b1", limit=10),
    access.GetAccessBinding(id="b-orders"),
    access.CreateAccessBinding(subject="user:alice", roles=["producer"], resource="/default/orders-*", id="b-orders"),
    access.DeleteAccessBinding(id="b-orders"),
    BINDING,
    access.BindingsListed([BINDING], "b-orders"),
    access.ListApiKeys(principal="user:alice", after="5d", limit=10),
    access.CreateApiKey(principal="user:alice", groups=["ops"], expires_at=1_800_000_000_000_000, comment="laptop"),
    access.RevokeApiKey(id="5d3f1c0e7a0b4a51"),
    KEY,
    access.KeysListed([KEY]),
    NewApiKey(KEY, "dnb_5d3f1c0e7a0b4a51_example"),
    access.WhoAmI(),
    CallerIdentity("user:alice", ("ops",), "jwt", 1_800_000_000_000_000, bindings=(BINDING,)),
    access.AskAccess(action="produce", resource="/default/orders", principal="user:alice", groups=["ops"]),
    AccessAnswer(True, "user:alice", "produce", "/default/orders", "because", "b-orders", "producer"),
    access.ListQuotas(after="user:a", limit=10),
    access.GetQuota(subject=QuotaSubject.parse("/shop")),
    access.SetQuota(
        subject=QuotaSubject("user", "alice"), changes={"publish_bytes_per_s": 1_000_000}, expected=VERSION
    ),
    access.DeleteQuota(subject=QuotaSubject("user", "*"), expected=VERSION),
    QUOTA,
    access.QuotasListed([Quota(QuotaSubject.parse("/shop"), stored_bytes_max=1 << 40)], next="/shop"),
]
