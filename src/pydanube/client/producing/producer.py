"""The producer: takes messages, returns receipts, and never stores a message twice.

Messages for one partition share batches. A send when nothing is in flight goes out at once; messages that arrive
meanwhile go together in the next batch, which leaves when it is full, when all before it are answered, or after
`linger_ms`.

Every producer has an identity at the brokers and numbers its messages per partition, so a batch that is sent again
after a lost answer is recognised: its receipt says `duplicate`. A batch that is refused for good (or given up after
`timeout`) leaves a gap in that numbering. The producer has one identity for all partitions: after a gap, all of them
finish what is in flight under the old identity before any of them starts under the new one, because the new epoch of a
name fences the older one at every partition at once.

```
 Producer ──► PartitionProducer, one per partition ──► PendingBatches decides what is sent, in which sequence
 checks, limits,   session at the owner,                 (sans I/O)
 receipts, flush   sending, retries
```

Invariants
    queued messages and bytes stay within the limits, except for one message larger than the limit, alone
    the messages of one partition are stored in the order in which they were sent
    an awaited send raises its own failure; the failure of a queued message is raised by the next flush
    after another producer took this one's name nothing is sent any more
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Generic

from pydanube.client.connection.connection import Connection
from pydanube.client.connection.owner_session import OwnerHandle, OwnerRetry
from pydanube.client.connection.routing import Brokers, close_limit_reason
from pydanube.client.lifecycle import HOW_TO_OPEN, Openable
from pydanube.client.settings import ProducerSettings
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import DanubeError, Full, NotFound, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import micros_from_datetime
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks, run_together
from pydanube.runtime.telemetry import get_logger

from .message_intake import (
    ROW_BYTES,
    Attributes,
    BulkPiece,
    attributes_size,
    checked_payload,
    delivery_time_us,
    split_bulk,
)
from .partition_producer import PartitionProducer, ProducerCallbacks, ProducerIdentity, new_opener
from .partitioning import ANY_PARTITION, PartitionBy, Partitioner, check_partition_by
from .pending_batches import MessageRows
from .producer_buffer import ProducerBuffer
from .receipts import Placed, Receipt, Receipts
from .trace_context import LOADED, OPENTELEMETRY, current_context, with_context, with_context_many

log = get_logger(__name__)

PAUSE_SECONDS: Final = 0.0005
"""A loop over `queue_many` may keep the event loop for this time; what it queued meanwhile is sent together."""

_MESSAGE_SIZE_MAX: Final = MESSAGE_BYTES_MAX + ROW_BYTES

TICKS_PER_TIMEOUT: Final = 30
TICK_SECONDS_MAX: Final = 1.0
"""How often a producer with unsettled messages looks for those that have timed out. An idle one does not look."""


class Producer(Openable, Generic[ValueT]):
    """Publishes to one topic. Made by `client.producer`; belongs to the loop it was opened on.

    This class takes bytes; a producer with a schema is a `TypedProducer`.
    """

    _what = "producer"

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        settings: ProducerSettings,
        create_topic: bool,
        partition_by: PartitionBy = "key",
    ) -> None:
        super().__init__()
        check_partition_by(partition_by)
        self.topic = str(TopicName.parse(topic))
        self.name = settings.name
        self._brokers = brokers
        self._clock = brokers.clock
        self._settings = settings
        self._create_topic = create_topic
        self._ready = False
        """Messages can be added: this is open and was not fenced."""
        self._final: DanubeError | None = None
        """Why nothing can be published any more."""
        self._reliable = True
        self._tasks = Tasks()
        self._buffer = ProducerBuffer(settings.queue_messages, settings.queue_bytes)
        self._identity = ProducerIdentity(settings.name, new_opener(brokers.random))
        self._renewing: asyncio.Task[None] | None = None
        self._partitions: list[PartitionProducer] = []
        self._first = 0
        """The partition where identities are asked for."""
        self._partition_by = partition_by
        self._partitioner = Partitioner(1)
        self._round_robin = isinstance(partition_by, str)
        """Messages without a key go to the partitions round robin."""
        self._unkeyed: PartitionProducer | None = None
        """The partition that gets messages without a key until its batch is closed."""
        self._progress = asyncio.Event()
        self._failed_messages = 0
        self._failure: DanubeError | None = None
        """The first failure that no caller has heard of, for the next flush."""
        self._tick_timer: asyncio.TimerHandle | None = None
        """None while there is no unsettled message."""
        self._pause_at = 0.0
        """When a loop over `queue_many` lets other tasks run."""

    def _describe(self) -> str:
        name = f" name={self.name!r}" if self.name else ""
        waiting = f", {self._buffer.messages} messages unanswered" if self._buffer.messages else ""
        return f"{self.topic}{name} {self._state if self._final is None else 'fenced'}{waiting}"

    @property
    def obstacle(self) -> DanubeError | None:
        """The latest reason why messages that wait could not be published, such as Full, or None.

        The producer sends these messages again by itself until they are stored or their timeout has passed.
        """
        return next((one.obstacle for one in self._partitions if one.obstacle is not None), None)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        payload: ValueT,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> Receipt:
        """Publish one message and wait until the broker has it, at the topic's ack level.

        deliver_at, deliver_after   the message is stored at once, but delivered not before that time, or not within so
                                    many seconds. This holds on shared and key-shared subscriptions; the others keep
                                    their order and deliver it when its turn comes

        Waits for room in the queue first. Raises Unavailable after `timeout`. Cancelled, it may still be stored.
        """
        attributes = with_context(attributes)
        data, size, partition = self._checked(payload, key, attributes)
        deliver_us = self._delivery_time(deliver_at, deliver_after)
        time_us = None if publish_time is None else micros_from_datetime(publish_time)
        if not self._buffer.take_nowait(1, size):
            await self._wait_for_buffer(1, size)
        waiter: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self._add(partition, data, key, attributes, time_us, deliver_us, size, waiter)
        placed = await waiter
        return Receipt(self.topic, placed.partition, placed.start, placed.duplicate)

    def send_nowait(
        self,
        payload: ValueT,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> None:
        """Queue one message. Raises Full when the queue is full; a failure of the message is raised by `flush`."""
        if (
            key is None
            and attributes is None
            and publish_time is None
            and deliver_at is None
            and deliver_after is None
            and type(payload) is bytes
            and self._round_robin
            and self._ready
            and (OPENTELEMETRY not in LOADED or current_context() is None)
            and (size := len(payload) + ROW_BYTES) <= _MESSAGE_SIZE_MAX  # type: ignore[arg-type]
        ):  # the common case, without the calls that the others need
            if not self._buffer.take_nowait(1, size):
                raise self._buffer_full()
            unkeyed = self._unkeyed
            if unkeyed is None or not unkeyed.batches.append(payload, self._clock.now_us(), size):  # type: ignore[arg-type]
                self._add(ANY_PARTITION, payload, None, None, None, 0, size, None)  # type: ignore[arg-type]
            return
        attributes = with_context(attributes)
        data, size, partition = self._checked(payload, key, attributes)
        deliver_us = self._delivery_time(deliver_at, deliver_after)
        time_us = None if publish_time is None else micros_from_datetime(publish_time)
        if not self._buffer.take_nowait(1, size):
            raise self._buffer_full()
        self._add(partition, data, key, attributes, time_us, deliver_us, size, None)

    async def send_many(
        self,
        payloads: Sequence[ValueT],
        *,
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> Receipts:
        """Publish many messages and wait until the broker has all of them.

        They travel in as few batches as the limits allow, several at a time. Raises the first failure when some failed
        (others may be stored). Cancelled, any of them may still be stored.
        """
        waiters: list[asyncio.Future[Placed]] = []
        deliver_us = self._delivery_time(deliver_at, deliver_after)
        pieces = self._split(payloads, keys, attributes)
        placements: list[Sequence[int]] | None = None
        if not self._partitioner.round_robin or (keys is not None and self._partitioner.count > 1):
            placements = []
            pieces = _with_indices_noted(pieces, placements)
        try:
            await self._add_many(pieces, publish_time, deliver_us, waiters)
            if len(waiters) > 1:
                await asyncio.wait(waiters)
            placed = [await waiter for waiter in waiters]
        finally:
            for waiter in waiters:
                waiter.cancel()  # does nothing to those that are done
                if not waiter.cancelled():
                    waiter.exception()
        return Receipts(self.topic, placed, placements)

    async def queue_many(
        self,
        payloads: Sequence[ValueT],
        *,
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> None:
        """Queue many messages; waits for room in the queue, not for the broker. Failures are raised by `flush`.

        This gives the highest throughput: it waits for nothing while the queue has room. Cancelled, the messages
        queued so far are published.
        """
        deliver_us = self._delivery_time(deliver_at, deliver_after)
        await self._add_many(self._split(payloads, keys, attributes), publish_time, deliver_us, None)
        if self._clock.monotonic() >= self._pause_at:
            await asyncio.sleep(0)
            self._pause_at = self._clock.monotonic() + PAUSE_SECONDS

    async def flush(self) -> None:
        """Wait until every message queued so far is stored or has failed.

        Raises if a message queued by `send_nowait` or `queue_many` failed since the last flush. Cancelled, nothing is
        undone.
        """
        partitions = list(self._partitions)  # there may be more of them before this ends
        targets = [(one.batches, one.batches.added) for one in partitions]
        for partition in partitions:
            partition.flushing += 1
            partition.send_due()
        try:
            while any(batches.settled < target for batches, target in targets):
                self._progress.clear()
                await self._progress.wait()
        finally:
            for partition in partitions:
                partition.flushing -= 1
        failed, failure = self._failed_messages, self._failure
        self._failed_messages, self._failure = 0, None
        if failure is not None:
            raised = copy(failure)
            what = "queued message was" if failed == 1 else "queued messages were"
            raised.message = f"{failed} {what} not published{'; the first' * (failed != 1)}: {failure.message}"
            raised.args = (raised.message,)
            raise raised from failure

    # -- adding ------------------------------------------------------------------------------------------------------

    def _add(
        self,
        partition: int,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        time_us: int | None,
        deliver_us: int,
        size: int,
        waiter: asyncio.Future[Placed] | None,
    ) -> None:
        """Add one message that was checked and counted in the buffer."""
        target = self._target(partition)
        if time_us is None:
            time_us = self._clock.now_us()
        now = self._clock.monotonic()
        if target.batches.add(payload, key, attributes, time_us, size, now, waiter, deliver_us):
            target.send_due()

    async def _add_many(
        self,
        pieces: Iterator[BulkPiece],
        publish_time: datetime | None,
        deliver_us: int,
        waiters: list[asyncio.Future[Placed]] | None,
    ) -> None:
        """Add each piece once the buffer has room for it; append a future per piece to `waiters`, if given."""
        loop = asyncio.get_running_loop()
        time_us = self._clock.now_us() if publish_time is None else micros_from_datetime(publish_time)
        for piece in pieces:
            if not self._buffer.take_nowait(len(piece.payloads), piece.size):
                piece = piece.own()
                await self._wait_for_buffer(len(piece.payloads), piece.size)
            waiter: asyncio.Future[Placed] | None = None
            if waiters is not None:
                waiter = loop.create_future()
                waiters.append(waiter)
            target = self._target(piece.partition)
            if target.batches.add_many(
                piece.payloads,
                piece.lengths,
                piece.keys,
                piece.attributes,
                time_us,
                piece.size,
                self._clock.monotonic(),
                waiter,
                deliver_us,
            ):
                target.send_due()

    def _split(
        self,
        payloads: Sequence[Any],
        keys: Sequence[str | None] | None,
        attributes: Sequence[Attributes | None] | None,
    ) -> Iterator[BulkPiece]:
        self._check_ready()
        settings, attributes = self._settings, with_context_many(attributes, payloads)
        return split_bulk(payloads, keys, attributes, self._partitioner, settings.batch_messages, settings.batch_bytes)

    def _target(self, partition: int) -> PartitionProducer:
        """Return the partition; for ANY_PARTITION the one that gets messages without a key now."""
        if partition != ANY_PARTITION:
            return self._partitions[partition]
        unkeyed = self._unkeyed
        return self._next_unkeyed() if unkeyed is None or unkeyed.batches.filling is None else unkeyed

    def _next_unkeyed(self) -> PartitionProducer:
        """Choose and return the partition that gets messages without a key: the next one, as a batch was closed."""
        if self._unkeyed is not None:
            self._partitioner.rotate()
        self._unkeyed = self._partitions[self._partitioner.current]
        return self._unkeyed

    def _checked(self, payload: object, key: str | None, attributes: Attributes | None) -> tuple[bytes, int, int]:
        """Return the payload, the size of the message, and its partition or ANY_PARTITION. Raises Invalid."""
        self._check_ready()
        data = checked_payload(payload)
        size = len(data) + ROW_BYTES
        partition = ANY_PARTITION
        if key is not None or not self._round_robin:
            partition = self._partitioner.of(key, data)
            size += len(key or "")
        if attributes:
            size += attributes_size(attributes)
        return data, size, partition

    def _delivery_time(self, deliver_at: datetime | None, deliver_after: float | timedelta | None) -> int:
        if deliver_at is None and deliver_after is None:
            return 0
        if not self._reliable:
            raise Refused(f"topic {self.topic} is not reliable: it keeps nothing, and cannot deliver it later")
        return delivery_time_us(deliver_at, deliver_after, self._clock)

    def _check_ready(self) -> None:
        if self._ready:
            return
        self._check_open()
        if self._final is not None:
            raise copy(self._final)
        raise Refused(f"this producer is not open yet: {HOW_TO_OPEN}")

    def _buffer_full(self) -> Full:
        return Full(
            f"the producer's queue holds {self._buffer.messages} messages of {self._buffer.bytes} bytes: "
            f"wait with flush(), use send(), or raise queue_messages or queue_bytes"
        )

    async def _wait_for_buffer(self, count: int, size: int) -> None:
        await self._buffer.take(count, size)
        if not self._ready:
            self._buffer.release(count, size)
            self._check_ready()

    def _send_admitted(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        publish_time: datetime | None,
        deliver_us: int,
    ) -> None:
        """Queue one message for which the blocking producer has checked the limits. Failures are raised by `flush`."""
        try:
            payload, size, partition = self._checked(payload, key, attributes)
        except DanubeError as error:
            self._note_failure(error, 1)
            return
        time_us = None if publish_time is None else micros_from_datetime(publish_time)
        self._buffer.force(1, size)
        self._add(partition, payload, key, attributes, time_us, deliver_us, size, None)

    # -- settling ----------------------------------------------------------------------------------------------------

    def _settled(
        self, partition: int, rows: MessageRows, base_offset: int, duplicate: bool, error: DanubeError | None
    ) -> None:
        metrics = self._brokers.metrics
        if error is None:
            metrics.batches_published += 1
            metrics.messages_published += len(rows)
            metrics.bytes_published += rows.size
        else:
            metrics.messages_failed += len(rows)
        awaited = 0
        for waiter, start, count in rows.waiters:
            awaited += count
            assert isinstance(waiter, asyncio.Future)
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(Placed(partition, base_offset + start, count, duplicate))
            else:
                waiter.set_exception(copy(error))
        if error is not None and awaited < len(rows):
            self._note_failure(error, len(rows) - awaited)
        self._buffer.release(len(rows), rows.size)
        self._progress.set()

    def _note_failure(self, error: DanubeError, messages: int) -> None:
        """Keep the failure of messages that no caller awaits, for the next flush to raise."""
        self._failed_messages += messages
        if self._failure is None:
            self._failure = error
            log.warning("producer.messages_failed", topic=self.topic, name=self.name, error=error.message)

    def _fail_all(self, error: DanubeError) -> None:
        for partition in self._partitions:
            partition.batches.fail_all(partial(copy, error))

    # -- timeouts ----------------------------------------------------------------------------------------------------

    def _watch_timeouts(self) -> None:
        if self._tick_timer is None:
            period = min(TICK_SECONDS_MAX, self._settings.timeout / TICKS_PER_TIMEOUT)
            self._tick_timer = asyncio.get_running_loop().call_later(period, self._tick)

    def _tick(self) -> None:
        self._tick_timer = None
        now = self._clock.monotonic()
        for partition in self._partitions:
            if partition.batches.has_work:
                partition.tick(now)
                self._watch_timeouts()

    # -- identity ----------------------------------------------------------------------------------------------------

    def _fenced(self, error: DanubeError) -> None:
        """Another producer of this name took over: fail every message without an answer, and all that come."""
        if self._final is None:
            self._final = error
            self._ready = False
            log.warning("producer.fenced", topic=self.topic, name=self.name, error=error.message)
            _give_back(self._detach_all(error))
            self._fail_all(error)

    def _renew(self) -> None:
        """Take a new identity, because a sequence has a gap."""
        if self._renewing is None and self._final is None:
            self._renewing = self._tasks.spawn(self._change_identity(), f"renew producer {self.topic}")

    async def _change_identity(self) -> None:
        """Wait until nothing of the old identity is in flight, then take a new one.

        Cancelled, the producer is being closed.
        """
        self._identity.changing = True
        try:
            while not all(one.batches.renewable for one in self._partitions):
                self._progress.clear()
                await self._progress.wait()
            self._identity.opener = new_opener(self._brokers.random)
            await self._take_identity()
        finally:
            self._identity.changing = False
            self._renewing = None
        for partition in self._partitions:
            partition.send_due()

    async def _take_identity(self) -> None:
        """Replace all handles by one under a new identity. Cancelled, no handle of the old one stays behind."""
        former = self._detach_all()
        claimed = bool(self._settings.name) or self._settings.access == "exclusive"
        try:
            if not claimed:  # the old one counts as a producer of its own: the new one needs its place
                _give_back(former)
            await self._ask_for_identity(claimed)
        finally:
            if claimed:  # not earlier: no other producer may take the name or the topic in between
                _give_back(former)

    async def _ask_for_identity(self, claimed: bool) -> None:
        """Open the first partition under a new identity, for as long as there is something to send."""
        session = self._partitions[self._first].session

        async def attempt(connection: Connection) -> None:
            if claimed:
                await session.open_at(connection)  # a producer that was fenced meanwhile must not fence in turn
            await session.open_at(connection, self._partitions[self._first].open_request(renew=True))
            self._begin_sequences()

        backoff = RetryBackoff.within(self._settings.timeout)
        retry = OwnerRetry(self._brokers, self.topic, self._first, backoff)
        try:
            await retry.run(attempt, wanted=lambda: any(one.batches.has_work for one in self._partitions))
        except StaleEpoch as error:
            self._fenced(error)
        except DanubeError as error:
            self._fail_all(error)

    def _detach_all(self, error: DanubeError | None = None) -> list[OwnerHandle]:
        return [handle for partition in self._partitions if (handle := partition.detach(error)) is not None]

    def _begin_sequences(self) -> None:
        for partition in self._partitions:
            partition.batches.renew(self._identity.producer_id, self._identity.producer_epoch)

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        route = await self._brokers.retrying(lambda: self._brokers.route(self.topic, self._create_topic, age_max=0.0))
        only = self._partition_by if isinstance(self._partition_by, int) else None
        if only is not None and only >= len(route.partitions):
            raise NotFound(f"{self.topic} has no partition {only}: it has {len(route.partitions)}, counted from 0")
        count, self._reliable = len(route.partitions), route.reliable
        await self._choose_schema()
        self._partitioner = Partitioner(count, self._brokers.random.randrange(count), self._partition_by)
        self._add_partitions(count)
        self._first = only or 0
        await self._open_partition(self._first)
        if only is None:
            await run_together(self._open_partition(partition) for partition in range(1, count))
        self._begin_sequences()
        self._ready = not self._closed
        if route.partitioned and only is None:
            self._tasks.spawn(self._follow_growth(), f"follow {self.topic}")

    async def _choose_schema(self) -> None:
        """Called before the partitions are opened, with the settings that they get."""

    async def _open_partition(self, partition: int) -> None:
        await self._brokers.retrying(self._partitions[partition].session.open, self.topic, partition)

    def _add_partitions(self, count: int) -> None:
        callbacks = ProducerCallbacks(
            began=self._watch_timeouts,
            settled=self._settled,
            progressed=self._progress.set,
            renew=self._renew,
            fenced=self._fenced,
        )
        for partition in range(len(self._partitions), count):
            self._partitions.append(
                PartitionProducer(
                    self._brokers, self._tasks, callbacks, self.topic, partition, self._identity, self._settings
                )
            )

    async def _follow_growth(self) -> None:
        """Publish to new partitions of the topic too, once they are seen. Cancelled, the producer is being closed."""
        refresh = self._settings.refresh_seconds
        while True:
            await self._clock.sleep(refresh)
            try:
                count = len((await self._brokers.route(self.topic, age_max=refresh / 2)).partitions)
            except DanubeError:
                continue  # publishing raises what is wrong
            known = len(self._partitions)
            if count > known:
                self._add_partitions(count)  # their sessions open when there is something to send
                for partition in self._partitions[known:]:
                    partition.batches.renew(self._identity.producer_id, self._identity.producer_epoch)
                self._partitioner = self._partitioner.grown(count)

    async def _finish(self, timeout: float | None) -> None:
        self._ready = False
        try:
            async with self._brokers.close_limit(timeout):
                await self.flush()
        except TimeoutError:
            error = self._unanswered(timeout)
            _give_back(self._detach_all())
            self._fail_all(error)
            await self.flush()  # does not wait: raises what was queued and failed

    def _unanswered(self, timeout: float | None) -> Unavailable:
        """Return the error of the messages without an answer when `close` gives up."""
        obstacle = self.obstacle
        because = f" ({obstacle.message})" if obstacle is not None else ""
        return Unavailable(
            f"not acknowledged before the producer was closed: {close_limit_reason(timeout)}{because}; "
            f"it may be stored or not"
        )

    async def _end(self) -> None:
        """Give up what is not settled; nothing runs afterwards."""
        self._ready = False
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        for partition in self._partitions:
            partition.stopped = True
        try:
            await self._tasks.close()
            await asyncio.gather(*(partition.close() for partition in self._partitions))
        finally:
            self._fail_all(Refused("the producer was closed before this message was published"))


def _give_back(handles: list[OwnerHandle]) -> None:
    for handle in handles:
        handle.give_back()


def _with_indices_noted(pieces: Iterator[BulkPiece], placements: list[Sequence[int]]) -> Iterator[BulkPiece]:
    """Yield the pieces, and append the indices of each to `placements`."""
    for piece in pieces:
        placements.append(piece.indices)
        yield piece
