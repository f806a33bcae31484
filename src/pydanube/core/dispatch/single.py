"""Exclusive and failover: one consumer gets everything, in order.

Exclusive refuses a second name. Failover lets others stand by; the first by priority, then by name, is active, and
the partitions of a topic take turns among the consumers of equal priority.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pydanube.model.errors import Refused

from .members import Dealt, Holding, Member, Offered
from .ranges import Range


class SinglePolicy:
    """One active member."""

    delays = False
    cumulative = True
    scatters = False
    held = 0
    unmatched = 0
    blocked_keys = 0

    def __init__(self, missing: Callable[[int, int], list[Range]], failover: bool, partition: int) -> None:
        self._failover = failover
        self._partition = partition
        self._holding = Holding(missing)
        self._active: Member | None = None

    @property
    def active(self) -> Member | None:
        return self._active

    @property
    def has_room(self) -> bool:
        return self._active is not None and self._active.has_room

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        if self._active not in (None, member) and not self._failover:
            raise Refused(
                f"the subscription is exclusive and held by consumer {self._active.consumer!r}: close that one, "
                f"use its name to take over, or another subscription"
            )
        return self._choose(members)

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        return self._choose(members)

    def _choose(self, members: Collection[Member]) -> list[Range]:
        former, self._active = self._active, None
        if members:
            first = min(member.priority for member in members)
            ranked = sorted((one for one in members if one.priority == first), key=lambda one: one.consumer)
            self._active = ranked[self._partition % len(ranked)]
        return [] if self._active is former else self._holding.take()

    def refreshed(self, member: Member) -> list[Range]:
        return []

    def deal(self, offered: Offered) -> tuple[list[Dealt], list[Range]]:
        member = self._active
        assert member is not None and member.has_room
        rows = offered.rows
        self.give(offered.ranges, rows, offered.bytes_of(rows))
        return [Dealt(member, offered.ranges)], []

    def give(self, ranges: Sequence[Range], rows: int, size_bytes: int) -> None:
        """The active member gets these."""
        assert self._active is not None
        self._holding.add(ranges)
        self._active.charge(rows, size_bytes)

    def take_work(self) -> float:
        return 0.0

    def settled(self, ranges: Sequence[Range], failed: Sequence[int]) -> list[Range]:
        return []

    def given_back(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        self._holding.remove(ranges)
        return []

    def held_by(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        return self._holding.within(ranges) if member in (None, self._active) else []

    def is_active(self, member: Member) -> bool:
        return member is self._active

    def unacked(self, member: Member) -> int:
        return self._holding.unsettled if member is self._active else 0

    def clear(self) -> None:
        self._holding.take()
