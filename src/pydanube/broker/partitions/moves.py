"""Moves single partitions to the brokers that are named for them, with the hand-over of a broker that stops.

```
 asked broker ─► the partition's owner: can the target take it? does it answer? can the partition be moved?
                 ─► of a partition in the owner's log: upload most of it, while it is served
                 ─► accept nothing more ─► everything counts ─► "no owner", the end, the target: one transaction
 the target sees the record and opens the partition; clients look it up and follow
```

Invariants
    a partition is in at most one move at a time
    a move that is refused changes nothing; after one that failed the owner serves the partition again
"""

from __future__ import annotations

from pydanube.broker.cluster.owners import Key
from pydanube.broker.context import BrokerContext
from pydanube.model.cluster import BrokerSession, PartitionMoved
from pydanube.model.errors import NotFound, Refused
from pydanube.model.names import TopicName
from pydanube.model.positions import utc_text
from pydanube.model.topics import BrokerDescription
from pydanube.operations.brokers import DescribeBroker
from pydanube.operations.topics import MoveTopic

from .open_partitions import Partitions


class Moves:
    """Moves partitions on request, for one broker of a cluster."""

    def __init__(self, context: BrokerContext, partitions: Partitions) -> None:
        self._registry = context.registry
        self._gathering = context.gathering
        self._membership = context.cluster.membership
        self._owners = context.cluster.owners
        self._partitions = partitions
        self._moving: dict[Key, str] = {}
        """The partitions that are being moved, each with the broker that takes it."""

    async def move(self, asked: MoveTopic) -> PartitionMoved:
        """Have the owner of a partition give it to the broker `to`; return when that broker is to take it.

        Raises NotFound if there is no such partition or broker, Refused if the partition or the broker is not fit for
        it, and Unavailable if the target does not answer; nothing has changed then. Raises another error if the move
        failed: the owner serves the partition again. Cancelled: as after a crash of the owner.
        """
        name, index = asked.topic, asked.partition
        if self._membership.is_alone:
            raise Refused(f"topic {name} cannot be moved: this broker is no part of a cluster")
        topic = await self._registry.refresh_topic(name, index) or self._registry.topic(name)
        if not 0 <= index < (count := topic.config().partition_count):
            raise NotFound(f"topic {name} has {count} partitions: there is no partition {index}")
        await self._partitions.placement.place(name)
        if self._owners.owner(topic.topic_id, index) is None:
            raise Refused(self._partitions.routing.waits_for(name, topic, index))
        return await self._gathering.at_owner(topic, asked, self._move_own)

    async def _move_own(self, asked: MoveTopic) -> PartitionMoved:
        name, index, to = asked.topic, asked.partition, asked.to
        key = (self._registry.topic(name).topic_id, index)
        self._check_free(name, key)
        self._check_target(f"partition {index} of {name}", to)
        partition = await self._partitions.get(name, index)
        if partition.unmovable:
            raise Refused(partition.unmovable)
        self._check_free(name, key)  # asked again: it was waited for
        self._moving[key] = to
        try:
            await self._gathering.forward(to, DescribeBroker(), BrokerDescription)
            error = await self._partitions.move(key, to)
        finally:
            del self._moving[key]
        if error is not None:
            raise error
        self._registry.check_current(name, key[0])  # the topic may have been deleted meanwhile
        return PartitionMoved(index, self._membership.session.name, to)

    def _check_free(self, name: TopicName, key: Key) -> None:
        """Raise Refused if the partition is in a move."""
        if (to := self._moving.get(key)) is not None:
            raise Refused(f"partition {key[1]} of {name} is being moved to broker {to!r}: wait until that is done")

    def _check_target(self, partition: str, to: str) -> BrokerSession:
        """Return the session of the broker that is to take a partition of this one. Raises NotFound or Refused."""
        session = self._membership.find(to)
        if session is None and to in self._membership.away():
            since_us = self._membership.away_since(to)
            since = f" since {utc_text(since_us)}" if since_us else ""
            raise Refused(f"broker {to!r} is away{since}: start it, or name another one (`danube brokers list`)")
        if session is None:
            living = ", ".join(repr(one.name) for one in self._membership.sessions())
            raise NotFound(f"there is no broker {to!r}: there is {living} (`danube brokers list`)")
        if to == self._membership.session.name:
            raise Refused(f"{partition} is at broker {to!r} already: name another one (`danube brokers list`)")
        if reason := self._partitions.placement.why_unfit(session):
            raise Refused(f"broker {to!r} {reason}")
        return session
