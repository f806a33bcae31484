"""What works behind a producer: its lanes, its identity, and who is told what became of each message.

A producer has one identity for all its lanes. When a sequence has a hole (see `outbox`), all lanes finish what is on
its way under the old identity before any of them starts under the new one: a name's new epoch fences the older one at
every partition at once.

Invariants
    what is held and not settled is counted in `room`, and given back when it settles
    an awaited message's outcome goes to whoever awaits it; any other failure waits for the next flush
    after `fenced` nothing is sent any more
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from copy import copy
from functools import partial
from typing import Any, Final

from pydanube.client.connection.backoff import RetryBackoff
from pydanube.client.connection.connection import Connection
from pydanube.client.connection.owner_session import OwnerHandle, OwnerRetry
from pydanube.client.connection.routing import Brokers
from pydanube.client.settings import ProducerSettings
from pydanube.model.errors import DanubeError, Refused, StaleEpoch
from pydanube.runtime.tasks import Tasks, run_together

from .lane import Lane, ProducerIdentity
from .outbox import Outbox
from .producer_buffer import ProducerBuffer
from .receipts import Placed
from .rows import MessageRows

TICKS_PER_TIMEOUT: Final = 30
TICK_SECONDS_MAX: Final = 1.0
"""How often a busy producer looks for messages whose time is up. An idle one does not."""


class Publisher:
    """Everything of a producer that is not its surface."""

    def __init__(self, brokers: Brokers, topic: str, settings: ProducerSettings) -> None:
        self.lanes: list[Lane] = []
        self.room = ProducerBuffer(settings.queue_messages, settings.queue_bytes)
        self.frozen = False
        self.idle = True
        """Nothing is watched for its time; see `watch`."""
        self.final: DanubeError | None = None
        """Why nothing can be published any more."""
        self._brokers = brokers
        self._topic = topic
        self._settings = settings
        self._tasks = Tasks()
        self._identity = ProducerIdentity(settings.name, brokers.random.getrandbits(63) | 1)
        self._first = 0
        """The lane that asks for identities."""
        self._progress = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None
        self._failed_messages = 0
        self._failure: DanubeError | None = None
        self._tick_timer: asyncio.TimerHandle | None = None

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open(self, partitions: int, only: int | None = None) -> None:
        """A handle at every partition, or at one only, all under one identity. Cancelled: to be closed."""
        self.lanes = [self._lane(partition) for partition in range(partitions)]
        self._first = only or 0
        await self._open_lane(self._first)
        if only is None:
            await run_together(self._open_lane(partition) for partition in range(1, partitions))
        self._begin_sequences()

    def _lane(self, partition: int) -> Lane:
        settings = self._settings
        outbox = Outbox(
            settings.batch_messages,
            settings.batch_bytes,
            settings.name,
            settings.codec,
            partial(self._settled, partition),
            settings.schema,
        )
        return Lane(self._brokers, self._tasks, self, self._topic, partition, self._identity, outbox, settings)

    async def _open_lane(self, partition: int) -> None:
        await self._brokers.retrying(self.lanes[partition].session.open, self._topic, partition)

    def grow(self, partitions: int) -> None:
        """The topic has more of them. Their lanes open when there is something to send."""
        for partition in range(len(self.lanes), partitions):
            lane = self._lane(partition)
            lane.outbox.renew(self._identity.producer_id, self._identity.producer_epoch)
            self.lanes.append(lane)

    def follow(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Something to do beside publishing, until the producer is closed."""
        self._tasks.spawn(coroutine, f"follow {self._topic}")

    def _begin_sequences(self) -> None:
        for lane in self.lanes:
            lane.outbox.renew(self._identity.producer_id, self._identity.producer_epoch)

    async def close(self) -> None:
        """Give up what is not settled; nothing runs afterwards."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        for lane in self.lanes:
            lane.stopped = True
        try:
            await self._tasks.close()
            await asyncio.gather(*(lane.close() for lane in self.lanes))
        finally:
            self._fail_all(Refused("the producer was closed before this message was published"))

    # -- settling ----------------------------------------------------------------------------------------------------

    def _settled(
        self, partition: int, rows: MessageRows, base_offset: int, duplicate: bool, error: DanubeError | None
    ) -> None:
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
            self.note_failure(error, len(rows) - awaited)
        self.room.release(len(rows), rows.size)
        self.progressed()

    def note_failure(self, error: DanubeError, messages: int) -> None:
        """For the next flush to raise: nobody else waits for these."""
        self._failed_messages += messages
        self._failure = self._failure or error

    def progressed(self) -> None:
        self._progress.set()

    async def flush(self) -> None:
        """Wait until everything added so far is settled; raise what failed unheard."""
        lanes = list(self.lanes)  # there may be more of them before this ends
        targets = [(lane.outbox, lane.outbox.added) for lane in lanes]
        for lane in lanes:
            lane.hurried += 1
            lane.pump()
        try:
            while any(outbox.settled < target for outbox, target in targets):
                self._progress.clear()
                await self._progress.wait()
        finally:
            for lane in lanes:
                lane.hurried -= 1
        failed, failure = self._failed_messages, self._failure
        self._failed_messages, self._failure = 0, None
        if failure is not None:
            raised = copy(failure)
            raised.message = f"{failed} queued messages were not published; the first: {failure.message}"
            raised.args = (raised.message,)
            raise raised from failure

    def _fail_all(self, error: DanubeError) -> None:
        for lane in self.lanes:
            lane.outbox.fail_all(partial(copy, error))

    # -- identity ----------------------------------------------------------------------------------------------------

    def fenced(self, error: DanubeError) -> None:
        """Another producer of this name took over. Everything not answered has failed, now and from now on."""
        if self.final is None:
            self.final = error
            _give_back(self._detached())
            self._fail_all(error)

    def renew(self) -> None:
        """A sequence has a hole: go on under a new identity."""
        if self._renewing is None and self.final is None:
            self._renewing = self._tasks.spawn(self._renew(), f"renew producer {self._topic}")

    async def _renew(self) -> None:
        """Once nothing of the old identity is on its way. Cancelled, the producer is being closed."""
        self.frozen = True
        try:
            while not all(lane.outbox.renewable for lane in self.lanes):
                self._progress.clear()
                await self._progress.wait()
            await self._take_identity()
        finally:
            self.frozen = False
            self._renewing = None
        for lane in self.lanes:
            lane.pump()

    def _detached(self) -> list[OwnerHandle]:
        return [hold for lane in self.lanes if (hold := lane.detach()) is not None]

    async def _take_identity(self) -> None:
        """Cancelled: no handle of the old one stays behind."""
        former = self._detached()
        claimed = bool(self._settings.name) or self._settings.access == "exclusive"
        try:
            if not claimed:  # it counts as a producer of its own: the new one needs its place
                _give_back(former)
            await self._ask_for_identity(claimed)
        finally:
            if claimed:  # not before: nobody else may get in between
                _give_back(former)

    async def _ask_for_identity(self, claimed: bool) -> None:
        """Open the first partition's producer under a new identity, while there is something to send."""
        first = self.lanes[self._first]
        backoff = RetryBackoff.within(self._settings.timeout, self._brokers.random)

        async def attempt(connection: Connection) -> None:
            if claimed:
                await first.session.open_at(connection)  # a producer that was fenced meanwhile must not fence in turn
            await first.session.open_at(connection, first.open_request(renew=True))
            self._begin_sequences()

        try:
            retry = OwnerRetry(self._brokers, self._topic, self._first, backoff)
            await retry.run(attempt, wanted=lambda: any(lane.outbox.has_work for lane in self.lanes))
        except StaleEpoch as error:
            self.fenced(error)
        except DanubeError as error:
            self._fail_all(error)

    # -- time --------------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Something was added to an idle producer: keep an eye on it."""
        self.idle = False
        period = min(TICK_SECONDS_MAX, self._settings.timeout / TICKS_PER_TIMEOUT)
        self._tick_timer = asyncio.get_running_loop().call_later(period, self._tick)

    def _tick(self) -> None:
        self.idle = True
        now = self._brokers.clock.monotonic()
        for lane in self.lanes:
            if lane.outbox.has_work:
                lane.tick(now)
                self.idle = False
        if not self.idle:
            self.watch()


def _give_back(holds: list[OwnerHandle]) -> None:
    for hold in holds:
        hold.give_back()
