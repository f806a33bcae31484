"""Ends what has expired: messages past retention or time to live, backlogs past their quota, unused topics,
subscriptions and names of producers.

One task checks everything in turn, at an interval. What it drops is recorded durably (starts and cursors). What is
unused, `unused` says.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.producers.names import ProducerNames
from pydanube.broker.producers.producers import Producers
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.broker.topics.retention import Retention
from pydanube.broker.topics.time_to_live import TimeToLive
from pydanube.broker.topics.topic_deletion import TopicDeletion
from pydanube.broker.topics.unused import HELD_SECONDS, UnusedTopics
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.model.names import TopicName
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.long_work import Slices
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

OPENED_PER_ROUND: Final = 16
"""How many partitions a round opens that were not used since the start, so that their messages expire too."""

FAILED_PER_TOPIC: Final = 3
"""After this many partitions of one topic that cannot be opened, a round goes on with the next topic."""

FORGOTTEN_LATE: Final = 100
"""A silent producer is forgotten late by at most a hundredth of what the policy says, and one round."""


class PartitionExpiration:
    """Drops the expired messages of one partition, and forgets its silent producers."""

    __slots__ = ("_producers_checked_us", "partition", "retention", "ttl")

    def __init__(self, partition: StoredPartition) -> None:
        self.partition = partition
        self._producers_checked_us = 0
        self.ttl = TimeToLive(partition)
        self.retention = Retention(partition)

    async def run(self, now_us: int) -> None:
        """Check the partition once. Expired messages count as acked, so retention can drop them in the same round."""
        self._forget_producers(now_us)
        await self.ttl.expire(now_us)
        if self.partition.quota.is_set:
            self.partition.quota.evict(self.partition.stream.end_offset)
        await self.retention.apply(now_us)
        if self.partition.tier is not None:
            await self.partition.tier.tidy()

    def _forget_producers(self, now_us: int) -> None:
        """Forget producers that were silent for too long. As that goes through all of them, not every round does it."""
        remembered_s = self.partition.policies.deduplication_s
        assert remembered_s is not None
        if now_us - self._producers_checked_us >= remembered_s * MICROSECONDS // FORGOTTEN_LATE:
            self._producers_checked_us = now_us
            self.partition.forget_idle_producers()


class Expiration:
    """Runs the rounds over all topics of this broker."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        subscriptions: Subscriptions,
        deletion: TopicDeletion,
        producers: Producers,
    ) -> None:
        registry, clock, cluster = context.registry, context.clock, context.cluster
        self._cluster = cluster
        self._registry = registry
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._deletion = deletion
        self._clock = clock
        self.unused = UnusedTopics(registry, partitions, deletion, clock, cluster)
        self.names = ProducerNames(context, partitions, producers)
        self._by_partition: dict[tuple[int, int], PartitionExpiration] = {}
        self._damaged: set[tuple[int, int]] = set()
        """Partitions that are damaged, by topic id and index: they are not opened again here."""
        self._not_opened: set[tuple[int, int]] = set()
        """Partitions that could not be opened at the last try, by topic id and index."""

    async def run(self, interval_s: float) -> None:
        """Run rounds until cancelled, which leaves nothing half done."""
        while True:
            await self._clock.sleep(interval_s)
            await self.round()

    async def round(self) -> None:
        """Check every topic once. What fails is logged, and tried again in the next round."""
        to_open, slices = OPENED_PER_ROUND, Slices(self._clock)
        for topic in self._registry.topics():
            record = self._registry.find_topic(topic)
            if record is None:
                continue
            try:
                if await self._delete_unused(topic, record):
                    continue
                if record.reliable:
                    to_open -= await self._open_some(topic, record, to_open)
                    await self._check_partitions(topic, record)
                if self._cluster.is_own(record.topic_id, 0):
                    await self.names.expire(topic, record)
            except NotFound:
                continue  # deleted meanwhile
            except DanubeError as error:
                log.warning("lifetimes.postponed", topic=str(topic), error=error.message)
            await slices.pause_if_spent()
        await self._remove_unused_consumers()
        self._forget_deleted()

    async def _remove_unused_consumers(self) -> None:
        """Remove the records of consumers that were not used for long. In a cluster the coordinator does so, and the
        others let it know which ones have a stream."""
        membership, consumers = self._cluster.membership, self._registry.consumers
        if not membership.is_alone:
            await consumers.note_live()
        if membership.is_coordinator():
            await consumers.remove_unused()

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def _check_partitions(self, topic: TopicName, record: TopicRecord) -> None:
        """Check every open partition of the topic; a failure in one does not stop the others."""
        for partition in self._partitions.open_of(record.topic_id):
            assert isinstance(partition, StoredPartition)
            try:
                await self._expiration_of(record.topic_id, partition).run(self._clock.now_us())
            except NotFound:
                raise
            except DanubeError as error:
                _log_postponed(topic, partition.index, error)

    def _expiration_of(self, topic_id: int, partition: StoredPartition) -> PartitionExpiration:
        key = (topic_id, partition.index)
        expiration = self._by_partition.get(key)
        if expiration is None or expiration.partition is not partition:
            expiration = self._by_partition[key] = PartitionExpiration(partition)
        return expiration

    async def _open_some(self, topic: TopicName, record: TopicRecord, most: int) -> int:
        """Open at most `most` partitions of the topic that are this broker's and not open; return how many were
        opened."""
        config = record.config()
        is_open = {one.index for one in self._partitions.open_of(record.topic_id)}
        if len(is_open) == config.partition_count:
            return 0
        own = [
            index for index in range(config.partition_count) if self._partitions.routing.is_own(record.topic_id, index)
        ]
        opened = failed = 0
        # Partitions that could not be opened before are tried last.
        for index in sorted(own, key=lambda one: (record.topic_id, one) in self._not_opened):
            if opened >= most or failed >= FAILED_PER_TOPIC:
                break
            if index in is_open or (record.topic_id, index) in self._damaged:
                continue
            opened += 1
            try:
                await self._partitions.get(topic, index)
                self._not_opened.discard((record.topic_id, index))
            except Corrupt:
                self._damaged.add((record.topic_id, index))
            except NotFound:
                raise
            except DanubeError as error:
                _log_postponed(topic, index, error)
                opened, failed = opened - 1, failed + 1  # not counted as opened, so that other topics get their share
                self._not_opened.add((record.topic_id, index))
        return opened

    def _forget_deleted(self) -> None:
        live = {record.topic_id for one in self._registry.topics() if (record := self._registry.find_topic(one))}
        self._by_partition = {key: one for key, one in self._by_partition.items() if key[0] in live}
        self.unused.keep(live)
        self.names.keep(live)
        self._damaged = {key for key in self._damaged if key[0] in live}
        self._not_opened = {key for key in self._not_opened if key[0] in live}

    # -- unused topics and subscriptions -------------------------------------------------------------------------------

    async def _delete_unused(self, topic: TopicName, record: TopicRecord) -> bool:
        """Delete unused subscriptions of the topic, then the topic if it is unused; return whether the topic was
        deleted. The owner of partition 0 does so, and asks the other owners before."""
        if not self._cluster.is_own(record.topic_id, 0):
            return False
        if self.unused.policies(topic, record).inactive_subscription_s:
            for name, subscription in list(self._registry.subscriptions(topic).items()):
                is_unused = partial(self.unused.is_subscription_unused, topic, record, name)
                if (
                    is_unused(subscription)
                    and await self.unused.is_subscription_unused_elsewhere(topic, record, name)
                    and await self._subscriptions.remove_if(topic, name, is_unused)
                ):
                    log.info("subscription.ended_unused", topic=str(topic), subscription=name)
        if not self.unused.is_topic_unused(topic, record) or not await self._delete_topic(topic, record):
            return False
        log.info("topic.ended_unused", topic=str(topic))
        return True

    async def _delete_topic(self, topic: TopicName, record: TopicRecord) -> bool:
        """Delete a topic that is unused here, if it is unused elsewhere too."""
        if not await self.unused.is_topic_unused_elsewhere(topic, record):
            return False
        held_at = self._clock.monotonic()
        if not await self.unused.is_topic_unused_elsewhere(topic, record, hold=True):
            return False

        def is_unused(now: TopicRecord) -> bool:
            in_time = self._clock.monotonic() - held_at < HELD_SECONDS / 4
            return in_time and self.unused.is_topic_unused(topic, now)

        return await self._deletion.remove_if(topic, is_unused)


def _log_postponed(topic: TopicName, index: int, error: DanubeError) -> None:
    log.warning("lifetimes.postponed", topic=str(topic), partition=index, error=error.message)
