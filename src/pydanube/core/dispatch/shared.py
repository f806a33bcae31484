"""Shared: everybody with room gets as many messages as the others.

What there is to deal at a time makes a round: it is cut into as many stretches as there are consumers. A single batch
is cut into slices, so that small batches spread too; of many batches each consumer gets some that are whole, which
costs least. Who got one more than the others this time gets one less next time. 36 messages make 12 for each of three,
however they are batched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from .members import Dealt, Member, Offered, Turns, first_rows
from .owners import Owners
from .ranges import Range


class SharedPolicy:
    """Everybody with room takes part."""

    delays = True
    cumulative = False
    scatters = False
    held = 0
    unmatched = 0
    blocked_keys = 0

    def __init__(self, _missing: Callable[[int, int], list[Range]]) -> None:
        self._owners = Owners()
        self._turns = Turns()
        """Who gets one more than the others next time, first."""
        self._round: deque[tuple[Member, int]] = deque()
        """Who is still to get how many of what is being dealt."""

    @property
    def has_room(self) -> bool:
        return self._turns.has_room

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        self._turns.add(member)
        self._round.clear()
        return []

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        for member in gone:
            self._turns.discard(member)
        self._round.clear()
        taken, _ = self._owners.take([member.number for member in gone])
        return taken

    def refreshed(self, member: Member) -> list[Range]:
        self._turns.add(member)
        return []

    def deal(self, offered: Offered) -> tuple[list[Dealt], list[Range]]:
        rest, rows = offered.ranges, offered.rows
        dealt: dict[Member, list[Range]] = {}
        while rows and (turn := self._turn(rows + offered.following)) is not None:
            member, left = turn
            wanted = min(rows, left, member.messages)
            taken, rest = first_rows(rest, wanted)
            dealt.setdefault(member, []).extend(taken)
            member.charge(wanted, offered.bytes_of(wanted))
            rows -= wanted
            if wanted < left:
                self._round.appendleft((member, left - wanted))
        if rest or not offered.following:
            self._round.clear()
        for member, ranges in dealt.items():
            self._owners.give(member.number, ranges)
        return [Dealt(member, ranges) for member, ranges in dealt.items()], rest

    def _turn(self, rows: int) -> tuple[Member, int] | None:
        """Whose turn it is, and for how many; None when nobody has room. `rows` are left to be dealt."""
        while self._round:
            member, left = self._round.popleft()
            if member.has_room:
                return member, left
        open_now = self._turns.first(rows + 1)
        if not open_now:
            return None
        share, extra = divmod(rows, len(open_now))
        self._round.extend((member, share + 1) for member in open_now[:extra])
        if share:
            self._round.extend((member, share) for member in open_now[extra:])
        self._turns.to_the_end(open_now[:extra])  # who gets one more now gets one less next time
        return self._round.popleft()

    def take_work(self) -> float:
        return 0.0

    def settled(self, ranges: Sequence[Range], failed: Sequence[int]) -> list[Range]:
        self._owners.release(ranges)
        return []

    def given_back(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        self._owners.release(ranges)
        return []

    def held_by(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        return self._owners.held_by(None if member is None else member.number, ranges)

    def is_active(self, member: Member) -> bool:
        return True

    def unacked(self, member: Member) -> int:
        return self._owners.count.get(member.number, 0)

    def clear(self) -> None:
        self._owners.clear()
        self._round.clear()
