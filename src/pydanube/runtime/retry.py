"""Trying again, with a wait that is longer each time and has a random part.

The wait is a random number between half of the step and the whole step, so that a thousand clients of a restarted
broker do not come back at the same moment, and none of them comes back at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Self, TypeVar

from pydanube.model.errors import DanubeError

from .clock import Clock

FIRST_SECONDS: Final = 0.05
LONGEST_SECONDS: Final = 1.0
GROWTH: Final = 2.0

T = TypeVar("T")


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


async def until_done(
    attempt: Callable[[], Awaitable[T]], backoff: RetryBackoff, clock: Clock, failed: Callable[[DanubeError], None]
) -> T:
    """Call `attempt` until it succeeds, and return its result. `failed` is called with the error of each attempt that
    did not; a wait is ended by nothing but time, so this is for attempts that nobody else can make superfluous.

    Cancelled, it stops trying.
    """
    while True:
        try:
            return await attempt()
        except DanubeError as error:
            failed(error)
        await clock.sleep(backoff.next())
