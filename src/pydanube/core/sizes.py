"""An estimate of how many bytes lie between two offsets of a partition, without reading the log.

It is a curve of total bytes by offset: points with straight lines between them. A batch costs one addition. A point is
added each time the bytes since the last one reach the step. If there are too many points, every second one is dropped
and the step is doubled.

Invariants
    offsets and totals of the points ascend
    there are at most POINTS_MAX points, which bounds the memory
    over all offsets the result is exact; over a part of them, the error at either end is less than the step was when
    the points there were added
    points of trimmed offsets are dropped: the step depends on what is stored, not on what was ever published
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

POINTS_MAX: Final = 1024
FIRST_STEP_BYTES: Final = 64 * 1024


class Sizes:
    """The estimated bytes of one partition, by offset."""

    __slots__ = ("_bytes", "_end", "_offsets", "_step", "_totals")

    def __init__(self, start: int) -> None:
        self._offsets = [start]
        self._totals = [0]
        self._step = FIRST_STEP_BYTES
        self._end = start
        self._bytes = 0

    def add(self, base: int, end: int, size_bytes: int) -> None:
        """Count a batch that was stored at [base, end). Offsets between the last batch and this one have no bytes."""
        if base != self._end:
            self._add_point()
            self._end = base
            self._add_point()
        elif size_bytes >= self._step:
            self._add_point()  # otherwise the small batches before it would be estimated to be as large
        self._end = end
        self._bytes += size_bytes
        if self._bytes - self._totals[-1] >= self._step:
            self._add_point()

    def between(self, start: int, end: int) -> int:
        """Return about how many bytes are stored in [start, end)."""
        return round(max(0.0, self._total_at(end) - self._total_at(start)))

    def start_of_last(self, size_bytes: int, end: int) -> int:
        """Return the lowest offset from which on there are about `size_bytes`, and not more, up to `end`."""
        wanted = self._total_at(end) - size_bytes
        if wanted <= self._totals[0]:
            return self._offsets[0]
        if size_bytes <= 0:
            return end
        index = bisect_right(self._totals, wanted) - 1
        offset, total = self._offsets[index], self._totals[index]
        next_offset, next_total = self._point(index + 1)
        if next_total <= total:
            return min(end, next_offset)
        step = (wanted - total) * (next_offset - offset) / (next_total - total)
        return min(end, offset + -int(-step // 1))

    def trim(self, start: int) -> None:
        """Drop the points below `start`."""
        index = max(0, bisect_right(self._offsets, start) - 1)
        del self._offsets[:index], self._totals[:index]
        while self._step > FIRST_STEP_BYTES and self._bytes - self._totals[0] < self._step * POINTS_MAX // 4:
            self._step //= 2

    def _total_at(self, offset: int) -> float:
        index = bisect_right(self._offsets, offset) - 1
        if index < 0:
            return self._totals[0]
        low, low_total = self._offsets[index], self._totals[index]
        high, high_total = self._point(index + 1)
        if offset >= high:
            return high_total
        return low_total + (high_total - low_total) * (offset - low) / (high - low)

    def _point(self, index: int) -> tuple[int, int]:
        """Return the point with this index; after the last one comes the present end of the curve."""
        if index < len(self._offsets):
            return self._offsets[index], self._totals[index]
        return self._end, self._bytes

    def _add_point(self) -> None:
        if self._end == self._offsets[-1]:
            return
        self._offsets.append(self._end)
        self._totals.append(self._bytes)
        if len(self._offsets) > POINTS_MAX:
            self._step *= 2
            # The first point is kept, because nothing is known about offsets before it.
            del self._offsets[1:-1:2], self._totals[1:-1:2]
