"""A consumer's hold on one partition: attaches, is delivered to, acks, and attaches again when the connection ends.

```
 attach:   Subscribe --> ConsumerOpened --> ACK (what the last session left unconfirmed) --> CREDIT --> DELIVER ...
```

Acks come before credit, so the broker has heard of them before it chooses what to deliver again.

Whoever seeks the subscription ends a *generation* of deliveries. The broker tells the generation when the source
attaches, and again (CONSUMER_CHANGED) before the first delivery behind a seek; acks and nacks name it.

Invariants
    acks and nacks of deliveries of an earlier generation are not sent, or are ignored by the broker
    deliveries of an older session are never mixed with those of the present one
    a batch is verified whole before a user sees it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from pydanube.client.connection.backoff import RetryBackoff
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.routing import Brokers, worth_retrying
from pydanube.codec.batch import Batch
from pydanube.codec.native import requests
from pydanube.codec.native.frames import GENERATION_UNKNOWN, DeliverHead
from pydanube.model.errors import Corrupt, DanubeError, NotOwner
from pydanube.model.failure import ACK_TIMEOUT
from pydanube.model.limits import NACKED_MESSAGES_MAX
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .acks import Acks, AckSet, AckTimeouts, merged, portions
from .messages import ReceivedBatch, rows_of

log = get_logger(__name__)

RANGES_PER_FRAME: Final = 10_000
"""An ACK frame's head has to fit its limit."""


class Receiver(Protocol):
    """The consumer, as a source sees it."""

    def delivered(self, batch: ReceivedBatch) -> None: ...
    def restarted(self, source: PartitionSource) -> list[ReceivedBatch]:
        """Forget what it delivered and nobody took: it comes again, unless somebody sought. Returns what was forgotten
        and not begun."""

    def failed(self, source: PartitionSource, error: DanubeError) -> None: ...
    def dirty(self, source: PartitionSource) -> None:
        """It has acks to send, before long."""

    def nacked(self, source: PartitionSource) -> None:
        """It has nacks to send, at the end of this turn."""

    def timeout_changed(self) -> None:
        """Messages count from when they are taken, or do so no longer: those made ready are made ready anew."""

    def confirmed(self) -> None: ...


class FlowControl:
    """Counts one session's credit."""

    __slots__ = ("_bytes", "_bytes_target", "_messages", "_messages_target")

    def __init__(self, messages: int, size: int) -> None:
        self._messages = 0
        self._bytes = 0
        self.aim(messages, size)

    def aim(self, messages: int, size: int) -> None:
        """From now on this much may be ahead."""
        assert messages > 0 and size > 0
        self._messages_target = messages
        self._bytes_target = size

    def restart(self) -> None:
        """A new session: nothing is granted, nothing is here."""
        self._messages = self._bytes = 0

    def taken(self, messages: int, size: int) -> None:
        """The user took so much of what was delivered."""
        self._messages -= messages
        self._bytes -= size

    def grant(self) -> tuple[int, int] | None:
        """Credit to give now, counted as given; None while less than half of the target is missing."""
        messages = self._messages_target - self._messages
        size = self._bytes_target - self._bytes
        if 2 * messages < self._messages_target and 2 * size < self._bytes_target:
            return None
        self._messages += max(messages, 0)
        self._bytes += max(size, 0)
        return max(messages, 0), max(size, 0)


class PartitionSource:
    """One partition of one subscription."""

    def __init__(
        self,
        brokers: Brokers,
        tasks: Tasks,
        receiver: Receiver,
        subscribe: requests.Subscribe,
        credit: FlowControl,
        ack_timeout_s: float | None = None,
    ) -> None:
        self.topic = subscribe.topic
        self.partition = subscribe.partition
        self.credit = credit
        self.type: SubscriptionType | None = None
        """Of the subscription, once attached."""
        self.ack_failure: DanubeError | None = None
        self.stopped = False
        """The consumer is being closed: a session that ends stays ended."""
        self._brokers = brokers
        self._tasks = tasks
        self._receiver = receiver
        self._subscribe = subscribe
        self._backoff = RetryBackoff(brokers.random)
        self._connection: Connection | None = None
        self._handle = 0
        self._subscription_id = self._epoch = self._moves = 0
        self._confirming = 0
        self._fruitless = False
        self._attaching: asyncio.Task[None] | None = None
        self._own_timeout_s = ack_timeout_s
        self._timeout_s = 0.0
        self._expiring: asyncio.Task[None] | None = None
        self.acks = Acks(self._dirty, self._nacked)

    # -- attaching ---------------------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """One try. Cancelled, the broker is told to let go again."""
        connection = await self._brokers.owner(self.topic, self.partition)
        await connection.request(
            self._subscribe,
            requests.ConsumerOpened,
            partial(self._attached, connection),
            on_late=lambda opened: connection.tell(requests.CloseConsumer(handle=opened.handle)),
        )

    def _attached(self, connection: Connection, opened: requests.ConsumerOpened) -> None:
        connection.on_lost(self, self._lost)
        connection.listen(opened.handle, self)
        self._connection, self._handle = connection, opened.handle
        self._confirming = 0
        if self._is_void(opened):
            self.forget_acks()
            self._receiver.confirmed()
        self.acks.generation, self._subscription_id = opened.generation, opened.subscription_id
        self._epoch, self._moves = opened.owner_epoch, opened.moves
        if opened.type:
            self.type = SubscriptionType.parse(opened.type)
        self._set_ack_timeout(opened.ack_timeout_ms)
        left = self.acks.unconfirmed()
        if left is not None:
            self._send(connection, left, confirm=True)
        if self.acks.dirty:
            self.send_acks()
        self.credit.restart()
        self.give_credit()

    def _is_void(self, opened: requests.ConsumerOpened) -> bool:
        """Whether acks of earlier deliveries mean nothing: somebody sought, or it is another subscription."""
        if self._subscription_id not in (0, opened.subscription_id):
            return True
        if GENERATION_UNKNOWN not in (self.acks.generation, opened.generation):
            return self.acks.generation != opened.generation
        return self._epoch == opened.owner_epoch and self._moves != opened.moves

    async def detach(self) -> None:
        """Let go: nothing is delivered any more. A broker that cannot be asked lets go with the connection."""
        connection, handle = self._connection, self._handle
        self._let_go()
        if self._attaching is not None:
            self._attaching.cancel()
            self._attaching = None
        if connection is not None and connection.usable:
            try:
                await connection.request(requests.CloseConsumer(handle=handle), requests.Done, timeout=2.0)
            except DanubeError as error:
                log.debug("consumer.close_failed", topic=self.topic, partition=self.partition, error=error.message)

    def _let_go(self) -> None:
        self.acks.session_ended()
        if self._connection is not None:
            self._connection.forget(self)
            self._connection.stop_listening(self._handle)
            self._connection = None

    def reattach(self) -> None:
        """Attach again, however long it takes."""
        if self._attaching is None and not self.stopped:
            self._attaching = self._tasks.spawn(self._reattach(), f"attach {self.topic}[{self.partition}]")

    async def _reattach(self) -> None:
        try:
            if self._fruitless:  # sessions come and go without a delivery: do not hurry
                await self._brokers.clock.sleep(self._backoff.next())
            self._fruitless = True
            while self._connection is None:
                try:
                    await self.attach()
                    continue
                except DanubeError as error:
                    self._brokers.moved(self.topic, self.partition, error.owner if isinstance(error, NotOwner) else "")
                    if not worth_retrying(error):
                        self._receiver.failed(self, error)
                        return
                await self._brokers.clock.sleep(self._backoff.next())
        finally:
            if self._attaching is asyncio.current_task():
                self._attaching = None

    # -- what the connection calls -----------------------------------------------------------------------------------

    def delivered(self, head: DeliverHead, batch: memoryview) -> None:
        try:
            opened = Batch.open(batch, stamped=True)
            if head.ranges and any(start >= end or end > opened.count for start, end in head.ranges):
                raise Corrupt("a delivery selects rows that its batch does not have")
        except Corrupt as error:
            if self._connection is not None:
                self._connection.tell(requests.CloseConsumer(handle=self._handle))
            self.closed(
                Corrupt(f"a batch of {self.topic}, partition {self.partition}, arrived damaged: {error.message}")
            )
            return
        self._fruitless = False
        self._backoff.reset()
        rows = rows_of(head.ranges, opened.count)
        received = ReceivedBatch(opened, self.topic, self.partition, self.acks, rows, head.redeliveries, head.reasons)
        self._receiver.delivered(received)

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """The subscription has another ack timeout, or was sought: deliveries that follow are of this generation."""
        self._set_ack_timeout(ack_timeout_ms)
        if generation not in (GENERATION_UNKNOWN, self.acks.generation):
            for batch in self._receiver.restarted(self):
                self.credit.taken(len(batch), batch.stored_bytes)
            self.forget_acks(generation)
            self._moves = generation
            self._receiver.confirmed()
            self.give_credit()

    def closed(self, error: DanubeError) -> None:
        """The broker took the subscription away, or what it sends cannot be used."""
        self._let_go()
        self._receiver.restarted(self)
        self._brokers.moved(self.topic)
        if worth_retrying(error):
            self.reattach()
        else:
            self._receiver.failed(self, error)

    def _lost(self, error: DanubeError) -> None:
        log.debug("consumer.connection_lost", topic=self.topic, partition=self.partition, error=error.message)
        self._connection = None
        self.acks.session_ended()
        self._receiver.restarted(self)
        self.reattach()

    # -- credit and acks ---------------------------------------------------------------------------------------------

    def taken(self, batch: ReceivedBatch) -> bool:
        """The user took a batch of the present session; True when that gave the broker new credit."""
        self.credit.taken(len(batch), batch.stored_bytes)
        return self.give_credit()

    def give_credit(self) -> bool:
        connection = self._connection
        if connection is None or connection.lost is not None:
            return False
        grant = self.credit.grant()
        if grant is None:
            return False
        connection.give_credit(self._handle, *grant)
        return True

    def forget_acks(self, generation: int = GENERATION_UNKNOWN) -> None:
        """Begin with new acks after a seek: those of what was received before it mean nothing. `generation` is that of
        the deliveries that follow, where it is known yet."""
        self.acks.on_dirty = self.acks.on_nack = _ignore
        self.acks.watch(None)
        self.acks = Acks(self._dirty, self._nacked, generation)
        self._confirming = 0
        self._watch_unsettled()

    def _dirty(self) -> None:
        self._receiver.dirty(self)

    def _nacked(self) -> None:
        self._receiver.nacked(self)

    def send_acks(self, confirm: bool = False) -> None:
        """Send what was gathered: nacks now, acks now or through the next session. Now and then asks to confirm."""
        connection, acks = self._connection, self.acks
        if connection is None or connection.lost is not None:
            acks.session_ended()
            return
        if acks.has_nacks:
            self._send_nacks(connection)
        if acks.dirty:
            self._send(connection, acks.take(), confirm or self._confirming <= acks.confirmed_number)
        elif confirm and acks.confirmed_number < acks.sent_number and self._confirming < acks.sent_number:
            self._send(connection, AckSet(acks.sent_number, [], 0), confirm=True)

    def _send_nacks(self, connection: Connection) -> None:
        for nack in self.acks.take_nacks():
            for ranges in portions(nack.ranges, NACKED_MESSAGES_MAX):
                about = (nack.delay_ms, nack.reason, nack.timeout, self.acks.generation)
                connection.nack(requests.Nack(self._handle, ranges, *about))

    def _send(self, connection: Connection, taken: AckSet, confirm: bool) -> None:
        generation = self.acks.generation
        if taken.below:
            connection.ack(self._handle, [(0, taken.below)], cumulative=True, generation=generation)
        ranges = taken.ranges
        for start in range(0, len(ranges) - RANGES_PER_FRAME, RANGES_PER_FRAME):
            connection.ack(self._handle, ranges[start : start + RANGES_PER_FRAME], generation=generation)
        last = ranges[-(len(ranges) % RANGES_PER_FRAME or RANGES_PER_FRAME) :]
        on_done: Callable[[DanubeError | None], None] | None = None
        if confirm:
            self._confirming = taken.number
            on_done = partial(self._confirmed, connection, self._handle, self.acks, taken.number)
        if len(last) or confirm:
            connection.ack(self._handle, last, generation=generation, on_done=on_done)

    def _confirmed(
        self, connection: Connection, handle: int, acks: Acks, number: int, error: DanubeError | None
    ) -> None:
        if acks is not self.acks or connection.lost is not None or self.stopped:
            return
        if error is not None and (self._connection is not connection or self._handle != handle):
            return  # its session had ended: the next one sends them again
        if error is not None and worth_retrying(error):
            self._confirming = acks.confirmed_number
            self._tasks.spawn(self._ack_again(acks), f"ack {self.topic}[{self.partition}]")
            return
        if error is not None:
            self.ack_failure = self.ack_failure or error
        acks.confirm(number)
        self._receiver.confirmed()

    async def _ack_again(self, acks: Acks) -> None:
        await self._brokers.clock.sleep(self._backoff.next())
        left = acks.unconfirmed()
        connection = self._connection
        if left is not None and acks is self.acks and connection is not None and connection.lost is None:
            self._send(connection, left, confirm=True)

    # -- ack timeout -------------------------------------------------------------------------------------------------

    def _set_ack_timeout(self, ack_timeout_ms: int) -> None:
        """How long the application may keep a message of this subscription without settling it; 0: for ever."""
        timeout_s = ack_timeout_ms / 1_000 if self._own_timeout_s is None else self._own_timeout_s
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            self._watch_unsettled()
            self._receiver.timeout_changed()

    def _watch_unsettled(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
            self._expiring = None
        unsettled = self.acks.unsettled
        if self._timeout_s == 0:
            self.acks.watch(None)
        elif unsettled is None:
            self.acks.watch(AckTimeouts(self._timeout_s, self._brokers.clock.monotonic, self._first_taken))
        else:
            unsettled.timeout_s = self._timeout_s
            self._first_taken()

    def _first_taken(self) -> None:
        if self._expiring is None and not self.stopped:
            self._expiring = self._tasks.spawn(self._expire(), f"ack timeout {self.topic}[{self.partition}]")

    async def _expire(self) -> None:
        """Give back what was taken and not settled in time, until nothing is left to watch."""
        unsettled = self.acks.unsettled
        while unsettled is not None and (wait_s := unsettled.wait_s()) is not None:
            await self._brokers.clock.sleep(wait_s)
            due = unsettled.due()
            if due:
                self.acks.nack(merged((offset, offset + 1) for offset in due), -1, ACK_TIMEOUT, timeout=True)
        self._expiring = None


def _ignore() -> None:
    """Acks that lead nowhere."""
