"""Limits the memory of publishes that have no answer yet. All sessions of the native listener and all calls of the gRPC
listeners share it.

A principal, over all its sessions, may have as many unanswered bytes as are still free for all; past that, the listener
stops reading from its sessions. Without authentication each session counts by itself. So one that waits for long, for
example because of a quota or the publish rate of its topic, always leaves memory for the others. One batch at a time is
always accepted.
"""

from __future__ import annotations

from typing import Final, Protocol
from weakref import WeakValueDictionary

from pydanube.runtime.budget import fits_share


class PauseReason:
    """Why the listener does not read from a session: bits of a plain number, because every publish checks them."""

    REQUESTS: Final = 1
    PUBLISHES: Final = 2
    ANSWERS: Final = 4
    MEMORY: Final = 8
    TURN: Final = 16
    DECOMPRESSION: Final = 32
    AUTHENTICATION: Final = 64


class PublishShare:
    """What the sessions of one principal, or one session alone, have in publishes without an answer."""

    __slots__ = ("__weakref__", "used_bytes", "waiting")

    def __init__(self) -> None:
        self.used_bytes = 0
        self.waiting: set[PublishingSession] = set()
        """The sessions that the listener does not read from because this is too much."""

    def resume(self) -> None:
        resumed, self.waiting = self.waiting, set()
        for one in resumed:
            one.resume_for(PauseReason.MEMORY)


class PublishingSession(Protocol):
    """What this module needs of a session."""

    publish_bytes: int
    """The bytes of its publishes that have no answer yet."""

    @property
    def publish_share(self) -> PublishShare: ...

    def pause_for(self, reason: int) -> None: ...
    def resume_for(self, reason: int) -> None: ...


class PublishMemory:
    """Counts the bytes of unanswered publishes of all sessions, and pauses sessions that have too many."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._shares: WeakValueDictionary[str, PublishShare] = WeakValueDictionary()
        """By principal; each is held by its sessions."""
        self._waiting: set[PublishShare] = set()
        """Those with sessions that wait."""
        self._reserved_bytes = 0
        self.used_bytes = 0

    def share_of(self, principal: str) -> PublishShare:
        """Return the share of a principal, for a session of it."""
        share = self._shares.get(principal)
        if share is None:
            share = self._shares[principal] = PublishShare()
        return share

    def take(self, session: PublishingSession, size: int) -> None:
        share = session.publish_share
        self.used_bytes += size
        session.publish_bytes += size
        share.used_bytes += size
        if not fits_share(share.used_bytes, 0, self._limit_bytes - self.used_bytes):
            session.pause_for(PauseReason.MEMORY)
            share.waiting.add(session)
            self._waiting.add(share)

    def give_back(self, session: PublishingSession, size: int) -> None:
        self.used_bytes -= size
        session.publish_bytes -= size
        session.publish_share.used_bytes -= size
        if self._waiting:
            self._resume_sessions(session.publish_share)

    def reserve(self, size: int, principal: str = "") -> PublishShare | None:
        """Take memory for a request of a listener that cannot stop reading from a client, and return whose share it
        takes; None, without effect, if such requests already have as much as is still free, or this principal, with
        what its sessions have, as much as they may still have. One at a time is always accepted. An empty principal:
        they are not told apart."""
        share = self.share_of(principal) if principal else PublishShare()
        free = self._limit_bytes - self.used_bytes
        if self._reserved_bytes and not (
            fits_share(self._reserved_bytes, size, free)
            and fits_share(share.used_bytes, size, free - self._reserved_bytes if principal else free)
        ):
            return None
        self._reserved_bytes += size
        self.used_bytes += size
        share.used_bytes += size
        return share

    def release(self, size: int, share: PublishShare) -> None:
        """Give back what `reserve` took."""
        self._reserved_bytes -= size
        self.used_bytes -= size
        share.used_bytes -= size
        if self._waiting and self.used_bytes <= self._limit_bytes // 2:
            self._resume_all()

    def _resume_all(self) -> None:
        resumed, self._waiting = self._waiting, set()
        for share in resumed:
            share.resume()

    def _resume_sessions(self, share: PublishShare) -> None:
        """Resume sessions: all of them once the memory is at most half used, before that only those of `share`, if it
        uses at most half of what is free."""
        if self.used_bytes <= self._limit_bytes // 2:
            self._resume_all()
        elif share in self._waiting and 2 * share.used_bytes <= max(0, self._limit_bytes - self.used_bytes):
            self._waiting.discard(share)
            share.resume()
