"""Rates over about the last ten seconds, at the cost of one addition per batch.

Counts decay exponentially: after ten seconds about a third of a count is left. There is no timer and no clock; every
call brings the time. A wall clock that goes back makes rates less accurate, and is never an error.
"""

from __future__ import annotations

from math import exp, expm1
from typing import Final

WINDOW_US: Final = 10_000_000
"""The time constant of the decay."""

_DECAY_STEP_US: Final = 10_000
"""The decay is applied no more often than this: in between it is at most a thousandth, not worth the cost per batch."""

_AGE_US_MIN: Final = 1_000_000
"""A meter counts as at least this old, so that two batches in its first millisecond do not make a rate of millions."""


class Meter:
    """Messages and bytes per second. `mark` is called once for each batch."""

    __slots__ = ("_at_us", "_born_us", "_bytes", "_messages")

    def __init__(self) -> None:
        self._messages = 0.0
        self._bytes = 0.0
        self._at_us = 0
        """When the decay was applied last."""
        self._born_us = 0

    def mark(self, now_us: int, messages: int, size_bytes: int) -> None:
        """Count messages and bytes at the time `now_us`."""
        if not 0 <= now_us - self._at_us < _DECAY_STEP_US:
            if not self._born_us:
                self._born_us = now_us
            elif now_us > self._at_us:
                decay = exp((self._at_us - now_us) / WINDOW_US)
                self._messages *= decay
                self._bytes *= decay
            self._at_us = now_us
        self._messages += messages
        self._bytes += size_bytes

    def rates(self, now_us: int) -> tuple[float, float]:
        """Return messages and bytes per second at `now_us`. For a young meter, its age is taken into account."""
        if not self._born_us:
            return 0.0, 0.0
        decay = exp(min(self._at_us - now_us, 0) / WINDOW_US)
        age_us = max(now_us - self._born_us, _AGE_US_MIN)
        per_second = decay * 1_000_000 / WINDOW_US / -expm1(-age_us / WINDOW_US)
        return self._messages * per_second, self._bytes * per_second


class Traffic:
    """Counts what was published to one partition since it was opened."""

    __slots__ = ("last_us", "meter", "published", "published_bytes", "throttled_s", "unheard")

    def __init__(self) -> None:
        self.published = 0
        self.published_bytes = 0
        self.unheard = 0
        """Messages published to a non-reliable topic while no consumer was attached."""
        self.throttled_s = 0.0
        """How long publishes waited for the publish rate."""
        self.last_us = 0
        """When something was last published or read."""
        self.meter = Meter()

    def mark(self, now_us: int, messages: int, size_bytes: int) -> None:
        """Count a batch that was published."""
        self.published += messages
        self.published_bytes += size_bytes
        self.last_us = now_us
        self.meter.mark(now_us, messages, size_bytes)
