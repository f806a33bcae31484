"""Collects the acks and nacks of one consumer in one partition, so that many of them travel in a few small frames.

```
 add() ---> collected --take()--------> sent, not yet confirmed --confirm()--> forgotten
                                         unconfirmed(): sent again through the next session
 nack() --> collected --take_nacks()--> sent and forgotten: if the session is lost, the messages are redelivered anyway
```

Within a seek generation acks are valid by offset: it does not matter through which session a message was delivered. A
seek ends the generation, and the partition source starts with a new `Acks`; acks of deliveries from before the seek
stay in the old one and are never sent. The common case, acking one message after the other, only moves the end of a
range.

A nack removes its offsets from the collected acks. An offset that is both nacked and in the collected acks was
therefore acked after the nack, and sending nacks before acks keeps the order of the two.

`AckTimeouts` exists only while the subscription has an ack timeout. It contains the messages that the application has
received and neither acked nor nacked; prefetched messages that the application has not received are not in it.

Invariants
    an acked offset is collected or sent until the broker has confirmed that it is durable, or until it is nacked
    `on_first_ack` is called when the first ack to send is added, `on_first_nack` when the first nack to send is added
    confirmed_number <= sent_number
    with `timeouts` set no range grows (`end` stays -1): every ack and nack also stops a timeout
    once `closed` is set no range grows either: callers check it before they add an ack
    the offsets in `AckTimeouts` are in the order in which they were received, so the first one expires first
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
from pydanube.runtime.tasks import ignore

Range = tuple[int, int]
OffsetArray = np.ndarray[Any, np.dtype[np.int64]]


class AckSet(NamedTuple):
    """Acks to send: sorted ranges, and every offset below `cumulative_end` (0: none).

    Many scattered ranges are an array with the columns start and end. `number` is the argument of `Acks.confirm`.
    """

    number: int
    ranges: list[Range] | OffsetArray
    cumulative_end: int

    def range_list(self) -> list[Range]:
        if isinstance(self.ranges, np.ndarray):
            return [(start, end) for start, end in self.ranges.tolist()]
        return self.ranges


class NackSet(NamedTuple):
    """Nacks to send that differ only in their offsets. `delay_ms` -1: the failure policy decides."""

    ranges: list[Range]
    delay_ms: int
    reason: str
    timeout: bool
    reject: bool


class AckTimeouts:
    """The running ack timeouts of one partition: when each offset was received, by the client's monotonic clock."""

    __slots__ = ("_monotonic", "_on_first", "_received_at", "timeout_s")

    def __init__(self, timeout_s: float, monotonic: Callable[[], float], on_first: Callable[[], None]) -> None:
        """`on_first` is called when a timeout starts and none was running."""
        assert timeout_s > 0
        self.timeout_s = timeout_s
        self._monotonic = monotonic
        self._on_first = on_first
        self._received_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._received_at)

    def start(self, offsets: Iterable[int]) -> None:
        """Start the timeouts of messages that the application receives now; a redelivery starts its timeout again."""
        now = self._monotonic()
        was_empty = not self._received_at
        for offset in offsets:
            self._received_at.pop(offset, None)
            self._received_at[offset] = now
        if was_empty and self._received_at:
            self._on_first()

    def stop(self, start: int, end: int) -> None:
        """Stop the timeouts of offsets [start, end), which were acked or nacked."""
        if end - start <= len(self._received_at):
            for offset in range(start, end):
                self._received_at.pop(offset, None)
        else:
            for offset in [one for one in self._received_at if start <= one < end]:
                del self._received_at[offset]

    def clear(self) -> None:
        self._received_at.clear()

    def take_expired(self) -> list[int]:
        """Remove the offsets whose timeout has expired and return them."""
        now = self._monotonic()
        expired: list[int] = []
        for offset, received_at in self._received_at.items():
            if received_at + self.timeout_s > now:
                break
            expired.append(offset)
        for offset in expired:
            del self._received_at[offset]
        return expired

    def next_expiry_s(self) -> float | None:
        """Return the seconds until the next timeout expires, or None if none is running."""
        for received_at in self._received_at.values():
            return max(0.0, received_at + self.timeout_s - self._monotonic())
        return None


class Acks:
    """The acks and nacks of one partition of one consumer, of one seek generation."""

    __slots__ = (
        "_cumulative_end",
        "_highest_end",
        "_nacks",
        "_on_first_ack",
        "_on_first_nack",
        "_ranges",
        "_scattered",
        "_sent",
        "_start",
        "closed",
        "confirmed_number",
        "end",
        "generation",
        "sent_number",
        "timeouts",
    )

    def __init__(
        self,
        on_first_ack: Callable[[], None],
        on_first_nack: Callable[[], None],
        generation: int = GENERATION_UNKNOWN,
    ) -> None:
        self.generation = generation
        """The seek generation of the deliveries that are acked here; unknown before the first attachment, and with a
        broker of an earlier release."""
        self.closed: DanubeError | None = None
        """Why acks and nacks can no longer reach the broker; None while they can."""
        self.timeouts: AckTimeouts | None = None
        """The running ack timeouts; None without an ack timeout."""
        self.end = -1
        """The end of the growing range, -1 if there is none. To ack exactly this offset, a caller may just add one."""
        self.sent_number = 0
        self.confirmed_number = 0
        self._on_first_ack = on_first_ack
        self._on_first_nack = on_first_nack
        self._start = -1
        self._ranges: list[Range] = []
        self._scattered: list[OffsetArray] = []
        """Offsets of batches that the broker made of rows of larger batches, not yet joined to ranges."""
        self._highest_end = 0
        """No collected range ends above this, except the growing one."""
        self._cumulative_end = 0
        self._sent: deque[AckSet] = deque()
        self._nacks: list[NackSet] = []

    def set_timeouts(self, timeouts: AckTimeouts | None) -> None:
        """Stop a timeout in `timeouts` with every ack and nack from now on; None: there is no ack timeout."""
        self._close_growing_range()
        self.timeouts = timeouts

    def close(self, error: DanubeError) -> None:
        """Refuse every later ack and nack with `error`."""
        self.set_timeouts(None)
        self.closed = self.closed or error

    def abandon(self) -> None:
        """Accept later acks and nacks without effect: a seek has made these deliveries obsolete."""
        self._on_first_ack = self._on_first_nack = ignore
        self.set_timeouts(None)

    # -- acks --------------------------------------------------------------------------------------------------------

    def add(self, start: int, end: int) -> None:
        """Ack the offsets [start, end)."""
        if start == self.end:
            self.end = end
            return
        if not self.has_acks:
            self._on_first_ack()
        self._close_growing_range()
        self._start, self.end = start, end
        if self.timeouts is not None:
            self.timeouts.stop(start, end)
            self._close_growing_range()

    def add_many(self, ranges: Sequence[Range]) -> None:
        """Ack several ranges, which are in ascending order."""
        if len(ranges) == 1 or self.timeouts is not None:
            for start, end in ranges:
                self.add(start, end)
            return
        if not self.has_acks:
            self._on_first_ack()
        self._close_growing_range()
        self._ranges.extend(ranges)
        self._highest_end = max(self._highest_end, ranges[-1][1])

    def add_scattered(self, offsets: OffsetArray) -> None:
        """Ack single offsets, which are in ascending order."""
        if not self.has_acks:
            self._on_first_ack()
        self._scattered.append(offsets)
        self._highest_end = max(self._highest_end, int(offsets[-1]) + 1)

    def add_cumulative(self, end: int) -> None:
        """Ack every offset below `end`."""
        if end > self._cumulative_end:
            if not self.has_acks:
                self._on_first_ack()
            self._cumulative_end = end
        if self.timeouts is not None:
            self.timeouts.stop(0, end)

    @property
    def has_acks(self) -> bool:
        """Whether there are acks to send."""
        return self.end >= 0 or self._cumulative_end > 0 or bool(self._ranges or self._scattered)

    def take(self) -> AckSet:
        """Return the collected acks, which the caller sends; they count as sent until they are confirmed."""
        self._close_growing_range()
        if self._ranges:
            self._join_scattered()
        ranges = join_offsets(self._scattered) if self._scattered else merge_ranges(self._ranges)
        cumulative_end = self._cumulative_end
        self._ranges, self._scattered, self._cumulative_end, self._highest_end = [], [], 0, 0
        self.sent_number += 1
        taken = AckSet(self.sent_number, ranges, cumulative_end)
        self._sent.append(taken)
        return taken

    def confirm(self, number: int) -> None:
        """Forget the sent acks up to `AckSet.number`: the broker has them durable."""
        self.confirmed_number = max(self.confirmed_number, number)
        while self._sent and self._sent[0].number <= number:
            self._sent.popleft()

    def unconfirmed(self) -> AckSet | None:
        """Return all acks that were sent and not confirmed, to be sent again; None if there are none."""
        if not self._sent:
            return None
        ranges = merge_ranges(one for sent in self._sent for one in sent.range_list())
        return AckSet(self.sent_number, ranges, max(sent.cumulative_end for sent in self._sent))

    # -- nacks -------------------------------------------------------------------------------------------------------

    def nack(
        self, ranges: Sequence[Range], delay_ms: int, reason: str, timeout: bool = False, reject: bool = False
    ) -> None:
        """Nack these offsets, and withdraw their acks that were not sent yet. `reject`: they are not redelivered."""
        self._withdraw(ranges)
        if self.timeouts is not None:
            for start, end in ranges:
                self.timeouts.stop(start, end)
        last = self._nacks[-1] if self._nacks else None
        if last is None:
            self._on_first_nack()
        if last is None or last[1:] != (delay_ms, reason, timeout, reject):
            self._nacks.append(NackSet(list(ranges), delay_ms, reason, timeout, reject))
        else:
            last.ranges.extend(ranges)

    @property
    def has_nacks(self) -> bool:
        return bool(self._nacks)

    def take_nacks(self) -> list[NackSet]:
        """Return the collected nacks; the caller sends them in this order, and before any acks."""
        nacks, self._nacks = self._nacks, []
        return [one._replace(ranges=merge_ranges(one.ranges)) for one in nacks]

    def session_ended(self) -> None:
        """Forget nacks and timeouts: the broker redelivers every message that was not acked."""
        self._nacks.clear()
        if self.timeouts is not None:
            self.timeouts.clear()

    def _withdraw(self, ranges: Sequence[Range]) -> None:
        lowest = min(start for start, _ in ranges)
        if lowest >= self._highest_end and lowest >= self.end and lowest >= self._cumulative_end:
            return  # every collected ack is of a lower offset
        self._close_growing_range()
        self._join_scattered()
        collected = self._ranges
        if lowest < self._cumulative_end:
            collected.append((lowest, self._cumulative_end))
            self._cumulative_end = lowest
        self._ranges = subtract_ranges(merge_ranges(collected), merge_ranges(ranges))
        self._highest_end = self._ranges[-1][1] if self._ranges else 0

    def _join_scattered(self) -> None:
        if self._scattered:
            self._ranges += [(start, end) for start, end in join_offsets(self._scattered).tolist()]
            self._scattered = []

    def _close_growing_range(self) -> None:
        if self.end >= 0:
            self._ranges.append((self._start, self.end))
            self._highest_end = max(self._highest_end, self.end)
            self._start = self.end = -1


def join_offsets(scattered: Sequence[OffsetArray]) -> OffsetArray:
    """Return the offsets as sorted ranges: an array with the columns start and end."""
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


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same offsets as sorted ranges that neither overlap nor touch."""
    result: list[Range] = []
    given = sorted(ranges)
    starts, ends = map(itemgetter(0), given), map(itemgetter(1), given)
    if all(map(lt, ends, islice(starts, 1, None))):
        return given  # nothing to merge; this test is faster than the loop below
    for start, end in given:
        if result and start <= result[-1][1]:
            if end > result[-1][1]:
                result[-1] = (result[-1][0], end)
        else:
            result.append((start, end))
    return result


def split_ranges(ranges: Iterable[Range], offsets_max: int) -> Iterator[list[Range]]:
    """Yield the same ranges in lists of at most `offsets_max` offsets each."""
    portion: list[Range] = []
    free = offsets_max
    for start, end in ranges:
        while start < end:
            stop = min(end, start + free)
            portion.append((start, stop))
            free -= stop - start
            start = stop
            if not free:
                yield portion
                portion, free = [], offsets_max
    if portion:
        yield portion


def subtract_ranges(ranges: Sequence[Range], removed: Sequence[Range]) -> list[Range]:
    """Return the offsets of `ranges` that are not in `removed`. Both are merged, and so is the result."""
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
