"""The consumers attached to a subscription: their flow control credit, and the order in which they are served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

_numbers = count(1)


@dataclass(slots=True, eq=False)
class Member:
    """A consumer attached to a subscription, with its remaining credit in messages and bytes."""

    consumer: str
    priority: int = 0
    key_filters: Sequence[str] = ()
    messages: int = 0
    bytes: int = 0
    paused: bool = False
    held: bool = False
    """Whether the rate of a quota is used up: nothing is delivered until it is not."""
    is_timed: bool = False
    """Whether the broker counts the ack timeouts of what is in flight to the member."""
    estimated_bytes: int = 0
    """The part of the bytes charged so far that is an estimate; see `charge`."""
    number: int = field(default_factory=_numbers.__next__)
    """Identifies the member; a number is never used twice."""

    @property
    def can_receive(self) -> bool:
        return self.messages > 0 and self.bytes > 0 and not self.paused and not self.held

    def charge(self, rows: int, size_bytes: int) -> None:
        """Take credit for messages assigned to the member. `size_bytes` is an estimate until `correct_estimate`."""
        self.messages -= rows
        self.bytes -= size_bytes
        self.estimated_bytes += size_bytes

    def correct_estimate(self, size_bytes: int) -> None:
        """Replace the estimate by the number of bytes that are really sent: the consumer returns exactly these."""
        self.bytes += self.estimated_bytes - size_bytes
        self.estimated_bytes = 0


class RoundRobin:
    """The members that may be able to receive, in the order in which they are served.

    A member that is found unable to receive is removed until it is added again, so that members without credit cost
    nothing. A member whose charged bytes are an estimate stays: the estimate may turn out to be too high.
    """

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[Member, None] = OrderedDict()

    def add(self, member: Member) -> None:
        """Add the member at the end; if it is present already, it keeps its place."""
        self._order.setdefault(member)

    def discard(self, member: Member) -> None:
        self._order.pop(member, None)

    def move_to_end(self, members: Sequence[Member]) -> None:
        for member in members:
            self._order.move_to_end(member)

    @property
    def can_receive(self) -> bool:
        """Whether at least one member can receive."""
        return bool(self.first(1))

    def first(self, members_max: int) -> list[Member]:
        """Return the next members that can receive, at most `members_max`."""
        found: list[Member] = []
        unable: list[Member] = []
        for member in self._order:
            if member.can_receive:
                found.append(member)
                if len(found) >= members_max:
                    break
            elif not member.estimated_bytes:
                unable.append(member)
        for member in unable:
            del self._order[member]
        return found
