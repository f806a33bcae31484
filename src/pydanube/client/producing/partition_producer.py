"""One producer's way to one partition: keeps a session at the owner and sends the batches that are due.

`PendingBatches` decides, `PartitionProducer` does: it opens the session again when it ended, sends within the limit of
batches in flight and the broker's publish window, waits before it tries again, and passes answers on. While the
producer changes its identity, no further batch goes in flight until nothing of the old identity is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, cast

from pydanube.client.connection.connection import Connection
from pydanube.client.connection.owner_session import OwnerHandle, OwnerSession
from pydanube.client.connection.routing import Brokers
from pydanube.client.settings import ProducerSettings
from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, NotOwner, StaleEpoch, Unavailable
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks

from .pending_batches import BatchStatus, InFlightBatch, MessageRows, PendingBatches

FILLING_SECONDS_MAX: Final = 1.0
"""A batch is not filled for longer: while nothing can be sent, its messages would inherit the first one's timeout."""


@dataclass(slots=True)
class ProducerIdentity:
    """Who a producer is at the brokers, shared by all its partitions."""

    name: str
    opener: int
    """A random number that tells this producer from others of the same name, and this identity from its former ones."""
    producer_id: int = 0
    """0 until the first partition is open."""
    producer_epoch: int = 0
    changing: bool = False
    """The identity is about to change: no further batch may take a sequence number under it."""


def new_opener(random: Random) -> int:
    return random.getrandbits(63) | 1  # 0 is none


@dataclass(frozen=True, slots=True)
class ProducerCallbacks:
    """What a partition tells its producer."""

    began: Callable[[], None]
    """A batch was begun: its timeout has to be watched."""
    settled: Callable[[int, MessageRows, int, bool, DanubeError | None], None]
    """(partition, rows, base offset, duplicate, error): the rows are stored, or failed with the error."""
    progressed: Callable[[], None]
    """The outcome of a batch is known, or unknown again. Settled rows are reported by `settled`."""
    renew: Callable[[], None]
    """The sequence of the partition has a gap, and nothing of it is in flight."""
    fenced: Callable[[DanubeError], None]
    """Another producer took this one's name."""


class PartitionProducer:
    """Publishes the messages of one producer to one partition."""

    what = "producer"

    def __init__(
        self,
        brokers: Brokers,
        tasks: Tasks,
        callbacks: ProducerCallbacks,
        topic: str,
        partition: int,
        identity: ProducerIdentity,
        settings: ProducerSettings,
    ) -> None:
        self.batches = PendingBatches(
            settings.batch_messages,
            settings.batch_bytes,
            settings.name,
            settings.codec,
            self._batch_begun,
            partial(callbacks.settled, partition),
            settings.schema,
        )
        self.session = OwnerSession(
            brokers,
            tasks,
            self,
            requests.ProducerOpened,
            topic,
            partition,
            RetryBackoff.within(settings.timeout),
            settings.on_partition,
        )
        self.flushing = 0
        """How many callers wait in `flush`: no batch lingers meanwhile."""
        self.stopped = False
        """The producer is being closed: nothing is sent or opened any more."""
        self._brokers = brokers
        self._callbacks = callbacks
        self._topic = topic
        self._partition = partition
        self._identity = identity
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._in_trouble = False
        self._in_flight_max = settings.in_flight_batches
        """After a failure it starts again at one and doubles with each answer, so that a broker that is short of memory
        or has just started is not sent everything at once."""
        self._problem: DanubeError | None = None
        self._misrouted = False
        self._send_planned = False
        self._linger: asyncio.TimerHandle | None = None
        self._lingered = False
        self._retrying: asyncio.TimerHandle | None = None

    @property
    def obstacle(self) -> DanubeError | None:
        """The latest reason why messages could not be published, if they still wait for it."""
        return self.batches.refusal or self._problem

    # -- the session at the owner ------------------------------------------------------------------------------------

    def open_request(self, renew: bool = False) -> requests.OpenProducer:
        """Return the request for a handle. It asks for a new identity if there is none yet, or with `renew`."""
        identity = self._identity
        known = identity.producer_id != 0 and not renew
        return requests.OpenProducer(
            topic=self._topic,
            partition=self._partition,
            name=identity.name,
            producer_id=identity.producer_id if known else 0,
            producer_epoch=identity.producer_epoch if known else 0,
            access=self._settings.access,
            opener=identity.opener,
            subject=self._settings.subject,
            schema_version=self._settings.schema[1] if self._settings.subject else 0,
        )

    def close_request(self, handle: int) -> requests.CloseProducer:
        return requests.CloseProducer(handle=handle)

    def session_wanted(self) -> bool:
        return self.batches.has_work

    def session_opened(self, connection: Connection, opened: requests.ProducerOpened) -> None:
        self._identity.producer_id, self._identity.producer_epoch = opened.producer_id, opened.producer_epoch
        self._problem = None

    def session_lost(self, error: DanubeError) -> None:
        self._slow_down(error)
        self._cancel_timers()
        self.batches.connection_lost()
        self._callbacks.progressed()
        self.send_due()

    def open_failed(self, error: DanubeError) -> None:
        if not isinstance(error, StaleEpoch):
            self._problem = error

    def reopen_ended(self, error: DanubeError | None) -> None:
        if isinstance(error, StaleEpoch):
            self._callbacks.fenced(error)
        elif error is not None:
            self.batches.fail_all(partial(copy, error))
        self.send_due()

    def detach(self, error: DanubeError | None = None) -> OwnerHandle | None:
        """Leave the session, because of `error` if there is one, and return its handle, which the caller gives back.

        Batches that were not answered will be sent again through the next session.
        """
        self._cancel_timers()
        handle = self.session.detach(error)
        if handle is not None:
            self.batches.connection_lost()
        return handle

    async def close(self) -> None:
        await self.session.close(self.detach())

    # -- sending -----------------------------------------------------------------------------------------------------

    def _batch_begun(self) -> None:
        """Send the batch at the end of this turn of the event loop, so that it takes all messages added in the turn."""
        self._callbacks.began()
        if not self._send_planned:
            self._send_planned = True
            self._loop.call_soon(self._run_planned_send)

    def _run_planned_send(self) -> None:
        self._send_planned = False
        self.send_due()

    def send_due(self) -> None:
        """Send what may be sent now, and arrange for what has to wait: a session, a retry, the linger time."""
        if self.stopped:
            return
        handle, batches = self.session.handle, self.batches
        if (batches.broken or self._identity.changing) and batches.renewable:
            if batches.broken and batches.has_work:
                self._callbacks.renew()  # otherwise: wait until the other partitions have finished
        elif handle is None:
            if batches.has_work:
                self.session.reopen()
        elif handle.connection.lost is not None:
            return  # `session_lost` is about to be called
        elif batches.refusal is not None:
            self._retry_later()
        else:
            self._send(handle)
            if batches.filling is not None and batches.in_flight and self._linger is None:
                self._linger = self._loop.call_later(self._settings.linger_ms / 1_000, self._end_linger)

    def _send(self, handle: OwnerHandle) -> None:
        batches, window = self.batches, handle.connection.window
        while batches.sent_count < self._in_flight_max:
            batch = batches.unsent or self._next_batch()
            if batch is None:
                return
            if not window.has_room(len(batch.data)):
                window.when_room(self.session, len(batch.data), self.send_due)
                return
            handle.connection.publish(handle.number, batch.data, self, batches.mark_sent())

    def _next_batch(self) -> InFlightBatch | None:
        """Return the next batch, now in flight: a full one, or one that need not be filled any longer.

        None if there is none, or if no batch may take a sequence number now.
        """
        batches = self.batches
        if self._identity.changing:
            return None
        if not batches.has_full and (not batches.in_flight or self._lingered or self.flushing):
            batches.close_filling()
        self._lingered = False
        return batches.take()

    def _end_linger(self) -> None:
        self._linger = None
        self._lingered = True
        self.send_due()

    # -- answers -----------------------------------------------------------------------------------------------------

    def published(self, ticket: object, base_offset: int, duplicate: bool, owner_epoch: int) -> None:
        if not self.session.epoch.accepts(owner_epoch):
            self.refused(ticket, self.session.stale_answer(owner_epoch))
            return
        if self._in_trouble:
            self._in_flight_max = min(self._in_flight_max * 2, self._settings.in_flight_batches)
            self._in_trouble = self._in_flight_max < self._settings.in_flight_batches
            self.session.retry.succeeded()
        self.batches.published(cast(InFlightBatch, ticket), base_offset, duplicate)
        if self.batches.has_work:
            self.send_due()

    def refused(self, ticket: object, error: DanubeError) -> None:
        if isinstance(error, StaleEpoch):
            # A batch that was given up is refused because of this producer's own next epoch.
            if cast(InFlightBatch, ticket).status is BatchStatus.SENT:
                self._callbacks.fenced(error)
            return
        if isinstance(error, NotOwner):
            self._misrouted = True
            self._brokers.moved(self._topic, self._partition, error.owner)
        self._slow_down(error)
        self.batches.refused(cast(InFlightBatch, ticket), error)
        self._callbacks.progressed()
        self.send_due()

    def _slow_down(self, error: DanubeError) -> None:
        self._problem = error
        self._in_trouble = True
        self._in_flight_max = 1

    def _retry_later(self) -> None:
        if self._retrying is None and self.batches.sent_count == 0:
            self._retrying = self._loop.call_later(self.session.retry.next_wait(), self._retry)

    def _retry(self) -> None:
        self._retrying = None
        handle = self.session.handle
        if self._misrouted or (handle is not None and handle.connection.going_away):
            self._misrouted = False
            handle = self.detach()
            if handle is not None:
                handle.give_back()
        elif self.batches.refusal is not None:
            self.batches.resend_refused()
        self.send_due()

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Fail the messages that have waited for longer than the timeout."""
        self.batches.close_filling(born_before=now - FILLING_SECONDS_MAX)
        self.batches.expire(now - self._settings.timeout, self._timed_out)
        self.send_due()

    def _timed_out(self) -> DanubeError:
        reason = self._problem.message if self._problem is not None else self._no_answer()
        return Unavailable(f"not acknowledged within {self._settings.timeout:g} s: {reason}")

    def _no_answer(self) -> str:
        """Return the reason when there was no refusal: a broker that limits a topic's publish rate answers late."""
        return (
            "no answer from the broker; it may be slow, or the topic's policies publish_messages_per_s and "
            f"publish_bytes_per_s make its producers wait (`danube topics policies {self._topic}`)"
        )

    def _cancel_timers(self) -> None:
        for timer in (self._linger, self._retrying):
            if timer is not None:
                timer.cancel()
        self._linger = self._retrying = None
