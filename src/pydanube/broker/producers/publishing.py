"""Publishes single batches to partitions wherever they are: at this broker, or through the broker that owns them.

```
 publish ─► may the principal? has it the rate? ─► another owner: sent on to it, over the native protocol
                                                └► this broker: as if another one had sent it
```

A batch goes the same way through the checks and the quotas of its topic, whoever owns the partition. Producers of
clients that stay open publish at the owner, with `BatchPublisher.publish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.publish_queue import PublishDone
from pydanube.broker.producers.producers import Producer, Producers
from pydanube.broker.quotas.throttle import Throttle
from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.audit_operations import count_traffic
from pydanube.codec.batch import Batch
from pydanube.core.access import Action, Authorizer, Principal
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.runtime.tasks import outcome_of


class Submit(Protocol):
    """Takes one batch for an open producer: `BatchPublisher.publish`."""

    def __call__(self, principal: Principal, producer: Producer, batch: memoryview, done: PublishDone) -> None: ...


@dataclass(eq=False)
class PartitionPublisher:
    """Publishes for callers that have no producer open, and for the broker itself."""

    registry: Registry
    partitions: Partitions
    producers: Producers
    cluster: ClusterParts
    authorizer: Authorizer
    throttle: Throttle
    submit: Submit

    async def publish(self, principal: Principal, topic: TopicName, partition: int, batch: memoryview) -> Published:
        """Publish a batch and return where it is, once it has the ack level of the topic.

        Its owner checks it as if a client had sent it there. Cancelled or Unavailable: it may have been appended.
        """
        self.authorizer.check(principal, Action.PRODUCE, str(topic))
        await self.throttle.forward(principal, len(batch))
        owner = self.cluster.other_owner(self.registry.topic(topic).topic_id, partition)
        if owner is not None:
            published = await self.cluster.peers.publish(owner.name, topic, partition, batch)
        else:
            producer = await self.producers.open_forwarder(principal, topic, partition)
            published = await outcome_of(partial(self.submit, principal, producer, batch))
        count_traffic(Action.PRODUCE, str(topic), Batch.trust(batch).count, len(batch))
        return published

    async def publish_own(self, topic: TopicName, partition: int, batch: memoryview) -> Published:
        """Publish a batch by the broker's own authority: dead letters, and audit events. No principal is asked for, and
        at this broker nothing is checked. Otherwise as `publish`."""
        owner = self.cluster.other_owner(self.registry.topic(topic).topic_id, partition)
        if owner is not None:
            return await self.cluster.peers.publish(owner.name, topic, partition, batch)
        opened = await self.partitions.get(topic, partition)
        return await outcome_of(partial(opened.publish, Batch.open(batch)))
