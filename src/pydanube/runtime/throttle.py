"""Limits a rate. It only decides: the caller passes the time and does the waiting."""

from __future__ import annotations

from typing import Final

LATE_SECONDS: Final = 0.05
"""Sleeps end some milliseconds late; a delay up to this is made up for, or the rate would never be reached. A caller
that comes later than that made a pause, and the unused part of the rate must not follow in one burst."""


class Throttle:
    """Admits `rate` items a second, the first ones at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._due = float("-inf")
        """When the next items are admitted."""

    def admit(self, count: int, now: float) -> float:
        """Admit `count` items and return the seconds to wait before they are used."""
        paused = now - self._due > LATE_SECONDS
        begin = now if paused else self._due
        self._due = begin + count / self._rate
        return max(0.0, begin - now)
