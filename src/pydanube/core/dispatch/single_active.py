"""Exclusive and failover subscriptions: one active consumer gets everything, in order.

The dispatcher refuses a second name to exclusive. Failover lets others stand by: the consumer with the lowest priority
number is active, then the first by name. The partitions of a topic are spread over the consumers of equal priority.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from .in_flight import InFlightRanges
from .members import Member
from .policy import Assignment, OfferedBatch
from .ranges import Range


class SingleActivePolicy:
    """One active member, and for failover others that stand by."""

    delays = False
    cumulative = True
    by_key = False
    splits_batches = False
    held_back = 0
    unmatched = 0
    blocked_keys = 0

    def __init__(self, missing: Callable[[int, int], list[Range]], partition: int) -> None:
        self._partition = partition
        self._in_flight = InFlightRanges(missing)
        self._active: Member | None = None

    @property
    def active(self) -> Member | None:
        return self._active

    @property
    def can_receive(self) -> bool:
        return self._active is not None and self._active.can_receive

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        return self._elect(members)

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        return self._elect(members)

    def _elect(self, members: Collection[Member]) -> list[Range]:
        """Choose the active member. Return what is in flight to the former one, if another is active now."""
        former, self._active = self._active, None
        if members:
            first = min(member.priority for member in members)
            ranked = sorted((one for one in members if one.priority == first), key=lambda one: one.consumer)
            self._active = ranked[self._partition % len(ranked)]
        return [] if self._active is former else self._in_flight.take()

    def credited(self, member: Member) -> list[Range]:
        return []

    def assign(self, offered: OfferedBatch) -> tuple[list[Assignment], list[Range]]:
        member = self._active
        assert member is not None and member.can_receive
        rows = offered.rows
        self.assign_ranges(offered.ranges, rows, offered.bytes_of(rows))
        return [Assignment(member, offered.ranges)], []

    def assign_ranges(self, ranges: Sequence[Range], rows: int, size_bytes: int) -> None:
        """Assign `ranges`, which hold this many rows and bytes, to the active member."""
        assert self._active is not None
        self._in_flight.add(ranges)
        self._active.charge(rows, size_bytes)

    def drain_cost(self) -> float:
        return 0.0

    def acked(self, ranges: Sequence[Range], failed: Iterable[int]) -> list[Range]:
        return []

    def returned(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        self._in_flight.remove(ranges)
        return []

    def in_flight_to(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        return self._in_flight.within(ranges) if member in (None, self._active) else []

    def is_active(self, member: Member) -> bool:
        return member is self._active

    def unacked_of(self, member: Member) -> int:
        return self._in_flight.unacked if member is self._active else 0

    def clear(self) -> None:
        self._in_flight.take()
