"""A running subscription of one partition: reads the stream, delivers to consumers, records what is acknowledged.

Which consumer gets which message is decided by `core.dispatch`. Consumers that keep up are served from the tail cache
as soon as a batch is visible. For consumers that are behind, one task at a time reads a stretch of the log within their
credit. Acks, and moves by a seek, change the cursor in memory and are written to the state ledger of the partition,
from which recovery reads them after a restart.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, Self, TypeAlias

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.broker.partitions.rate_limits import Rate
from pydanube.broker.partitions.state_ledger import Done, NoState, StateLedger
from pydanube.broker.quotas.throttle import Kind, Limits, Throttle
from pydanube.broker.security.audit_operations import AuditSession, open_session
from pydanube.broker.unread_memory import SMALL_BYTES as UNREAD_SMALL_BYTES
from pydanube.broker.unread_memory import UnreadMemory, UnreadPart
from pydanube.codec.batch import Batch
from pydanube.codec.batch.header import append_time_of, offsets_of
from pydanube.codec.state import ChangeKind, CursorChange
from pydanube.core.access import ANONYMOUS, Action, Principal
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.dispatcher import DUE_AT_ONCE, Dispatcher
from pydanube.core.dispatch.failed_messages import Exhausted
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.policy import Assignment
from pydanube.core.dispatch.ranges import RangeArray, clip, merged, split_first
from pydanube.model.errors import DanubeError, Invalid, Refused
from pydanube.model.failure import REASON_CHARACTERS_MAX, FailurePolicy, Poison
from pydanube.model.limits import ACKED_RANGES_REFUSED
from pydanube.model.statistics import SubscriptionStatistics
from pydanube.model.topics import SubscriptionPartition, SubscriptionType
from pydanube.operations.subscriptions import PendingMessages
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.stream import PartitionStream

from .ack_batching import AckBatch, acked_change, too_many_gaps
from .consumer import Consumer, Sink
from .counters import DeliveryCounters, consumer_statistics, subscription_statistics
from .dead_letters import DeadLetterPublisher
from .delivery_batches import WHOLE_BYTES_MAX, join_batches, rows_allowed, views_to_send, whole_batches
from .scheduling import Timer, WorkBudget

log = get_logger(__name__)

ACKS_AT_ONCE: Final = 10_000
DEAD_LETTER_RETRY_MS_MIN: Final = 1000
DEAD_LETTER_RETRY_MS_MAX: Final = 60_000

READ_BYTES: Final = 1024 * 1024
"""The most that is read at a time for a subscription that is behind; its consumers' credit may be less."""

SHORT_REDELIVERY: Final = 1_000
"""For fewer consecutive redeliveries, only the batch that holds the first of them is read."""


HELD_CHECK_S: Final = 1.0
"""While nothing may be delivered, because this broker may not own the partition any more, that is checked this often: a
session that was renewed late makes no other noise."""


Ended: TypeAlias = Literal["expired", "evicted", "dropped", "dead_lettered"]


class Owning(Protocol):
    """This broker's ownership of the partition; see partitions.ownership."""

    def holds(self) -> bool:
        """Return whether this broker surely owns the partition now."""
        ...

    def refusal(self) -> DanubeError:
        """Return the error for what is asked while it does not."""
        ...


class SubscriptionContext(NamedTuple):
    """What a subscription needs of its partition and its broker."""

    topic: str
    partition: int
    stream: PartitionStream
    state: StateLedger | NoState
    tasks: Tasks
    clock: Clock
    epoch: Callable[[], int]
    dead_letters: DeadLetterPublisher
    metrics: BrokerMetrics
    ownership: Owning
    throttle: Throttle
    unread: UnreadMemory


class AttachedConsumer(NamedTuple):
    """Where the deliveries of an attached consumer go, its counters, and who attached it to what, as rules of access
    name the subscription."""

    sink: Sink
    counts: DeliveryCounters
    principal: Principal
    resource: str
    session: AuditSession | None
    unread: UnreadPart | None

    @classmethod
    def open(cls, sink: Sink, principal: Principal, resource: str, partition: int, unread: UnreadPart | None) -> Self:
        """Return a consumer that is attached now; its session begins for the audit."""
        counts, session = DeliveryCounters(), open_session(Action.CONSUME, resource, partition)
        if session is not None:
            session.counts = lambda: (counts.delivered, counts.delivered_bytes)
        return cls(sink, counts, principal, resource, session, unread)

    def end_session(self, error: DanubeError | None = None) -> None:
        """Record for the audit that the consumer is detached. `error`: why the broker has done that."""
        if self.session is not None:
            self.session.end(error)


Refusal: TypeAlias = Callable[[Principal, str], DanubeError | None]
"""Returns why a principal may not consume a resource any more; None: it may."""


class LiveSubscription:
    """One subscription of one partition, owned by the partition."""

    def __init__(
        self,
        subscription_id: int,
        name: str,
        subscription_type: SubscriptionType,
        cursor: Cursor,
        failure_policy: FailurePolicy,
        context: SubscriptionContext,
    ) -> None:
        for one in context.stream.gaps.within(cursor.position, context.stream.end_offset):
            cursor.ack(*one)  # no message has these offsets: nothing waits for them, and no count includes them
        self.subscription_id = subscription_id
        self.name = name
        self.type = subscription_type
        self.dispatcher = Dispatcher(subscription_type, cursor, failure_policy, context.partition)
        self.counts = DeliveryCounters()
        self.last_active_us = context.clock.now_us()
        self._context = context
        self._stream = context.stream
        self._clock = context.clock
        self._metrics = context.metrics
        self._ownership = context.ownership
        self._attached: dict[Member, AttachedConsumer] = {}
        self._rate: Rate | None = None
        self._throttle = context.throttle
        self._unread = context.unread
        self._reading = context.unread.part()
        """What the read that is under way may return."""
        self._namespace = context.topic[1:].partition("/")[0]
        self._limited: dict[Member, Limits] = {}
        """The consumers whose principal or namespace has a rate in its quota."""
        self._limited_as_of: int | None = None
        """The version of the quotas that `_limited` was made of; None: consumers have changed since."""
        self._timer = Timer(context.clock, context.tasks, self.pump, f"redelivery {context.topic} {name}")
        self._ack_timer = Timer(context.clock, context.tasks, self.pump, f"ack timeouts {context.topic} {name}")
        self._read_ahead: deque[memoryview] = deque()
        """Stored batches that were read and are not delivered yet, without a gap from `_read_ahead_from` on."""
        self._read_ahead_from = 0
        self._read_task: asyncio.Task[None] | None = None
        self._budget = WorkBudget(self.pump)
        self._ack_batch = AckBatch(self._ack_now)
        self._is_closed = False
        self._dead_letter_queue: deque[Exhausted] = deque()
        self._dead_letter_retry_ms = 0
        """How long messages wait that could not be dead-lettered; 0 if the last one could."""
        self._dead_letter_task: asyncio.Task[None] | None = None

    @property
    def cursor(self) -> Cursor:
        return self.dispatcher.cursor

    @property
    def generation(self) -> int:
        """The seek generation: deliveries of an earlier one can no longer be acked."""
        return self.dispatcher.cursor.generation

    @property
    def ack_timeout_ms(self) -> int:
        return self.dispatcher.failure_policy.ack_timeout_ms

    @property
    def consumers(self) -> int:
        return len(self._attached)

    @property
    def consumer_names(self) -> list[str]:
        return [member.consumer for member in self._attached]

    # -- consumers -----------------------------------------------------------------------------------------------------

    def attach(
        self,
        consumer: str,
        sink: Sink,
        created: bool,
        priority: int = 0,
        key_filters: Sequence[str] = (),
        ack_timeouts: bool = False,
        principal: Principal = ANONYMOUS,
        resource: str = "",
        unread: UnreadPart | None = None,
    ) -> Consumer:
        """Attach a consumer. If one of the same name is attached, it is closed and the new one takes over.

        `ack_timeouts`: see `Attachment`. `principal` may consume the subscription, which is `resource` to
        it; see `detach_refused`. `unread` counts what its client has not received.
        """
        self._ack_batch.flush()
        member, former = self.dispatcher.attach(consumer, priority, key_filters, ack_timeouts)
        replaced = self._attached.pop(former, None) if former is not None else None
        if replaced is not None:
            replaced.end_session(_taken_over(consumer))
        self._attached[member] = AttachedConsumer.open(sink, principal, resource, self._context.partition, unread)
        self._limited_as_of = None
        self.last_active_us = self._clock.now_us()
        self.drop_read_ahead()
        if replaced is not None:
            replaced.sink.closed(_taken_over(consumer))
        self.pump()
        return Consumer(self, member, created, self._context.epoch())

    def detach(self, *members: Member, error: DanubeError | None = None) -> None:
        """Detach members all at once: nothing in flight to one of them is delivered to another of them. `error` is why
        the broker does that; None: their clients do."""
        self._ack_batch.flush()
        gone: list[Member] = []
        for member in members:
            if (attached := self._attached.pop(member, None)) is not None:
                gone.append(member)
                self._unread.forget(member)
                attached.end_session(error)
        if gone:
            self._limited_as_of = None
            self.dispatcher.detach(*gone)
            self.last_active_us = self._clock.now_us()
            self.drop_read_ahead()
            self.pump()

    def close_consumer(self, consumer: str) -> None:
        """Detach the consumer of this name, if there is one, because another takes over."""
        for member, attached in list(self._attached.items()):
            if member.consumer == consumer:
                self.detach(member, error=_taken_over(consumer))
                attached.sink.closed(_taken_over(consumer))

    def detach_refused(self, refusal: Refusal) -> int:
        """Detach the consumers whose principals may not consume the subscription any more; return how many."""
        refused: list[tuple[Member, Sink, DanubeError]] = []
        for member, one in self._attached.items():
            error = refusal(one.principal, one.resource)
            if error is not None:
                refused.append((member, one.sink, error))
        if refused:
            for member, _, error in refused:
                self._attached[member].end_session(error)
            self.detach(*(member for member, _, _ in refused))
        for _, sink, error in refused:
            sink.closed(error)
        return len(refused)

    def is_attached(self, principal: Principal) -> bool:
        """Return whether a consumer of this principal is attached."""
        return any(one.principal.id == principal.id for one in self._attached.values())

    def renew(self, member: Member, principal: Principal) -> None:
        """Go on with newer credentials of the principal that attached the consumer: its groups may be others now."""
        if (one := self._attached.get(member)) is not None:
            self._attached[member] = one._replace(principal=principal)

    def credited(self, member: Member) -> None:
        """Deliver what is possible after a member got credit or was resumed."""
        if not self.dispatcher.takes_part(member):  # with its first credit, others may lose messages to it
            self._ack_batch.flush()
            self.drop_read_ahead()
        self.dispatcher.credited(member)
        self.pump()

    def close(self, error: DanubeError) -> None:
        """End the subscription here, because it or its partition ends. Consumers are closed with `error`."""
        self._ack_batch.flush()
        self._is_closed = True
        self._dead_letter_queue.clear()
        if self._dead_letter_task is not None:
            self._dead_letter_task.cancel()
        self._close_consumers(error)

    def _close_consumers(self, error: DanubeError) -> None:
        attached, self._attached = self._attached, {}
        self._limited_as_of = None
        self.dispatcher.detach(*attached)
        self.drop_read_ahead()
        self._timer.set(None)
        self._ack_timer.set(None)
        for member, one in attached.items():
            self._unread.forget(member)
            one.end_session(error)
            one.sink.closed(error)

    # -- delivering ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what is there and what consumers have credit for; if that is much, a part now and the rest soon."""
        if self._is_closed or not self._budget.begin():
            return
        try:
            if self._ownership.holds():
                self._pump()
            else:
                self._timer.set(self._clock.now_us() + round(HELD_CHECK_S * MICROSECONDS))
        finally:
            self._budget.end()

    def _pump(self) -> None:
        dispatcher, now_us = self.dispatcher, self._clock.now_us()
        while True:
            if dispatcher.has_timed_out(now_us):
                self._handle_exhausted(dispatcher.fail_timed_out(now_us))
                self._budget.spend(0, DUE_AT_ONCE)
            if dispatcher.has_due(now_us):
                self._handle_exhausted(dispatcher.release_due(now_us))
                self._budget.spend(0, DUE_AT_ONCE)
            resume_us = self._deliver_available()
            if resume_us is not None or self._read_task is not None:
                break
            if self._budget.is_spent:
                self._budget.continue_later()
                return
            if not (dispatcher.has_due(now_us) or dispatcher.has_timed_out(now_us)):
                break
        if dispatcher.counts_timeouts and not self._ack_timer.is_set:
            # It is not set again when the first message is acked: it then runs once too early for the next one.
            self._ack_timer.set(dispatcher.next_timeout_us)
        due_us = dispatcher.next_due_us
        if due_us is not None and due_us <= now_us:
            due_us = None  # messages that are ready go first, and these wait for credit
        self._timer.set(resume_us if due_us is None else due_us if resume_us is None else min(due_us, resume_us))

    def _deliver_available(self) -> int | None:
        """Deliver until nothing is left, credit or budget are used up, or a read is under way. If the dispatch rate is
        what stops it, return when to go on."""
        dispatcher, stream = self.dispatcher, self._stream
        while (offset := dispatcher.offset_to_read) is not None and offset < stream.end_offset:
            is_limited = self._throttle.is_active and self._is_limited()
            if is_limited and self._hold_limited():
                continue
            wait_s = self._rate.wait_s(self._clock.monotonic()) if self._rate is not None else 0.0
            if wait_s > 0:
                self._read_ahead.clear()
                return self._clock.now_us() + max(1000, int(wait_s * MICROSECONDS))
            is_tight = self._unread.is_tight
            if is_tight and self._hold_unread(1):
                continue
            view = self._batch_at(offset)
            if view is None:
                return None
            if is_tight and self._hold_unread(len(view)):
                continue
            if self._rate is not None or is_limited:
                self._offer(Batch.trust(view))
            elif not self._deliver_stored(1 if is_tight else WHOLE_BYTES_MAX):
                self._offer(join_batches(self._read_ahead, *((1, 1) if is_tight else dispatcher.offer_limits)))
            elif dispatcher.next_read >= stream.end_offset and not dispatcher.redelivery_run:
                break  # that was everything
            if self._budget.is_spent:
                return None
        self._read_ahead.clear()  # without credit nothing is kept in memory: it is read again when there is some
        return None

    def _is_limited(self) -> bool:
        """Return whether the quota of any attached consumer has a rate, and note which."""
        if self._limited_as_of != self._throttle.version:
            self._limited_as_of = self._throttle.version
            found = {
                member: self._throttle.limits_of(one.principal, Kind.FETCH, self._namespace)
                for member, one in self._attached.items()
            }
            self._limited = {member: limits for member, limits in found.items() if limits}
        return bool(self._limited)

    def _hold_limited(self) -> bool:
        """Deliver nothing to consumers whose rate is used up, until it is not; return whether there is one more of
        them. The others get what there is."""
        held = False
        for member, limits in self._limited.items():
            if member.can_receive and self._throttle.wait_s(limits) > 0:
                member.held = held = True
                principal, release = self._attached[member].principal, partial(self._release, member)
                self._throttle.hold(principal, self._namespace, _HeldConsumer(self, member), release)
        return held

    def _hold_unread(self, size_bytes: int) -> bool:
        """Deliver nothing to consumers whose clients may not be given this much before others have received what was
        sent to them; return whether there is one more of them."""
        held = False
        for member, one in self._attached.items():
            if member.can_receive and one.unread is not None and not one.unread.may_take(size_bytes):
                member.held = held = True
                self._unread.call_when_free(member, one.unread, size_bytes, partial(self._release, member))
        return held

    def _release(self, member: Member) -> None:
        member.held = False
        if member in self._attached:
            self.credited(member)

    def _batch_at(self, offset: int) -> memoryview | None:
        """Return the stored batch with this offset, or the first one after it; None while it is being read."""
        ahead = self._read_ahead
        if ahead and offset >= self._read_ahead_from:
            while ahead and offsets_of(ahead[0])[1] <= offset:
                self._read_ahead_from = offsets_of(ahead.popleft())[1]  # a later call may ask for an earlier offset
            if ahead:
                return ahead[0]
        if self._read_task is not None:
            return None
        views = self._stream.read_cached(offset, READ_BYTES)
        if views is None:
            credit = min(READ_BYTES, sum(member.bytes for member in self._attached if member.can_receive))
            is_short = 0 < self.dispatcher.redelivery_run < SHORT_REDELIVERY
            self._read_task = self._context.tasks.spawn(self._read(offset, 0 if is_short else credit), "catch-up read")
            return None
        if not views:
            self.dispatcher.skip_to(self._stream.end_offset)  # nothing is stored from here on
            return None
        self._read_ahead, self._read_ahead_from = deque(views), offset
        return self._read_ahead[0]

    def _deliver_stored(self, bytes_max: int) -> bool:
        """Deliver what was read as it is stored, if one consumer gets everything. Return False if batches must be
        offered one by one."""
        dispatcher, member, start = self.dispatcher, self.dispatcher.sole_consumer, self.dispatcher.next_read
        if member is None:
            return False
        views, end, size = whole_batches(self._read_ahead, start, member.messages, min(member.bytes, bytes_max))
        if not views:
            return False
        now_us, attached, rows = self._clock.now_us(), self._attached[member], end - start
        dispatcher.assign_stored(member, end, size, now_us)
        self.counts.deliver(now_us, rows, size, 0)
        attached.counts.deliver(now_us, rows, size, 0)
        self._metrics.delivered(rows, size, 0, now_us - append_time_of(views[0]))
        if self._metrics.tracer is not None:
            self._metrics.tracer.delivered(self._context.topic, self.name, member.consumer, views)
        self._budget.spend(len(views), rows)
        attached.sink.deliver_whole(views, self._context.epoch())
        return True

    def _offer(self, batch: Batch) -> None:
        base, end = batch.base_offset, batch.end_offset
        now_us, following, rows_max = self._clock.now_us(), max(0, offsets_of(self._read_ahead[-1])[1] - end), None
        if self._rate is not None:  # it is unknown when the following messages can be delivered
            following, rows_max = 0, rows_allowed(self._rate.allowance(self._clock.monotonic()), batch)
        self._deliver(batch, base, self.dispatcher.offer(batch, base, end, now_us, following, rows_max), now_us)
        self._budget.spend(1, min(batch.count, rows_max or batch.count), self.dispatcher.drain_cost())

    def _deliver(self, batch: Batch, base: int, assignments: Sequence[Assignment], now_us: int) -> None:
        views = views_to_send(batch, base, assignments)
        for assignment, (view, ranges) in zip(assignments, views, strict=True):
            redeliveries, reasons = self.dispatcher.failure_history(assignment.offsets(base))
            attached, rows, size = self._attached[assignment.member], assignment.rows, len(view)
            assignment.member.correct_estimate(size)
            redelivered = sum(map(bool, redeliveries))
            self.counts.deliver(now_us, rows, size, redelivered)
            attached.counts.deliver(now_us, rows, size, redelivered)
            self._metrics.delivered(rows, size, redelivered, now_us - batch.append_time)
            if self._metrics.tracer is not None:
                consumer = assignment.member.consumer
                self._metrics.tracer.delivered_rows(self._context.topic, self.name, consumer, view, ranges)
            if self._rate is not None:
                self._rate.take(rows, size, self._clock.monotonic())
            if self._throttle.is_active and assignment.member in self._limited:
                self._throttle.take(self._limited[assignment.member], size)
            attached.sink.deliver(view, self._context.epoch(), ranges, redeliveries, reasons)

    async def _read_reserved(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Read a stretch of the log once there is memory for it."""
        least_bytes = UNREAD_SMALL_BYTES
        while True:
            taken_bytes = await self._reading.reserve_when_free(max(bytes_max, 1), least_bytes)
            try:
                async with self._unread.turn(taken_bytes < bytes_max):
                    views = await self._stream.read(offset, min(bytes_max, taken_bytes))
                read_bytes = sum(map(len, views))
                if read_bytes <= taken_bytes or self._reading.may_take(read_bytes - taken_bytes):
                    return views
                least_bytes = read_bytes  # one batch, which is read again when there is memory for it
                del views
            finally:
                self._reading.give_back(taken_bytes)

    async def _read(self, offset: int, bytes_max: int) -> None:
        """Read one stretch of the log, then deliver. If cancelled, nothing was delivered and the next pump reads
        again."""
        me, end = asyncio.current_task(), self._stream.end_offset
        try:
            views = await self._read_reserved(offset, bytes_max)
        except DanubeError as error:
            if self._read_task is me:
                self._read_task = None
                self._close_consumers(error)
            return
        if self._read_task is me:
            self._read_task = None
            if views:
                self._read_ahead, self._read_ahead_from = deque(views), offset
            elif self.dispatcher.offset_to_read == offset:
                self.dispatcher.skip_to(end)
            self.pump()

    def drop_read_ahead(self) -> None:
        """Drop what was read and not delivered, and stop reading."""
        self._read_ahead.clear()
        if self._read_task is not None:
            self._read_task.cancel()
            self._read_task = None

    def broadcast(self, view: memoryview) -> None:
        """Deliver a batch of a non-reliable topic to consumers that have credit now; the rest is lost and counted."""
        base, end = offsets_of(view)
        batch = Batch.trust(view)
        now_us, delivered = self._clock.now_us(), 0
        if self._throttle.is_active and self._is_limited():
            self._hold_limited()
        if self._unread.is_tight:
            self._hold_unread(len(view))
        if self._rate is None or self._rate.wait_s(self._clock.monotonic()) <= 0:
            assignments = self.dispatcher.offer_once(batch, base, end)
            delivered = sum([one.rows for one in assignments])
            self._deliver(batch, base, assignments, now_us)
        self._count_ended("dropped", end - base - delivered)

    # -- acks and nacks ------------------------------------------------------------------------------------------------

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
                self.dispatcher.check_cumulative()
            except Refused as error:
                self._reject(member, error, done)
                return
            ranges = [(self.cursor.position, ranges[-1][1])] if ranges else []
        if generation is None:
            if generation_attached != self.generation:
                ranges = self.dispatcher.in_flight_to(member, merged(clip(ranges, self._stream.end_offset)))
        elif generation != self.generation:
            self.counts.stale_acks += len(ranges) > 0
            ranges = []
        if isinstance(ranges, RangeArray):
            self._ack_batch.add(ranges, done)
            return
        if done is not None:
            self._ack_batch.flush()  # when this ack is reported as durable, all acks before it must be durable too
        self._ack_now(ranges, done)

    def ack_any(self, offsets: Sequence[int]) -> None:
        """Acknowledge these messages, whichever consumer received them. If the subscription was ever sought, only those
        that are in flight: the others may have been delivered before the seek."""
        ranges = [(offset, offset + 1) for offset in sorted(offsets)]
        if self.generation:
            ranges = self.dispatcher.in_flight_to(None, merged(clip(ranges, self._stream.end_offset)))
        if not self._is_closed:
            self._ack_now(ranges, None)

    def _ack_now(self, ranges: Sequence[tuple[int, int]], done: Done | None) -> None:
        if not self._ownership.holds():
            self._refuse_ack(done)
            return
        acked = self._mark_acked(ranges, done)
        self.last_active_us = now_us = self._clock.now_us()
        self.counts.ack(now_us, acked)
        self._metrics.acked += acked
        if self.cursor.gaps > ACKED_RANGES_REFUSED:
            self._close_consumers(too_many_gaps())

    def mark_acked(self, ranges: Sequence[tuple[int, int]], done: Done | None) -> int:
        """Mark the offsets as acknowledged and return how many of them were new. `done` is called once that is synced.

        Not only consumers acknowledge messages, but also operators, the time to live and the backlog quota. Nothing is
        marked while this broker may not own the partition any more.
        """
        if self._ownership.holds():
            return self._mark_acked(ranges, done)
        if done is not None:
            done(self._ownership.refusal())
        return 0

    def _mark_acked(self, ranges: Sequence[tuple[int, int]], done: Done | None) -> int:
        clipped = merged(clip(ranges, self._stream.end_offset))
        acked = 0
        for first in range(0, len(clipped), ACKS_AT_ONCE):
            acked += self.dispatcher.ack(clipped[first : first + ACKS_AT_ONCE])
            if self.cursor.gaps > ACKED_RANGES_REFUSED and first + ACKS_AT_ONCE < len(clipped):
                # Too many gaps: acknowledge only the first ranges and report Full for the rest.
                change = acked_change(self.subscription_id, clipped[: first + ACKS_AT_ONCE])
                self._context.state.change(change, None)
                if done is not None:
                    done(too_many_gaps())
                return acked
        if acked:
            self._context.state.change(acked_change(self.subscription_id, clipped), done)
            self.pump()
        elif done is not None:
            self._context.state.barrier(done)
        return acked

    def check_held(self) -> None:
        """Raise what a consumer is told while this broker may not own the partition any more."""
        if not self._ownership.holds():
            raise self._ownership.refusal()

    def _refuse_ack(self, done: Done | None = None) -> None:
        """Count no ack and no nack while this broker may not own the partition any more. The consumers are closed, so
        that they look the owner up and what they have is delivered again."""
        error = self._ownership.refusal()
        if done is not None:
            done(error)
        self._close_consumers(error)

    def _count_ended(self, counter: Ended, messages: int) -> None:
        """Count messages that ended without an ack of a consumer."""
        setattr(self.counts, counter, getattr(self.counts, counter) + messages)
        if messages:
            self._metrics.ended[counter] += messages

    def _reject(self, member: Member, error: DanubeError, done: Done | None) -> None:
        """Report an invalid request to the consumer that made it: through `done` or, without it, by closing the
        consumer. The other consumers are not affected."""
        if done is not None:
            done(error)
            return
        attached = self._attached.get(member)
        self.detach(member, error=error)
        if attached is not None:
            attached.sink.closed(error)

    def nack(
        self,
        member: Member,
        ranges: Sequence[tuple[int, int]],
        delay_ms: int | None,
        reason: str,
        generation: int | None,
        bounded: bool = False,
    ) -> None:
        """See `Consumer.nack`."""
        if self._begin_nack(generation):
            reason = reason[:REASON_CHARACTERS_MAX]
            now_us = self.last_active_us
            self._handle_exhausted(self.dispatcher.nack(ranges, now_us, delay_ms, reason, member, bounded))
            self.pump()

    def reject(self, member: Member, ranges: Sequence[tuple[int, int]], reason: str, generation: int | None) -> None:
        """See `Consumer.reject`."""
        if self._begin_nack(generation):
            self._handle_exhausted(self.dispatcher.give_up(ranges, reason[:REASON_CHARACTERS_MAX], member))
            self.pump()

    def _begin_nack(self, generation: int | None) -> bool:
        """Process the acks that came before a nack. Return whether the nack counts."""
        if generation not in (None, self.generation):
            self.counts.stale_acks += 1
            return False
        if not self._ownership.holds():
            self._refuse_ack()
            return False
        self._ack_batch.flush()
        self.last_active_us = self._clock.now_us()
        return True

    def nack_any(self, ranges: Sequence[tuple[int, int]], delay_ms: int, reason: str) -> None:
        """Report that these messages could not be processed, whichever consumer received them. The delay counts between
        that of the failure policy and its maximum."""
        if self._begin_nack(None):
            reason = reason[:REASON_CHARACTERS_MAX]
            self._handle_exhausted(self.dispatcher.nack(ranges, self.last_active_us, delay_ms, reason, bounded=True))
            self.pump()

    def give_up(self, member: Member, ranges: Sequence[tuple[int, int]], reason: str, generation: int | None) -> None:
        """See `Consumer.give_up`. Waiting acks are not processed first: this may be called while messages are being
        delivered."""
        if not self._ownership.holds():
            asyncio.get_running_loop().call_soon(self._refuse_ack)
        elif generation in (None, self.generation):
            self._handle_exhausted(self.dispatcher.give_up(ranges, reason[:REASON_CHARACTERS_MAX], member))
            self.pump()

    def give_back(self, member: Member, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Consumer.give_back`."""
        self._ack_batch.flush()
        self.dispatcher.give_back(ranges, member)
        self.pump()

    def restart_timeouts(self, ranges: Sequence[tuple[int, int]]) -> None:
        """See `Consumer.sent`."""
        self.dispatcher.restart_timeouts(ranges, self._clock.now_us())

    def expire(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Mark messages as acknowledged because their time to live is over."""
        self._count_ended("expired", self.mark_acked(ranges, None))

    def evict_below(self, offset: int) -> None:
        """Mark the messages below `offset` as acknowledged because of the backlog quota."""
        missing = self.cursor.missing(self.cursor.position, min(offset, self._stream.end_offset))
        self._count_ended("evicted", self.mark_acked(missing, None))

    def set_failure_policy(self, policy: FailurePolicy) -> None:
        former = self.dispatcher.failure_policy
        self._handle_exhausted(self.dispatcher.set_failure_policy(policy))
        if policy.ack_timeout_ms != former.ack_timeout_ms:
            self._ack_timer.set(None)
            self._notify_changed()
        self.retry_dead_letters()

    def set_unacked_max(self, messages: int) -> None:
        """Limit how many messages are in flight on this partition; 0 means no limit."""
        self.dispatcher.unacked_max = messages
        self.pump()

    def _notify_changed(self) -> None:
        """Tell the consumers the ack timeout and the seek generation, one of which changed."""
        for attached in list(self._attached.values()):
            attached.sink.changed(self.ack_timeout_ms, self.generation)

    def set_dispatch_rate(self, messages_per_s: int, bytes_per_s: int) -> None:
        """Limit what is delivered per second; 0 means no limit."""
        self._rate = Rate.of(messages_per_s, bytes_per_s, self._clock.monotonic())
        self.pump()

    # -- exhausted messages --------------------------------------------------------------------------------------------

    def _handle_exhausted(self, exhausted: Sequence[Exhausted]) -> None:
        """Log, drop or dead-letter messages that failed as often as the policy allows."""
        if not exhausted:
            return
        first = exhausted[0]
        if not self._dead_letter_retry_ms:  # otherwise they were logged when they were exhausted for the first time
            log.warning(
                "messages.exhausted",
                topic=self._context.topic,
                subscription=self.name,
                count=len(exhausted),
                offset=first.offset,
                attempts=first.attempts,
                poison=str(first.poison),
                reason=first.reason,
            )
        dropped = [(one.offset, one.offset + 1) for one in exhausted if one.poison is Poison.DROP]
        if dropped:
            self._count_ended("dropped", self.mark_acked(dropped, None))
        self._dead_letter_queue.extend(one for one in exhausted if one.poison is Poison.DEAD_LETTER)
        if self._dead_letter_queue and self._dead_letter_task is None:
            name = f"dead letters {self._context.topic} {self.name}"
            self._dead_letter_task = self._context.tasks.spawn(self._dead_letter_all(), name)

    @property
    def topic(self) -> str:
        return self._context.topic

    def retry_dead_letters(self) -> None:
        """Try again now what could not be dead-lettered: what refused it is different by now."""
        self.dispatcher.hasten_dead_letters(self._clock.now_us())
        self.pump()

    async def _dead_letter_all(self) -> None:
        """Store the queued messages in the dead letter topic one after the other, each before it is marked as
        acknowledged here. If cancelled, the rest is delivered and fails again."""
        try:
            while self._dead_letter_queue:
                await self._dead_letter_one(self._dead_letter_queue.popleft())
        finally:
            self._dead_letter_task = None

    async def _dead_letter_one(self, message: Exhausted) -> None:
        offset, generation, policy = message.offset, self.generation, self.dispatcher.failure_policy
        context = self._context
        if self.cursor.is_acked(offset):
            return
        if policy.poison is not Poison.DEAD_LETTER:  # it was changed meanwhile: the message ends as it says now
            self.dispatcher.retry_dead_letter(offset, self._clock.now_us())
            self.pump()
            return
        try:
            await context.dead_letters.publish(context, self.name, message, policy)
        except DanubeError as error:
            if not self._dead_letter_retry_ms:
                log.warning("dead_letter.failed", topic=context.topic, offset=offset, error=error.message)
                self._dead_letter_retry_ms = DEAD_LETTER_RETRY_MS_MIN
            self.dispatcher.retry_dead_letter(offset, self._clock.now_us() + self._dead_letter_retry_ms * 1000)
            if not self._dead_letter_queue:  # every queued message was tried once more
                self._dead_letter_retry_ms = min(2 * self._dead_letter_retry_ms, DEAD_LETTER_RETRY_MS_MAX)
            context.dead_letters.retry_when_allowed(self)
        else:
            self._dead_letter_retry_ms = 0
            if not self._ownership.holds():  # the ack cannot be counted now: the dead letter may be stored twice
                self.dispatcher.retry_dead_letter(offset, self._clock.now_us() + DEAD_LETTER_RETRY_MS_MIN * 1000)
            elif generation == self.generation:  # after a seek meanwhile, the message is to be delivered again
                self._count_ended("dead_lettered", self.mark_acked([(offset, offset + 1)], None))
        self.pump()

    # -- moving --------------------------------------------------------------------------------------------------------

    def seek(self, position: int, done: Done) -> None:
        """Start again at `position`, also for the attached consumers. `done` is called once that is synced.

        The generation is raised: acks and nacks of earlier deliveries are ignored from now on.
        """
        if position > self._stream.end_offset:
            raise Invalid(f"offset {position} is past the end of the partition, {self._stream.end_offset}")
        self.check_held()
        self._ack_batch.flush()
        # Each owner of the partition uses numbers of its own: a generation that a crash lost is never used again.
        generation = max(self.generation, self._context.epoch() << 32) + 1
        self.dispatcher.seek(position, generation)
        self.dispatcher.ack(self._stream.gaps.within(position, self._stream.end_offset))
        self._dead_letter_queue.clear()
        self.drop_read_ahead()
        moved = CursorChange(self.subscription_id, ChangeKind.MOVED, [(position, position)], generation)
        self._context.state.change(moved, done)
        self._notify_changed()  # before anything of the new generation is delivered
        self.pump()

    def stands_at(self, offset: int) -> bool:
        """Return whether the position is `offset`, or lies behind it with no message in between."""
        return self.cursor.position == self._stream.gaps.skip(offset)

    def advance(self, offset: int, expected: int, done: Done) -> None:
        """Move the position from `expected` to `offset`, for callers that attach no consumer. Raises Refused if
        consumers are attached or the position is another one."""
        if self._attached:
            raise Refused(f"subscription {self.name!r} has consumers attached: they move it by their acks")
        if not self.stands_at(expected):
            raise Refused(f"subscription {self.name!r} stands at {self.cursor.position}, not at {expected}")
        self.last_active_us = self._clock.now_us()
        self.seek(offset, done)

    # -- describing ----------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """The number of messages that are stored and not acknowledged."""
        cursor = self.cursor
        return max(0, self._stream.end_offset - max(cursor.position, self._stream.start_offset) - cursor.acked_ahead)

    @property
    def _acked_ahead(self) -> int:
        """The number of messages acknowledged above the position, without gaps, which the cursor has acked too."""
        cursor, stream = self.cursor, self._stream
        return cursor.acked_ahead - stream.gaps.missing(cursor.position, stream.end_offset)

    def backlog_ranges(self, after: int, messages_max: int) -> list[tuple[int, int]]:
        """Return the first `messages_max` offsets from `after` on that are not acknowledged."""
        missing = self.cursor.missing(max(after, self._stream.start_offset), self._stream.end_offset)
        return split_first(missing, max(0, messages_max))[0]

    def pending(self, after: int, messages_max: int) -> PendingMessages:
        """Describe each of the messages in `backlog_ranges`."""
        messages = self.dispatcher.pending(self.backlog_ranges(after, messages_max))
        return PendingMessages(messages, str(self.type), self._clock.now_us())

    def describe(self, index: int) -> SubscriptionPartition:
        active = [member.consumer for member in self._attached if self.dispatcher.is_active(member)]
        return SubscriptionPartition(
            partition=index,
            position=self.cursor.position,
            lag=self.backlog,
            acked_ahead=self._acked_ahead,
            unacked=self.dispatcher.unacked,
            consumer=", ".join(sorted(active)),
        )

    def statistics(self, *, with_consumers: bool = True) -> SubscriptionStatistics:
        """Return the statistics without the bytes and the age of the backlog."""
        now_us = self._clock.now_us()
        if not with_consumers:
            return subscription_statistics(self.name, self.dispatcher, self.counts, self.backlog, [], now_us)
        consumers = [
            consumer_statistics(self.dispatcher, member, attached.counts, now_us)
            for member, attached in self._attached.items()
        ]
        return subscription_statistics(self.name, self.dispatcher, self.counts, self.backlog, consumers, now_us)


class _HeldConsumer:
    """A consumer that waits for its rate: it is gone when it is detached."""

    __slots__ = ("_member", "_subscription")

    def __init__(self, subscription: LiveSubscription, member: Member) -> None:
        self._subscription = subscription
        self._member = member

    @property
    def is_closed(self) -> bool:
        return self._member not in self._subscription._attached


def _taken_over(consumer: str) -> Refused:
    return Refused(f"consumer {consumer!r} attached again elsewhere and took over")
