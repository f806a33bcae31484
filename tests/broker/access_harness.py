"""Brokers with authentication: who callers are is read from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pydanube.broker.security.security import SecurityParts
from pydanube.broker.security.security_store import SecurityStore
from pydanube.core.access import Principal
from pydanube.core.access_rules import AccessRules
from pydanube.core.identity import NOBODY, Credentials, Identity
from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import Unauthenticated
from pydanube.runtime.clock import Clock

ADMIN = Principal("admin")
ALICE = Principal("alice", groups=("ops",))
BOB = Principal("bob")


class TableAuthenticator:
    """Knows callers by a table of tokens. Without a token a caller is anonymous."""

    def __init__(self, table: Mapping[str, Identity]) -> None:
        self._table = table

    @property
    def is_required(self) -> bool:
        return False

    async def authenticate(self, credentials: Credentials, address: str) -> Identity:
        if not credentials.token:
            return NOBODY
        if credentials.token not in self._table:
            raise Unauthenticated("these credentials are not valid")
        return self._table[credentials.token]

    async def refuse(self, address: str, reason: str) -> None:
        """Do nothing: nobody is counted."""

    async def run(self) -> None:
        """Do nothing: the table is all there is."""


def secured(
    *super_users: str, table: Mapping[str, Identity] | None = None
) -> Callable[[MetadataStore, Clock], SecurityParts]:
    """Return what makes the security of a broker with these super users, by default `user:admin`."""

    def make(store: MetadataStore, clock: Clock) -> SecurityParts:
        rules = AccessRules(super_users or (ADMIN.id,))
        return SecurityParts(rules, SecurityStore(store, clock, rules), TableAuthenticator(table or {}))

    return make
