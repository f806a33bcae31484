"""Authentication and access of one broker, as its listeners use them."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.core.access_rules import AccessRules
from pydanube.core.identity import Authenticator, Credentials, Identity, NoAuthentication
from pydanube.metadata.following import Follower
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import run_together

from .identity_sessions import IdentitySessions
from .security_store import SecurityStore


@dataclass(frozen=True, slots=True)
class SecurityParts:
    """What a broker with authentication has besides. `rules` is also its authorizer."""

    rules: AccessRules
    store: SecurityStore
    authenticator: Authenticator


class Security:
    """Who callers are, and how long that is believed."""

    def __init__(self, parts: SecurityParts | None, clock: Clock) -> None:
        """Without `parts` every caller is anonymous."""
        self._parts = parts
        self._authenticator = parts.authenticator if parts is not None else NoAuthentication()
        self.sessions = IdentitySessions(clock)
        if parts is not None:
            parts.store.on_key_ended = self.sessions.key_ended

    @property
    def is_required(self) -> bool:
        """Whether callers must show credentials."""
        return self._authenticator.is_required

    async def authenticate(self, credentials: Credentials, address: str) -> Identity:
        """See Authenticator."""
        return await self._authenticator.authenticate(credentials, address)

    async def refuse(self, address: str, reason: str) -> None:
        """See Authenticator."""
        await self._authenticator.refuse(address, reason)

    async def run(self) -> None:
        """End sessions as their credentials expire, and keep the keys of tokens up to date, until cancelled."""
        await run_together([self.sessions.run(), self._authenticator.run()])

    def follow(self, follower: Follower) -> None:
        """Learn by the follower what other brokers change."""
        if self._parts is not None:
            self._parts.store.follow(follower)

    async def load(self) -> None:
        """Read roles, bindings and API keys from the metadata."""
        if self._parts is not None:
            await self._parts.store.load()
