"""A broker that alone has lost the object store: it gives its `stored` partitions to brokers that have it.

```
 no slice counts for LOST_S, and a probe fails      ─► its load says "away"
 another's load says "away"                         ─► each other broker probes the store, and its load says "ok"
 this one is away, and another is "ok"              ─► its slices end, unfinished; each partition is released to another
 a probe succeeds again                             ─► its load says nothing; it can be given partitions
```

While every broker has lost the store, nobody is "ok", and nothing moves. The next owner seals the slices as after the
loss of this broker. A release is one transaction of the metadata, which this broker still reaches.

Invariants
    nothing is acked from before the first partition is released until this broker has a session of its own anew
    a partition is released only to a broker that has just put an object into the store
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pydanube.broker.cluster.loads import STORE_AWAY, STORE_OK
from pydanube.broker.context import BrokerContext
from pydanube.model.errors import NotOwner
from pydanube.runtime.telemetry import get_logger

from .broker_slices import BrokerSlices
from .draining import MOVED_AT_ONCE
from .open_partitions import Partitions

log = get_logger(__name__)

ROUND_S: Final = 1.0
"""How often it is looked whether the store is lost; in memory, unless it seems so."""

LOST_S: Final = 10.0
"""A store into which nothing could be put for this long is lost, unless a probe succeeds."""

PROBED_EVERY_S: Final = 5.0
"""How often a broker that has the store proves that while another has lost it."""


class StoreLoss:
    """Whether one broker of a cluster has the object store, and what it does when it alone has lost it."""

    def __init__(
        self, context: BrokerContext, slices: BrokerSlices, partitions: Partitions, tell: Callable[[], Awaitable[None]]
    ) -> None:
        """`tell` tells the other brokers the load of this one, which has `health`."""
        cluster = context.cluster
        self._slices = slices
        self._partitions = partitions
        self._membership = cluster.membership
        self._loads = cluster.loads
        self._clock = context.clock
        self._tell = tell
        self._probed_at = float("-inf")
        self.health = ""
        """What this broker's load says of the store; see LoadRecord."""

    async def run(self) -> None:
        """Run a round at an interval, until cancelled."""
        while True:
            await self._clock.sleep(ROUND_S)
            await self.round()

    async def round(self) -> None:
        """Look after the store, tell the others what has changed, and give partitions away if only this broker has lost
        it. What fails is left to the next round."""
        former, self.health = self.health, await self._look()
        if self.health != former:
            log.warning("store.health_changed", health=self.health or "as it should be", former=former)
            await self._tell()
        if self.health == STORE_AWAY:
            await self._give_away()
        elif former == STORE_AWAY:
            self._partitions.abandon_sliced(self._slices.found(), NotOwner("this broker has the object store again"))

    async def is_lost(self) -> bool:
        """Return whether a broker that stops need not wait for the store. It gives its partitions away in any case, so
        that one probe decides."""
        return self.health == STORE_AWAY or not await self._slices.is_reachable()

    async def _look(self) -> str:
        if self.health == STORE_AWAY or self._slices.stuck_s >= LOST_S:
            return "" if await self._slices.is_reachable() else STORE_AWAY
        if not self._another_lost_it():
            return ""
        now = self._clock.monotonic()
        if now - self._probed_at < PROBED_EVERY_S:
            return self.health
        self._probed_at = now
        return STORE_OK if await self._slices.is_reachable() else ""

    def _another_lost_it(self) -> bool:
        mine = self._membership.session.name
        loads = [(one, self._loads.of(one.name)) for one in self._membership.sessions() if one.name != mine]
        return any(load is not None and load.says(one, STORE_AWAY) for one, load in loads)

    async def _give_away(self) -> None:
        """Release the `stored` partitions to brokers that have the store; none if nobody has it."""
        next_owners = self._partitions.placement.next_owners(self._partitions.sliced(), with_store=True)
        if not next_owners or await self._slices.is_reachable():
            return  # the store may be there again for all: another was only faster to see it
        self._slices.lose()
        limit = asyncio.Semaphore(MOVED_AT_ONCE)

        async def move(key: tuple[int, int], broker: str) -> bool:
            async with limit:
                return await self._partitions.hand_over(key, broker, unfinished=True) is None

        moved = sum(await asyncio.gather(*(move(key, broker) for key, broker in next_owners.items())))
        log.warning("store.partitions_given_away", partitions=moved, of=len(next_owners))
