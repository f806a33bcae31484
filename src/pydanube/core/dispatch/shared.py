"""Shared: messages are dealt like cards, one after the other to the consumers that have room.

A batch is cut into as many slices as there are consumers, so that small batches spread too; who got one more than the
others this time gets one less next time. 36 messages make 12 for each of three, however they are batched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .members import Dealt, Member, Offered, first_rows
from .owners import Owners
from .ranges import Range


class Shared:
    """Everybody with room takes part."""

    delays = True
    cumulative = False
    held = 0
    unmatched = 0
    blocked_keys = 0

    def __init__(self, _missing: Callable[[int, int], list[Range]]) -> None:
        self._owners = Owners()
        self._order: list[Member] = []
        """Whose turn it is, first."""

    @property
    def has_room(self) -> bool:
        return any(member.has_room for member in self._order)

    def join(self, member: Member, members: Sequence[Member]) -> list[Range]:
        self._order.append(member)
        return []

    def leave(self, member: Member, members: Sequence[Member]) -> list[Range]:
        self._order.remove(member)
        taken, _ = self._owners.take(member.number)
        return taken

    def refreshed(self, member: Member) -> list[Range]:
        return []

    def deal(self, offered: Offered) -> tuple[list[Dealt], list[Range]]:
        rest, rows = offered.ranges, offered.rows
        dealt: dict[Member, list[Range]] = {}
        while rows:
            open_now = [member for member in self._order if member.has_room]
            if not open_now:
                break
            share, extra = divmod(rows, len(open_now))
            for place, member in enumerate(open_now):
                wanted = min(share + (place < extra), member.messages)
                if not wanted:
                    break
                taken, rest = first_rows(rest, wanted)
                dealt.setdefault(member, []).extend(taken)
                member.charge(wanted, offered.bytes_of(wanted))
                rows -= wanted
            self._next_turn(open_now[:extra])
        for member, ranges in dealt.items():
            self._owners.give(member.number, ranges)
        return [Dealt(member, ranges) for member, ranges in dealt.items()], rest

    def _next_turn(self, served: list[Member]) -> None:
        """Whoever got one more goes to the end."""
        if served:
            self._order = [member for member in self._order if member not in served] + served

    def settled(self, ranges: Sequence[Range], failed: Sequence[int]) -> list[Range]:
        self._owners.release(ranges)
        return []

    def given_back(self, offset: int, failed: bool) -> list[Range] | None:
        return None if self._owners.release_one(offset) is None else []

    def holds(self, member: Member, offset: int) -> bool:
        return self._owners.owner_of(offset) == member.number

    def is_active(self, member: Member) -> bool:
        return True

    def unacked(self, member: Member) -> int:
        return self._owners.count.get(member.number, 0)

    def clear(self) -> None:
        self._owners.clear()
