"""Gathers what a consumer has acked in one partition, so that many acks make one small frame.

```
 add() --> gathered --take()--> sent, not yet confirmed --confirm()--> forgotten
                                 unconfirmed(): sent again through the next session
```

Acks are valid by offset: it does not matter through which session a message came. The common case, one message after
the other, only moves the end of a range.

Invariants
    an acked offset is gathered or sent until the broker has confirmed that it is durable
    `on_dirty` is called once between two `take`s, at the first ack
    confirmed_number <= sent_number
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

Range = tuple[int, int]


class AckSet(NamedTuple):
    """Acks to send: ranges in order, and everything below `below` (0: nothing more). `number` is for `confirm`."""

    number: int
    ranges: list[Range]
    below: int


class Acks:
    """The acks of one partition of one consumer."""

    __slots__ = ("_below", "_ranges", "_sent", "_start", "confirmed_number", "end", "on_dirty", "sent_number")

    def __init__(self, on_dirty: Callable[[], None]) -> None:
        self.on_dirty = on_dirty
        self.end = -1
        """The end of the range that grows now; -1 when there is none. An ack of this offset may just move it by one."""
        self.sent_number = 0
        self.confirmed_number = 0
        self._start = -1
        self._ranges: list[Range] = []
        self._below = 0
        self._sent: deque[AckSet] = deque()

    def add(self, start: int, end: int) -> None:
        """Offsets [start, end) are done."""
        if start == self.end:
            self.end = end
            return
        if not self.dirty:
            self.on_dirty()
        if self.end >= 0:
            self._ranges.append((self._start, self.end))
        self._start, self.end = start, end

    def add_below(self, end: int) -> None:
        """Everything below `end` is done."""
        if end > self._below:
            if not self.dirty:
                self.on_dirty()
            self._below = end

    @property
    def dirty(self) -> bool:
        """Something waits to be sent."""
        return self.end >= 0 or self._below > 0 or bool(self._ranges)

    def take(self) -> AckSet:
        """What to send now."""
        ranges, below = self._ranges, self._below
        if self.end >= 0:
            ranges.append((self._start, self.end))
        self._ranges, self._below = [], 0
        self._start = self.end = -1
        self.sent_number += 1
        taken = AckSet(self.sent_number, merged(ranges), below)
        self._sent.append(taken)
        return taken

    def confirm(self, number: int) -> None:
        """Everything up to this `take` is durable."""
        self.confirmed_number = max(self.confirmed_number, number)
        while self._sent and self._sent[0].number <= number:
            self._sent.popleft()

    def unconfirmed(self) -> AckSet | None:
        """What was sent and may be lost with its session."""
        if not self._sent:
            return None
        ranges = merged(one for sent in self._sent for one in sent.ranges)
        return AckSet(self.sent_number, ranges, max(sent.below for sent in self._sent))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets as sorted ranges that neither overlap nor touch."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result
