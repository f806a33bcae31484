"""Keeps to a rate. Decides only: the time is handed in, and whoever asks does the waiting."""

from __future__ import annotations

from typing import Final

LATE_SECONDS: Final = 0.05
"""Sleeps end late, by milliseconds: so much is made up for, or the rate would never be reached. Whoever comes later
than that made a pause, and what did not pass meanwhile must not follow in one burst."""


class Throttle:
    """Lets `rate` things a second pass, the first ones at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._due = float("-inf")
        """When the next ones may pass."""

    def admit(self, count: int, now: float) -> float:
        """How many seconds these have to wait; then they pass."""
        paused = now - self._due > LATE_SECONDS
        begin = now if paused else self._due
        self._due = begin + count / self._rate
        return max(0.0, begin - now)
