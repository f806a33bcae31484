"""Receives from one partition: attaches to its owner, takes deliveries and sends acks.

An `OwnerSession` finds the owner, attaches, and attaches again after a disconnect:

```
 attach:   Subscribe --> ConsumerOpened --> ACK (unconfirmed acks of the last session) --> CREDIT --> DELIVER ...
```

Acks are sent before credit, so the broker knows them before it chooses what to redeliver.

A seek, by any consumer of the subscription, ends a *generation* of deliveries. The broker sends the generation when the
source attaches, and again (CONSUMER_CHANGED) before the first delivery after a seek; acks and nacks name it.

Flow control: the broker may push messages and bytes within the credit it was granted; messages that the user takes
make new credit available.

Invariants
    acks and nacks of deliveries of an earlier generation are not sent, or are ignored by the broker
    deliveries of an older session are never mixed with those of the present one
    a batch is verified whole before a user sees it
    granted and not yet delivered + delivered and not yet consumed <= target, in messages and in bytes (except for one
    batch)
    credit is granted in steps of at least half the target, so that it needs few frames
    no credit is granted before `set_prefetch`: the broker takes nothing from other consumers for this one until then
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from pydanube.client.connection.connection import Connection
from pydanube.client.connection.observing import PartitionHook
from pydanube.client.connection.owner_session import OwnerHandle, OwnerSession
from pydanube.client.connection.routing import Brokers, worth_retrying
from pydanube.codec.batch import Batch
from pydanube.codec.native import requests
from pydanube.codec.native.frames import GENERATION_UNKNOWN, DeliverHead
from pydanube.model.errors import Corrupt, DanubeError
from pydanube.model.failure import ACK_TIMEOUT
from pydanube.model.limits import NACKED_MESSAGES_MAX
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .acks import Acks, AckSet, AckTimeouts, merge_ranges, split_ranges
from .messages import ReceivedBatch, rows_of

log = get_logger(__name__)

RANGES_PER_FRAME: Final = 10_000
"""The head of an ACK frame with this many ranges is within its size limit."""


class SourceListener(Protocol):
    """What a partition source calls in its consumer."""

    def attached(self, source: PartitionSource) -> None: ...
    def delivered(self, batch: ReceivedBatch[Any]) -> None: ...
    def discard_deliveries(self, source: PartitionSource) -> list[ReceivedBatch[Any]]:
        """Remove the batches of this source that wait for the user: the broker sends them again, unless there was a
        seek. Returns those of them that the user had not begun with."""

    def source_failed(self, source: PartitionSource, error: DanubeError) -> None:
        """Handle a permanent failure: the source cannot receive any more."""

    def schedule_acks(self, source: PartitionSource) -> None:
        """Call `send_acks` within the time that acks are collected."""

    def schedule_nacks(self, source: PartitionSource) -> None:
        """Call `send_acks` at the end of this turn of the event loop."""

    def ack_timeout_changed(self) -> None:
        """Prepare messages that wait for the user again: the subscription now has an ack timeout, or has none any
        more."""

    def acks_confirmed(self) -> None: ...


class FlowControl:
    """Counts the credit of one session."""

    __slots__ = ("_bytes", "_bytes_target", "_messages", "_messages_target")

    def __init__(self, messages: int, size: int) -> None:
        self._messages = 0
        self._bytes = 0
        self.set_target(messages, size)

    def set_target(self, messages: int, size: int) -> None:
        """Set how many messages and bytes may be granted or prefetched at the same time."""
        assert (messages > 0 and size > 0) or messages == size == 0
        self._messages_target = messages
        self._bytes_target = size

    def restart(self) -> None:
        """Begin a new session, in which nothing is granted and nothing was delivered."""
        self._messages = self._bytes = 0

    def consumed(self, messages: int, size: int) -> None:
        """Count what the user took of the deliveries."""
        self._messages -= messages
        self._bytes -= size

    def grant(self) -> tuple[int, int] | None:
        """Return the credit to send now, and count it as granted; None while less than half of the target is free, or
        nothing is to be prefetched."""
        if not self._messages_target:
            return None
        messages = self._messages_target - self._messages
        size = self._bytes_target - self._bytes
        if 2 * messages < self._messages_target and 2 * size < self._bytes_target:
            return None
        self._messages += max(messages, 0)
        self._bytes += max(size, 0)
        return max(messages, 0), max(size, 0)


class PartitionSource:
    """A consumer's attachment to one partition."""

    what = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        tasks: Tasks,
        listener: SourceListener,
        subscribe: requests.Subscribe,
        ack_timeout_s: float | None = None,
        is_away: bool = False,
        hook: PartitionHook | None = None,
    ) -> None:
        """`ack_timeout_s` is the consumer's own ack timeout; None: that of the subscription. `is_away`: the partition
        had no owner when it was looked up."""
        self.topic = subscribe.topic
        self.partition = subscribe.partition
        self.is_away = is_away
        self.type: SubscriptionType | None = None
        """The type of the subscription, once attached."""
        self._brokers = brokers
        self._tasks = tasks
        self._listener = listener
        self._subscribe = subscribe
        self._flow = FlowControl(0, 0)
        opened_type = requests.ConsumerOpened
        self._session = OwnerSession(
            brokers, tasks, self, opened_type, self.topic, self.partition, RetryBackoff(), hook
        )
        self._subscription_id = self._epoch = self._moves = 0
        self._confirming = 0
        """The number of the last ack set for which a confirmation was requested."""
        self._ack_failure: DanubeError | None = None
        self._stopped = False
        self._own_timeout_s = ack_timeout_s
        self._timeout_s = 0.0
        self._expiring: asyncio.Task[None] | None = None
        self.acks = self._new_acks()

    @property
    def connection(self) -> Connection | None:
        """The connection to the owner; None: there is none at this moment."""
        handle = self._session.handle
        return None if handle is None else handle.connection

    # -- the session at the owner ------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Try once to attach. Cancelled while the broker attaches it, it is detached again."""
        await self._session.open()

    def reattach(self) -> None:
        """Attach again in the background, and keep trying until it works or is refused for good."""
        if not self._stopped:
            self._session.reopen()

    async def detach(self) -> None:
        """End the session. A broker that does not answer detaches the consumer when the connection ends."""
        await self._session.close(self._clean_up(self._session.detach()))

    def abandon(self) -> None:
        """End the session without waiting for the broker's answer."""
        handle = self._clean_up(self._session.detach())
        if handle is not None:
            handle.give_back()

    def stop(self, error: DanubeError) -> None:
        """Do not attach again, and refuse later acks with `error`: the consumer is being closed."""
        self._stopped = True
        self.acks.close(error)

    def open_request(self) -> requests.Subscribe:
        return self._subscribe

    def close_request(self, handle: int) -> requests.CloseConsumer:
        return requests.CloseConsumer(handle=handle)

    def session_wanted(self) -> bool:
        return self._session.handle is None

    def session_opened(self, connection: Connection, opened: requests.ConsumerOpened) -> None:
        connection.listen(opened.handle, self)
        self._confirming = 0
        if self._makes_acks_obsolete(opened):
            self.replace_acks()
            self._listener.acks_confirmed()
        self.acks.generation, self._subscription_id = opened.generation, opened.subscription_id
        self._epoch, self._moves = opened.owner_epoch, opened.moves
        if opened.type:
            self.type = SubscriptionType.parse(opened.type)
        self._set_ack_timeout(opened.ack_timeout_ms)
        handle, unconfirmed = self._session.handle, self.acks.unconfirmed()
        assert handle is not None
        if unconfirmed is not None:
            self._send(handle, unconfirmed, confirm=True)
        if self.acks.has_acks:
            self.send_acks()
        self._flow.restart()
        self.give_credit()
        self._listener.attached(self)

    def session_lost(self, error: DanubeError) -> None:
        log.debug("consumer.connection_lost", topic=self.topic, partition=self.partition, error=error.message)
        self.acks.session_ended()
        self._listener.discard_deliveries(self)
        self.reattach()

    def open_failed(self, error: DanubeError) -> None:
        """Do nothing: the attempt is repeated, or `reopen_ended` is called with its error."""

    def reopen_ended(self, error: DanubeError | None) -> None:
        if error is not None:
            self._listener.source_failed(self, error)
        elif self._session.handle is None:
            self.reattach()  # the new session ended before this was called

    def _clean_up(self, handle: OwnerHandle | None) -> OwnerHandle | None:
        """Clean up after the session, and return its handle."""
        self.acks.session_ended()
        if handle is not None:
            handle.connection.stop_listening(handle.number)
        return handle

    def _makes_acks_obsolete(self, opened: requests.ConsumerOpened) -> bool:
        """Return whether the subscription was moved by a seek, or made anew, since the earlier deliveries."""
        if self._subscription_id not in (0, opened.subscription_id):
            return True
        if GENERATION_UNKNOWN not in (self.acks.generation, opened.generation):
            return self.acks.generation != opened.generation
        return self._epoch == opened.owner_epoch and self._moves != opened.moves

    # -- what the connection calls -----------------------------------------------------------------------------------

    def delivered(self, head: DeliverHead, batch: memoryview) -> None:
        if not self._session.epoch.accepts(head.epoch):
            error = self._session.stale_answer(head.epoch)
            if self._session.handle is not None:
                self._session.handle.give_back()
            self.closed(error)
            return
        try:
            opened = Batch.open(batch, stamped=True)
            if head.ranges and any(start >= end or end > opened.count for start, end in head.ranges):
                raise Corrupt("a delivery selects rows that its batch does not have")
        except Corrupt as error:
            if self._session.handle is not None:
                self._session.handle.give_back()
            self.closed(
                Corrupt(f"a batch of {self.topic}, partition {self.partition}, arrived damaged: {error.message}")
            )
            return
        self._session.retry.succeeded()
        rows = rows_of(head.ranges, opened.count)
        received = ReceivedBatch(opened, self.topic, self.partition, self.acks, rows, head.redeliveries, head.reasons)
        metrics = self._brokers.metrics
        metrics.batches_received += 1
        metrics.messages_received += len(received)
        metrics.bytes_received += len(batch)
        if head.redeliveries:
            metrics.messages_redelivered += sum(map(bool, head.redeliveries))
        self._session.watch.delivered()
        self._listener.delivered(received)

    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """Take over the subscription's ack timeout, and the generation of the deliveries that follow."""
        self._set_ack_timeout(ack_timeout_ms)
        if generation not in (GENERATION_UNKNOWN, self.acks.generation):
            for batch in self._listener.discard_deliveries(self):
                self._flow.consumed(len(batch), batch.stored_bytes)
            self.replace_acks(generation)
            self._moves = generation
            self._listener.acks_confirmed()
            self.give_credit()

    def closed(self, error: DanubeError) -> None:
        """End the session: the broker closed it, or a delivery was damaged."""
        self._clean_up(self._session.release(error))
        self._listener.discard_deliveries(self)
        self._brokers.moved(self.topic)
        if worth_retrying(error):
            self.reattach()
        else:
            self._listener.source_failed(self, error)

    # -- flow control and acks ---------------------------------------------------------------------------------------

    def set_prefetch(self, messages: int, size: int) -> None:
        """Set how many messages and bytes the broker may send ahead. Before the first call it sends nothing."""
        self._flow.set_target(messages, size)
        self.give_credit()

    def consumed(self, batch: ReceivedBatch[Any]) -> bool:
        """Count a batch of the present session that the user took. Returns whether the broker was sent new credit."""
        self._flow.consumed(len(batch), batch.stored_bytes)
        return self.give_credit()

    def give_credit(self) -> bool:
        handle = self._session.handle
        if handle is None or handle.connection.lost is not None:
            return False
        grant = self._flow.grant()
        if grant is None:
            return False
        handle.connection.give_credit(handle.number, *grant)
        return True

    def replace_acks(self, generation: int = GENERATION_UNKNOWN) -> None:
        """Begin with new acks after a seek; those of earlier deliveries are abandoned. `generation` is that of the
        deliveries that follow, if it is already known."""
        self.acks.abandon()
        self.acks = self._new_acks(generation)
        self._confirming = 0
        self._apply_ack_timeout()

    def _new_acks(self, generation: int = GENERATION_UNKNOWN) -> Acks:
        listener = self._listener
        return Acks(partial(listener.schedule_acks, self), partial(listener.schedule_nacks, self), generation)

    def take_ack_failure(self) -> DanubeError | None:
        """Return why acks were refused since the last call, if any were."""
        failure, self._ack_failure = self._ack_failure, None
        return failure

    def send_acks(self, confirm: bool = False) -> None:
        """Send the collected nacks and acks; without a session, drop the nacks and keep the acks for the next session.

        A confirmation is requested with `confirm`, and whenever no other one is awaited.
        """
        handle, acks = self._session.handle, self.acks
        if handle is None or handle.connection.lost is not None:
            acks.session_ended()
            return
        if acks.has_nacks:
            self._send_nacks(handle)
        if acks.has_acks:
            self._send(handle, acks.take(), confirm or self._confirming <= acks.confirmed_number)
        elif confirm and acks.confirmed_number < acks.sent_number and self._confirming < acks.sent_number:
            self._send(handle, AckSet(acks.sent_number, [], 0), confirm=True)

    def _send_nacks(self, handle: OwnerHandle) -> None:
        for nack in self.acks.take_nacks():
            self._brokers.metrics.messages_nacked += sum(end - start for start, end in nack.ranges)
            for ranges in split_ranges(nack.ranges, NACKED_MESSAGES_MAX):
                about = (nack.delay_ms, nack.reason, nack.timeout, self.acks.generation, nack.reject)
                handle.connection.nack(requests.Nack(handle.number, ranges, *about))

    def _send(self, handle: OwnerHandle, taken: AckSet, confirm: bool) -> None:
        connection, generation = handle.connection, self.acks.generation
        if taken.cumulative_end:
            connection.ack(handle.number, [(0, taken.cumulative_end)], cumulative=True, generation=generation)
        ranges = taken.ranges
        for start in range(0, len(ranges) - RANGES_PER_FRAME, RANGES_PER_FRAME):
            connection.ack(handle.number, ranges[start : start + RANGES_PER_FRAME], generation=generation)
        last = ranges[-(len(ranges) % RANGES_PER_FRAME or RANGES_PER_FRAME) :]
        on_done: Callable[[DanubeError | None], None] | None = None
        if confirm:
            self._confirming = taken.number
            on_done = partial(self._confirmed, handle, self.acks, taken.number)
        if len(last) or confirm:
            connection.ack(handle.number, last, generation=generation, on_done=on_done)

    def _confirmed(self, handle: OwnerHandle, acks: Acks, number: int, error: DanubeError | None) -> None:
        if acks is not self.acks or handle.connection.lost is not None or self._stopped:
            return
        if error is not None and self._session.handle is not handle:
            return  # the session had ended: the next one sends these acks again
        if error is not None and worth_retrying(error):
            self._confirming = acks.confirmed_number
            self._tasks.spawn(self._send_unconfirmed(acks), f"ack {self.topic}[{self.partition}]")
            return
        if error is not None:
            self._ack_failure = self._ack_failure or error
        acks.confirm(number)
        self._listener.acks_confirmed()

    async def _send_unconfirmed(self, acks: Acks) -> None:
        await self._brokers.clock.sleep(self._session.retry.next_wait())
        unconfirmed = acks.unconfirmed()
        handle = self._session.handle
        if unconfirmed is not None and acks is self.acks and handle is not None and handle.connection.lost is None:
            self._send(handle, unconfirmed, confirm=True)

    # -- ack timeout -------------------------------------------------------------------------------------------------

    def _set_ack_timeout(self, ack_timeout_ms: int) -> None:
        """Use the consumer's own ack timeout, or else `ack_timeout_ms` of the subscription; 0: no timeout."""
        timeout_s = ack_timeout_ms / 1_000 if self._own_timeout_s is None else self._own_timeout_s
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            self._apply_ack_timeout()
            self._listener.ack_timeout_changed()

    def _apply_ack_timeout(self) -> None:
        if self._expiring is not None:
            self._expiring.cancel()
            self._expiring = None
        timeouts = self.acks.timeouts
        if self._timeout_s == 0:
            self.acks.set_timeouts(None)
        elif timeouts is None:
            monotonic = self._brokers.clock.monotonic
            self.acks.set_timeouts(AckTimeouts(self._timeout_s, monotonic, self._start_expiring))
        else:
            timeouts.timeout_s = self._timeout_s
            self._start_expiring()

    def _start_expiring(self) -> None:
        if self._expiring is None and not self._stopped:
            self._expiring = self._tasks.spawn(self._nack_expired(), f"ack timeout {self.topic}[{self.partition}]")

    async def _nack_expired(self) -> None:
        """Nack the messages whose ack timeout expires, until no timeout is running."""
        timeouts = self.acks.timeouts
        while timeouts is not None and (wait_s := timeouts.next_expiry_s()) is not None:
            await self._brokers.clock.sleep(wait_s)
            expired = timeouts.take_expired()
            if expired:
                ranges = merge_ranges((offset, offset + 1) for offset in expired)
                self.acks.nack(ranges, -1, ACK_TIMEOUT, timeout=True)
        self._expiring = None
