"""How long to wait before trying again: longer each time, never the same for everybody.

The wait is drawn between half of the step and the whole of it, so that a thousand clients of a restarted broker do not
come back in one moment, and none of them comes back at once.
"""

from __future__ import annotations

from random import Random
from typing import Final, Self

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
GROWTH: Final = 2.0


class RetryBackoff:
    """The waits of one who keeps trying."""

    def __init__(self, random: Random, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        assert 0 < first <= longest
        self._random = random
        self._first = first
        self._longest = longest
        self._step = first

    @classmethod
    def within(cls, timeout: float, random: Random) -> Self:
        """Waits that leave several tries within `timeout` seconds, however long it has been failing before."""
        longest = min(LONGEST_SECONDS, timeout / 5)
        return cls(random, min(FIRST_SECONDS, longest), longest)

    def next(self) -> float:
        """Seconds to wait now."""
        step = self._step
        self._step = min(step * GROWTH, self._longest)
        return step * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """It worked: the next failure starts from the beginning."""
        self._step = self._first
