"""Asks again, after the rules of access changed, whether open producers and consumers may go on.

A producer is also checked with every batch, so that a right that was taken away is gone at once; the review fences it,
which frees its place. A consumer is checked only here.

Invariants
    changes in one turn of the loop are reviewed together
    a review sees the rules that are in force when it looks at a producer or consumer, and every change is followed by
    one that begins after it
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.producers.producers import Producers
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.model.errors import Denied, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.long_work import Slices
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)


class AccessReview:
    """Fences producers and detaches consumers whose principals have lost their rights."""

    def __init__(
        self, authorizer: Authorizer, producers: Producers, partitions: Partitions, clock: Clock, tasks: Tasks
    ) -> None:
        self._authorizer = authorizer
        self._producers = producers
        self._partitions = partitions
        self._clock = clock
        self._tasks = tasks
        self._changed = False
        self._running: asyncio.Task[None] | None = None

    def rules_changed(self) -> None:
        """Review everything that is open, soon. Called for every change; it costs nothing while nothing is open."""
        self._changed = True
        if not self.is_running:
            with suppress(Unavailable):  # the broker is closing, with everything that is open
                self._running = self._tasks.spawn(self._run(), "review of open producers and consumers")

    @property
    def is_running(self) -> bool:
        """Whether some change is not reviewed yet."""
        return self._running is not None and not self._running.done()

    async def _run(self) -> None:
        while self._changed:
            self._changed = False
            await self._review()

    async def _review(self) -> None:
        """Review in slices of a few milliseconds. Cancelled: some are reviewed."""
        slices, revoked = Slices(self._clock), 0
        for producer in self._producers:
            if not self._authorizer.allows(producer.principal, Action.PRODUCE, producer.topic):
                self._producers.revoke(producer)
                revoked += 1
            await slices.pause_if_spent()
        for partition in list(self._partitions):
            for live in list(partition.subscriptions.values()):
                revoked += live.detach_refused(self._refusal)
                await slices.pause_if_spent()
        self._partitions.dead_letters.wake_retries()
        if revoked:
            log.info("access.revoked", producers_and_consumers=revoked)

    def _refusal(self, principal: Principal, resource: str) -> Denied | None:
        """Return why a consumer may not go on; None: it may."""
        if self._authorizer.allows(principal, Action.CONSUME, resource):
            return None
        return Denied(f"{principal.id} may not consume {resource} any more: ask for a role that may, then subscribe")
