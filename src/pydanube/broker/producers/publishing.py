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

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.producers.batches import BatchPublisher
from pydanube.broker.security.audit_operations import count_traffic
from pydanube.codec.batch import Batch
from pydanube.core.access import Action, Principal
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.runtime.tasks import outcome_of


@dataclass(eq=False)
class PartitionPublisher:
    """Publishes for callers that have no producer open, and for the broker itself."""

    context: BrokerContext
    partitions: Partitions
    batches: BatchPublisher

    async def publish(self, principal: Principal, topic: TopicName, partition: int, batch: memoryview) -> Published:
        """Publish a batch and return where it is, once it has the ack level of the topic.

        Its owner checks it as if a client had sent it there. Cancelled or Unavailable: it may have been appended.
        """
        self.context.authorizer.check(principal, Action.PRODUCE, str(topic))
        await self.batches.throttle.forward(principal, len(batch))
        owner = self.context.cluster.other_owner(self.context.registry.topic(topic).topic_id, partition)
        if owner is not None:
            published = await self.context.cluster.peers.publish(owner.name, topic, partition, batch)
        else:
            producer = await self.batches.producers.open_forwarder(principal, topic, partition)
            published = await outcome_of(partial(self.batches.publish, principal, producer, batch))
        count_traffic(Action.PRODUCE, str(topic), Batch.trust(batch).count, len(batch))
        return published

    async def publish_own(self, topic: TopicName, partition: int, batch: memoryview) -> Published:
        """Publish a batch by the broker's own authority: dead letters, and audit events. No principal is asked for, and
        at this broker nothing is checked. Otherwise as `publish`."""
        owner = self.context.cluster.other_owner(self.context.registry.topic(topic).topic_id, partition)
        if owner is not None:
            return await self.context.cluster.peers.publish(owner.name, topic, partition, batch)
        opened = await self.partitions.get(topic, partition)
        return await outcome_of(partial(opened.publish, Batch.open(batch)))
