"""The dispatcher of one subscription on one partition: decides which message goes to which consumer, and when.

It knows what is acknowledged, what is in flight, what comes next and what waits for a time. Events come in as method
calls, decisions go out as return values; there is no clock, no task and no socket. The subscription types differ only
in their policy, which decides which consumer gets which rows. Everything else is the same for all types and lives here.

```
                 position            next_read          end of the stream
 offsets  --------|-------------------|------------------|
            acked   acked, in flight,    not read yet
                    ready again,
                    waiting, delayed,
                    held back
```

Invariants
    a message is in flight to at most one member; it is delivered again only after that member gave it back or detached
    a member takes part from its first credit on: before, nothing is kept for it or taken from others, unless it took
    over from one of its name
    messages that are ready again are delivered before messages that were never read, lowest offset first
    with too many gaps between acks, too many failures or too many messages held back, nothing new is read: acks and
    failures are never forgotten
    a message that failed too often ends as the failure policy says, once
    not more than `unacked_max` messages are in flight, nor more than `ack_pace` allows, unless a limit was lowered
    meanwhile
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from math import inf
from typing import Final, NamedTuple

import numpy as np

from pydanube.codec.batch import Batch
from pydanube.model.errors import Held, Invalid, Refused
from pydanube.model.failure import ACK_TIMEOUT, FailurePolicy
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.model.pending import PendingMessage, PendingState
from pydanube.model.topics import SubscriptionType

from .ack_pace import AckPace
from .ack_timeouts import AckTimeouts
from .cursor import Cursor
from .failed_messages import Exhausted, Failures, FailureState
from .key_filters import KeyFilter
from .key_shared import KeySharedPolicy
from .key_table import hashes_of
from .members import Member
from .policy import Assignment, DispatchPolicy, OfferedBatch
from .ranges import Range, RangeSet, merged, runs, split_first, spread
from .shared import SharedPolicy
from .single_active import SingleActivePolicy

HELD_BACK_MAX: Final = 100_000
"""Messages that were read and wait for their consumer; beyond this number nothing new is read."""

FAILED_MAX: Final = 100_000
"""Messages that failed and are not acknowledged; beyond this number nothing new is read."""

DELAYED_MAX: Final = 1_000_000
"""Messages that wait for their delivery time; beyond this number nothing new is read."""

DUE_AT_ONCE: Final = 5_000
"""Failed messages, and delayed messages, that one call of `release_due` makes ready at most."""

_STALE_MAX: Final = 1024
"""Delayed messages that were acknowledged while they waited; beyond this number the heap is rebuilt without them."""

_PENDING_STATES: Final[dict[FailureState, PendingState]] = {
    FailureState.WAITING: "waiting",
    FailureState.BLOCKED: "blocked",
    FailureState.DEAD_LETTERING: "dying",
}


class DispatchCounts(NamedTuple):
    """How many messages of a subscription are in each state."""

    unacked: int
    """In flight."""
    failed: int
    """Failed at least once and not acknowledged, in whatever state they are."""
    waiting: int
    """Failed, and waiting for redelivery."""
    dead_lettering: int
    blocked: int
    delayed: int
    held_back: int
    unmatched: int
    """Not accepted by any member's key filter."""
    blocked_keys: int
    """The number of keys, not messages, that are held back behind a failed message."""


class Dispatcher:
    """Dispatches the messages of one subscription on one partition."""

    def __init__(
        self,
        subscription_type: SubscriptionType,
        cursor: Cursor,
        failure_policy: FailurePolicy,
        partition: int = 0,
    ) -> None:
        self.type = subscription_type
        self.cursor = cursor
        self.next_read = cursor.next_missing(cursor.position)
        self._members: dict[str, Member] = {}
        self._taking_part: dict[str, Member] = {}
        """The members that the policy knows: those that had credit once, and those that took over from one of them."""
        self._failures = Failures(failure_policy)
        self._timeouts = AckTimeouts()
        self._pace = AckPace()
        self._timed_members = 0
        """How many attached members have ack timeouts that the broker counts."""
        self.unacked_max = 0
        """How many messages users allow to be in flight; 0: no limit."""
        self._single_active: SingleActivePolicy | None = None
        """The policy, if one member gets everything."""
        self._policy: DispatchPolicy
        match subscription_type:
            case SubscriptionType.SHARED:
                self._policy = SharedPolicy()
            case SubscriptionType.KEY_SHARED:
                self._policy = KeySharedPolicy()
            case _:
                self._policy = self._single_active = SingleActivePolicy(cursor.missing, partition)
        self._ready = RangeSet()
        """Offsets that were read before and are to be delivered now."""
        self._delayed = RangeSet()
        self._delays: list[tuple[int, int, int]] = []
        """A heap of (when, offset, key hash) for the delayed messages; the hash is 0 unless the policy is by key."""

    # -- members -------------------------------------------------------------------------------------------------------

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    def attach(
        self, consumer: str, priority: int = 0, key_filters: Sequence[str] = (), is_timed: bool = False
    ) -> tuple[Member, Member | None]:
        """Attach a consumer. Return its member, and the former member of the same name, which is detached.

        `is_timed`: count the ack timeouts of what is delivered to it; `fail_timed_out` must be called in time.
        """
        self.check_filters(key_filters)
        former = self._members.get(consumer)
        if self.type is SubscriptionType.EXCLUSIVE and former is None and self._members:
            raise Held(
                f"the subscription is exclusive and held by consumer {next(iter(self._members))!r}: close that one, "
                f"use its name to take over, or another subscription"
            )
        self._members.pop(consumer, None)
        member = self._members[consumer] = Member(consumer, priority, tuple(key_filters), is_timed=is_timed)
        if former is not None and consumer in self._taking_part:
            # the new one takes its place before the former one leaves: failover elects no third one in between
            self._taking_part[consumer] = member
            self._make_ready(self._policy.leave([former], self._taking_part.values()))
            self._make_ready(self._policy.join(member, self._taking_part.values()))
        self._timed_members += is_timed - (former is not None and former.is_timed)
        return member, former

    def check_filters(self, key_filters: Sequence[str]) -> None:
        """Raise Invalid if no member of this subscription can have these key filters."""
        if key_filters and not self._policy.by_key:
            raise Invalid(f"key filters are for key-shared subscriptions, and this one is {self.type}")
        KeyFilter.check(key_filters)

    def detach(self, *members: Member) -> None:
        """Detach members; those that are not attached any more, because another took over, are ignored."""
        gone = [member for member in members if self._is_attached(member)]
        for member in gone:
            del self._members[member.consumer]
        left = [member for member in gone if self._taking_part.pop(member.consumer, None) is not None]
        if left:
            self._make_ready(self._policy.leave(left, self._taking_part.values()))
        self._timed_members -= sum([member.is_timed for member in gone])

    def credited(self, member: Member) -> None:
        """Take note that the member got credit or was resumed."""
        if member.can_receive and self._is_attached(member):
            if not self.takes_part(member):
                self._taking_part[member.consumer] = member
                self._make_ready(self._policy.join(member, self._taking_part.values()))
            self._make_ready(self._policy.credited(member))

    def takes_part(self, member: Member) -> bool:
        """Return whether messages may be assigned to the member: it is attached and had credit, or took over."""
        return self._taking_part.get(member.consumer) is member

    def _is_attached(self, member: Member) -> bool:
        return self._members.get(member.consumer) is member

    def is_active(self, member: Member) -> bool:
        """Return whether the member gets messages; on failover subscriptions others stand by."""
        return self._policy.is_active(member)

    def unacked_of(self, member: Member) -> int:
        """Return how many messages are in flight to the member."""
        return self._policy.unacked_of(member)

    # -- delivering ----------------------------------------------------------------------------------------------------

    @property
    def offset_to_read(self) -> int | None:
        """The offset of the next message to read and offer; None if nothing could be delivered."""
        if not self._policy.can_receive or (self._failures.blocked and self.is_blocked):
            return None
        if (in_flight_max := self.in_flight_max) and self.unacked >= in_flight_max:
            return None
        if self._ready.count:
            return self._ready.first
        if self.cursor.gaps >= ACKED_RANGES_MAX and self.next_read >= self.cursor.end:
            return None  # the gaps are below that end: they close when the messages in them are delivered and acked
        if self._policy.held_back + self._policy.unmatched >= HELD_BACK_MAX or len(self._failures) >= FAILED_MAX:
            return None
        return None if self._delayed.count >= DELAYED_MAX else self.next_read

    @property
    def in_flight_max(self) -> int:
        """How many messages may be in flight now; 0: no limit."""
        pace = int(self._pace.limit)
        return min(pace, self.unacked_max) if pace and self.unacked_max else pace or self.unacked_max

    @property
    def redelivery_run(self) -> int:
        """How many consecutive messages from `offset_to_read` on are redeliveries; 0 if it was not read before."""
        return self._ready.first_end - self._ready.first if self._ready else 0

    @property
    def offer_limits(self) -> tuple[int, int]:
        """How many messages and bytes from `offset_to_read` on are best offered together.

        This is more than one batch only if the policy splits every batch anyway. It is limited by the members' credit
        and, for redeliveries, to a span in which a fair part of the messages is to be delivered again.
        """
        if not self._policy.splits_batches:
            return 1, 1
        able = [member for member in self._members.values() if member.can_receive]
        messages = sum([member.messages for member in able])
        if self._ready:
            messages = min(messages, self._ready.count * len(self._members))
        if in_flight_max := self.in_flight_max:
            messages = min(messages, in_flight_max)
        return messages, sum([member.bytes for member in able])

    @property
    def is_blocked(self) -> bool:
        """Whether an exhausted message stops the whole subscription; on key-shared it stops only its key."""
        return self._failures.blocked > 0 and not self._policy.by_key

    @property
    def sole_consumer(self) -> Member | None:
        """The member that gets everything from `next_read` on exactly as it is stored, because none of it is acked or
        has failed; None if batches must be offered one by one. `offset_to_read` says whether it has credit."""
        single = self._single_active
        if single is None or self._ready.count or len(self._failures) or self.in_flight_max:
            return None
        return single.active if self.cursor.end <= self.next_read else None

    def assign_stored(self, member: Member, end: int, size_bytes: int, now_us: int) -> None:
        """Assign everything from `next_read` to `end`, which has this many bytes, to `member`, the `sole_consumer`."""
        single, start = self._single_active, self.next_read
        assert single is not None and member is single.active and member.can_receive and end > start
        single.assign_ranges([(start, end)], end - start, size_bytes)
        member.correct_estimate(size_bytes)
        if member.is_timed:
            self._start_timeouts(range(start, end), now_us)
        self.next_read = end

    def offer(
        self, batch: Batch, base: int, end: int, now_us: int, following: int = 0, rows_max: int | None = None
    ) -> list[Assignment]:
        """Assign rows of a stored batch, which holds `offset_to_read` or is the first batch after it.

        About `following` more messages are offered directly after it. At most `rows_max` rows are assigned now.
        """
        wanted = self.offset_to_read
        assert wanted is not None
        if base > wanted:
            self.skip_to(base)
        if in_flight_max := self.in_flight_max:
            room = in_flight_max - self.unacked
            rows_max = room if rows_max is None else min(rows_max, room)
            following = min(following, max(0, room - (end - base)))
        has_delays = self._policy.delays and batch.header.deliver_at_max > now_us
        ranges = self._take(base, end, None if has_delays else rows_max)
        if has_delays:
            ranges = self._set_delayed_aside(batch, base, ranges, now_us)
            if rows_max is not None:
                ranges, left = split_first(ranges, rows_max)
                self._ready.update(left)
        if not ranges:
            return []
        assignments, left = self._policy.assign(OfferedBatch(batch, base, end, ranges, following))
        self._offer_again(left)
        if self._timed_members:
            for one in assignments:
                if one.member.is_timed:
                    self._start_timeouts(one.offsets(base), now_us)
        return assignments

    def _take(self, base: int, end: int, rows_max: int | None) -> list[Range]:
        """Return the offsets in [base, end) that are to be delivered, at most `rows_max`; they do not count as ready or
        unread any more."""
        again, left = self._ready.within(base, end), list[Range]()
        self._ready.remove(base, end)
        if rows_max is not None:
            again, back = split_first(again, rows_max)
            self._ready.update(back)
            rows_max -= sum([stop - start for start, stop in again])
        if self.next_read >= end:
            return again
        unread = self.cursor.missing(max(base, self.next_read), end)
        if rows_max is not None:
            unread, left = split_first(unread, rows_max)
        self.next_read = left[0][0] if left else self.cursor.next_missing(end)
        return again + unread

    @property
    def has_credit(self) -> bool:
        """Whether a member may be given a message at this moment."""
        return self._policy.can_receive

    def offer_once(self, batch: Batch, base: int, end: int) -> list[Assignment]:
        """Assign rows of a batch of a non-reliable topic. Rows for which no member has credit are lost."""
        assignments: list[Assignment] = []
        if self._policy.can_receive:
            assignments, _ = self._policy.assign(OfferedBatch(batch, base, end, [(base, end)], once=True))
        self.next_read = end
        self.ack([(self.cursor.position, end)])
        return assignments

    def drain_cost(self) -> float:
        """Return the cost of the offers since the last call beyond the usual cost of a row, as a fraction of one
        scheduling turn."""
        return self._policy.drain_cost()

    def _offer_again(self, left: list[Range]) -> None:
        if left and left[-1][1] == self.next_read and len(left) == 1 and not self._ready:
            self.next_read = left[0][0]
        elif left:
            self._ready.update(left)

    def skip_to(self, offset: int) -> None:
        """Mark everything from `offset_to_read` to `offset` as acknowledged: it is not stored (a reported gap, or
        trimmed), so that no consumer could acknowledge it."""
        wanted = self._ready.first if self._ready else self.next_read
        if offset > wanted:
            self.ack([(wanted, offset)])
            self.next_read = max(self.next_read, self.cursor.next_missing(offset))

    def _set_delayed_aside(self, batch: Batch, base: int, ranges: list[Range], now_us: int) -> list[Range]:
        """Set messages aside until their delivery time; return the others. Redeliveries are not delayed
        again."""
        times = batch.deliver_at
        assert times is not None
        offsets = spread(ranges)
        rows = offsets - base
        late = times[rows] > now_us
        for index in np.flatnonzero(late).tolist() if len(self._failures) else ():
            late[index] = int(offsets[index]) not in self._failures
        self._delayed.update(runs(offsets[late]))
        keys = hashes_of(batch)[rows[late]].tolist() if self._policy.by_key else repeat(0)
        for one in zip(times[rows[late]].tolist(), offsets[late].tolist(), keys, strict=False):
            heappush(self._delays, one)
        if len(self._delays) > 2 * self._delayed.count + _STALE_MAX:
            self._delays = [one for one in self._delays if one[1] in self._delayed]
            heapify(self._delays)
        return runs(offsets[~late])

    # -- acks and nacks ------------------------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[Range]) -> int:
        """Mark the offsets as acknowledged and return how many of them were new. The ranges ascend, and none touches
        the next, as `merged` returns them."""
        added = self.cursor.ack_many(ranges)
        if not added:
            return 0
        self._ready.subtract(ranges)
        self._delayed.subtract(ranges)
        if self._timeouts:
            self._timeouts.stop(ranges)
        failed = self._failures.acked(ranges) if len(self._failures) else {}
        if self._timed_members:
            self._pace.acked(added, any(one.reason == ACK_TIMEOUT for one in failed.values()))
        self._make_ready(self._policy.acked(ranges, failed))
        if self.next_read < self.cursor.position:
            self.next_read = self.cursor.position
        return added

    def in_flight_to(self, member: Member | None, ranges: Sequence[Range]) -> list[Range]:
        """Return the part of `ranges` that is in flight to the member; None: to any member."""
        return self._policy.in_flight_to(member, ranges)

    def check_cumulative(self) -> None:
        """Raise Refused if cumulative acks are not allowed on this type of subscription."""
        if not self._policy.cumulative:
            raise Refused(
                f"cumulative acks do not fit a {self.type} subscription, whose messages go to several consumers: "
                f"ack each message or batch"
            )

    def nack(
        self,
        ranges: Sequence[Range],
        now_us: int,
        delay_ms: int | None = None,
        reason: str = "",
        member: Member | None = None,
        bounded: bool = False,
    ) -> list[Exhausted]:
        """Count a failure of each of these messages that is in flight; it is delivered again after a delay. Return the
        messages that are exhausted instead.

        If `member` is given, only messages in flight to it count: others went to another consumer meanwhile. `bounded`:
        see FailurePolicy.bounded_delay_ms.
        """
        counted, uncounted = self._split_countable(self._in_flight(ranges, member))
        self._take_back(counted)
        if uncounted:
            self._return(uncounted)  # too many failures to count them: these are just delivered again
        failed = self._failures.failed
        ended = [
            failed(offset, now_us, delay_ms, reason, bounded) for start, end in counted for offset in range(start, end)
        ]
        return [one for one in ended if one is not None]

    def give_back(self, ranges: Sequence[Range], member: Member) -> None:
        """Take messages back that are in flight to the member and were not sent to its client: no failure is counted,
        and they are delivered again."""
        self._return(self._in_flight(ranges, member))

    def _return(self, ranges: list[Range]) -> None:
        self._timeouts.stop(ranges)
        self._make_ready(self._policy.returned(ranges, failed=False))
        self._ready.update(ranges)

    def give_up(self, ranges: Sequence[Range], reason: str, member: Member | None = None) -> list[Exhausted]:
        """Exhaust each of these messages that is in flight (to `member`, if given), however seldom it failed, and
        return them. While too many failed to count more, the others are delivered again."""
        counted, uncounted = self._split_countable(self._in_flight(ranges, member))
        self._take_back(counted)
        if uncounted:
            self._return(uncounted)
        ended = [self._failures.give_up(offset, reason) for start, end in counted for offset in range(start, end)]
        return [one for one in ended if one is not None]

    def _in_flight(self, ranges: Sequence[Range], member: Member | None) -> list[Range]:
        """Return the part of `ranges` that is in flight to the member (None: to any member) and not acknowledged."""
        read = self.next_read
        missing = [one for start, end in merged(ranges) for one in self.cursor.missing(start, min(end, read))]
        return self._policy.in_flight_to(member, missing)

    def _take_back(self, ranges: list[Range]) -> None:
        """Take failed messages back from the members that have them."""
        if self._timeouts:
            self._timeouts.stop(ranges)
        self._make_ready(self._policy.returned(ranges, failed=True))

    def _split_countable(self, ranges: list[Range]) -> tuple[list[Range], list[Range]]:
        """Divide the ranges into those that failures can still be counted of, within the limit, and the rest."""
        left = 2 * FAILED_MAX - len(self._failures)
        if sum([end - start for start, end in ranges]) <= left:
            return ranges, []
        offsets = spread(ranges)
        counted = np.zeros(len(offsets), np.bool_)
        for index, offset in enumerate(offsets.tolist()):
            known = offset in self._failures
            counted[index] = known or left > 0
            left -= not known
        return runs(offsets[counted]), runs(offsets[~counted])

    # -- failures ------------------------------------------------------------------------------------------------------

    @property
    def failure_policy(self) -> FailurePolicy:
        return self._failures.policy

    def set_failure_policy(self, policy: FailurePolicy) -> list[Exhausted]:
        """Change the policy. Blocked messages are delivered again or, if they are exhausted under the new policy too,
        returned."""
        self._failures.policy = policy
        exhausted, ready = self._failures.check_exhausted(self._failures.release_blocked())
        self._ready.update([(offset, offset + 1) for offset in ready])
        return exhausted

    def retry_dead_letter(self, offset: int, due_us: int) -> None:
        """Let an exhausted message wait until `due_us` because it could not be dead-lettered."""
        self._failures.retry_dead_letter(offset, due_us)

    def hasten_dead_letters(self, now_us: int) -> None:
        """Let exhausted messages that could not be dead-lettered wait no longer than until `now_us`."""
        self._failures.hasten_dead_letters(now_us)

    def failure_history(self, offsets: Iterable[int]) -> tuple[list[int], list[str | None]]:
        """Return how often each of these messages failed, and the last reason; empty lists if none of them failed."""
        if not len(self._failures):
            return [], []
        found = [self._failures.at(offset) for offset in offsets]
        if not any(found):
            return [], []
        return [one.count if one else 0 for one in found], [one.reason or None if one else None for one in found]

    # -- ack timeouts --------------------------------------------------------------------------------------------------

    @property
    def counts_timeouts(self) -> bool:
        """Whether the broker counts the ack timeout of some message in flight."""
        return bool(self._timeouts)

    def has_timed_out(self, now_us: int) -> bool:
        """Whether `fail_timed_out` has something to do now."""
        return bool(self._timeouts) and (at_us := self.next_timeout_us) is not None and at_us <= now_us

    @property
    def next_timeout_us(self) -> int | None:
        """When `fail_timed_out` has something to do; None if the broker counts no ack timeout now."""
        timeout_ms = self._failures.policy.ack_timeout_ms
        if not timeout_ms or (oldest_us := self._timeouts.oldest_us) is None:
            return None
        return oldest_us + timeout_ms * 1000

    def fail_timed_out(self, now_us: int) -> list[Exhausted]:
        """Count a failure of messages that were not acked in time; there may be more of them. Return those that are
        exhausted."""
        timeout_us = self._failures.policy.ack_timeout_ms * 1000
        self._pace.timed_out(now_us, timeout_us)
        late = self._timeouts.take_older(now_us - timeout_us, DUE_AT_ONCE) if timeout_us else []
        return self.nack(runs(np.array(sorted(late), np.int64)), now_us, reason=ACK_TIMEOUT)

    def _start_timeouts(self, offsets: Iterable[int], now_us: int) -> None:
        if not self._timeouts:
            self._pace.start(now_us)
        self._timeouts.start(offsets, now_us)

    def restart_timeouts(self, ranges: Sequence[Range], now_us: int) -> None:
        """Count the ack timeouts of these messages from now on, as far as they are counted."""
        self._timeouts.restart(ranges, now_us)

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def next_due_us(self) -> int | None:
        """When `release_due` has something to do; None if nothing waits."""
        if not self._delays:
            return self._failures.next_due_us if self._failures.waiting else None
        retry = self._failures.next_due_us
        delay = self._delays[0][0]
        return delay if retry is None else min(retry, delay)

    def has_due(self, now_us: int) -> bool:
        """Whether `release_due` has something to do now. Messages that are ready already go first, so that messages
        are delivered in the order of their times."""
        if not (self._delays or self._failures.waiting):
            return False
        due_us = self.next_due_us
        return due_us is not None and due_us <= now_us and not self._ready.count

    def release_due(self, now_us: int) -> list[Exhausted]:
        """Make messages ready that are due; there may be more of them. Return those that are exhausted under the
        current policy instead."""
        exhausted, ready = self._failures.check_exhausted(self._failures.release_due(now_us, DUE_AT_ONCE))
        ready += self._release_delayed(now_us)
        self._ready.update(runs(np.array(sorted(ready), np.int64)))
        return exhausted

    def _release_delayed(self, now_us: int) -> list[int]:
        """Return the offsets of delayed messages whose time has come, in the order of their times.

        Ready messages are delivered by offset. If the policy is by key, only messages of a key whose times ascend with
        their offsets are therefore released together; the others are due again immediately.
        """
        delays, released, later = self._delays, list[int](), list[tuple[int, int, int]]()
        by_key, last = self._policy.by_key, dict[int, float]()
        while delays and delays[0][0] <= now_us and len(released) < DUE_AT_ONCE and len(later) < 16 + 4 * len(released):
            one = heappop(delays)
            _, offset, key = one
            if offset not in self._delayed:
                continue
            if by_key and offset < last.get(key, -1):
                later.append(one)
                last[key] = inf  # later messages of this key wait for this one
            else:
                released.append(offset)
                last[key] = offset
        for one in later:
            heappush(delays, one)
        self._delayed.subtract(runs(np.array(sorted(released), np.int64)))
        return released

    # -- seeking -------------------------------------------------------------------------------------------------------

    def seek(self, position: int, generation: int) -> None:
        """Start again at `position`. Deliveries so far are void: only those of the new generation can be acked."""
        assert generation > self.cursor.generation
        self.cursor.move(position, generation)
        self.next_read = position
        self._ready.clear()
        self._delayed.clear()
        self._delays.clear()
        self._failures.clear()
        self._timeouts.clear()
        self._pace.clear()
        self._policy.clear()

    # -- describing ----------------------------------------------------------------------------------------------------

    @property
    def unacked(self) -> int:
        """The number of messages in flight."""
        cursor = self.cursor
        if cursor.end <= self.next_read:
            read = self.next_read - cursor.position - cursor.acked_ahead
        else:
            read = sum([end - start for start, end in cursor.missing(cursor.position, self.next_read)])
        kept = self._ready.count + self._delayed.count + self._policy.held_back + self._policy.unmatched
        return read - kept - self._failures.not_deliverable

    @property
    def counts(self) -> DispatchCounts:
        return DispatchCounts(
            unacked=self.unacked,
            failed=len(self._failures),
            waiting=self._failures.waiting,
            dead_lettering=self._failures.dead_lettering,
            blocked=self._failures.blocked,
            delayed=self._delayed.count,
            held_back=self._policy.held_back,
            unmatched=self._policy.unmatched,
            blocked_keys=self._policy.blocked_keys,
        )

    def pending(self, ranges: Sequence[Range]) -> list[PendingMessage]:
        """Describe each of these messages, none of which is acknowledged. A message that was not read yet counts as
        ready, even if it has a delivery time."""
        read = [(start, min(end, self.next_read)) for start, end in ranges if start < self.next_read]
        consumers: dict[int, str] = {}
        for member in self._members.values():
            for start, end in self._policy.in_flight_to(member, read):
                consumers.update(dict.fromkeys(range(start, end), member.consumer))
        return [self._pending(offset, consumers.get(offset)) for start, end in ranges for offset in range(start, end)]

    def _pending(self, offset: int, consumer: str | None) -> PendingMessage:
        failure = self._failures.at(offset)
        count, reason = (failure.count, failure.reason) if failure is not None else (0, "")
        if consumer is not None:
            return PendingMessage(offset, "unacked", count, reason, consumer=consumer)
        if failure is not None and failure.state is not FailureState.DELIVERABLE:
            until_us = failure.due_us if failure.state is FailureState.WAITING else 0
            return PendingMessage(offset, _PENDING_STATES[failure.state], count, reason, until_us)
        if offset in self._delayed:
            return PendingMessage(offset, "delayed", count, reason)
        is_ready = offset >= self.next_read or offset in self._ready
        return PendingMessage(offset, "ready" if is_ready else "held", count, reason)

    def _make_ready(self, ranges: Sequence[Range]) -> None:
        """Mark `ranges` as to be delivered again, except what is acknowledged or was never read."""
        if ranges:
            if self._timeouts:
                self._timeouts.stop(merged(ranges))
            missing, read = self.cursor.missing, self.next_read
            self._ready.update([one for start, end in ranges for one in missing(start, min(end, read))])
