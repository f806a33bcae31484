"""The consumers of a subscription, and what is dealt to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from pydanube.codec.batch import Batch

from .ranges import IntArray, Range, RangeSet, spread

_numbers = count(1)


@dataclass(slots=True, eq=False)
class Member:
    """One consumer's hold on the subscription, with the credit it has left."""

    consumer: str
    priority: int = 0
    key_filters: Sequence[str] = ()
    messages: int = 0
    bytes: int = 0
    paused: bool = False
    estimated_bytes: int = 0
    """Of what it was charged, what nobody has weighed yet."""
    number: int = field(default_factory=_numbers.__next__)
    """Never used for another one."""

    @property
    def has_room(self) -> bool:
        return self.messages > 0 and self.bytes > 0 and not self.paused

    def charge(self, rows: int, size_bytes: int) -> None:
        """So many messages are dealt to it, which take about so many bytes."""
        self.messages -= rows
        self.bytes -= size_bytes
        self.estimated_bytes += size_bytes

    def weigh(self, size_bytes: int) -> None:
        """What it was charged for takes so many bytes in fact: it gives back what it gets, no more and no less."""
        self.bytes += self.estimated_bytes - size_bytes
        self.estimated_bytes = 0


@dataclass(frozen=True, slots=True)
class Offered:
    """A stored batch, and the offsets of it that are to be delivered now."""

    batch: Batch
    base: int
    end: int
    ranges: list[Range]
    following: int = 0
    """About so many messages are offered right after it."""
    never_again: bool = False
    """What is not dealt now is lost."""

    @property
    def rows(self) -> int:
        return sum([end - start for start, end in self.ranges])

    @property
    def row_numbers(self) -> IntArray:
        return spread(self.ranges) - self.base

    def bytes_of(self, rows: int) -> int:
        """What so many of its rows take, about."""
        whole = self.end - self.base
        size = len(self.batch.view)
        return size if rows >= whole else max(1, size * rows // whole)


@dataclass(frozen=True, slots=True)
class Dealt:
    """Offsets of one batch for one member: ranges, or (where they are scattered) an array of row numbers."""

    member: Member
    ranges: list[Range]
    scattered: IntArray | None = None

    @property
    def rows(self) -> int:
        return sum([end - start for start, end in self.ranges]) if self.scattered is None else len(self.scattered)


class DispatchPolicy(Protocol):
    """A subscription type: who gets what. Settled, ready and delayed messages are the window's business."""

    delays: bool
    """Whether a message may be held back until its time."""
    cumulative: bool
    """Whether acking everything below an offset makes sense."""

    @property
    def scatters(self) -> bool:
        """Whether rows of every batch go to several members, so that many batches are best dealt together."""

    @property
    def has_room(self) -> bool:
        """Whether anybody could take something now."""

    @property
    def held(self) -> int:
        """Messages that were read and wait for a consumer."""

    @property
    def unmatched(self) -> int:
        """Those that no consumer accepts."""

    @property
    def blocked_keys(self) -> int:
        """Keys with a message that failed and is not settled."""

    def join(self, member: Member, members: Collection[Member]) -> list[Range]:
        """`members` includes it. Returns what somebody else has to give back; raises Refused."""

    def leave(self, gone: Sequence[Member], members: Collection[Member]) -> list[Range]:
        """`members` are those who stay. Returns what the others held, settled or not."""

    def refreshed(self, member: Member) -> list[Range]:
        """It has room again. Returns what was held back for it."""

    def deal(self, offered: Offered) -> tuple[list[Dealt], list[Range]]:
        """Who gets what, and the offsets that are to be offered again: there was no room, or there is again."""

    def take_work(self) -> float:
        """What dealing took since this was asked last, beyond what every row takes: 1.0 is enough for one turn."""

    def settled(self, ranges: Sequence[Range], failed: Sequence[int]) -> list[Range]:
        """`failed`: those among them that had failed. Returns what need not be held back any more."""

    def given_back(self, ranges: Sequence[Range], failed: bool) -> list[Range]:
        """Consumers have these, and could not manage them; `failed` until they are settled. Ascending, none twice.
        Returns what need not be held back any more."""

    def held_by(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        """The part of these that it has now; None: that anybody has."""

    def is_active(self, member: Member) -> bool: ...

    def unacked(self, member: Member) -> int:
        """How many it was given and has not settled."""

    def clear(self) -> None:
        """Nobody holds anything any more."""


def first_rows(ranges: Sequence[Range], rows: int) -> tuple[list[Range], list[Range]]:
    """The first so many offsets, and the rest."""
    taken: list[Range] = []
    for index, (start, end) in enumerate(ranges):
        if rows < end - start:
            if rows:
                taken.append((start, start + rows))
            return taken, [(start + rows, end), *ranges[index + 1 :]]
        taken.append((start, end))
        rows -= end - start
    return taken, []


class Turns:
    """Members that may have room, in the order in which it is their turn.

    Whoever is found to have none is left out until it is added again: however many have none, they cost nothing. What
    was dealt and not weighed yet may turn out to be less than it seemed: such a member stays.
    """

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[Member, None] = OrderedDict()

    def add(self, member: Member) -> None:
        """Last, unless it has its place."""
        self._order.setdefault(member)

    def discard(self, member: Member) -> None:
        self._order.pop(member, None)

    def to_the_end(self, members: Sequence[Member]) -> None:
        for member in members:
            self._order.move_to_end(member)

    @property
    def has_room(self) -> bool:
        return bool(self.first(1))

    def first(self, members_max: int) -> list[Member]:
        """The next so many that have room."""
        found: list[Member] = []
        out: list[Member] = []
        for member in self._order:
            if member.has_room:
                found.append(member)
                if len(found) >= members_max:
                    break
            elif not member.estimated_bytes:
                out.append(member)
        for member in out:
            del self._order[member]
        return found


class Holding:
    """What one member was given. Acks do not shorten it at once: whoever wants to know asks the cursor too.

    It is shortened once it has doubled, so that what was settled long ago does not pile up.
    """

    __slots__ = ("_given", "_limit", "_missing")

    def __init__(self, missing: Callable[[int, int], list[Range]]) -> None:
        self._given = RangeSet()
        self._missing = missing
        self._limit = 1024

    def add(self, ranges: Sequence[Range]) -> None:
        for start, end in ranges:
            self._given.add(start, end)
        if len(self._given) > self._limit:
            self._given = RangeSet(one for start, end in self._given.ranges for one in self._missing(start, end))
            self._limit = max(1024, 2 * len(self._given))

    def within(self, ranges: Sequence[Range]) -> list[Range]:
        return [one for start, end in ranges for one in self._given.within(start, end)]

    def remove(self, ranges: Sequence[Range]) -> None:
        self._given.subtract(ranges)

    @property
    def unsettled(self) -> int:
        missing = self._missing
        return sum([stop - begin for start, end in self._given.ranges for begin, stop in missing(start, end)])

    def take(self) -> list[Range]:
        return self._given.take()
