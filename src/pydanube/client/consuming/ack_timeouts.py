"""What an application took from one partition and has neither acked nor nacked: whose ack timeout is running.

Exists only while the subscription has an ack timeout. Messages that were sent ahead and nobody took are not here.

Invariants
    offsets are in the order in which they were taken, so the first is the first to be due
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class AckTimeouts:
    """Offsets and when they were taken, by the client's monotonic clock."""

    __slots__ = ("_monotonic", "_on_first", "_taken_at", "timeout_s")

    def __init__(self, timeout_s: float, monotonic: Callable[[], float], on_first: Callable[[], None]) -> None:
        assert timeout_s > 0
        self.timeout_s = timeout_s
        self._monotonic = monotonic
        self._on_first = on_first
        self._taken_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._taken_at)

    def taken(self, offsets: Iterable[int]) -> None:
        """The application has these from now on. A second delivery counts from its own time."""
        now = self._monotonic()
        was_empty = not self._taken_at
        for offset in offsets:
            self._taken_at.pop(offset, None)
            self._taken_at[offset] = now
        if was_empty and self._taken_at:
            self._on_first()

    def settled(self, start: int, end: int) -> None:
        """Offsets [start, end) were acked or nacked."""
        if end - start <= len(self._taken_at):
            for offset in range(start, end):
                self._taken_at.pop(offset, None)
        else:
            for offset in [one for one in self._taken_at if start <= one < end]:
                del self._taken_at[offset]

    def clear(self) -> None:
        self._taken_at.clear()

    def due(self) -> list[int]:
        """Take out those whose time is up."""
        now = self._monotonic()
        due: list[int] = []
        for offset, taken_at in self._taken_at.items():
            if taken_at + self.timeout_s > now:
                break
            due.append(offset)
        for offset in due:
            del self._taken_at[offset]
        return due

    def wait_s(self) -> float | None:
        """How long until the first is due; None when there is none."""
        for taken_at in self._taken_at.values():
            return max(0.0, taken_at + self.timeout_s - self._monotonic())
        return None
