"""Ends what was opened under an identity when its credentials end: a token expires, an API key is revoked.

```
 listener: opened = sessions.open(identity, end)      end(Unauthenticated(...)) is called once, when the identity ends
           sessions.renew(opened, newer)              the client has shown newer credentials
           sessions.close(opened)                     the connection is gone
```
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pydanube.core.identity import Identity
from pydanube.model.errors import DanubeError, Unauthenticated
from pydanube.runtime.clock import Clock

CHECK_S: Final = 0.5
"""How often it is checked whether an identity has expired: so much longer a session may live than its token."""


@dataclass(eq=False, slots=True)
class IdentitySession:
    """Something that is open under an identity."""

    identity: Identity
    end: Callable[[DanubeError], None]
    listener: str = ""
    address: str = ""


class IdentitySessions:
    """Everything that is open under an identity which can end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: set[IdentitySession] = set()
        self.on_ended: Callable[[IdentitySession, str], None] = lambda _session, _why: None
        """Called for each session that ends because its credentials do, with the reason."""

    def open(
        self, identity: Identity, end: Callable[[DanubeError], None], listener: str = "", address: str = ""
    ) -> IdentitySession:
        """Have `end` called once when the identity ends, unless the session is closed before. `listener` and `address`
        say where it is from."""
        session = IdentitySession(identity, end, listener, address)
        if _can_end(identity):
            self._open.add(session)
        return session

    def renew(self, session: IdentitySession, identity: Identity) -> None:
        """Go on under newer credentials of the same principal."""
        assert identity.principal.id == session.identity.principal.id
        session.identity = identity
        self._open.discard(session)
        if _can_end(identity):
            self._open.add(session)

    def close(self, session: IdentitySession) -> None:
        self._open.discard(session)

    def key_ended(self, key_id: str) -> None:
        """End what was opened with an API key that was revoked."""
        self._end([one for one in self._open if one.identity.key_id == key_id], "the API key was revoked")

    async def run(self) -> None:
        """End sessions as their credentials expire, until cancelled."""
        while True:
            await self._clock.sleep(CHECK_S)
            now = self._clock.now_us()
            expired = [one for one in self._open if 0 < one.identity.expires_at_us <= now]
            self._end(expired, "the credentials have expired")

    def _end(self, sessions: list[IdentitySession], why: str) -> None:
        for session in sessions:
            self._open.discard(session)
            self.on_ended(session, why)
            session.end(Unauthenticated(f"{why}: connect again with valid ones"))


def _can_end(identity: Identity) -> bool:
    return bool(identity.expires_at_us or identity.key_id)
