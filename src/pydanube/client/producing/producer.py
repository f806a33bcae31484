"""The producer: takes messages, gives back receipts, and never stores one twice.

Messages for one partition share batches. A send when nothing is on its way goes out at once; what arrives meanwhile
goes together in the next batch, which leaves when it is full, when all before it are answered, or after `linger_ms`.

Every producer has an identity at the brokers and numbers its messages per partition, so a batch that is sent again
after a lost answer is recognised: its receipt says `duplicate`. A batch that is refused for good (or given up after
`timeout`) leaves a hole in that numbering; the producer then finishes what is on its way, takes a new identity, and
goes on.

Invariants
    queued messages and bytes stay within the limits, except for one message larger than the limit, alone
    the messages of one partition are stored in the order in which they were sent
    an awaited send raises its own failure; a queued one's failure is raised by the next flush
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Final

from pydanube.client.connection.routing import Brokers
from pydanube.client.lifecycle import Openable
from pydanube.client.settings import ProducerSettings
from pydanube.model.errors import DanubeError, Full, NotFound, Refused
from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import micros_from_datetime

from .bulk_intake import BulkPiece, cut
from .delays import delivery_time_us
from .lane import Lane
from .partitioning import ANY_PARTITION, PartitionBy, Partitioner, check_partition_by
from .publisher import Publisher
from .receipts import Placed, Receipt, Receipts
from .rows import ROW_BYTES, Attributes, attributes_size, checked_payload

PAUSE_SECONDS: Final = 0.0005
"""So long a loop over `queue_many` may keep the event loop to itself; what it queued meanwhile is sent together."""


class Producer(Openable):
    """Publishes to one topic. Made by `client.producer`; belongs to the loop it was opened on."""

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
        self._publisher = Publisher(brokers, self.topic, settings)
        self._room = self._publisher.room
        self._lanes: list[Lane] = []
        self._partition_by = partition_by
        self._partitioner = Partitioner(1)
        self._sticky = False
        self._pause_at = 0.0
        """When whoever queues without end lets others run."""
        self._reliable = True

    @property
    def obstacle(self) -> DanubeError | None:
        """What was in the way last of messages that wait, if anything was: Full, say. They are sent again by themselves
        until they get through or their time is up."""
        return next((lane.obstacle for lane in self._lanes if lane.obstacle is not None), None)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> Receipt:
        """Publish one message and wait until the broker has it, at the topic's ack level.

        deliver_at, deliver_after   not before that time, or for so many seconds: it is stored at once and waits at the
                                    broker. On shared and key-shared subscriptions; others keep their order and
                                    deliver it when its turn comes

        Waits for room in the queue first. Raises Unavailable after `timeout`. Cancelled, it may still be stored.
        """
        payload, size, partition = self._checked(payload, key, attributes)
        deliver_us = 0
        if deliver_at is not None or deliver_after is not None:
            deliver_us = self._delivery_time(deliver_at, deliver_after)
        if not self._room.take_nowait(1, size):
            await self._wait_for_room(1, size)
        waiter: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self._add(partition, payload, key, attributes, publish_time, deliver_us, size, waiter)
        placed = await waiter
        return Receipt(self.topic, placed.partition, placed.start, placed.duplicate)

    def send_nowait(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> None:
        """Queue one message. Raises Full when the queue is; what becomes of the message is told by `flush`."""
        payload, size, partition = self._checked(payload, key, attributes)
        deliver_us = 0
        if deliver_at is not None or deliver_after is not None:
            deliver_us = self._delivery_time(deliver_at, deliver_after)
        if not self._room.take_nowait(1, size):
            raise Full(
                f"the producer's queue holds {self._room.messages} messages of {self._room.bytes} bytes: "
                f"wait with flush(), use send(), or raise queue_messages or queue_bytes"
            )
        self._add(partition, payload, key, attributes, publish_time, deliver_us, size, None)

    async def send_many(
        self,
        payloads: Sequence[bytes],
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
        pieces = self._cut(payloads, keys, attributes)
        placements: list[Sequence[int]] | None = None
        if not self._partitioner.in_turn or (keys is not None and self._partitioner.count > 1):
            placements = []
            pieces = _noting(pieces, placements)
        try:
            await self._add_many(pieces, publish_time, deliver_us, waiters)
            if len(waiters) > 1:
                await asyncio.wait(waiters)
            placed = [await waiter for waiter in waiters]
        finally:
            for waiter in waiters:
                waiter.cancel()  # those done stay as they are
                if not waiter.cancelled():
                    waiter.exception()
        return Receipts(self.topic, placed, placements)

    async def queue_many(
        self,
        payloads: Sequence[bytes],
        *,
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[Attributes | None] | None = None,
        publish_time: datetime | None = None,
        deliver_at: datetime | None = None,
        deliver_after: float | timedelta | None = None,
    ) -> None:
        """Queue many messages; waits for room, not for the broker. What becomes of them is told by `flush`.

        The way to the highest throughput: nothing is waited for while the queue has room. Cancelled, those queued so
        far are published.
        """
        deliver_us = self._delivery_time(deliver_at, deliver_after)
        await self._add_many(self._cut(payloads, keys, attributes), publish_time, deliver_us, None)
        if self._clock.monotonic() >= self._pause_at:
            await asyncio.sleep(0)
            self._pause_at = self._clock.monotonic() + PAUSE_SECONDS

    async def flush(self) -> None:
        """Wait until everything queued so far is stored or has failed.

        Raises if a message queued by `send_nowait` or `queue_many` failed since the last flush. Cancelled, nothing is
        undone.
        """
        await self._publisher.flush()

    # -- adding ------------------------------------------------------------------------------------------------------

    def _add(
        self,
        partition: int,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        publish_time: datetime | None,
        deliver_us: int,
        size: int,
        waiter: asyncio.Future[Placed] | None,
    ) -> None:
        lane = self._unkeyed_lane() if partition == ANY_PARTITION else self._lanes[partition]
        time_us = self._clock.now_us() if publish_time is None else micros_from_datetime(publish_time)
        if self._publisher.idle:
            self._publisher.watch()
        if lane.outbox.add(payload, key, attributes, time_us, size, self._clock.monotonic(), waiter, deliver_us):
            lane.pump()
        else:
            lane.plan()

    async def _add_many(
        self,
        pieces: Iterator[BulkPiece],
        publish_time: datetime | None,
        deliver_us: int,
        waiters: list[asyncio.Future[Placed]] | None,
    ) -> None:
        """Add each piece once there is room for it."""
        loop = asyncio.get_running_loop()
        time_us = self._clock.now_us() if publish_time is None else micros_from_datetime(publish_time)
        for piece in pieces:
            if not self._room.take_nowait(len(piece.payloads), piece.size):
                piece = piece.own()
                await self._wait_for_room(len(piece.payloads), piece.size)
            waiter: asyncio.Future[Placed] | None = None
            if waiters is not None:
                waiter = loop.create_future()
                waiters.append(waiter)
            lane = self._unkeyed_lane() if piece.partition == ANY_PARTITION else self._lanes[piece.partition]
            if self._publisher.idle:
                self._publisher.watch()
            now = self._clock.monotonic()
            if lane.outbox.add_many(
                piece.payloads,
                piece.lengths,
                piece.keys,
                piece.attributes,
                time_us,
                piece.size,
                now,
                waiter,
                deliver_us,
            ):
                lane.pump()
            else:
                lane.plan()

    def _cut(
        self,
        payloads: Sequence[bytes],
        keys: Sequence[str | None] | None,
        attributes: Sequence[Attributes | None] | None,
    ) -> Iterator[BulkPiece]:
        self._check_ready()
        settings = self._settings
        return cut(payloads, keys, attributes, self._partitioner, settings.batch_messages, settings.batch_bytes)

    def _unkeyed_lane(self) -> Lane:
        """The partition whose turn it is; the next one's turn comes when its batch is closed."""
        lane = self._lanes[self._partitioner.current]
        if self._sticky and not lane.outbox.filling:
            self._partitioner.rotate()
            lane = self._lanes[self._partitioner.current]
        self._sticky = True
        return lane

    def _checked(self, payload: bytes, key: str | None, attributes: Attributes | None) -> tuple[bytes, int, int]:
        """The payload, what it takes, and its partition (or ANY_PARTITION); or Invalid."""
        if self._closed or not self._lanes or self._publisher.final is not None:
            self._check_ready()
        if type(payload) is not bytes or len(payload) > MESSAGE_BYTES_MAX:
            payload = checked_payload(payload)
        size = len(payload) + ROW_BYTES
        partition = ANY_PARTITION
        if key is not None or not self._partitioner.in_turn:
            partition = self._partitioner.of(key, payload)
            size += len(key or "")
        if attributes:
            size += attributes_size(attributes)
        return payload, size, partition

    def _delivery_time(self, deliver_at: datetime | None, deliver_after: float | timedelta | None) -> int:
        if deliver_at is None and deliver_after is None:
            return 0
        if not self._reliable:
            raise Refused(f"topic {self.topic} is not reliable: it keeps nothing, and cannot deliver it later")
        return delivery_time_us(deliver_at, deliver_after, self._clock)

    def _check_ready(self) -> None:
        if self._closed or not self._opened:
            self._check_open()
        if self._publisher.final is not None:
            raise copy(self._publisher.final)

    async def _wait_for_room(self, count: int, size: int) -> None:
        await self._room.take(count, size)
        try:
            self._check_ready()
        except DanubeError:
            self._room.release(count, size)
            raise

    def _send_admitted(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        publish_time: datetime | None,
        deliver_us: int,
    ) -> None:
        """Queue one message that the blocking form has made room for. What is wrong with it is told by `flush`."""
        try:
            payload, size, partition = self._checked(payload, key, attributes)
        except DanubeError as error:
            self._publisher.note_failure(error, 1)
            return
        self._room.force(1, size)
        self._add(partition, payload, key, attributes, publish_time, deliver_us, size, None)

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        route = await self._brokers.retrying(lambda: self._brokers.route(self.topic, self._create_topic, age_max=0.0))
        only = self._partition_by if isinstance(self._partition_by, int) else None
        if only is not None and only >= len(route.partitions):
            raise NotFound(f"{self.topic} has no partition {only}: it has {len(route.partitions)}, counted from 0")
        count, self._reliable = len(route.partitions), route.reliable
        self._partitioner = Partitioner(count, self._brokers.random.randrange(count), self._partition_by)
        await self._publisher.open(count, only)
        self._lanes = self._publisher.lanes
        if route.partitioned and only is None:
            self._publisher.follow(self._notice_growth())

    async def _notice_growth(self) -> None:
        """Publish to new partitions too, once they are seen. Cancelled, the producer is being closed."""
        refresh = self._settings.refresh_seconds
        while True:
            await self._clock.sleep(refresh)
            try:
                count = len((await self._brokers.route(self.topic, age_max=refresh / 2)).partitions)
            except DanubeError:
                continue  # publishing tells what is wrong
            if count > self._partitioner.count:
                self._publisher.grow(count)
                self._partitioner = self._partitioner.grown(count)

    async def _finish(self) -> None:
        await self._publisher.flush()

    async def _end(self) -> None:
        await self._publisher.close()


def _noting(pieces: Iterator[BulkPiece], placements: list[Sequence[int]]) -> Iterator[BulkPiece]:
    """The same pieces; which payloads they hold is noted as they pass."""
    for piece in pieces:
        placements.append(piece.indices)
        yield piece
