"""Who is signed in: a cookie names a session, which holds a credential in the memory of this process only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import secret_text

COOKIE: Final = "danube-console"
SESSIONS_MAX: Final = 1_000
"""The one that was not used for longest goes."""
IDLE_S_MAX: Final = 12 * 3600


@dataclass(slots=True)
class Session:
    """A browser. Without a credential the broker decides what anybody may see."""

    id: str
    form_token: str = field(default_factory=lambda: secret_text(24))
    """Is in every form; a page of another site does not know it, so it cannot send a form of ours."""
    credential: str = ""
    name: str = ""
    used_s: float = 0.0


class Sessions:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}

    def find(self, cookie: str | None) -> Session:
        """Return the session of a cookie, or a new one."""
        now = self._clock.monotonic()
        session = self._sessions.pop(cookie or "", None)
        if session is None or session.used_s + IDLE_S_MAX < now:
            session = Session(secret_text(32))
        session.used_s = now
        self._sessions[session.id] = session
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return session

    def sign_in(self, session: Session, credential: str, name: str) -> Session:
        """Return a session with another id, so that one that was known before is worth nothing."""
        self._sessions.pop(session.id, None)
        signed_in = self.find(None)
        signed_in.credential, signed_in.name = credential, name
        return signed_in

    def sign_out(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
