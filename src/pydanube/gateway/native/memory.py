"""Memory for publishes that have no answer yet, shared out over all sessions of a door.

A session may have as many bytes unanswered as are still free for everybody; past that it is not read from. So whoever
is held back for long, by the publish rate of its topic for example, leaves room for the others, be they many or few;
and one batch at a time is always taken.
"""

from __future__ import annotations

from typing import Final, Protocol


class PublishReservation:
    """Why a session is not read from: bits of a plain number, which is looked at for every publish."""

    REQUESTS: Final = 1
    PUBLISHES: Final = 2
    ANSWERS: Final = 4
    MEMORY: Final = 8
    TURN: Final = 16
    DECOMPRESSION: Final = 32


class PublishingSession(Protocol):
    """A session, as far as it matters here."""

    publish_bytes: int
    """Its unanswered publishes."""

    def hold(self, why: int) -> None: ...
    def release(self, why: int) -> None: ...


class PublishMemory:
    """Bytes of unanswered publishes over all sessions, and who waits for room."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: set[PublishingSession] = set()
        self.used_bytes = 0

    def take(self, session: PublishingSession, size: int) -> None:
        self.used_bytes += size
        session.publish_bytes += size
        if session.publish_bytes > self._limit_bytes - self.used_bytes:
            session.hold(PublishReservation.MEMORY)
            self._waiting.add(session)

    def give_back(self, session: PublishingSession, size: int) -> None:
        self.used_bytes -= size
        session.publish_bytes -= size
        if self._waiting:
            self._let_go(session)

    def _let_go(self, session: PublishingSession) -> None:
        """Half full, everybody tries again; otherwise whoever has little, twice over, compared to what is free."""
        if self.used_bytes <= self._limit_bytes // 2:
            going = self._waiting
            self._waiting = set()
        elif session in self._waiting and 2 * session.publish_bytes <= max(0, self._limit_bytes - self.used_bytes):
            going = {session}
            self._waiting.discard(session)
        else:
            return
        for one in going:
            one.release(PublishReservation.MEMORY)
