"""The recent changes of the metadata store, in memory, for `watch`: the events of each revision, up to a limit.

This is not the history of a topic in the object store (`storage/tiering/history.py`): nothing here is stored, and the
events are of metadata keys.

Invariants
    the history holds the events of every revision in (compacted, revision], and of none before
    it never holds more than the given revisions and bytes: the oldest go first, except that the newest always stays
    a watcher is woken by every new revision, by a compaction, and by close
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from pydanube.model.errors import Invalid, Unavailable
from pydanube.runtime.events import Signal

from .store import Compacted, Event, prefix_bytes

HISTORY_REVISIONS_MAX: Final = 10_000
HISTORY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A watcher that is further behind than this has to list again, which is cheaper than reading all it missed."""


class EventHistory:
    """Holds the events after `compacted`, up to and including `revision`. Used on the event loop only."""

    def __init__(self, revision: int, revisions_max: int, bytes_max: int) -> None:
        self._revision = revision
        self._revisions_max = revisions_max
        self._bytes_max = bytes_max
        self._changes: deque[tuple[list[Event], int]] = deque()
        self._bytes = 0
        self._changed = Signal()
        self._closed = False

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def compacted(self) -> int:
        """The last revision whose events are no longer held."""
        return self._revision - len(self._changes)

    def append(self, revision: int, events: list[Event]) -> None:
        assert revision == self._revision + 1, "revisions leave no gap"
        size = sum(len(event.key) + len(event.current.value if event.current else b"") for event in events)
        self._changes.append((events, size))
        self._revision = revision
        self._bytes += size
        while len(self._changes) > self._revisions_max or (self._bytes > self._bytes_max and len(self._changes) > 1):
            self._drop_oldest()
        self._changed.wake()

    def compact(self, revision: int) -> None:
        while self.compacted < min(revision, self._revision):
            self._drop_oldest()
        self._changed.wake()

    def restart(self, revision: int) -> None:
        """Continue at `revision` without the events that led to it; all events before it are dropped."""
        self.compact(self._revision)
        self._revision = revision
        self._changed.wake()

    def close(self) -> None:
        """End every watch, also those that begin later, with Unavailable."""
        self._closed = True
        self._changed.wake()

    async def watch(self, prefix: str, from_revision: int) -> AsyncIterator[Event]:
        """Implements `MetadataStore.watch`. When cancelled or closed early, nothing is left behind."""
        prefix_bytes(prefix)
        if from_revision < 0:
            raise Invalid(f"watch from revision {from_revision}: revisions start at 1")
        wanted = max(1, from_revision)
        while True:
            while wanted <= self._revision:
                for event in self._events_at(wanted):
                    if event.key.startswith(prefix):
                        yield event
                wanted += 1
            if self._closed:
                raise Unavailable("the metadata store has been closed")
            await self._changed.wait()

    def _events_at(self, revision: int) -> list[Event]:
        if revision <= self.compacted:
            raise Compacted(f"revision {revision} has been compacted away (up to {self.compacted}): list again")
        events, _ = self._changes[revision - self.compacted - 1]
        return events

    def _drop_oldest(self) -> None:
        _, size = self._changes.popleft()
        self._bytes -= size
