"""A subscription of one partition at work: reads the stream, delivers to consumers, records what is acked.

Who gets what is decided by `core.dispatch`. Consumers that keep up are served from the tail cache as soon as a batch is
visible; those behind are read for by one task at a time, a stretch within their credit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

from pydanube.broker.partitions.rate_limits import Rate
from pydanube.broker.partitions.state_ledger import Done
from pydanube.codec.batch import Batch
from pydanube.codec.batch.peek import offsets_of
from pydanube.codec.state import ChangeKind, CursorChange
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.failures import Exhausted
from pydanube.core.dispatch.members import Dealt, Member, first_rows
from pydanube.core.dispatch.pending import pending
from pydanube.core.dispatch.ranges import RangeArray, RangeSet, merged
from pydanube.core.dispatch.window import DUE_AT_ONCE, DeliveryWindow
from pydanube.model.errors import DanubeError, Invalid, Refused
from pydanube.model.failure import REASON_CHARACTERS_MAX, FailurePolicy, Poison
from pydanube.model.limits import ACKED_RANGES_REFUSED
from pydanube.model.pending import Pending
from pydanube.model.statistics import SubscriptionStatistics
from pydanube.model.topics import SubscriptionPartition, SubscriptionType
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.telemetry import get_logger

from .ack_batching import AckBatch, acked_change, too_many_gaps
from .alarm import Timer
from .consumer import Consumer, Sink
from .counters import DeliveryCounters, describe_member, describe_window
from .delivery_batches import below, cut, history, rows_for, straight, together
from .place import AttachedConsumer, SubscriptionContext
from .turn import Turn

log = get_logger(__name__)

ACKS_AT_ONCE: Final = 10_000
BURY_AGAIN_MS_MIN: Final = 1000
BURY_AGAIN_MS_MAX: Final = 60_000

READ_BYTES: Final = 1024 * 1024
"""The most that is read at a time for a subscription that is behind; its consumers' credit may be less."""

FEW_AGAIN: Final = 1_000
"""Neighbours to be delivered again, up to which only the batch that holds them is read."""


class LiveSubscription:
    """One subscription of one partition, owned by the partition."""

    def __init__(
        self,
        subscription_id: int,
        name: str,
        subscription_type: SubscriptionType,
        cursor: Cursor,
        failure_policy: FailurePolicy,
        place: SubscriptionContext,
    ) -> None:
        for one in place.stream.gaps.within(cursor.position, place.stream.end_offset):
            cursor.ack(*one)  # no message has these offsets: nobody waits for them, and no count includes them
        self.subscription_id = subscription_id
        self.name = name
        self.type = subscription_type
        self.core = DeliveryWindow(subscription_type, cursor, failure_policy, place.partition)
        self.counts = DeliveryCounters()
        self.last_active_us = place.clock.now_us()
        self._place = place
        self._stream = place.stream
        self._clock = place.clock
        self._seats: dict[Member, AttachedConsumer] = {}
        self._rate: Rate | None = None
        self._alarm = Timer(place.clock, place.tasks, self.pump, f"redelivery {place.topic} {name}")
        self._ahead: deque[memoryview] = deque()
        self._ahead_from = 0
        self._reading: asyncio.Task[None] | None = None
        self._turn = Turn(self.pump)
        self._gathered = AckBatch(self._acked)
        self._is_closed = False
        self._dying: deque[Exhausted] = deque()
        self._bury_again_ms = 0
        """How long dead letters wait that could not be stored; 0 while they can."""
        self._burying: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> Cursor:
        return self.core.cursor

    @property
    def generation(self) -> int:
        """The seek generation: deliveries of an earlier one can no longer be acked."""
        return self.core.cursor.generation

    @property
    def consumers(self) -> int:
        return len(self._seats)

    @property
    def consumer_names(self) -> list[str]:
        return [member.consumer for member in self._seats]

    # -- consumers -----------------------------------------------------------------------------------------------------

    def attach(
        self, consumer: str, sink: Sink, created: bool, priority: int = 0, key_filters: Sequence[str] = ()
    ) -> Consumer:
        self._gathered.settle()
        member, former = self.core.attach(consumer, priority, key_filters)
        seat = self._seats.pop(former, None) if former is not None else None
        self._seats[member] = AttachedConsumer(sink, DeliveryCounters())
        self.last_active_us = self._clock.now_us()
        self.forget_ahead()
        if seat is not None:
            seat.sink.closed(Refused(f"consumer {consumer!r} attached again elsewhere and took over"))
        self.pump()
        return Consumer(self, member, created, self._place.epoch())

    def detach(self, *members: Member) -> None:
        """These go, all at once: nothing of theirs is delivered to another of them."""
        self._gathered.settle()
        gone = [member for member in members if self._seats.pop(member, None) is not None]
        if gone:
            self.core.detach(*gone)
            self.last_active_us = self._clock.now_us()
            self.forget_ahead()
            self.pump()

    def refresh(self, member: Member) -> None:
        """It may have room again."""
        self.core.refresh(member)
        self.pump()

    def close(self, error: DanubeError) -> None:
        """The subscription or its partition ends here, with everything that was under way; consumers are told why."""
        self._gathered.settle()
        self._is_closed = True
        self._dying.clear()
        if self._burying is not None:
            self._burying.cancel()
        self._turn_out(error)

    def _turn_out(self, error: DanubeError) -> None:
        """Every consumer has to go, and is told why."""
        seats, self._seats = self._seats, {}
        self.core.detach(*seats)
        self.forget_ahead()
        self._alarm.set(None)
        for seat in seats.values():
            seat.sink.closed(error)

    # -- delivering ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what there is and what there is room for; if that is much, some of it now and the rest soon."""
        if self._is_closed or not self._turn.begin():
            return
        try:
            self._pump()
        finally:
            self._turn.end()

    def _pump(self) -> None:
        core, now_us = self.core, self._clock.now_us()
        while True:
            if core.has_due(now_us):
                self._end(core.due(now_us))
                self._turn.worked(0, DUE_AT_ONCE)
            resume_us = self._deliver_wanted()
            if resume_us is not None or self._reading is not None:
                break
            if self._turn.is_over:
                self._turn.another()
                return
            if not core.has_due(now_us):
                break
        due_us = core.next_due_us
        if due_us is not None and due_us <= now_us:
            due_us = None  # it waits for what is ready before it, and that for room
        self._alarm.set(resume_us if due_us is None else due_us if resume_us is None else min(due_us, resume_us))

    def _deliver_wanted(self) -> int | None:
        """Returns when to go on, if it is the dispatch rate that stops it."""
        core, stream = self.core, self._stream
        while (offset := core.wanted) is not None and offset < stream.end_offset:
            wait_s = self._rate.wait_s(self._clock.monotonic()) if self._rate is not None else 0.0
            if wait_s > 0:
                self._ahead.clear()
                return self._clock.now_us() + max(1000, int(wait_s * MICROSECONDS))
            view = self._at(offset)
            if view is None:
                return None
            if self._rate is not None:
                self._offer(Batch.trust(view))
            elif not self._give_straight():
                self._offer(together(self._ahead, *core.reach))
            elif core.next_read >= stream.end_offset and not core.wanted_again:
                break  # that was all
            if self._turn.is_over:
                return None
        self._ahead.clear()  # whoever has no room keeps nothing in memory: it is read again when its turn comes
        return None

    def _at(self, offset: int) -> memoryview | None:
        """The batch with this offset, or the first one behind it; None while it is being read."""
        ahead = self._ahead
        if ahead and offset >= self._ahead_from:
            while ahead and offsets_of(ahead[0])[1] <= offset:
                self._ahead_from = offsets_of(ahead.popleft())[1]  # what is wanted may go back behind it
            if ahead:
                return ahead[0]
        if self._reading is not None:
            return None
        views = self._stream.read_cached(offset, READ_BYTES)
        if views is None:
            room = min(READ_BYTES, sum(member.bytes for member in self._seats if member.has_room))
            few = 0 < self.core.wanted_again < FEW_AGAIN
            self._reading = self._place.tasks.spawn(self._read(offset, 0 if few else room), "catch-up read")
            return None
        if not views:
            self.core.skip_to(self._stream.end_offset)  # nothing is stored from here on
            return None
        self._ahead, self._ahead_from = deque(views), offset
        return self._ahead[0]

    def _give_straight(self) -> bool:
        """What lies ready, as it is stored, to the one who gets it all. False where that takes a closer look."""
        core, member, start = self.core, self.core.sole_taker, self.core.next_read
        if member is None:
            return False
        views, end, size = straight(self._ahead, start, member.messages, member.bytes)
        if not views:
            return False
        core.give_straight(member, end, size)
        now_us, seat, rows = self._clock.now_us(), self._seats[member], end - start
        self.counts.deliver(now_us, rows, size, 0)
        seat.counts.deliver(now_us, rows, size, 0)
        self._turn.worked(len(views), rows)
        seat.sink.deliver_whole(views, self._place.epoch())
        return True

    def _offer(self, batch: Batch) -> None:
        base, end = batch.base_offset, batch.end_offset
        now_us, following, rows_max = self._clock.now_us(), max(0, offsets_of(self._ahead[-1])[1] - end), None
        if self._rate is not None:  # nobody knows when what follows will be dealt
            following, rows_max = 0, rows_for(self._rate.allowance(self._clock.monotonic()), batch)
        self._deliver(batch, base, self.core.offer(batch, base, end, now_us, following, rows_max), now_us)
        self._turn.worked(1, min(batch.count, rows_max or batch.count), self.core.policy.take_work())

    def _deliver(self, batch: Batch, base: int, deals: Sequence[Dealt], now_us: int) -> None:
        for dealt, (view, ranges) in zip(deals, cut(batch, base, deals), strict=True):
            redeliveries, reasons = history(self.core.failures, base, dealt)
            seat, rows, size = self._seats[dealt.member], dealt.rows, len(view)
            dealt.member.weigh(size)
            again = sum(map(bool, redeliveries))
            self.counts.deliver(now_us, rows, size, again)
            seat.counts.deliver(now_us, rows, size, again)
            if self._rate is not None:
                self._rate.take(rows, size, self._clock.monotonic())
            seat.sink.deliver(view, self._place.epoch(), ranges, redeliveries, reasons)

    async def _read(self, offset: int, bytes_max: int) -> None:
        """One stretch from the log. Cancelled: nothing was delivered, the next pump reads again."""
        me, end = asyncio.current_task(), self._stream.end_offset
        try:
            views = await self._stream.read(offset, bytes_max)
        except DanubeError as error:
            if self._reading is me:
                self._reading = None
                self._turn_out(error)
            return
        if self._reading is me:
            self._reading = None
            if views:
                self._ahead, self._ahead_from = deque(views), offset
            elif self.core.wanted == offset:
                self.core.skip_to(end)
            self.pump()

    def forget_ahead(self) -> None:
        """Let go of what was read and not delivered."""
        self._ahead.clear()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def broadcast(self, view: memoryview) -> None:
        """On a topic that keeps nothing: whoever has room gets it now, the rest is lost and counted."""
        base, end = offsets_of(view)
        batch = Batch.trust(view)
        now_us, delivered = self._clock.now_us(), 0
        if self._rate is None or self._rate.wait_s(self._clock.monotonic()) <= 0:
            deals = self.core.pass_on(batch, base, end)
            delivered = sum([dealt.rows for dealt in deals])
            self._deliver(batch, base, deals, now_us)
        self.counts.dropped += end - base - delivered

    # -- settling ------------------------------------------------------------------------------------------------------

    def ack(
        self,
        member: Member,
        ranges: Sequence[tuple[int, int]],
        cumulative: bool,
        done: Done | None,
        generation: int | None,
        generation_attached: int,
    ) -> None:
        """See `Consumer.ack`. `generation_attached` is the generation at which the member attached."""
        if cumulative:
            try:
                self.core.check_cumulative()
            except Refused as error:
                self._put_out(member, error, done)
                return
            ranges = [(self.cursor.position, ranges[-1][1])] if ranges else []
        if generation is None:
            if generation_attached != self.generation:
                ranges = self.core.held_by(member, merged(below(ranges, self._stream.end_offset)))
        elif generation != self.generation:
            self.counts.stale_acks += len(ranges) > 0
            ranges = []
        if isinstance(ranges, RangeArray):
            self._gathered.add(ranges, done)
            return
        if done is not None:
            self._gathered.settle()  # whoever is told that this is durable takes it that all before it is
        self._acked(ranges, done)

    def _acked(self, ranges: Sequence[tuple[int, int]], done: Done | None) -> None:
        settled = self.mark_acked(ranges, done)
        self.last_active_us = now_us = self._clock.now_us()
        self.counts.ack(now_us, settled)
        if self.cursor.gaps > ACKED_RANGES_REFUSED:
            self._turn_out(too_many_gaps())

    def mark_acked(self, ranges: Sequence[tuple[int, int]], done: Done | None) -> int:
        """These offsets are done, whoever says so. Returns how many were not before."""
        clipped = merged(below(ranges, self._stream.end_offset))
        settled = 0
        for first in range(0, len(clipped), ACKS_AT_ONCE):
            settled += self.core.ack(clipped[first : first + ACKS_AT_ONCE])
            if self.cursor.gaps > ACKED_RANGES_REFUSED and first + ACKS_AT_ONCE < len(clipped):
                # No consumer in its right mind makes so many: the rest is not acked, and nobody is told it were.
                self._place.state.change(acked_change(self.subscription_id, clipped[: first + ACKS_AT_ONCE]), None)
                if done is not None:
                    done(too_many_gaps())
                return settled
        if settled:
            self._place.state.change(acked_change(self.subscription_id, clipped), done)
            self.pump()
        elif done is not None:
            self._place.state.barrier(done)
        return settled

    def _put_out(self, member: Member, error: DanubeError, done: Done | None) -> None:
        """This consumer asked for something that cannot be: it is told, and the others go on."""
        if done is not None:
            done(error)
            return
        seat = self._seats.get(member)
        self.detach(member)
        if seat is not None:
            seat.sink.closed(error)

    def nack(
        self,
        member: Member,
        ranges: Sequence[tuple[int, int]],
        delay_ms: int | None,
        reason: str,
        generation: int | None,
    ) -> None:
        if generation not in (None, self.generation):
            self.counts.stale_acks += 1
            return
        self._gathered.settle()
        self.last_active_us = now_us = self._clock.now_us()
        self._end(self.core.nack(ranges, now_us, delay_ms, reason[:REASON_CHARACTERS_MAX], member))
        self.pump()

    def mark_acked_below(
        self, offset: int, why: Literal["expired", "evicted"], kept: Sequence[tuple[int, int]] = ()
    ) -> int:
        """Messages below `offset` end here although nobody acked them, but for those in `kept`."""
        stay = RangeSet(kept)
        missing = self.cursor.missing(self.cursor.position, min(offset, self._stream.end_offset))
        settled = self.mark_acked([one for start, end in missing for one in stay.outside(start, end)], None)
        self.counts.end(settled, why)
        return settled

    def set_failure_policy(self, policy: FailurePolicy) -> None:
        former = self.core.failures.policy
        self._end(self.core.set_failure_policy(policy))
        if policy.ack_timeout_ms != former.ack_timeout_ms:
            for seat in list(self._seats.values()):
                seat.sink.changed(policy.ack_timeout_ms, self.generation)
        self.pump()

    def set_dispatch_rate(self, messages_per_s: int, bytes_per_s: int) -> None:
        """0: no limit."""
        self._rate = Rate.of(messages_per_s, bytes_per_s, self._clock.monotonic())
        self.pump()

    # -- the end of a message ------------------------------------------------------------------------------------------

    def _end(self, exhausted: Sequence[Exhausted]) -> None:
        """These were tried as often as is allowed."""
        if not exhausted:
            return
        first = exhausted[0]
        if not self._bury_again_ms:  # or they were spoken of when they came for the first time
            log.warning(
                "messages.exhausted",
                topic=self._place.topic,
                subscription=self.name,
                count=len(exhausted),
                offset=first.offset,
                attempts=first.attempts,
                poison=str(first.poison),
            )
        dropped = [(one.offset, one.offset + 1) for one in exhausted if one.poison is Poison.DROP]
        if dropped:
            self.counts.dropped += self.mark_acked(dropped, None)
        self._dying.extend(one for one in exhausted if one.poison is Poison.DEAD_LETTER)
        if self._dying and self._burying is None:
            self._burying = self._place.tasks.spawn(self._bury(), f"dead letters {self._place.topic} {self.name}")

    async def _bury(self) -> None:
        """One after the other: stored in the dead letter topic, then settled here. Cancelled: they are tried again."""
        try:
            while self._dying:
                one = self._dying.popleft()
                await self._bury_one(one)
        finally:
            self._burying = None

    async def _bury_one(self, one: Exhausted) -> None:
        policy, failure = self.core.failures.policy, self.core.failures.at(one.offset)
        place = self._place
        if failure is None:
            return  # settled meanwhile
        if policy.poison is not Poison.DEAD_LETTER:  # changed meanwhile: it ends as the policy says now
            self.core.try_again(one.offset, self._clock.now_us())
            self.pump()
            return
        try:
            await place.dead_letters.publish(place, self.name, one, policy)
        except DanubeError as error:
            if not self._bury_again_ms:
                log.warning("dead_letter.failed", topic=place.topic, offset=one.offset, error=error.message)
                self._bury_again_ms = BURY_AGAIN_MS_MIN
            self.core.try_again(one.offset, self._clock.now_us() + self._bury_again_ms * 1000)
            if not self._dying:  # all of them were tried once more
                self._bury_again_ms = min(2 * self._bury_again_ms, BURY_AGAIN_MS_MAX)
        else:
            self._bury_again_ms = 0
            if self.core.failures.at(one.offset) is failure:  # a seek forgets what failed: it is delivered anew
                self.counts.dead_lettered += self.mark_acked([(one.offset, one.offset + 1)], None)
        self.pump()

    # -- moving --------------------------------------------------------------------------------------------------------

    def seek(self, position: int, done: Done) -> None:
        """Start over at `position`, for the consumers that are attached too. Raises the generation: acks and nacks of
        what was delivered before are ignored from here on."""
        if position > self._stream.end_offset:
            raise Invalid(f"offset {position} is past the end of the partition, {self._stream.end_offset}")
        self._gathered.settle()
        # Of each owner other numbers: one that a crash forgot, before it was synced, is never given again.
        generation = max(self.generation, self._place.epoch() << 32) + 1
        self.core.move(position, generation)
        self.core.ack(self._stream.gaps.within(position, self._stream.end_offset))
        self._dying.clear()
        self.forget_ahead()
        moved = CursorChange(self.subscription_id, ChangeKind.MOVED, [(position, position)], generation)
        self._place.state.change(moved, done)
        for seat in list(self._seats.values()):  # before anything of the new generation is delivered
            seat.sink.changed(self.core.failures.policy.ack_timeout_ms, generation)
        self.pump()

    def stands_at(self, offset: int) -> bool:
        """Tell whether the position is `offset`, or lies behind it with no message in between."""
        return self.cursor.position == self._stream.gaps.skip(offset)

    def advance(self, offset: int, expected: int, done: Done) -> None:
        """Compare and set, for somebody who keeps no consumer attached."""
        if self._seats:
            raise Refused(f"subscription {self.name!r} has consumers attached: they move it by their acks")
        if not self.stands_at(expected):
            raise Refused(f"subscription {self.name!r} stands at {self.cursor.position}, not at {expected}")
        self.last_active_us = self._clock.now_us()
        self.seek(offset, done)

    # -- telling -------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Messages that can be read and are not acked."""
        cursor = self.cursor
        return max(0, self._stream.end_offset - max(cursor.position, self._stream.start_offset) - cursor.acked_ahead)

    @property
    def _acked_ahead(self) -> int:
        """Messages acked above the position. The cursor has acked the gaps too, which are none."""
        cursor, stream = self.cursor, self._stream
        return cursor.acked_ahead - stream.gaps.missing(cursor.position, stream.end_offset)

    def backlog_ranges(self, after: int, messages_max: int) -> list[tuple[int, int]]:
        """The first so many messages from `after` on that are not acked."""
        missing = self.cursor.missing(max(after, self._stream.start_offset), self._stream.end_offset)
        return first_rows(missing, max(0, messages_max))[0]

    def pending(self, after: int, messages_max: int) -> Pending:
        """The same, one by one, with what keeps each of them."""
        messages = pending(self.core, self.backlog_ranges(after, messages_max))
        return Pending(self.type, messages, self._clock.now_us())

    def describe(self, index: int) -> SubscriptionPartition:
        active = [member.consumer for member in self._seats if self.core.policy.is_active(member)]
        return SubscriptionPartition(
            partition=index,
            position=self.cursor.position,
            lag=self.backlog,
            acked_ahead=self._acked_ahead,
            unacked=self.core.unacked,
            consumer=", ".join(sorted(active)),
        )

    def statistics(self) -> SubscriptionStatistics:
        """All but the bytes and the age of the backlog."""
        now_us = self._clock.now_us()
        described = describe_window(self.core, self.counts, now_us)
        consumers = [describe_member(self.core, member, seat.counts, now_us) for member, seat in self._seats.items()]
        return replace(described, name=self.name, backlog=self.backlog, consumers=consumers)
