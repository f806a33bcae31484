"""A set of offsets, stored as ranges: costs depend on the number of gaps, never on the number of offsets.

Invariants
    the ranges [start, end) are sorted, disjoint, and none touches the next
    `count` is the number of offsets in them
    removing from the front is cheap, however many ranges there are
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, overload

import numpy as np

Range = tuple[int, int]
IntArray = np.ndarray[Any, np.dtype[np.int64]]

_COMPACT_AFTER: Final = 1024
_MANY: Final = 48
"""From this number on, ranges are merged together instead of one by one."""
_FAR_MORE: Final = 64
"""Ranges are merged one by one after all if this many times as many ranges of the set lie between them: merging them
together would process those too."""


class RangeSet:
    """A set of offsets, stored as ranges."""

    __slots__ = ("_ends", "_first", "_starts", "count")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._first = 0
        """The index of the first range: those before it were removed, see `_compact`."""
        self.count = 0
        for start, end in ranges:
            self.add(start, end)

    def __bool__(self) -> bool:
        return self.count > 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts) - self._first

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset, lo=self._first) - 1
        return index >= self._first and offset < self._ends[index]

    def end_of(self, offset: int) -> int:
        """Return the end of the range that holds `offset`."""
        return self._ends[bisect_right(self._starts, offset, lo=self._first) - 1]

    @property
    def first(self) -> int:
        """The lowest offset. The set must not be empty."""
        return self._starts[self._first]

    @property
    def first_end(self) -> int:
        """The end of the lowest range."""
        return self._ends[self._first]

    @property
    def end(self) -> int:
        """The offset after the highest one. The set must not be empty."""
        return self._ends[-1]

    @property
    def ranges(self) -> list[Range]:
        return list(zip(self._starts[self._first :], self._ends[self._first :], strict=True))

    def add(self, start: int, end: int) -> int:
        """Add [start, end) and return how many of these offsets are new."""
        if start >= end:
            return 0
        starts, ends = self._starts, self._ends
        if not self.count or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            self.count += end - start
            return end - start
        low = bisect_left(ends, start, lo=self._first)
        high = bisect_right(starts, end, lo=self._first)
        if high == low == self._first > 0:  # before all ranges, where others were removed
            self._first = low = low - 1
            starts[low], ends[low] = start, end
            added = end - start
        elif high == low + 1:
            already = ends[low] - starts[low]
            starts[low], ends[low] = min(start, starts[low]), max(end, ends[low])
            added = ends[low] - starts[low] - already
        else:
            already = sum(ends[low:high]) - sum(starts[low:high])
            if low < high:
                start, end = min(start, starts[low]), max(end, ends[high - 1])
            starts[low:high], ends[low:high] = [start], [end]
            added = end - start - already
        self.count += added
        return added

    def update(self, ranges: Sequence[Range], lowest: int = 0) -> int:
        """Add all of `ranges`, except what is below `lowest`, and return how many of these offsets are new."""
        if len(ranges) < _MANY:
            return sum([self.add(max(start, lowest), end) for start, end in ranges])
        starts, ends = bounds(ranges)
        starts = np.maximum(starts, lowest)
        real = starts < ends
        if not real.all():
            starts, ends = starts[real], ends[real]
            if not len(starts):
                return 0
        low = bisect_left(self._ends, int(starts.min()), lo=self._first)
        high = bisect_right(self._starts, int(ends.max()), lo=self._first)
        if high - low > _FAR_MORE * len(ranges):
            return sum([self.add(max(start, lowest), end) for start, end in ranges])
        already = sum(self._ends[low:high]) - sum(self._starts[low:high])
        if low < high:
            starts = np.concatenate((starts, self._starts[low:high]))
            ends = np.concatenate((ends, self._ends[low:high]))
        merged_starts, merged_ends = _merge(starts, ends)
        self._starts[low:high], self._ends[low:high] = merged_starts.tolist(), merged_ends.tolist()
        added = int((merged_ends - merged_starts).sum()) - already
        self.count += added
        return added

    def remove(self, start: int, end: int) -> int:
        """Remove [start, end) and return how many of these offsets were in the set."""
        if not self.count or start >= end:
            return 0
        starts, ends, first = self._starts, self._ends, self._first
        low = bisect_right(ends, start, lo=first)
        high = bisect_left(starts, end, lo=low)
        if low >= high:
            return 0
        removed = sum(ends[low:high]) - sum(starts[low:high])
        left = (starts[low], start) if starts[low] < start else None
        right = (end, ends[high - 1]) if ends[high - 1] > end else None
        kept = [one for one in (left, right) if one is not None]
        removed -= sum(stop - begin for begin, stop in kept)
        if low == first and left is None:
            if right is not None:
                high -= 1
                starts[high] = end
            self._first = high
            self._compact()
        else:
            starts[low:high], ends[low:high] = [begin for begin, _ in kept], [stop for _, stop in kept]
        self.count -= removed
        return removed

    def subtract(self, ranges: Sequence[Range]) -> None:
        """Remove all of `ranges`, which are ascending and do not overlap."""
        if not self.count or not ranges:
            return
        low = bisect_right(self._ends, ranges[0][0], lo=self._first)
        high = bisect_left(self._starts, ranges[-1][1], lo=low)
        if len(ranges) < _MANY or high - low > _FAR_MORE * len(ranges):
            for start, end in ranges:
                self.remove(start, end)
            return
        starts, ends = np.array(self._starts[low:high], np.int64), np.array(self._ends[low:high], np.int64)
        left_starts, left_ends = _difference(starts, ends, *bounds(ranges))
        self._starts[low:high], self._ends[low:high] = left_starts.tolist(), left_ends.tolist()
        self.count -= int((ends - starts).sum()) - int((left_ends - left_starts).sum())

    def take(self) -> list[Range]:
        """Remove and return everything."""
        ranges = self.ranges
        self.clear()
        return ranges

    def take_first(self, offsets: int) -> list[Range]:
        """Remove and return the lowest offsets, as many as `offsets` says."""
        if offsets >= self.count:
            return self.take()
        taken: list[Range] = []
        while offsets > 0:
            start, end = self.first, min(self.first_end, self.first + offsets)
            self.remove(start, end)
            taken.append((start, end))
            offsets -= end - start
        return taken

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
        self._first = self.count = 0

    def within(self, start: int, end: int) -> list[Range]:
        """Return the offsets of the set in [start, end)."""
        low = bisect_right(self._ends, start, lo=self._first)
        high = bisect_left(self._starts, end, lo=low)
        if low >= high:
            return []
        ranges = list(zip(self._starts[low:high], self._ends[low:high], strict=True))
        ranges[0] = (max(start, ranges[0][0]), ranges[0][1])
        ranges[-1] = (ranges[-1][0], min(end, ranges[-1][1]))
        return ranges

    def outside(self, start: int, end: int) -> list[Range]:
        """Return the part of [start, end) that is not in the set."""
        gaps: list[Range] = []
        for begin, stop in self.within(start, end):
            if start < begin:
                gaps.append((start, begin))
            start = stop
        if start < end:
            gaps.append((start, end))
        return gaps

    def _compact(self) -> None:
        if self._first > _COMPACT_AFTER and self._first * 2 > len(self._starts):
            del self._starts[: self._first], self._ends[: self._first]
            self._first = 0


class RangeArray(Sequence[Range]):
    """Many ranges as two arrays, starts and ends, so that numpy processes all of them together."""

    __slots__ = ("ends", "starts")

    def __init__(self, starts: IntArray, ends: IntArray) -> None:
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[Range]:
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    @overload
    def __getitem__(self, place: int) -> Range: ...

    @overload
    def __getitem__(self, place: slice) -> RangeArray: ...

    def __getitem__(self, place: int | slice) -> Range | RangeArray:
        if isinstance(place, slice):
            return RangeArray(self.starts[place], self.ends[place])
        return int(self.starts[place]), int(self.ends[place])

    @property
    def is_merged(self) -> bool:
        """Whether the ranges are ascending, not empty, and do not touch each other."""
        return bool((self.starts[1:] > self.ends[:-1]).all() and (self.starts < self.ends).all())

    def below(self, end: int) -> RangeArray:
        """Return the part of the ranges below `end`."""
        if int(self.ends.max(initial=0)) <= end:
            return self
        ends = np.minimum(self.ends, end)
        real = self.starts < ends
        return RangeArray(self.starts[real], ends[real])


def merged(ranges: Sequence[Range]) -> Sequence[Range]:
    """Return the same offsets as ascending ranges that do not touch each other."""
    if len(ranges) == 1 and ranges[0][0] < ranges[0][1]:
        return ranges
    if isinstance(ranges, RangeArray) and ranges.is_merged:
        return ranges
    union_set = RangeSet()
    union_set.update(ranges)
    return union_set.ranges


def union(many: Sequence[RangeArray]) -> RangeArray:
    """Return the offsets of all arrays as ascending ranges that do not touch each other."""
    starts = np.concatenate([one.starts for one in many])
    return RangeArray(*_merge(starts, np.concatenate([one.ends for one in many])))


def _merge(starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Return the same offsets as ascending ranges that do not touch each other. There must be at least one range, and
    none may be empty."""
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
    ends = np.maximum.accumulate(ends)
    opens = np.flatnonzero(starts[1:] > ends[:-1])
    first, last = np.zeros(len(opens) + 1, np.int64), np.empty(len(opens) + 1, np.int64)
    np.add(opens, 1, out=first[1:])
    last[:-1], last[-1] = opens, len(ends) - 1
    return starts[first], ends[last]


def _difference(starts: IntArray, ends: IntArray, from_: IntArray, to: IntArray) -> tuple[IntArray, IntArray]:
    """Return what is in the first ranges and not in the second.

    All bounds of both are sorted. A running sum over them tells for each stretch between two bounds in which of both it
    lies.
    """
    points = np.concatenate((starts, ends, from_, to))
    order = np.argsort(points, kind="stable")
    here, there = np.zeros(len(points), np.int64), np.zeros(len(points), np.int64)
    here[: len(starts)], here[len(starts) : 2 * len(starts)] = 1, -1
    there[2 * len(starts) : 2 * len(starts) + len(from_)], there[2 * len(starts) + len(from_) :] = 1, -1
    points = points[order]
    kept = (np.cumsum(here[order])[:-1] == 1) & (np.cumsum(there[order])[:-1] == 0) & (points[1:] > points[:-1])
    return points[:-1][kept], points[1:][kept]


def runs(offsets: IntArray) -> list[Range]:
    """Return ascending offsets as ranges."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(offsets[1:] - offsets[:-1] != 1)
    starts = offsets[np.concatenate(([0], breaks + 1))]
    ends = offsets[np.concatenate((breaks, [len(offsets) - 1]))] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def spread(ranges: Sequence[Range]) -> IntArray:
    """Return the single offsets in these ranges."""
    if len(ranges) == 1:
        return np.arange(*ranges[0])
    return spread_bounds(*bounds(ranges))


def spread_bounds(starts: IntArray, ends: IntArray) -> IntArray:
    """Return the single offsets in the ranges with these starts and ends."""
    lengths = np.maximum(ends - starts, 0)
    if (lengths == 1).all():
        return starts
    before = np.cumsum(lengths)
    offsets: IntArray = np.arange(int(before[-1])) + np.repeat(starts - (before - lengths), lengths)
    return offsets


def bounds(ranges: Sequence[Range]) -> tuple[IntArray, IntArray]:
    """Return the starts and the ends of the ranges."""
    if isinstance(ranges, RangeArray):
        return ranges.starts, ranges.ends
    both = np.fromiter(chain.from_iterable(ranges), np.int64, 2 * len(ranges))
    return both[::2], both[1::2]


def split_first(ranges: Sequence[Range], offsets: int) -> tuple[list[Range], list[Range]]:
    """Divide the ranges into the first `offsets` offsets and the rest."""
    first: list[Range] = []
    for index, (start, end) in enumerate(ranges):
        if offsets < end - start:
            if offsets:
                first.append((start, start + offsets))
            return first, [(start + offsets, end), *ranges[index + 1 :]]
        first.append((start, end))
        offsets -= end - start
    return first, []


def clip(ranges: Sequence[Range], end: int) -> Sequence[Range]:
    """Return the part of the ranges below `end`: nearly always all of them, which needs no loop."""
    if isinstance(ranges, RangeArray):
        return ranges.below(end)
    if max(map(itemgetter(1), ranges), default=0) <= end:
        return list(ranges)
    return [(start, min(stop, end)) for start, stop in ranges if start < end]
