"""Rates over the last ten seconds or so, for the price of an addition per batch.

What was counted fades exponentially: after ten seconds about a third of it still weighs. No timer and no clock; time
arrives with every call, and a wall clock that goes back costs accuracy, never an error.
"""

from __future__ import annotations

from math import exp, expm1
from typing import Final

WINDOW_US: Final = 10_000_000
"""How long something that was counted weighs, on average."""

_FADING_US: Final = 10_000
"""What was counted so shortly before has not faded: a thousandth at most, not worth an exponential for every batch."""

_AGE_US_MIN: Final = 1_000_000
"""A meter counts as at least this old: two batches in the first millisecond are no rate of millions."""


class Meter:
    """Messages and bytes per second. Marked once for each batch."""

    __slots__ = ("_at_us", "_born_us", "_bytes", "_messages")

    def __init__(self) -> None:
        self._messages = 0.0
        self._bytes = 0.0
        self._at_us = 0
        """When what was counted faded last."""
        self._born_us = 0

    def mark(self, now_us: int, messages: int, size_bytes: int) -> None:
        """This much passed just now."""
        if not 0 <= now_us - self._at_us < _FADING_US:
            if not self._born_us:
                self._born_us = now_us
            elif now_us > self._at_us:
                fade = exp((self._at_us - now_us) / WINDOW_US)
                self._messages *= fade
                self._bytes *= fade
            self._at_us = now_us
        self._messages += messages
        self._bytes += size_bytes

    def rates(self, now_us: int) -> tuple[float, float]:
        """Messages and bytes per second, as of `now_us`. A young meter is divided by its age."""
        if not self._born_us:
            return 0.0, 0.0
        fade = exp(min(self._at_us - now_us, 0) / WINDOW_US)
        age_us = max(now_us - self._born_us, _AGE_US_MIN)
        per_second = fade * 1_000_000 / WINDOW_US / -expm1(-age_us / WINDOW_US)
        return self._messages * per_second, self._bytes * per_second


class Traffic:
    """What was published to one partition since it was opened."""

    __slots__ = ("last_us", "meter", "published", "published_bytes", "throttled_s", "unheard")

    def __init__(self) -> None:
        self.published = 0
        self.published_bytes = 0
        self.unheard = 0
        """Published to a non-reliable topic while nobody listened."""
        self.throttled_s = 0.0
        """How long publishes waited for the publish rate."""
        self.last_us = 0
        """When something was last published or read."""
        self.meter = Meter()

    def mark(self, now_us: int, messages: int, size_bytes: int) -> None:
        """A batch was published."""
        self.published += messages
        self.published_bytes += size_bytes
        self.last_us = now_us
        self.meter.mark(now_us, messages, size_bytes)
