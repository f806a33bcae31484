"""How long to wait before trying again: longer each time, with a random part.

The wait is a random number between half of the step and the whole step, so that a thousand clients of a restarted
broker do not come back at the same moment, and none of them comes back at once.
"""

from __future__ import annotations

from random import Random
from typing import Final, Self

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
GROWTH: Final = 2.0


class RetryBackoff:
    """The waits between the attempts of one caller."""

    def __init__(self, random: Random, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        assert 0 < first <= longest
        self._random = random
        self._first = first
        self._longest = longest
        self._step = first

    @classmethod
    def within(cls, timeout: float, random: Random) -> Self:
        """Return a backoff whose longest wait allows several attempts within `timeout` seconds."""
        longest = min(LONGEST_SECONDS, timeout / 5)
        return cls(random, min(FIRST_SECONDS, longest), longest)

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        step = self._step
        self._step = min(step * GROWTH, self._longest)
        return step * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self._step = self._first
