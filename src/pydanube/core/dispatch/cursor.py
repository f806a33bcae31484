"""A subscription's place in one partition: what it has settled, in any order.

A seek begins a new *generation*: acks and nacks name the generation of the delivery they settle, and count only while
it is the present one.

Invariants
    every offset below `position` is acked
    no range above it touches `position`
    the cost of an ack depends on the number of gaps, not on the number of messages
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .ranges import Range, RangeSet


class Cursor:
    """Everything below `position`, and the ranges in `acked`, is settled."""

    __slots__ = ("_ahead", "generation", "position")

    def __init__(self, position: int, acked: Iterable[Range] = (), generation: int = 0) -> None:
        self.position = position
        self.generation = generation
        self._ahead = RangeSet()
        for start, end in acked:
            self.ack(start, end)

    @property
    def acked(self) -> list[Range]:
        """The settled ranges above `position`."""
        return self._ahead.ranges

    @property
    def gaps(self) -> int:
        return len(self._ahead)

    @property
    def acked_ahead(self) -> int:
        """Messages acked above `position`."""
        return self._ahead.count

    @property
    def end(self) -> int:
        """Behind everything that is acked."""
        return self._ahead.end if self._ahead.count else self.position

    def ack(self, start: int, end: int) -> int:
        """Settle [start, end). Returns how many offsets were not settled before."""
        start = max(start, self.position)
        if start >= end:
            return 0
        if not self._ahead and start == self.position:
            self.position = end
            return end - start
        added = self._ahead.add(start, end)
        self._close_up()
        return added

    def ack_many(self, ranges: Sequence[Range]) -> int:
        """Settle all of these. Returns how many offsets were not settled before."""
        if len(ranges) == 1:
            return self.ack(*ranges[0])
        added = self._ahead.update(ranges, lowest=self.position)
        self._close_up()
        return added

    def ack_below(self, end: int) -> int:
        """Settle everything below `end`."""
        return self.ack(self.position, end)

    def move(self, position: int, generation: int) -> None:
        """Start over at `position`, under another generation: everything from there on is unsettled."""
        self.position = position
        self.generation = generation
        self._ahead.clear()

    def missing(self, start: int, end: int) -> list[Range]:
        """The unsettled ranges within [start, end)."""
        start = max(start, self.position)
        if not self._ahead:
            return [(start, end)] if start < end else []
        return self._ahead.outside(start, end)

    def is_settled(self, offset: int) -> bool:
        return offset < self.position or offset in self._ahead

    def next_missing(self, offset: int) -> int:
        """The lowest offset from this one on that is not settled."""
        offset = max(offset, self.position)
        if self._ahead and offset in self._ahead:
            return self._ahead.end_of(offset)
        return offset

    def _close_up(self) -> None:
        ahead = self._ahead
        if ahead and ahead.first <= self.position:
            self.position = ahead.first_end
            ahead.remove(ahead.first, ahead.first_end)
