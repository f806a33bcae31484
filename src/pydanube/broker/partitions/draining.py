"""Gives the partitions of a broker that stops, or is drained, to other brokers, in order: it costs publishers a moment.

```
 told the others that it leaves ─► what others can go on with: `stored`, non-reliable, `memory` without messages
   each: accept nothing more ─► everything counts ─► "no owner", the end, who shall take it: one transaction
   the next owner sees the record and opens the partition; clients look it up and follow
```

Partitions whose messages are in this broker's log (`durable`, `written`) stay with a broker that stops, and wait for
its return.

A broker that is drained goes on serving: it moves a few partitions at a time, those in its log too (log_carrying), and
looks for others until it is resumed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import Key
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.runtime.clock import Clock
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import wait_at_most

from .open_partitions import Partitions

log = get_logger(__name__)

MOVED_AT_ONCE: Final = 64
"""How many partitions are closed together: they share slices, and a partition is not closed long before its turn."""

KEPT_EMPTY_AT_ONCE: Final = 16
"""How many partitions of a drained broker are moved together, so that the takers serve what they have meanwhile."""

LOOKED_EVERY_S: Final = 1.0
"""How often a drained broker looks for partitions that can be moved by now; in memory, unless there are some."""

LOOKED_EVERY_S_MAX: Final = 30.0
"""The same while moves fail: those of partitions in the log interrupt their clients."""


class KeptEmpty:
    """Moves the partitions of this broker away for as long as it is drained."""

    def __init__(self, partitions: Partitions, cluster: ClusterParts, clock: Clock) -> None:
        self._partitions = partitions
        self._membership = cluster.membership
        self._clock = clock
        self._is_due = asyncio.Event()
        self._backoff = RetryBackoff(LOOKED_EVERY_S, LOOKED_EVERY_S_MAX)
        self.failures: dict[Key, str] = {}
        """Why partitions could not be moved when that was tried last."""
        self._membership.subscribe(MembershipListener(drained=lambda _name: self._is_due.set()))

    async def run(self) -> None:
        """Look for partitions to move at an interval, and when a broker is drained, until cancelled: what is being
        moved then is left as it is."""
        while True:
            self.failures = await self._move_all()
            if not self.failures:
                self._backoff.reset()
            pause_s = self._backoff.next() if self.failures else LOOKED_EVERY_S
            await wait_at_most(self._is_due, pause_s, self._clock)
            self._is_due.clear()

    async def _move_all(self) -> dict[Key, str]:
        """Try once to move each partition that can be moved; return those that were not, each with the reason."""
        failures: dict[Key, str] = {}
        while self._membership.is_drained(self._membership.session.name) and self._membership.holds():
            left = [key for key in self._partitions.movable(with_log=True) if key not in failures]
            next_owners = self._partitions.placement.next_owners(left[:KEPT_EMPTY_AT_ONCE])
            if not next_owners:
                break
            moving = (self._partitions.move(key, broker) for key, broker in next_owners.items())
            for key, error in zip(next_owners, await asyncio.gather(*moving), strict=True):
                if error is not None:
                    failures[key] = error.message
        return failures


class Draining:
    """Gives partitions away, once, when the broker stops."""

    def __init__(self, partitions: Partitions, clock: Clock, *, unfinished: bool = False) -> None:
        """`unfinished`: the slices were ended, because the object store is lost; nothing waits for them."""
        self._unfinished = unfinished
        self._partitions = partitions
        self._clock = clock

    async def run(self, seconds: float) -> None:
        """Return when nothing is left that another broker can go on with, at the latest after `seconds`: the rest is
        left as it is. Cancelled: the same."""
        async with Tasks() as tasks:
            moving = tasks.spawn(self._move_all(), "partitions moving")
            await asyncio.wait(
                [moving, tasks.spawn(self._clock.sleep(seconds), "time limit")], return_when=asyncio.FIRST_COMPLETED
            )
        if left := self._partitions.movable():
            log.warning("partitions.not_moved", partitions=len(left), seconds=seconds)

    async def _move_all(self) -> None:
        """Move partitions until none is left, or none of them can be moved."""
        while True:
            await self._partitions.finish_opening()
            next_owners = self._partitions.placement.next_owners(self._partitions.movable())
            if not next_owners or not await self._move(next_owners):
                return

    async def _move(self, next_owners: dict[Key, str]) -> int:
        """Move these partitions; return how many were."""
        limit = asyncio.Semaphore(MOVED_AT_ONCE)

        async def move(key: Key, broker: str) -> bool:
            async with limit:
                return await self._partitions.hand_over(key, broker, unfinished=self._unfinished) is None

        return sum(await asyncio.gather(*(move(key, broker) for key, broker in next_owners.items())))
