"""Limits the memory of publishes that have no answer yet. All sessions of the native listener and all calls of the gRPC
listeners share it.

A session may have as many unanswered bytes as are still free for all sessions; past that, the listener stops reading
from it. So a session that waits for long, for example because of the publish rate of its topic, always leaves memory
for the others. One batch at a time is always accepted.
"""

from __future__ import annotations

from typing import Final, Protocol


class PauseReason:
    """Why the listener does not read from a session: bits of a plain number, because every publish checks them."""

    REQUESTS: Final = 1
    PUBLISHES: Final = 2
    ANSWERS: Final = 4
    MEMORY: Final = 8
    TURN: Final = 16
    DECOMPRESSION: Final = 32
    AUTHENTICATION: Final = 64


class PublishingSession(Protocol):
    """What this module needs of a session."""

    publish_bytes: int
    """The bytes of its publishes that have no answer yet."""

    def pause_for(self, reason: int) -> None: ...
    def resume_for(self, reason: int) -> None: ...


class PublishMemory:
    """Counts the bytes of unanswered publishes of all sessions, and pauses sessions that have too many."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: set[PublishingSession] = set()
        self._reserved_bytes = 0
        self.used_bytes = 0

    def take(self, session: PublishingSession, size: int) -> None:
        self.used_bytes += size
        session.publish_bytes += size
        if session.publish_bytes > self._limit_bytes - self.used_bytes:
            session.pause_for(PauseReason.MEMORY)
            self._waiting.add(session)

    def give_back(self, session: PublishingSession, size: int) -> None:
        self.used_bytes -= size
        session.publish_bytes -= size
        if self._waiting:
            self._resume_sessions(session)

    def reserve(self, size: int) -> bool:
        """Take memory for a request of a listener that cannot stop reading from a client; return False, without effect,
        if such requests already have as much as is still free. One at a time is always accepted."""
        if self._reserved_bytes and self._reserved_bytes + size > self._limit_bytes - self.used_bytes:
            return False
        self._reserved_bytes += size
        self.used_bytes += size
        return True

    def release(self, size: int) -> None:
        """Give back what `reserve` took."""
        self._reserved_bytes -= size
        self.used_bytes -= size
        if self._waiting and self.used_bytes <= self._limit_bytes // 2:
            self._resume_all()

    def _resume_all(self) -> None:
        resumed, self._waiting = self._waiting, set()
        for one in resumed:
            one.resume_for(PauseReason.MEMORY)

    def _resume_sessions(self, session: PublishingSession) -> None:
        """Resume sessions: all of them once the memory is at most half used, before that only `session`, if it uses at
        most half of what is free."""
        if self.used_bytes <= self._limit_bytes // 2:
            self._resume_all()
        elif session in self._waiting and 2 * session.publish_bytes <= max(0, self._limit_bytes - self.used_bytes):
            self._waiting.discard(session)
            session.resume_for(PauseReason.MEMORY)
