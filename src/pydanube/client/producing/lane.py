"""One producer's way to one partition: keeps a handle at the owner and puts the outbox's flights on the wire.

The outbox decides, the lane does: it opens and reopens the handle, sends within the window and the broker's credit,
waits before it tries again, and carries answers back. When the producer needs a new identity, the lane stops taking new
batches until nothing of the old identity is left.
"""

from __future__ import annotations

import asyncio
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, cast

from pydanube.client.connection.backoff import RetryBackoff
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.owner_session import OwnerHandle, OwnerSession
from pydanube.client.connection.routing import Brokers
from pydanube.client.settings import ProducerSettings
from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, NotOwner, StaleEpoch, Unavailable
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .outbox import Flight, Outbox, Status

log = get_logger(__name__)

FILLING_SECONDS_MAX: Final = 1.0
"""A batch is not filled for longer: while nothing can be sent, its messages would inherit the first one's deadline."""


@dataclass(slots=True)
class ProducerIdentity:
    """Who a producer is at the brokers. Number 0: not known yet."""

    name: str
    opener: int
    """By which it is told from others of its name."""
    producer_id: int = 0
    producer_epoch: int = 0


class Host(Protocol):
    """The producer, as a lane sees it."""

    frozen: bool
    """No new batch may take a sequence: the identity is about to change."""

    def renew(self) -> None:
        """The sequence of a lane has a hole and nothing of it is on the wire."""

    def fenced(self, error: DanubeError) -> None:
        """Another producer took this one's name."""

    def progressed(self) -> None:
        """A flight's fate is known, or open again. What settles is told by the outbox."""


class Lane:
    """The way to one partition."""

    def __init__(
        self,
        brokers: Brokers,
        tasks: Tasks,
        host: Host,
        topic: str,
        partition: int,
        identity: ProducerIdentity,
        outbox: Outbox,
        settings: ProducerSettings,
    ) -> None:
        self.outbox = outbox
        self.hurried = 0
        """How many wait in flush: nothing lingers then."""
        self.stopped = False
        """The producer is being closed: nothing is sent or opened any more."""
        self._brokers = brokers
        self._host = host
        self._topic = topic
        self._partition = partition
        self._identity = identity
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.session = OwnerSession(
            brokers,
            tasks,
            self,
            requests.ProducerOpened,
            "producer",
            topic,
            partition,
            RetryBackoff.within(settings.timeout, brokers.random),
        )
        self._troubled = False
        self._window = settings.in_flight_batches
        """Batches on the wire at most. After trouble it starts again at one and doubles with each answer, so that a
        broker short of room or just started is not given everything at once."""
        self._problem: DanubeError | None = None
        self._misrouted = False
        self._planned = False
        self._linger: asyncio.TimerHandle | None = None
        self._lingered = False
        self._retrying: asyncio.TimerHandle | None = None

    @property
    def obstacle(self) -> DanubeError | None:
        """What was in the way last, if anything was."""
        return self.outbox.refusal or self._problem

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
        )

    def close_request(self, handle: int) -> requests.CloseProducer:
        return requests.CloseProducer(handle=handle)

    def session_wanted(self) -> bool:
        return self.outbox.has_work

    def session_opened(self, connection: Connection, opened: requests.ProducerOpened) -> None:
        self._identity.producer_id, self._identity.producer_epoch = opened.producer_id, opened.producer_epoch
        self._problem = None

    def session_lost(self, error: DanubeError) -> None:
        self._in_trouble(error)
        self._cancel_timers()
        self.outbox.lost()
        self._host.progressed()
        self.pump()

    def open_failed(self, error: DanubeError) -> None:
        if not isinstance(error, StaleEpoch):
            self._problem = error

    def reopen_ended(self, error: DanubeError | None) -> None:
        if isinstance(error, StaleEpoch):
            self._host.fenced(error)
        elif error is not None:
            self.outbox.fail_all(partial(copy, error))
        self.pump()

    def detach(self) -> OwnerHandle | None:
        """Leave the session and return its handle, which the caller gives back.

        Batches that were not answered will be sent again through the next session.
        """
        self._cancel_timers()
        handle = self.session.detach()
        if handle is not None:
            self.outbox.lost()
        return handle

    async def close(self) -> None:
        await self.session.close(self.detach())

    # -- sending -----------------------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Send at the end of this turn of the loop, so that what is added in it goes together."""
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Send what may be sent now, and arrange for the rest."""
        self._planned = False
        handle, outbox = self.session.handle, self.outbox
        if self.stopped:
            return
        if (outbox.broken or self._host.frozen) and outbox.renewable:
            if outbox.broken and outbox.has_work:
                self._host.renew()  # otherwise: wait until the others have finished
        elif handle is None:
            if outbox.has_work:
                self.session.reopen()
        elif handle.connection.lost is not None:
            return  # about to be told
        elif outbox.refusal is not None:
            self._retry_later()
        else:
            self._send(handle)
            if outbox.filling and outbox.flights and self._linger is None:
                self._linger = self._loop.call_later(self._settings.linger_ms / 1_000, self._linger_over)

    def _send(self, handle: OwnerHandle) -> None:
        outbox, window = self.outbox, handle.connection.window
        while outbox.on_wire < self._window:
            flight = outbox.unsent or self._next_flight()
            if flight is None:
                return
            if not window.has_room(len(flight.data)):
                window.when_room(self.session, len(flight.data), self.pump)
                return
            handle.connection.publish(handle.number, flight.data, self, outbox.sent())

    def _next_flight(self) -> Flight | None:
        """A batch that is full, or is not filled any longer; None when there is none or none may take a sequence."""
        outbox = self.outbox
        if self._host.frozen:
            return None
        if not outbox.full and (not outbox.flights or self._lingered or self.hurried):
            outbox.close_filling()
        self._lingered = False
        return outbox.take()

    def _linger_over(self) -> None:
        self._linger = None
        self._lingered = True
        self.pump()

    # -- answers -----------------------------------------------------------------------------------------------------

    def published(self, ticket: object, base_offset: int, duplicate: bool) -> None:
        if self._troubled:
            self._window = min(self._window * 2, self._settings.in_flight_batches)
            self._troubled = self._window < self._settings.in_flight_batches
            self.session.retry.succeeded()
        self.outbox.published(cast(Flight, ticket), base_offset, duplicate)
        if self.outbox.has_work:
            self.pump()

    def refused(self, ticket: object, error: DanubeError) -> None:
        if isinstance(error, StaleEpoch):
            if cast(Flight, ticket).status is Status.SENT:  # not given up and fenced by this one's next epoch
                self._host.fenced(error)
            return
        if isinstance(error, NotOwner):
            self._misrouted = True
            self._brokers.moved(self._topic, self._partition, error.owner)
        self._in_trouble(error)
        self.outbox.refused(cast(Flight, ticket), error)
        self._host.progressed()
        self.pump()

    def _in_trouble(self, error: DanubeError) -> None:
        self._problem = error
        self._troubled = True
        self._window = 1

    def _retry_later(self) -> None:
        if self._retrying is None and self.outbox.quiet:
            self._retrying = self._loop.call_later(self.session.retry.next_wait(), self._retry)

    def _retry(self) -> None:
        self._retrying = None
        handle = self.session.handle
        if self._misrouted or (handle is not None and handle.connection.going_away):
            self._misrouted = False
            handle = self.detach()
            if handle is not None:
                handle.give_back()
        elif self.outbox.refusal is not None:
            self.outbox.resend_refused()
        self.pump()

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Give up what has waited too long."""
        self.outbox.close_filling(born_before=now - FILLING_SECONDS_MAX)
        self.outbox.expire(now - self._settings.timeout, self._timed_out)
        self.pump()

    def _timed_out(self) -> DanubeError:
        reason = self._problem.message if self._problem is not None else self._no_answer()
        return Unavailable(f"not acknowledged within {self._settings.timeout:g} s: {reason}")

    def _no_answer(self) -> str:
        """Nobody said no. A broker that makes producers wait says nothing meanwhile."""
        return (
            "no answer from the broker; it may be slow, or the topic's policies publish_messages_per_s and "
            f"publish_bytes_per_s make its producers wait (`danube topics policies {self._topic}`)"
        )

    def _cancel_timers(self) -> None:
        for timer in (self._linger, self._retrying):
            if timer is not None:
                timer.cancel()
        self._linger = self._retrying = None
