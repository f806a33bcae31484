"""Shared subscriptions: every consumer that can receive gets about the same number of messages.

The messages that can be delivered now make up a round, which is cut into as many shares as there are consumers. A
single batch is cut into slices, so that small batches are spread too. Of many batches each consumer gets some whole
ones, which costs least. A consumer that got one message more than the others is served last in the next round. 36
messages are 12 for each of three consumers, however they are batched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from .in_flight import InFlightTable
from .members import Member, RoundRobin
from .policy import Assignment, OfferedBatch
from .ranges import Range, split_first


class SharedPolicy:
    """Every member that can receive takes part."""

    delays = True
    cumulative = False
    by_key = False
    splits_batches = False
    held_back = 0
    unmatched = 0
    blocked_keys = 0

    def __init__(self) -> None:
        self._in_flight = InFlightTable()
        self._order = RoundRobin()
        """The first members get the odd messages of the next round."""
        self._round: deque[tuple[Member, int]] = deque()
        """The shares of the current round that are not assigned yet."""

    @property
    def can_receive(self) -> bool:
        return self._order.can_receive

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        self._order.add(member)
        self._round.clear()
        return []

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        for member in gone:
            self._order.discard(member)
        self._round.clear()
        taken, _ = self._in_flight.take([member.number for member in gone])
        return taken

    def credited(self, member: Member) -> list[Range]:
        self._order.add(member)
        return []

    def assign(self, offered: OfferedBatch) -> tuple[list[Assignment], list[Range]]:
        rest, rows = offered.ranges, offered.rows
        assigned: dict[Member, list[Range]] = {}
        while rows and (share := self._next_share(rows + offered.following)) is not None:
            member, left = share
            count = min(rows, left, member.messages)
            taken, rest = split_first(rest, count)
            assigned.setdefault(member, []).extend(taken)
            member.charge(count, offered.bytes_of(count))
            rows -= count
            if count < left:
                self._round.appendleft((member, left - count))
        if rest or not offered.following:
            self._round.clear()
        if not offered.once:  # else they are acknowledged at once
            for member, ranges in assigned.items():
                self._in_flight.add(member.number, ranges)
        return [Assignment(member, ranges) for member, ranges in assigned.items()], rest

    def _next_share(self, rows: int) -> tuple[Member, int] | None:
        """Return the member to serve next and the number of messages it gets; None if no member can receive.

        `rows` messages are left: if the round is over, they make up the next one.
        """
        while self._round:
            member, left = self._round.popleft()
            if member.can_receive:
                return member, left
        members = self._order.first(rows + 1)
        if not members:
            return None
        share, extra = divmod(rows, len(members))
        self._round.extend((member, share + 1) for member in members[:extra])
        if share:
            self._round.extend((member, share) for member in members[extra:])
        self._order.move_to_end(members[:extra])  # they got one message more, so that others do in the next round
        return self._round.popleft()

    def drain_cost(self) -> float:
        return 0.0

    def acked(self, ranges: Sequence[Range], failed: Iterable[int]) -> list[Range]:
        self._in_flight.remove(ranges)
        return []

    def returned(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        self._in_flight.remove(ranges)
        return []

    def in_flight_to(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        return self._in_flight.within(None if member is None else member.number, ranges)

    def is_active(self, member: Member) -> bool:
        return True

    def unacked_of(self, member: Member) -> int:
        return self._in_flight.count.get(member.number, 0)

    def clear(self) -> None:
        self._in_flight.clear()
        self._round.clear()
