"""Decides when the next slice leaves, and which slices count.

What `stored` partitions append is gathered into slices, which are numbered without a gap. Several may be on their way
to the object store at once, and they may arrive in any order.

Invariants
    a slice counts only when it and every slice before it are stored: counted_end <= the lowest number in flight
    a number is given out once, and what is in it never changes
    nothing at or behind the number of a marker ever counts
"""

from __future__ import annotations

from math import inf

from pydanube.model.settings.sections import SliceSettings


class SliceSequence:
    """The slices of one incarnation of a broker. Times are of one monotonic clock."""

    def __init__(self, settings: SliceSettings) -> None:
        self._settings = settings
        self.next_number = 0
        """The number of the slice that is being gathered."""
        self.counted_end = 0
        """Every slice below it counts."""
        self.end: int | None = None
        """The number of the marker, once the sequence is sealed."""
        self._gathered_bytes = 0
        self._deadline = inf
        """When what is gathered must leave, if nothing lets it leave before."""
        self._in_flight: dict[int, int] = {}
        """Sizes by number."""
        self._stored: dict[int, int] = {}
        """Stored behind a slice that is not: sizes by number."""
        self._left_at = -inf

    @property
    def waiting_bytes(self) -> int:
        """The bytes that are gathered or do not count yet."""
        return self._gathered_bytes + sum(self._in_flight.values()) + sum(self._stored.values())

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def has_room(self, size: int) -> bool:
        """Return whether a record of this size may be added. One is always taken when nothing waits."""
        waiting = self.waiting_bytes
        return self.end is None and (not waiting or waiting + size <= self._settings.waiting_bytes_max)

    def add(self, size: int, leaves_by: float) -> int:
        """Gather a record; return the number of its slice. It leaves at `leaves_by` at the latest, if there is room."""
        assert self.end is None, "nothing is added to a sealed sequence"
        self._gathered_bytes += size
        self._deadline = min(self._deadline, leaves_by)
        return self.next_number

    def due_at(self) -> float:
        """Return when the gathered slice may leave; infinite while nothing is gathered or there is no room."""
        if not self._gathered_bytes or self.end is not None or len(self._in_flight) >= self._settings.in_flight_max:
            return inf
        if self._gathered_bytes >= self._settings.slice_bytes:
            return -inf
        if not self._in_flight:
            return self._deadline
        return max(self._deadline, self._left_at + self._settings.interval_ms / 1000)

    def take(self, now: float) -> int:
        """Let the gathered slice leave, and return its number."""
        assert self._gathered_bytes and self.end is None
        number = self.next_number
        self._in_flight[number] = self._gathered_bytes
        self._gathered_bytes, self._deadline, self._left_at = 0, inf, now
        self.next_number += 1
        return number

    def stored(self, number: int) -> range:
        """Take note that a slice is stored; return the numbers that count from now on, in order."""
        self._stored[number] = self._in_flight.pop(number)
        first = self.counted_end
        if self.end is None:
            while self._stored.pop(self.counted_end, None) is not None:
                self.counted_end += 1
        assert self.counted_end <= min(self._in_flight, default=self.next_number)
        return range(first, self.counted_end)

    def sealed(self, number: int) -> None:
        """Take note that there is a marker at this number: nothing more counts than what is stored before it."""
        assert number >= self.counted_end, "what counted was not sealed away"
        self.end = number
