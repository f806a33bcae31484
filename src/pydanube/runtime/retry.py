"""Trying again, with a wait that is longer each time and has a random part.

The wait is a random number between half of the step and the whole step, so that a thousand clients of a restarted
broker do not come back at the same moment, and none of them comes back at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Self, TypeVar

from pydanube.model.errors import DanubeError

from .clock import Clock
from .randomness import seeded
from .tasks import ignore

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
GROWTH: Final = 2.0

JITTER: Final = seeded()
"""What the random parts of this process are drawn from. A simulation seeds it."""

T = TypeVar("T")


class RetryBackoff:
    """The waits between the attempts of one caller."""

    def __init__(self, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS, random: Random = JITTER) -> None:
        assert 0 < first <= longest
        self._random = random
        self._first = first
        self._longest = longest
        self._step = first

    @classmethod
    def within(cls, timeout: float) -> Self:
        """Return a backoff whose longest wait allows several attempts within `timeout` seconds."""
        longest = min(LONGEST_SECONDS, timeout / 5)
        return cls(min(FIRST_SECONDS, longest), longest)

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        step = self._step
        self._step = min(step * GROWTH, self._longest)
        return step * (0.5 + self._random.random() / 2)

    def reset(self) -> None:
        """Start again with the shortest wait, after a success."""
        self._step = self._first


async def until_done(
    attempt: Callable[[], Awaitable[T]],
    backoff: RetryBackoff,
    clock: Clock,
    failed: Callable[[DanubeError], object] = ignore,
    *,
    on: type[DanubeError] = DanubeError,
    tries: float = math.inf,
) -> T:
    """Call `attempt` until it succeeds, and return its result. `failed` is called with each error of the kind `on`;
    others, and that of the last of so many tries, are raised. Only time ends a wait, so do not
    use this where another event can make the attempt unnecessary.

    Cancelled, it stops trying.
    """
    while True:
        try:
            return await attempt()
        except on as error:
            failed(error)
            tries -= 1
            if tries <= 0:
                raise
        await clock.sleep(backoff.next())
