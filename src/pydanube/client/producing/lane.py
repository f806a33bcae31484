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
from typing import Final, NamedTuple, Protocol, cast

from pydanube.client.connection.backoff import RetryBackoff
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.routing import Brokers, worth_retrying
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


class LaneState(NamedTuple):
    """A handle at a broker. Whoever holds one and needs it no longer gives it back: the broker counts it as live."""

    connection: Connection
    handle: int

    def give_back(self) -> None:
        self.connection.tell(requests.CloseProducer(handle=self.handle))


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
        self._tasks = tasks
        self._host = host
        self._topic = topic
        self._partition = partition
        self._identity = identity
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._backoff = RetryBackoff.within(settings.timeout, brokers.random)
        self._hold: LaneState | None = None
        self._opening: asyncio.Task[None] | None = None
        self._fruitless = False
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

    # -- the handle --------------------------------------------------------------------------------------------------

    async def open(self, renew: bool = False) -> None:
        """Get a handle, and an identity where there is none, or another. One try. Cancelled, no handle stays behind."""
        identity = self._identity
        known = identity.producer_id != 0 and not renew
        connection = await self._brokers.owner(self._topic, self._partition)
        request = requests.OpenProducer(
            topic=self._topic,
            partition=self._partition,
            name=identity.name,
            producer_id=identity.producer_id if known else 0,
            producer_epoch=identity.producer_epoch if known else 0,
            access=self._settings.access,
            opener=identity.opener,
        )
        await connection.request(
            request,
            requests.ProducerOpened,
            partial(self._opened, connection),
            on_late=lambda opened: LaneState(connection, opened.handle).give_back(),
        )

    def _opened(self, connection: Connection, opened: requests.ProducerOpened) -> None:
        former = self.let_go()
        if former is not None:
            former.give_back()
        connection.on_lost(self, self._lost)
        self._identity.producer_id, self._identity.producer_epoch = opened.producer_id, opened.producer_epoch
        self._hold = LaneState(connection, opened.handle)
        self._problem = None

    def let_go(self) -> LaneState | None:
        """The handle, for the caller to give back. What was not answered will be sent again through the next one."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.connection.forget(self)
            self.outbox.lost()
        return hold

    def detach(self) -> LaneState | None:
        """As `let_go`, and nothing is under way to get another."""
        self._cancel_timers()
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        return self.let_go()

    async def close(self) -> None:
        """Give the handle back. A broker that cannot be asked forgets it with the connection."""
        hold = self.detach()
        if hold is not None and hold.connection.usable:
            try:
                closing = requests.CloseProducer(handle=hold.handle)
                await hold.connection.request(closing, requests.Done, timeout=2.0)
            except DanubeError as error:
                log.debug("producer.close_failed", topic=self._topic, partition=self._partition, error=error.message)

    def _lost(self, error: DanubeError) -> None:
        self._in_trouble(error)
        self._hold = None
        self._cancel_timers()
        self.outbox.lost()
        self._host.progressed()
        self.pump()

    async def _reopen(self) -> None:
        if self._fruitless:  # connections come and go without an answer: do not hurry
            await self._brokers.clock.sleep(self._backoff.next())
        self._fruitless = True
        while self.outbox.has_work:
            try:
                await self.open()
                break
            except StaleEpoch as error:
                self._host.fenced(error)
                return
            except DanubeError as error:
                self._problem = error
                self._brokers.moved(self._topic, self._partition, error.owner if isinstance(error, NotOwner) else "")
                if not worth_retrying(error):
                    self.outbox.fail_all(partial(copy, error))
                    return
            await self._brokers.clock.sleep(self._backoff.next())

    def _reopened(self, task: asyncio.Task[None]) -> None:
        if self._opening is task:
            self._opening = None
            self.pump()

    # -- sending -----------------------------------------------------------------------------------------------------

    def plan(self) -> None:
        """Send at the end of this turn of the loop, so that what is added in it goes together."""
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Send what may be sent now, and arrange for the rest."""
        self._planned = False
        hold, outbox = self._hold, self.outbox
        if self.stopped:
            return
        if (outbox.broken or self._host.frozen) and outbox.renewable:
            if outbox.broken and outbox.has_work:
                self._host.renew()  # otherwise: wait until the others have finished
        elif hold is None:
            if self._opening is None and outbox.has_work:
                self._opening = self._tasks.spawn(self._reopen(), f"open producer {self._topic}[{self._partition}]")
                self._opening.add_done_callback(self._reopened)
        elif hold.connection.lost is not None:
            return  # about to be told
        elif outbox.refusal is not None:
            self._retry_later()
        else:
            self._send(hold)
            if outbox.filling and outbox.flights and self._linger is None:
                self._linger = self._loop.call_later(self._settings.linger_ms / 1_000, self._linger_over)

    def _send(self, hold: LaneState) -> None:
        outbox, window = self.outbox, hold.connection.window
        while outbox.on_wire < self._window:
            flight = outbox.unsent or self._next_flight()
            if flight is None:
                return
            if not window.has_room(len(flight.data)):
                window.when_room(self, len(flight.data), self.pump)
                return
            hold.connection.publish(hold.handle, flight.data, self, outbox.sent())

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
            self._backoff.reset()
            self._fruitless = False
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
            self._retrying = self._loop.call_later(self._backoff.next(), self._retry)

    def _retry(self) -> None:
        self._retrying = None
        if self._misrouted or (self._hold is not None and self._hold.connection.going_away):
            self._misrouted = False
            hold = self.detach()
            if hold is not None:
                hold.give_back()
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
