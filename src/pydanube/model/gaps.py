"""Gaps: offsets of a partition that have no message, and counting messages across them.

A crash of a `written` topic and a restore leave a block of offsets unused: `end_offset - start_offset` is then more
than the number of messages. Code that counts messages between two offsets, or moves by a number of messages, uses
`Gaps`.

Invariants
    the ranges [start, end) ascend, none is empty, and none touches the next
    every offset of the partition outside of them has a message
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

OffsetSpan = tuple[int, int]
"""[start, end)"""


class Gaps:
    """The gaps of one partition. Immutable."""

    __slots__ = ("_before", "_ends", "_starts")

    def __init__(self, ranges: Iterable[OffsetSpan] = ()) -> None:
        """`ranges` may be in any order, and may overlap."""
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted(ranges):
            if start >= end:
                continue
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        self._starts = starts
        self._ends = ends
        self._before = [0, *accumulate(end - start for start, end in zip(starts, ends, strict=True))]
        """How many offsets are missing before each gap; the last is the total."""

    @classmethod
    def outside(cls, stored: Iterable[OffsetSpan], start: int, end: int) -> Gaps:
        """Return the gaps: the parts of [start, end) that lie in none of the `stored` ranges."""
        return cls(cls(stored).existing(start, end))

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gaps) and (self._starts, self._ends) == (other._starts, other._ends)

    def __hash__(self) -> int:
        return hash((tuple(self._starts), tuple(self._ends)))

    def __repr__(self) -> str:
        return f"Gaps({self.ranges})"

    @property
    def ranges(self) -> list[OffsetSpan]:
        return list(zip(self._starts, self._ends, strict=True))

    def within(self, start: int, end: int) -> list[OffsetSpan]:
        """Return the parts of the gaps in [start, end)."""
        if not self._starts:
            return []
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end, lo=low)
        return [(max(start, self._starts[one]), min(end, self._ends[one])) for one in range(low, high)]

    def existing(self, start: int, end: int) -> list[OffsetSpan]:
        """Return the parts of [start, end) that are not in a gap."""
        found: list[OffsetSpan] = []
        for gap_start, gap_end in self.within(start, end):
            if start < gap_start:
                found.append((start, gap_start))
            start = gap_end
        if start < end:
            found.append((start, end))
        return found

    def missing(self, start: int, end: int) -> int:
        """Return how many offsets of [start, end) hold no message."""
        if not self._starts or start >= end:
            return 0
        return self._missing_below(end) - self._missing_below(start)

    def messages(self, start: int, end: int) -> int:
        """Return how many offsets of [start, end) hold a message."""
        return max(0, end - start - self.missing(start, end))

    def skip(self, offset: int) -> int:
        """Return `offset` or, if it lies in a gap, the end of that gap."""
        index = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def rewind(self, offset: int) -> int:
        """Return `offset` or, if it lies in a gap or at the end of one, the start of that gap. The messages below are
        the same."""
        index = bisect_left(self._starts, offset) - 1
        return self._starts[index] if index >= 0 and offset <= self._ends[index] else offset

    def forward(self, start: int, messages: int) -> int:
        """Return the end offset of the first `messages` messages from `start` on; a gap behind them is not included."""
        if messages <= 0:
            return start
        for gap_start, gap_end in self.ranges[bisect_right(self._ends, start) :]:
            if messages <= gap_start - start:
                break
            messages -= max(0, gap_start - start)
            start = max(start, gap_end)
        return start + messages

    def back(self, end: int, messages: int) -> int:
        """Return the offset of the first of the last `messages` messages before `end`; below 0 if there are fewer."""
        if messages <= 0:
            return end
        for gap_start, gap_end in reversed(self.ranges[: bisect_left(self._starts, end)]):
            if messages <= end - gap_end:
                break
            messages -= max(0, end - gap_end)
            end = min(end, gap_start)
        return end - messages

    def largest(self, count: int) -> Gaps:
        if len(self) <= count:
            return self
        return Gaps(sorted(self.ranges, key=lambda one: one[0] - one[1])[:count])

    def _missing_below(self, offset: int) -> int:
        index = bisect_right(self._starts, offset)
        missing = self._before[index]
        return missing - max(0, self._ends[index - 1] - offset) if index else 0


NO_GAPS = Gaps()
