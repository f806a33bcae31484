"""The broker's window for publishes: how many unanswered bytes one connection may have, and who waits for room in it.

Invariants
    unanswered bytes stay within the window, except for a single batch larger than it, alone
    whoever waits gets room in the order of asking; nobody who would still not fit is called
"""

from __future__ import annotations

from collections.abc import Callable


class PublishWindow:
    """Counts one connection's unanswered publishes. `limit` 0: the broker set none."""

    __slots__ = ("_outstanding", "_waiting", "limit")

    def __init__(self) -> None:
        self.limit = 0
        self._outstanding = 0
        self._waiting: dict[object, tuple[int, Callable[[], None]]] = {}

    def has_room(self, size: int) -> bool:
        return not self._outstanding or not self.limit or self._outstanding + size <= self.limit

    def take(self, size: int) -> None:
        self._outstanding += size

    def when_room(self, key: object, size: int, callback: Callable[[], None]) -> None:
        """Call back once when there is room for so much; each `key` waits once."""
        self._waiting.setdefault(key, (size, callback))

    def forget(self, key: object) -> None:
        self._waiting.pop(key, None)

    def give_back(self, size: int) -> None:
        """An answer came."""
        self._outstanding -= size
        assert self._outstanding >= 0

    def let_in(self) -> None:
        """Call those who fit now."""
        waiting = self._waiting
        while waiting:
            key = next(iter(waiting))
            size, callback = waiting[key]
            if not self.has_room(size):
                return
            del waiting[key]
            callback()

    def close(self) -> None:
        self._waiting.clear()
