"""Publishes by the broker's own authority: dead letters, and audit events. No principal is asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from pydanube.broker.cluster.parts import ClusterParts
from pydanube.codec.batch import Batch
from pydanube.model.names import TopicName
from pydanube.runtime.tasks import outcome_of

if TYPE_CHECKING:
    from .partition import Partition


class OwnPublisher:
    """Publishes batches of this broker to partitions that it or another broker owns."""

    def __init__(self, partition_of: Callable[[TopicName, int], Awaitable[Partition]], cluster: ClusterParts) -> None:
        self._partition_of = partition_of
        self._cluster = cluster

    async def publish(self, topic: TopicName, topic_id: int, index: int, batch: memoryview) -> None:
        """Publish a batch to one partition, through its owner if that is another broker. It has the ack level of the
        topic on return. Cancelled or failed: it may be stored."""
        owner = self._cluster.other_owner(topic_id, index)
        if owner is not None:
            await self._cluster.peers.publish(owner.name, topic, index, batch)
        else:
            partition = await self._partition_of(topic, index)
            await outcome_of(partial(partition.publish, Batch.open(batch)))
