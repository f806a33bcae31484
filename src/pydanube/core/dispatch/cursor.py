"""A subscription's place in one partition: what it has settled, in any order.

Invariants
    every offset below `position` is acked
    the ranges above it are sorted, disjoint, not adjacent, and none touches `position`
    the cost of an ack depends on the number of gaps, not on the number of messages
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Range = tuple[int, int]


class Cursor:
    """Everything below `position`, and the ranges in `acked`, is settled."""

    __slots__ = ("_ends", "_starts", "position")

    def __init__(self, position: int, acked: Iterable[Range] = ()) -> None:
        self.position = position
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in acked:
            self.ack(start, end)

    @property
    def acked(self) -> list[Range]:
        """The settled ranges above `position`."""
        return list(zip(self._starts, self._ends, strict=True))

    @property
    def gaps(self) -> int:
        return len(self._starts)

    @property
    def acked_ahead(self) -> int:
        """Messages acked above `position`."""
        return sum(self._ends) - sum(self._starts)

    def ack(self, start: int, end: int) -> int:
        """Settle [start, end). Returns how many offsets were not settled before."""
        start = max(start, self.position)
        if start >= end:
            return 0
        if start == self.position and (not self._starts or end < self._starts[0]):
            self.position = end
            return end - start
        return self._merge(start, end)

    def ack_below(self, end: int) -> int:
        """Settle everything below `end`."""
        return self.ack(self.position, end)

    def move(self, position: int) -> None:
        """Start over at `position`: everything from there on is unsettled."""
        self.position = position
        self._starts.clear()
        self._ends.clear()

    def missing(self, start: int, end: int) -> list[Range]:
        """The unsettled ranges within [start, end)."""
        start = max(start, self.position)
        if not self._starts:
            return [(start, end)] if start < end else []
        ranges: list[Range] = []
        index = bisect_right(self._ends, start)
        while start < end:
            if index == len(self._starts) or self._starts[index] >= end:
                ranges.append((start, end))
                break
            if start < self._starts[index]:
                ranges.append((start, self._starts[index]))
            start = self._ends[index]
            index += 1
        return ranges

    def _merge(self, start: int, end: int) -> int:
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        already = 0
        if low < high:
            for index in range(low, high):
                already += min(self._ends[index], end) - max(self._starts[index], start)
            merged_start, merged_end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        else:
            merged_start, merged_end = start, end
        self._starts[low:high] = [merged_start]
        self._ends[low:high] = [merged_end]
        if merged_start <= self.position:
            assert low == 0
            self.position = merged_end
            del self._starts[0], self._ends[0]
        return end - start - already
