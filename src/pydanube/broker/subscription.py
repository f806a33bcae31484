"""A subscription of one partition at work: reads the stream, delivers to the consumer, records what is acked.

Consumers that keep up are served from the tail cache as soon as a batch is visible; those behind are read for by one
task at a time, a stretch ahead of their credit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pydanube.codec.batch.peek import offsets_of
from pydanube.codec.state import ChangeKind, CursorChange
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.exclusive import Attachment, Exclusive
from pydanube.model.errors import DanubeError, Full, Invalid, Refused
from pydanube.model.limits import ACKED_RANGES_REFUSED
from pydanube.model.topics import SubscriptionPartition, SubscriptionType
from pydanube.runtime.tasks import Tasks
from pydanube.storage.stream import Stream

from .state import Done, NoState, StateLedger

READ_BYTES: Final = 2 * 1024 * 1024
"""The most that is read at a time for a subscription that is behind; its consumer's credit may be less."""


class Sink(Protocol):
    """Where deliveries go: a door's end of one consumer."""

    def deliver(
        self, batch: memoryview, epoch: int, ranges: list[tuple[int, int]], redeliveries: Sequence[int]
    ) -> None:
        """`ranges` are rows of the batch, none meaning all of them."""

    def closed(self, error: DanubeError) -> None:
        """The broker took the subscription away."""


class Consumer:
    """One consumer's hold on a subscription of one partition."""

    def __init__(self, subscription: LiveSubscription, attachment: Attachment, created: bool, owner_epoch: int) -> None:
        self._subscription = subscription
        self._attachment = attachment
        self.subscription_id = subscription.subscription_id
        self.position = subscription.core.cursor.position
        self.created = created
        self.owner_epoch = owner_epoch

    def credit(self, messages: int, size_bytes: int) -> None:
        """The consumer has room for this much more."""
        self._attachment.messages += messages
        self._attachment.bytes += size_bytes
        self._subscription.pump()

    def pause(self) -> None:
        """The way to the consumer is full: deliver nothing until `resume`."""
        self._attachment.paused = True
        self._subscription.forget_ahead()

    def resume(self) -> None:
        self._attachment.paused = False
        self._subscription.pump()

    def ack(self, ranges: Sequence[tuple[int, int]], cumulative: bool, done: Done | None = None) -> None:
        """Settle these offsets; `done` is called once that is synced. Late and repeated acks are no error."""
        self._subscription.ack(ranges, cumulative, done)

    def close(self) -> None:
        """Let go. What was delivered and not acked goes to the next consumer."""
        self._subscription.detach(self._attachment)


class LiveSubscription:
    """One subscription of one partition, owned by the partition."""

    def __init__(
        self,
        subscription_id: int,
        name: str,
        subscription_type: SubscriptionType,
        cursor: Cursor,
        stream: Stream,
        state: StateLedger | NoState,
        tasks: Tasks,
        epoch: Callable[[], int],
    ) -> None:
        self.subscription_id = subscription_id
        self.name = name
        self.type = subscription_type
        self.core = Exclusive(cursor)
        self._stream = stream
        self._state = state
        self._tasks = tasks
        self._epoch = epoch
        self._sink: Sink | None = None
        self._ahead: deque[memoryview] = deque()
        self._reading: asyncio.Task[None] | None = None

    def attach(self, consumer: str, sink: Sink, created: bool) -> Consumer:
        attachment, former = self.core.attach(consumer)
        former_sink, self._sink = self._sink, sink
        self.forget_ahead()
        if former is not None and former_sink is not None:
            former_sink.closed(Refused(f"consumer {consumer!r} attached again elsewhere and took over"))
        return Consumer(self, attachment, created, self._epoch())

    def detach(self, attachment: Attachment) -> None:
        if self.core.holder is attachment:
            self._sink = None
            self.forget_ahead()
        self.core.detach(attachment)

    def close(self, error: DanubeError) -> None:
        """The subscription or its partition ends here; the consumer is told why."""
        sink, self._sink = self._sink, None
        if self.core.holder is not None:
            self.core.detach(self.core.holder)
        self.forget_ahead()
        if sink is not None:
            sink.closed(error)

    def pump(self) -> None:
        """Deliver what there is and what there is credit for."""
        core = self.core
        while core.wants and core.next_read < self._stream.end_offset:
            views: Sequence[memoryview] | None
            if self._ahead:
                views = (self._ahead.popleft(),)
            elif self._reading is not None:
                return
            else:
                views = self._stream.read_cached(core.next_read, READ_BYTES)
            if views is None:
                assert core.holder is not None
                wanted = min(core.holder.bytes, READ_BYTES)
                self._reading = self._tasks.spawn(self._read(core.next_read, wanted), "catch-up read")
                return
            self._deliver(views)

    def ack(self, ranges: Sequence[tuple[int, int]], cumulative: bool, done: Done | None) -> None:
        cursor, end = self.core.cursor, self._stream.end_offset
        gaps = cursor.gaps
        if cumulative:
            ranges = [(cursor.position, ranges[-1][1])] if ranges else []
        settled: list[tuple[int, int]] = []
        for start, stop in ranges:
            stop = min(stop, end)
            if cursor.ack(start, stop):
                settled.append((start, stop))
            if cursor.gaps > ACKED_RANGES_REFUSED:
                break
        if settled:
            self._state.change(CursorChange(self.subscription_id, ChangeKind.ACKED, settled), done)
        elif done is not None:
            self._state.barrier(done)
        if cursor.gaps > ACKED_RANGES_REFUSED:
            self.close(Full(f"more than {ACKED_RANGES_REFUSED} gaps between acks: ack the oldest messages first"))
        elif cursor.gaps < gaps:
            self.pump()

    def seek(self, position: int, done: Done) -> None:
        """Start over at `position`, for the consumer that is attached too."""
        if position > self._stream.end_offset:
            raise Invalid(f"offset {position} is past the end of the partition, {self._stream.end_offset}")
        self.core.move(position)
        self.forget_ahead()
        self._state.change(CursorChange(self.subscription_id, ChangeKind.MOVED, [(position, position)]), done)
        self.pump()

    def describe(self, index: int) -> SubscriptionPartition:
        cursor = self.core.cursor
        acked_ahead = cursor.acked_ahead
        position = max(cursor.position, self._stream.start_offset)
        return SubscriptionPartition(
            partition=index,
            position=cursor.position,
            lag=self._stream.end_offset - position - acked_ahead,
            acked_ahead=acked_ahead,
            unacked=self.core.unacked,
            consumer=self.core.holder.consumer if self.core.holder else "",
        )

    def _deliver(self, views: Sequence[memoryview]) -> None:
        core, sink, epoch = self.core, self._sink, self._epoch()
        assert sink is not None
        for index, view in enumerate(views):
            if not core.wants:
                self._ahead.extend(views[index:])
                return
            base, end = offsets_of(view)
            ranges = core.take(base, end, len(view))
            if ranges:
                whole = ranges[0] == (base, end)
                rows = [] if whole else [(start - base, stop - base) for start, stop in ranges]
                sink.deliver(view, epoch, rows, ())

    async def _read(self, offset: int, bytes_max: int) -> None:
        """One stretch from the log. Cancelled: nothing was delivered, the next pump reads again."""
        me, end = asyncio.current_task(), self._stream.end_offset
        try:
            views = await self._stream.read(offset, bytes_max)
        except DanubeError as error:
            if self._reading is me:
                self._reading = None
                self.close(error)
            return
        if self._reading is me:
            self._reading = None
            if not views:
                self.core.skip_to(end)
            elif self.core.wants:
                self._ahead.extend(views)
            # Whoever cannot be delivered to now keeps nothing in memory: it is read again when its turn comes.
            self.pump()

    def forget_ahead(self) -> None:
        """Let go of what was read and not delivered."""
        self._ahead.clear()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
