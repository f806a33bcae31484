"""Gathers what a consumer has acked and nacked in one partition, so that many of them make few small frames.

```
 add() ---> gathered --take()--------> sent, not yet confirmed --confirm()--> forgotten
                                        unconfirmed(): sent again through the next session
 nack() --> gathered --take_nacks()--> sent and forgotten: what gets lost with its session is redelivered anyway
```

Within a seek generation acks are valid by offset: it does not matter through which session a message came. A seek ends
the generation, and the source begins with new `Acks`: what is said of deliveries of before stays here and is never
sent. The common case, one message after the other, only moves the end of a range.

A nack takes its offsets out of the gathered acks. So whatever is still gathered for an offset that was nacked came
after the nack, and nacks that are sent before acks keep the order of the two.

Invariants
    an acked offset is gathered or sent until the broker has confirmed that it is durable, or until it is nacked
    `on_dirty` is called when there were no acks to send and now there are; `on_nack` likewise
    confirmed_number <= sent_number
    with `unsettled` set no range grows (`end` stays -1): every settlement passes through here
    once `closed` is set no range grows either: whoever acks looks at it first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter, lt
from typing import Any, NamedTuple

import numpy as np

from pydanube.codec.native.frames import GENERATION_UNKNOWN
from pydanube.model.errors import DanubeError

Range = tuple[int, int]
OffsetArray = np.ndarray[Any, np.dtype[np.int64]]


class AckSet(NamedTuple):
    """Acks to send: ranges in order (many scattered ones as a table of two columns), and everything below `below` (0:
    nothing more). `number` is for `confirm`."""

    number: int
    ranges: list[Range] | OffsetArray
    below: int

    def listed(self) -> list[Range]:
        if isinstance(self.ranges, np.ndarray):
            return [(start, end) for start, end in self.ranges.tolist()]
        return self.ranges


class NackSet(NamedTuple):
    """Nacks to send, alike in everything but their offsets. `delay_ms` -1: as the failure policy says."""

    ranges: list[Range]
    delay_ms: int
    reason: str
    timeout: bool


class AckTimeouts:
    """Offsets and when they were taken, by the client's monotonic clock."""

    __slots__ = ("_monotonic", "_on_first", "_taken_at", "timeout_s")

    def __init__(self, timeout_s: float, monotonic: Callable[[], float], on_first: Callable[[], None]) -> None:
        assert timeout_s > 0
        self.timeout_s = timeout_s
        self._monotonic = monotonic
        self._on_first = on_first
        self._taken_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._taken_at)

    def taken(self, offsets: Iterable[int]) -> None:
        """The application has these from now on. A second delivery counts from its own time."""
        now = self._monotonic()
        was_empty = not self._taken_at
        for offset in offsets:
            self._taken_at.pop(offset, None)
            self._taken_at[offset] = now
        if was_empty and self._taken_at:
            self._on_first()

    def settled(self, start: int, end: int) -> None:
        """Offsets [start, end) were acked or nacked."""
        if end - start <= len(self._taken_at):
            for offset in range(start, end):
                self._taken_at.pop(offset, None)
        else:
            for offset in [one for one in self._taken_at if start <= one < end]:
                del self._taken_at[offset]

    def clear(self) -> None:
        self._taken_at.clear()

    def due(self) -> list[int]:
        """Take out those whose time is up."""
        now = self._monotonic()
        due: list[int] = []
        for offset, taken_at in self._taken_at.items():
            if taken_at + self.timeout_s > now:
                break
            due.append(offset)
        for offset in due:
            del self._taken_at[offset]
        return due

    def wait_s(self) -> float | None:
        """How long until the first is due; None when there is none."""
        for taken_at in self._taken_at.values():
            return max(0.0, taken_at + self.timeout_s - self._monotonic())
        return None


class Acks:
    """The acks and nacks of one partition of one consumer."""

    __slots__ = (
        "_below",
        "_high",
        "_nacks",
        "_ranges",
        "_scattered",
        "_sent",
        "_start",
        "closed",
        "confirmed_number",
        "end",
        "generation",
        "on_dirty",
        "on_nack",
        "sent_number",
        "unsettled",
    )

    def __init__(
        self, on_dirty: Callable[[], None], on_nack: Callable[[], None], generation: int = GENERATION_UNKNOWN
    ) -> None:
        self.on_dirty = on_dirty
        self.on_nack = on_nack
        self.generation = generation
        """The seek generation of the deliveries that are acked here; unknown before the first attachment, and with a
        broker of an earlier release."""
        self.closed: DanubeError | None = None
        """Why nothing said here reaches the broker any more."""
        self.unsettled: AckTimeouts | None = None
        """What the application took, while an ack timeout counts; see `watch`."""
        self.end = -1
        """The end of the range that grows now; -1 when there is none. An ack of this offset may just move it by one."""
        self.sent_number = 0
        self.confirmed_number = 0
        self._start = -1
        self._ranges: list[Range] = []
        self._scattered: list[OffsetArray] = []
        """Offsets of batches that were gathered from larger ones, still one by one."""
        self._high = 0
        """No gathered range but the growing one ends above this."""
        self._below = 0
        self._sent: deque[AckSet] = deque()
        self._nacks: list[NackSet] = []

    def watch(self, unsettled: AckTimeouts | None) -> None:
        """From now on tell this one what is settled; None: nobody."""
        self._keep_growing()
        self.unsettled = unsettled

    def close(self, error: DanubeError) -> None:
        """Whatever comes from now on is refused with this."""
        self.watch(None)
        self.closed = self.closed or error

    # -- acks --------------------------------------------------------------------------------------------------------

    def add(self, start: int, end: int) -> None:
        """Offsets [start, end) are done."""
        if start == self.end:
            self.end = end
            return
        if not self.dirty:
            self.on_dirty()
        self._keep_growing()
        self._start, self.end = start, end
        if self.unsettled is not None:
            self.unsettled.settled(start, end)
            self._keep_growing()

    def add_many(self, ranges: Sequence[Range]) -> None:
        """All of these, which rise, are done."""
        if len(ranges) == 1 or self.unsettled is not None:
            for start, end in ranges:
                self.add(start, end)
            return
        if not self.dirty:
            self.on_dirty()
        self._keep_growing()
        self._ranges.extend(ranges)
        self._high = max(self._high, ranges[-1][1])

    def add_scattered(self, offsets: OffsetArray) -> None:
        """All of these, which rise, are done."""
        if not self.dirty:
            self.on_dirty()
        self._scattered.append(offsets)
        self._high = max(self._high, int(offsets[-1]) + 1)

    def add_below(self, end: int) -> None:
        """Everything below `end` is done."""
        if end > self._below:
            if not self.dirty:
                self.on_dirty()
            self._below = end
        if self.unsettled is not None:
            self.unsettled.settled(0, end)

    @property
    def dirty(self) -> bool:
        """Acks wait to be sent."""
        return self.end >= 0 or self._below > 0 or bool(self._ranges or self._scattered)

    def take(self) -> AckSet:
        """What to send now."""
        self._keep_growing()
        if self._ranges:
            self._list_scattered()
        ranges = table(self._scattered) if self._scattered else merged(self._ranges)
        below = self._below
        self._ranges, self._scattered, self._below, self._high = [], [], 0, 0
        self.sent_number += 1
        taken = AckSet(self.sent_number, ranges, below)
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
        ranges = merged(one for sent in self._sent for one in sent.listed())
        return AckSet(self.sent_number, ranges, max(sent.below for sent in self._sent))

    # -- nacks -------------------------------------------------------------------------------------------------------

    def nack(self, ranges: Sequence[Range], delay_ms: int, reason: str, timeout: bool = False) -> None:
        """These offsets were not managed, whatever was said of them before."""
        self._withdraw(ranges)
        if self.unsettled is not None:
            for start, end in ranges:
                self.unsettled.settled(start, end)
        last = self._nacks[-1] if self._nacks else None
        if last is None:
            self.on_nack()
        if last is None or last[1:] != (delay_ms, reason, timeout):
            self._nacks.append(NackSet(list(ranges), delay_ms, reason, timeout))
        else:
            last.ranges.extend(ranges)

    @property
    def has_nacks(self) -> bool:
        return bool(self._nacks)

    def take_nacks(self) -> list[NackSet]:
        """What to send now, in this order and before any acks."""
        nacks, self._nacks = self._nacks, []
        return [one._replace(ranges=merged(one.ranges)) for one in nacks]

    def session_ended(self) -> None:
        """What was not acked comes again: what was taken and what was nacked means nothing any more."""
        self._nacks.clear()
        if self.unsettled is not None:
            self.unsettled.clear()

    def _withdraw(self, ranges: Sequence[Range]) -> None:
        lowest = min(start for start, _ in ranges)
        if lowest >= self._high and lowest >= self.end and lowest >= self._below:
            return  # all that is gathered lies before them
        self._keep_growing()
        self._list_scattered()
        gathered = self._ranges
        if lowest < self._below:
            gathered.append((lowest, self._below))
            self._below = lowest
        self._ranges = without(merged(gathered), merged(ranges))
        self._high = self._ranges[-1][1] if self._ranges else 0

    def _list_scattered(self) -> None:
        """From here on there are only ranges."""
        if self._scattered:
            self._ranges += [(start, end) for start, end in table(self._scattered).tolist()]
            self._scattered = []

    def _keep_growing(self) -> None:
        """The range that grows is as long as it gets."""
        if self.end >= 0:
            self._ranges.append((self._start, self.end))
            self._high = max(self._high, self.end)
            self._start = self.end = -1


def table(scattered: Sequence[OffsetArray]) -> OffsetArray:
    """These offsets as ranges: two columns, start and end, in order."""
    offsets = np.concatenate(scattered) if len(scattered) > 1 else scattered[0]
    steps = offsets[1:] - offsets[:-1]
    if len(steps) and np.minimum.reduce(steps) <= 0:
        offsets = np.unique(offsets)
        steps = offsets[1:] - offsets[:-1]
    breaks = (steps != 1).nonzero()[0]
    ranges = np.empty((len(breaks) + 1, 2), np.int64)
    ranges[0, 0], ranges[1:, 0] = offsets[0], offsets[breaks + 1]
    ranges[-1, 1], ranges[:-1, 1] = offsets[-1] + 1, offsets[breaks] + 1
    return ranges


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same offsets as sorted ranges that neither overlap nor touch."""
    result: list[Range] = []
    given = sorted(ranges)
    starts, ends = map(itemgetter(0), given), map(itemgetter(1), given)
    if all(map(lt, ends, islice(starts, 1, None))):
        return given  # they are already, which is seen without a loop
    for start, end in given:
        if result and start <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result


def portions(ranges: Iterable[Range], offsets_max: int) -> Iterator[list[Range]]:
    """The same ranges, so many offsets at a time."""
    portion: list[Range] = []
    room = offsets_max
    for start, end in ranges:
        while start < end:
            stop = min(end, start + room)
            portion.append((start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield portion
                portion, room = [], offsets_max
    if portion:
        yield portion


def without(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """The offsets of `ranges` that are not in `removed`; both are merged, and so is the result."""
    result: list[Range] = []
    at = 0
    for start, end in ranges:
        while at < len(removed) and removed[at][1] <= start:
            at += 1
        following = at
        while following < len(removed) and removed[following][0] < end:
            if start < removed[following][0]:
                result.append((start, removed[following][0]))
            start = max(start, removed[following][1])
            following += 1
        if start < end:
            result.append((start, end))
    return result
