"""Opens the partitions of a broker of a cluster: those that are assigned to it, and those whose log it writes.

```
 a record changes, a session begins or ends ─► is it this broker's?  ─ not open ─► open it, many at a time
                                                └ another broker's   ─ open here ─► `Partitions` abandons it
```

A partition that cannot be opened is tried again at an interval. A broker alone opens each partition when it is first
needed, and has no use for this.
"""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import Key
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.registry.registry import Registry
from pydanube.model.errors import DanubeError, NotFound, NotOwner
from pydanube.model.names import TopicName
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import wait_at_most

from .open_partitions import OPENED_AT_ONCE, Partitions

log = get_logger(__name__)

RETRY_S: Final = 5.0
"""How often partitions that could not be opened are tried again."""


class OwnPartitions:
    """Keeps the open partitions in agreement with the records."""

    def __init__(self, registry: Registry, partitions: Partitions, cluster: ClusterParts, clock: Clock) -> None:
        self._registry = registry
        self._partitions = partitions
        self._membership = cluster.membership
        self._owners = cluster.owners
        self._clock = clock
        self._due: set[Key] = set()
        """Partitions of this broker that are not open, as far as was known when they were added."""
        self._is_due = asyncio.Event()
        self._in_hand: set[Key] = set()
        """Partitions that are being opened, or tried again after RETRY_S: trying to open one changes its record."""
        cluster.owners.subscribe(self._changed)
        cluster.membership.subscribe(MembershipListener(renewed=lambda _session: self._renewed()))

    def open_all(self) -> None:
        """Have everything opened that is this broker's and not open."""
        for key in self._owners.of_broker(self._membership.session.name):
            self._changed(key)

    def _renewed(self) -> None:
        """Try everything at once: the session is what most of it waited for."""
        self.open_all()
        if self._in_hand:
            self._is_due.set()

    async def run(self) -> None:
        """Open partitions as they become this broker's, until cancelled, which leaves those that are being opened."""
        self.open_all()
        while True:
            await self._is_due.wait()
            self._in_hand = await self._open_due()
            if self._in_hand:
                await wait_at_most(self._is_due, RETRY_S, self._clock)
                self._due |= self._in_hand
                self._in_hand = set()
                self._is_due.set()

    def _changed(self, key: Key) -> None:
        if key not in self._in_hand and self._is_to_open(key):
            self._due.add(key)
            self._is_due.set()

    def _is_to_open(self, key: Key) -> bool:
        """Return whether a partition is this broker's, and not open."""
        owner = self._owners.owner(*key)
        is_own = owner is not None and owner.name == self._membership.session.name
        return is_own and self._partitions.find(*key) is None

    async def _open_due(self) -> set[Key]:
        """Open what is due, many at a time; return what has to be tried again."""
        due, self._due = sorted(self._due), set()
        self._in_hand = set(due)
        self._is_due.clear()
        names = {record.topic_id: name for name in self._registry.topics() for record in [self._registry.topic(name)]}
        failed: set[Key] = set()
        limit = asyncio.Semaphore(OPENED_AT_ONCE)

        async def open_one(key: Key) -> None:
            async with limit:
                if not await self._open(names.get(key[0]), key):
                    failed.add(key)

        await asyncio.gather(*map(open_one, due))
        return failed | {key for key in due if self._is_to_open(key)}

    async def _open(self, name: TopicName | None, key: Key) -> bool:
        """Open one partition; return whether nothing is left to be done about it."""
        if not self._membership.holds():
            return False
        owner = self._owners.owner(*key)
        if owner is None or owner.name != self._membership.session.name:
            return True
        if name is None:  # the record of the topic is still to come, or the topic was deleted
            return self._owners.record(*key) is None
        try:
            await self._partitions.get(name, key[1])
        except (NotFound, NotOwner):
            return True
        except DanubeError as error:
            log.warning("partition.not_opened", topic=str(name), partition=key[1], error=error.message)
            return False
        return True
