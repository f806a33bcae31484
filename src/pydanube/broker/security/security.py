"""Authentication and access of one broker, as its listeners use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydanube.core.access_rules import AccessRules
from pydanube.core.identity import Authenticator, Credentials, Identity, NoAuthentication
from pydanube.metadata.following import Follower
from pydanube.model.errors import Full, Unauthenticated
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import run_together

from .audit import AUTHENTICATE, AuditTrail
from .audit_operations import Origin
from .identity_sessions import IdentitySession, IdentitySessions
from .security_store import SecurityStore


@dataclass(frozen=True, slots=True)
class SecurityParts:
    """What a broker with authentication has besides. `rules` is also its authorizer."""

    rules: AccessRules
    store: SecurityStore
    authenticator: Authenticator


class Security:
    """Who callers are, and how long that is believed."""

    def __init__(self, parts: SecurityParts | None, clock: Clock, audit: AuditTrail) -> None:
        """Without `parts` every caller is anonymous."""
        self._audit = audit
        self._parts = parts
        self._clock = clock
        self._authenticator = parts.authenticator if parts is not None else NoAuthentication()
        self.sessions = IdentitySessions(clock)
        self.sessions.on_ended = self._session_ended
        if parts is not None:
            parts.store.on_key_ended = self.sessions.key_ended

    @property
    def is_required(self) -> bool:
        """Whether callers must show credentials."""
        return self._authenticator.is_required

    async def authenticate(self, credentials: Credentials, address: str, listener: str = "") -> Identity:
        """See Authenticator. `listener` is named in the audit."""
        with self._failures_recorded(listener, address):
            return await self._authenticator.authenticate(credentials, address)

    def check_believed(self, identity: Identity) -> None:
        """Raise Unauthenticated if the credentials of an identity have ended since it was established. For what is done
        later, after a wait that the caller or a quota causes."""
        is_revoked = bool(identity.key_id) and self._parts is not None and identity.key_id not in self._parts.store.keys
        if is_revoked or 0 < identity.expires_at_us <= self._clock.now_us():
            raise Unauthenticated("the credentials have ended meanwhile: call again with valid ones")

    def refused(self, listener: str, address: str, reason: str) -> None:
        """Record that a caller has not shown who it is."""
        self._audit.authentication_failed(Origin(listener, address), AUTHENTICATE, reason)

    def _session_ended(self, session: IdentitySession, reason: str) -> None:
        self._audit.identity_ended(session.listener, session.address, session.identity, reason)

    async def refuse(self, address: str, reason: str, listener: str = "") -> None:
        """See Authenticator. `listener` is named in the audit."""
        with self._failures_recorded(listener, address):
            await self._authenticator.refuse(address, reason)

    @contextmanager
    def _failures_recorded(self, listener: str, address: str) -> Iterator[None]:
        try:
            yield
        except (Unauthenticated, Full) as error:
            reason = error.message if error.__cause__ is None else str(error.__cause__)
            self.refused(listener, address, reason)
            raise

    async def run(self) -> None:
        """End sessions as their credentials expire, and keep the keys of tokens up to date, until cancelled."""
        await run_together([self.sessions.run(), self._authenticator.run()])

    def follow(self, follower: Follower) -> None:
        """Learn by the follower which roles, bindings and API keys there are, and what other brokers change."""
        if self._parts is not None:
            self._parts.store.follow(follower)
