"""The keys and values of access control in the metadata store. Values are MessagePack maps, as in broker.registry.

```
/security/roles/<name>       RoleRecord       a role that is not built in
/security/bindings/<id>      BindingRecord    roles of a subject on resources
/security/keys/<id>          KeyRecord        an API key: the hash of its secret, never the secret
/security/first-key          text             the id of the first API key; it exists once any key has existed
```
"""

from __future__ import annotations

from typing import Final

import msgspec

from pydanube.model.security import ApiKey, Binding, BoundSubject, ResourcePattern

ROLES: Final = "/security/roles/"
BINDINGS: Final = "/security/bindings/"
KEYS: Final = "/security/keys/"
FIRST_KEY: Final = "/security/first-key"
"""The id of the first API key, which is made once; empty: the cluster had keys before."""


class RoleRecord(msgspec.Struct, omit_defaults=True):
    actions: list[str] = []
    created_at: int = 0


class BindingRecord(msgspec.Struct, omit_defaults=True):
    subject: str
    roles: list[str]
    resource: str
    created_at: int = 0
    created_by: str = ""
    """The principal whose share it takes; releases before did not note it."""

    def binding(self, binding_id: str) -> Binding:
        resource = ResourcePattern.parse(self.resource)
        return Binding(binding_id, BoundSubject.parse(self.subject), tuple(self.roles), resource)


class KeyRecord(msgspec.Struct, omit_defaults=True):
    """`hash`: SHA-256 of the secret, which has 256 random bits: a slow hash would protect nothing more."""

    principal: str
    hash: bytes
    groups: list[str] = []
    created_at: int = 0
    expires_at: int = 0
    comment: str = ""

    def api_key(self, key_id: str) -> ApiKey:
        return ApiKey(
            key_id,
            BoundSubject.parse(self.principal),
            tuple(self.groups),
            self.created_at,
            self.expires_at,
            self.comment,
        )
