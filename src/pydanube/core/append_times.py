"""An estimate of when the messages of a partition were appended, by offset, without reading the log.

It is a curve of append time by offset: points with straight lines between them. A batch costs one comparison. A point
is added each time the step has passed since the last one. If there are too many points, every second one is dropped and
the step is doubled.

Invariants
    offsets ascend, and times never fall
    there are at most POINTS_MAX points, which bounds the memory
    between two points the error is less than the time between them
    offsets before the first point have its time: they may be older
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

POINTS_MAX: Final = 512
FIRST_STEP_US: Final = 1_000_000


class AppendTimes:
    """The estimated append times of one partition, in microseconds since 1970."""

    __slots__ = ("_last_offset", "_last_us", "_next_us", "_offsets", "_step_us", "_times")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._step_us = FIRST_STEP_US
        self._next_us = 0
        """A batch that is appended at this time or later becomes a point."""
        self._last_offset = 0
        self._last_us = 0

    def add(self, base: int, time_us: int) -> None:
        """Note that the batch which begins at offset `base` was appended at `time_us`. Called in the order of
        offsets."""
        self._last_offset = base
        self._last_us = time_us
        if time_us >= self._next_us:
            self._add_point(base, time_us)

    def at(self, offset: int) -> int:
        """Return about when the message at `offset` was appended; 0 if nothing is known."""
        index = bisect_right(self._offsets, offset) - 1
        if index < 0:
            return self._times[0] if self._times else 0
        low, low_us = self._offsets[index], self._times[index]
        if index + 1 < len(self._offsets):
            high, high_us = self._offsets[index + 1], self._times[index + 1]
        else:
            high, high_us = self._last_offset, self._last_us
        if offset >= high:
            return high_us
        return low_us + (high_us - low_us) * (offset - low) // (high - low)

    def trim(self, start: int) -> None:
        """Drop the points that are not needed for offsets from `start` on."""
        index = max(0, bisect_right(self._offsets, start) - 1)
        del self._offsets[:index], self._times[:index]

    def _add_point(self, base: int, time_us: int) -> None:
        if self._offsets and base <= self._offsets[-1]:
            return
        self._offsets.append(base)
        self._times.append(max(time_us, self._times[-1] if self._times else 0))
        if len(self._offsets) > POINTS_MAX:
            self._step_us *= 2
            # The first point is kept, because nothing is known about offsets before it.
            del self._offsets[1:-1:2], self._times[1:-1:2]
        self._next_us = time_us + self._step_us
