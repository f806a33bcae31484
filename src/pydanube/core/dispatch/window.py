"""One subscription of one partition: what is settled, what is on its way, what comes next, and when.

Events come in as calls, decisions go out as return values; no clock, no task, no socket. The four subscription types
are policies: they say who gets which rows. Everything else is the same for all of them and lives here.

```
                 position            next_read          end of the stream
 offsets  --------|-------------------|------------------|
           settled  settled, on its      not read yet
                    way, ready again,
                    waiting, delayed,
                    held back
```

Invariants
    a row is on its way to at most one member; it is delivered again only after that one gave it back or went
    what is ready again goes out before what was never read, lowest offset first
    with too many gaps in what was acked, too many failures or too much held back, nothing new is read: acks and
    failures are never forgotten
    a message that failed too often ends as the failure policy says, once
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from math import inf
from typing import Final, Literal

import numpy as np

from pydanube.codec.batch import Batch
from pydanube.model.errors import Invalid, Refused
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.model.topics import SubscriptionType

from .cursor import Cursor
from .failures import Exhausted, Failures
from .keyed import KeySharedPolicy
from .keys import KeyFilter, hashes_of
from .members import Dealt, DispatchPolicy, Member, Offered, first_rows
from .ranges import Range, RangeSet, merged, runs, spread
from .shared import SharedPolicy
from .single import SinglePolicy

HELD_MAX: Final = 100_000
"""Messages that were read and wait for their consumer; past it nothing new is read."""

FAILED_MAX: Final = 100_000
"""Messages that failed and are not settled; past it nothing new is read."""

DELAYED_MAX: Final = 1_000_000
"""Messages that wait for the time their producer chose; past it nothing new is read."""

DUE_AT_ONCE: Final = 5_000
"""Messages that get ready in one go when their time has come, of those that failed and of those that were delayed."""

_STALE_MAX: Final = 1024
"""Times of delayed messages that were settled before; past it they are thrown out of the heap."""


class DeliveryWindow:
    """The dispatch of one subscription of one partition."""

    def __init__(
        self,
        subscription_type: SubscriptionType,
        cursor: Cursor,
        failure_policy: FailurePolicy,
        partition: int = 0,
    ) -> None:
        self.type = subscription_type
        self.cursor = cursor
        self._members: dict[str, Member] = {}
        self.failures = Failures(failure_policy)
        self.next_read = cursor.next_missing(cursor.position)
        self.policy: DispatchPolicy = _policy(subscription_type, cursor, partition)
        self._ready = RangeSet()
        self._delayed = RangeSet()
        self._delays: list[tuple[int, int, int]] = []
        """A heap of (when, offset, hash of the key where keys matter)."""

    # -- members -------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    def attach(self, consumer: str, priority: int = 0, key_filters: Sequence[str] = ()) -> tuple[Member, Member | None]:
        """The new hold, and the one of the same name that it ended."""
        if key_filters and self.type is not SubscriptionType.KEY_SHARED:
            raise Invalid(f"key filters are for key-shared subscriptions, and this one is {self.type}")
        KeyFilter.check(key_filters)
        member = Member(consumer, priority, tuple(key_filters))
        former = self._members.pop(consumer, None)
        self._members[consumer] = member
        if former is not None:  # as one change: for failover, what lies between would be other members
            self._again(self.policy.leave([former], self._members.values()))
        try:
            self._again(self.policy.join(member, self._members.values()))
        except Refused:  # another name has it: nothing was taken over
            del self._members[consumer]
            raise
        return member, former

    def detach(self, *members: Member) -> None:
        """They went. A hold that was taken over already has nothing to give back."""
        gone = [member for member in members if self._has(member)]
        for member in gone:
            del self._members[member.consumer]
        if gone:
            self._again(self.policy.leave(gone, self._members.values()))

    def refresh(self, member: Member) -> None:
        """It may have room again."""
        if member.has_room and self._has(member):
            self._again(self.policy.refreshed(member))

    def _has(self, member: Member) -> bool:
        return self._members.get(member.consumer) is member

    # -- delivering ----------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> int | None:
        """The offset to read next; None when nothing could be delivered."""
        if not self.policy.has_room or (self.failures.blocked and self.is_blocked):
            return None
        if self._ready.count:
            return self._ready.first
        if self.cursor.gaps >= ACKED_RANGES_MAX and self.next_read >= self.cursor.end:
            return None  # below that end are the gaps: they close when what is in them is delivered and acked
        if self.policy.held + self.policy.unmatched >= HELD_MAX or len(self.failures) >= FAILED_MAX:
            return None
        return None if self._delayed.count >= DELAYED_MAX else self.next_read

    @property
    def wanted_again(self) -> int:
        """How many neighbours from `wanted` on are to be delivered again; 0 when it was not read before."""
        return self._ready.first_end - self._ready.first if self._ready else 0

    @property
    def reach(self) -> tuple[int, int]:
        """How many messages and bytes from `wanted` on are best offered together: there is room for them, and what is
        to be delivered again lies close enough. More than one batch where every batch goes to several anyway."""
        if not self.policy.scatters:
            return 1, 1
        able = [member for member in self._members.values() if member.has_room]
        messages = sum([member.messages for member in able])
        if self._ready:
            messages = min(messages, self._ready.count * len(self._members))
        return messages, sum([member.bytes for member in able])

    @property
    def is_blocked(self) -> bool:
        """A message that is exhausted stops the subscription; on key-shared only its key."""
        return self.failures.blocked > 0 and self.type is not SubscriptionType.KEY_SHARED

    @property
    def sole_taker(self) -> Member | None:
        """Whoever gets all that is read next, just as it is stored: nobody else has or gets any of it, nothing of it is
        acked or has failed. None: batches are to be offered one by one. Whether it has room is `wanted`'s business."""
        policy = self.policy
        if not isinstance(policy, SinglePolicy) or self._ready.count or len(self.failures):
            return None
        return policy.active if self.cursor.end <= self.next_read else None

    def give_straight(self, member: Member, end: int, size_bytes: int) -> None:
        """The sole taker, which was just asked for, gets everything up to `end`, which takes so many bytes."""
        policy, start = self.policy, self.next_read
        assert isinstance(policy, SinglePolicy) and member is policy.active and member.has_room and end > start
        policy.give([(start, end)], end - start, size_bytes)
        member.weigh(size_bytes)
        self.next_read = end

    def offer(
        self, batch: Batch, base: int, end: int, now_us: int, following: int = 0, rows_max: int | None = None
    ) -> list[Dealt]:
        """A stored batch that holds the wanted offset, or comes after it when that is not stored any more.

        `following`: about so many messages are offered right after it. `rows_max`: no more than so many of it now.
        """
        wanted = self.wanted
        assert wanted is not None
        if base > wanted:
            self.skip_to(base)
        some_later = self.policy.delays and batch.header.deliver_at_max > now_us
        ranges = self._take(base, end, None if some_later else rows_max)
        if some_later:
            ranges = self._delay(batch, base, ranges, now_us)
            if rows_max is not None:
                ranges, left = first_rows(ranges, rows_max)
                self._ready.update(left)
        if not ranges:
            return []
        dealt, left = self.policy.deal(Offered(batch, base, end, ranges, following))
        self._leave(left)
        return dealt

    def _take(self, base: int, end: int, rows_max: int | None) -> list[Range]:
        """What is to be delivered of these offsets, the first so many: they are not ready or unread any more."""
        again, left = self._ready.within(base, end), list[Range]()
        self._ready.remove(base, end)
        if rows_max is not None:
            again, back = first_rows(again, rows_max)
            self._ready.update(back)
            rows_max -= sum([stop - start for start, stop in again])
        if self.next_read >= end:
            return again
        unread = self.cursor.missing(max(base, self.next_read), end)
        if rows_max is not None:
            unread, left = first_rows(unread, rows_max)
        self.next_read = left[0][0] if left else self.cursor.next_missing(end)
        return again + unread

    def pass_on(self, batch: Batch, base: int, end: int) -> list[Dealt]:
        """For a topic that keeps nothing: whoever has room gets it now, and nobody gets it later."""
        dealt: list[Dealt] = []
        if self.policy.has_room:
            dealt, _ = self.policy.deal(Offered(batch, base, end, [(base, end)], never_again=True))
        self.next_read = end
        self._settle([(self.cursor.position, end)])
        return dealt

    def _leave(self, left: list[Range]) -> None:
        """These are to be offered again."""
        if left and left[-1][1] == self.next_read and len(left) == 1 and not self._ready:
            self.next_read = left[0][0]
        elif left:
            self._ready.update(left)

    def skip_to(self, offset: int) -> None:
        """Nothing is stored from what is wanted up to `offset` (a reported gap, or trimmed): nobody could ack it."""
        wanted = self._ready.first if self._ready else self.next_read
        if offset > wanted:
            self._settle([(wanted, offset)])
            self.next_read = max(self.next_read, self.cursor.next_missing(offset))

    def _delay(self, batch: Batch, base: int, ranges: list[Range], now_us: int) -> list[Range]:
        """Keeps back what is not due; the rest."""
        times = batch.deliver_at
        assert times is not None
        offsets = spread(ranges)
        rows = offsets - base
        late = times[rows] > now_us
        for place in np.flatnonzero(late).tolist() if len(self.failures) else ():
            late[place] = int(offsets[place]) not in self.failures
        self._delayed.update(runs(offsets[late]))
        is_keyed = self.type is SubscriptionType.KEY_SHARED
        keys = hashes_of(batch)[rows[late]].tolist() if is_keyed else repeat(0)
        for one in zip(times[rows[late]].tolist(), offsets[late].tolist(), keys, strict=False):
            heappush(self._delays, one)
        if len(self._delays) > 2 * self._delayed.count + _STALE_MAX:
            self._delays = [one for one in self._delays if one[1] in self._delayed]
            heapify(self._delays)
        return runs(offsets[~late])

    # -- settling ------------------------------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[Range]) -> int:
        """Settle these offsets. Returns how many were not settled before."""
        return self._settle(ranges)

    def held_by(self, member: Member, ranges: Sequence[Range]) -> list[Range]:
        """The part of these that it has now."""
        return self.policy.held_by(member, ranges)

    def check_cumulative(self) -> None:
        if not self.policy.cumulative:
            raise Refused(
                f"cumulative acks do not fit a {self.type} subscription, whose messages go to several consumers: "
                f"ack each message or batch"
            )

    def _settle(self, ranges: Sequence[Range]) -> int:
        ranges = merged(ranges)
        settled = self.cursor.ack_many(ranges)
        if not settled:
            return 0
        self._ready.subtract(ranges)
        self._delayed.subtract(ranges)
        failed = self.failures.settled(ranges) if len(self.failures) else []
        self._again(self.policy.settled(ranges, failed))
        if self.next_read < self.cursor.position:
            self.next_read = self.cursor.position
        return settled

    def nack(
        self,
        ranges: Sequence[Range],
        now_us: int,
        delay_ms: int | None = None,
        reason: str = "",
        member: Member | None = None,
    ) -> list[Exhausted]:
        """These were not managed: they come again after a while. Returns those that do not.

        With `member`, only what it has now counts: what went to somebody else meanwhile is no business of its.
        """
        read = self.next_read
        missing = [one for start, end in merged(ranges) for one in self.cursor.missing(start, min(end, read))]
        counted, uncounted = self._countable(self.policy.held_by(member, missing))
        self._again(self.policy.given_back(counted, failed=True))
        if uncounted:
            self._again(self.policy.given_back(uncounted, failed=False))
            self._ready.update(uncounted)  # too many to count: they just come again
        failed = self.failures.failed
        ended = [failed(offset, now_us, delay_ms, reason) for start, end in counted for offset in range(start, end)]
        return [one for one in ended if one is not None]

    def _countable(self, ranges: list[Range]) -> tuple[list[Range], list[Range]]:
        """Those whose failure can be remembered, and the rest."""
        room = 2 * FAILED_MAX - len(self.failures)
        if sum([end - start for start, end in ranges]) <= room:
            return ranges, []
        offsets = spread(ranges)
        counted = np.zeros(len(offsets), np.bool_)
        for place, offset in enumerate(offsets.tolist()):
            known = offset in self.failures
            counted[place] = known or room > 0
            room -= not known
        return runs(offsets[counted]), runs(offsets[~counted])

    def try_again(self, offset: int, due_us: int) -> None:
        """What the failure policy asked for did not work."""
        self.failures.try_again(offset, due_us)

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def next_due_us(self) -> int | None:
        """When `due` has something to do; None when nothing waits."""
        if not self._delays:
            return self.failures.next_due_us if self.failures.waiting else None
        retry = self.failures.next_due_us
        delay = self._delays[0][0]
        return delay if retry is None else min(retry, delay)

    def has_due(self, now_us: int) -> bool:
        """Whether something waited long enough. What is ready before it goes first: the order is that of time."""
        if not (self._delays or self.failures.waiting):
            return False
        due_us = self.next_due_us
        return due_us is not None and due_us <= now_us and not self._ready.count

    def due(self, now_us: int) -> list[Exhausted]:
        """Some of what waited long enough is ready: there may be more. Returns what is exhausted under the policy of
        now."""
        exhausted, ready = self.failures.judged(self.failures.due(now_us, DUE_AT_ONCE))
        ready += self._end_delays(now_us)
        self._ready.update(runs(np.array(sorted(ready), np.int64)))
        return exhausted

    def _end_delays(self, now_us: int) -> list[int]:
        """Messages that are due, in the order of time. What is ready goes out by offset: on key-shared, of each key
        only as many as come by time as they come by offset; the others are due again at once."""
        delays, ended, later = self._delays, list[int](), list[tuple[int, int, int]]()
        is_keyed, last = self.type is SubscriptionType.KEY_SHARED, dict[int, float]()
        while delays and delays[0][0] <= now_us and len(ended) < DUE_AT_ONCE and len(later) < 16 + 4 * len(ended):
            one = heappop(delays)
            _, offset, key = one
            if offset not in self._delayed:
                continue
            if is_keyed and offset < last.get(key, -1):
                later.append(one)
                last[key] = inf  # whatever comes behind it in time waits for it
            else:
                ended.append(offset)
                last[key] = offset
        for one in later:
            heappush(delays, one)
        self._delayed.subtract(runs(np.array(sorted(ended), np.int64)))
        return ended

    def set_failure_policy(self, policy: FailurePolicy) -> list[Exhausted]:
        """In force at once: what was blocked is tried again, or ends as the new policy says."""
        self.failures.policy = policy
        exhausted, ready = self.failures.judged(self.failures.release_blocked())
        self._ready.update([(offset, offset + 1) for offset in ready])
        return exhausted

    # -- moving and telling --------------------------------------------------------------------------------------------

    def move(self, position: int, generation: int) -> None:
        """Start over at `position`: everybody's deliveries are void, and those of the new generation count."""
        assert generation > self.cursor.generation
        self.cursor.move(position, generation)
        self.next_read = position
        self._ready.clear()
        self._delayed.clear()
        self._delays.clear()
        self.failures.clear()
        self.policy.clear()

    @property
    def unacked(self) -> int:
        """Messages that consumers have and have not settled."""
        read = self.next_read - self.cursor.position - self._acked_below_next_read()
        failing = self.failures.waiting + self.failures.dying + self.failures.blocked
        return read - self._ready.count - self._delayed.count - self.policy.held - self.policy.unmatched - failing

    def _acked_below_next_read(self) -> int:
        span = self.next_read - self.cursor.position
        return span - sum(end - start for start, end in self.cursor.missing(self.cursor.position, self.next_read))

    @property
    def delayed(self) -> int:
        return self._delayed.count

    def where(self, offset: int) -> Literal["ready", "delayed", "held"]:
        """Of a message that nobody has, and that does not wait for its next try."""
        if offset in self._delayed:
            return "delayed"
        return "ready" if offset >= self.next_read or offset in self._ready else "held"

    def unacked_of(self, member: Member) -> int:
        return self.policy.unacked(member)

    def _again(self, ranges: Sequence[Range]) -> None:
        """These are to be delivered again, as far as they are not settled."""
        if ranges:
            missing, read = self.cursor.missing, self.next_read
            self._ready.update([one for start, end in ranges for one in missing(start, min(end, read))])


def _policy(subscription_type: SubscriptionType, cursor: Cursor, partition: int) -> DispatchPolicy:
    match subscription_type:
        case SubscriptionType.SHARED:
            return SharedPolicy(cursor.missing)
        case SubscriptionType.KEY_SHARED:
            return KeySharedPolicy(cursor.missing)
        case _:
            return SinglePolicy(cursor.missing, subscription_type is SubscriptionType.FAILOVER, partition)
