"""The cursor of a subscription on one partition: which offsets are acknowledged, in any order.

It is in memory only. Every change is also written to the state ledger of the partition (`broker.partitions`), from
which the cursor is made again after a restart.

A seek starts a new *generation*. Acks and nacks name the generation of the delivery they belong to, and are ignored
unless it is the current one.

Invariants
    every offset below `position` is acknowledged
    no acknowledged range above `position` touches it
    the cost of an ack depends on the number of gaps, not on the number of messages
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .ranges import Range, RangeSet


class Cursor:
    """Everything below `position` is acknowledged, and so are the ranges in `acked`."""

    __slots__ = ("_ahead", "generation", "position")

    def __init__(self, position: int, acked: Iterable[Range] = (), generation: int = 0) -> None:
        self.position = position
        self.generation = generation
        self._ahead = RangeSet()
        for start, end in acked:
            self.ack(start, end)

    @property
    def acked(self) -> list[Range]:
        """The acknowledged ranges above `position`."""
        return self._ahead.ranges

    @property
    def gaps(self) -> int:
        """The number of unacknowledged gaps below the highest acknowledged offset."""
        return len(self._ahead)

    @property
    def acked_ahead(self) -> int:
        """The number of offsets acknowledged above `position`."""
        return self._ahead.count

    @property
    def end(self) -> int:
        """The offset after the highest acknowledged one."""
        return self._ahead.end if self._ahead.count else self.position

    def ack(self, start: int, end: int) -> int:
        """Mark [start, end) as acknowledged and return how many of these offsets were new."""
        start = max(start, self.position)
        if start >= end:
            return 0
        if not self._ahead and start == self.position:
            self.position = end
            return end - start
        added = self._ahead.add(start, end)
        self._advance_position()
        return added

    def ack_many(self, ranges: Sequence[Range]) -> int:
        """Mark all of `ranges` as acknowledged and return how many of these offsets were new."""
        if len(ranges) == 1:
            return self.ack(*ranges[0])
        added = self._ahead.update(ranges, lowest=self.position)
        self._advance_position()
        return added

    def move(self, position: int, generation: int) -> None:
        """Start again at `position` in a new generation; nothing from there on is acknowledged."""
        self.position = position
        self.generation = generation
        self._ahead.clear()

    def missing(self, start: int, end: int) -> list[Range]:
        """Return the ranges within [start, end) that are not acknowledged."""
        start = max(start, self.position)
        if not self._ahead:
            return [(start, end)] if start < end else []
        return self._ahead.outside(start, end)

    def is_acked(self, offset: int) -> bool:
        return offset < self.position or offset in self._ahead

    def next_missing(self, offset: int) -> int:
        """Return the lowest offset at or above `offset` that is not acknowledged."""
        offset = max(offset, self.position)
        if self._ahead and offset in self._ahead:
            return self._ahead.end_of(offset)
        return offset

    def _advance_position(self) -> None:
        """Move `position` over the first acknowledged range, if that range now begins there."""
        ahead = self._ahead
        if ahead and ahead.first <= self.position:
            self.position = ahead.first_end
            ahead.remove(ahead.first, ahead.first_end)
