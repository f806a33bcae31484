"""Histograms with fixed buckets: one search and two additions for each value.

A histogram has one writer. Others may read it at any time, also in another thread: the numbers they get may be one
value apart from each other, and never go back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

LATENCY_US: Final = (
    *(100, 250, 500),
    *(1_000, 2_500, 5_000),
    *(10_000, 25_000, 50_000),
    *(100_000, 250_000, 500_000),
    *(1_000_000, 2_500_000, 5_000_000),
    *(10_000_000, 30_000_000),
)
"""Buckets for times that should be milliseconds, in microseconds."""

AGE_US: Final = (*LATENCY_US, 60_000_000, 300_000_000, 3_600_000_000)
"""Buckets for times that may also be hours: what was waiting for its consumer."""


class Histogram:
    """Counts values by bucket: `counts[i]` are those up to `bounds[i]` and above the bound before it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        assert list(bounds) == sorted(set(bounds)), "the bounds of a histogram rise"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        """The sum of all values."""

    def observe(self, value: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[int]:
        """Return for each bound how many values were not above it, and at last how many there were."""
        return list(accumulate(self.counts))
