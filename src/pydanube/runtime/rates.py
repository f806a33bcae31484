"""Limits a rate, as a token bucket that allows debt. The bucket only decides: its caller passes the time and does the
waiting, as `Pacer` does.

Tokens are added evenly, and at most BURST_S worth of them are saved up. A batch may go whenever the balance
is not negative, whatever its size; its whole size is taken off, and may leave the bucket in debt. The next batch then
waits until the debt is paid. So over any period the rate is exceeded by at most one burst and one batch.
"""

from __future__ import annotations

import math
from typing import Final

from .clock import Clock

BURST_S: Final = 0.1
"""How many seconds worth of tokens are saved up; enough for what arrives together in one turn of the event loop."""

LATE_S: Final = 0.05
"""Sleeps end some milliseconds late. Who sleeps between its own batches makes up for a delay up to this, or the rate
would never be reached; a longer one was a pause, and the unused part of the rate must not follow in one burst."""

PORTION_S: Final = 0.02
"""How many seconds worth a used-up rate allows at a time; smaller portions would cost more than they smooth."""


class Bucket:
    """The bucket of one rate. The caller passes the time, which never goes back."""

    __slots__ = ("_balance", "_fresh", "_saved_max", "_since", "per_s")

    def __init__(self, per_s: float, now: float, saved_s: float = BURST_S, fresh_s: float = BURST_S) -> None:
        """`fresh_s`: how many seconds worth of tokens there are at first, and after a longer pause than `saved_s`."""
        assert per_s > 0
        self.per_s = per_s
        self._balance = self._fresh = per_s * fresh_s
        self._saved_max = per_s * saved_s
        self._since = now

    def wait_s(self, now: float) -> float:
        """Return how long the next batch has to wait; 0 if it may go now."""
        self._refill(now)
        return max(0.0, -self._balance / self.per_s)

    def allowance(self, now: float) -> int:
        """Return how much may go now, for a caller that can choose the size."""
        self._refill(now)
        return max(1, int(self._balance), int(self.per_s * PORTION_S))

    def take(self, amount: int, now: float) -> None:
        """Take off what has gone."""
        self._refill(now)
        self._balance -= amount

    def admit(self, amount: int, now: float) -> float:
        """Take off what is about to go, and return how long its caller has to wait first."""
        wait_s = self.wait_s(now)
        self.take(amount, now)
        return wait_s

    def _refill(self, now: float) -> None:
        balance = self._balance + (now - self._since) * self.per_s
        self._balance = balance if balance <= self._saved_max else self._fresh
        self._since = now


class Pacer:
    """Keeps one caller to a rate of its own."""

    def __init__(self, per_s: float | None, clock: Clock) -> None:
        """`per_s` None or 0: there is no limit."""
        self._clock = clock
        self._bucket = Bucket(per_s, -math.inf, LATE_S, 0.0) if per_s else None

    async def take(self, amount: int) -> None:
        """Wait until this may go. Cancelled: it counts as gone."""
        if self._bucket is not None:
            await self._clock.sleep(self._bucket.admit(amount, self._clock.monotonic()))
