"""Ends what has expired: messages past retention or time to live, backlogs past their quota, unused topics and
subscriptions.

One task checks everything in turn, at an interval. What it drops is recorded durably (starts and cursors). How long a
topic or a subscription has been unused is counted in memory, and a restart begins that count again.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.registry.records import SubscriptionRecord, TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.subscriptions.subscriptions import Subscriptions
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.model.names import TopicName
from pydanube.model.policies import Policies
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.telemetry import get_logger

from .retention import Retention
from .time_to_live import TimeToLive
from .topic_deletion import TopicDeletion

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
        registry: Registry,
        partitions: Partitions,
        subscriptions: Subscriptions,
        deletion: TopicDeletion,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._deletion = deletion
        self._clock = clock
        self._started_us = clock.now_us()
        self._by_partition: dict[tuple[int, int], PartitionExpiration] = {}
        self._used_us: dict[int, int] = {}
        """When a topic was last seen in use, by topic id."""
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
        to_open = OPENED_PER_ROUND
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
            except NotFound:
                continue  # deleted meanwhile
            except DanubeError as error:
                log.warning("lifetimes.postponed", topic=str(topic), error=error.message)
            await self._clock.sleep(0)  # there may be many topics: let other tasks run in between
        await self._registry.consumers.remove_unused()
        self._forget_deleted()

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
        """Open at most `most` partitions of the topic that are not open; return how many were opened."""
        config = record.config()
        is_open = {one.index for one in self._partitions.open_of(record.topic_id)}
        if len(is_open) == config.partition_count:
            return 0
        opened = failed = 0
        # Partitions that could not be opened before are tried last.
        for index in sorted(range(config.partition_count), key=lambda one: (record.topic_id, one) in self._not_opened):
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
        self._used_us = {topic_id: one for topic_id, one in self._used_us.items() if topic_id in live}
        self._damaged = {key for key in self._damaged if key[0] in live}
        self._not_opened = {key for key in self._not_opened if key[0] in live}

    # -- unused topics and subscriptions -------------------------------------------------------------------------------

    async def _delete_unused(self, topic: TopicName, record: TopicRecord) -> bool:
        """Delete unused subscriptions of the topic, then the topic if it is unused; return whether the topic was
        deleted."""
        if self._policies(topic, record).inactive_subscription_s:
            for name, subscription in list(self._registry.subscriptions(topic).items()):
                is_unused = partial(self._is_subscription_unused, topic, record, name)
                if is_unused(subscription) and await self._subscriptions.remove_if(topic, name, is_unused):
                    log.info("subscription.ended_unused", topic=str(topic), subscription=name)
        is_topic_unused = partial(self._is_topic_unused, topic)
        if not is_topic_unused(record) or not await self._deletion.remove_if(topic, is_topic_unused):
            return False
        log.info("topic.ended_unused", topic=str(topic))
        return True

    def _policies(self, topic: TopicName, record: TopicRecord) -> Policies:
        """Return the effective policies; an open partition has them at hand, which is faster than looking them up."""
        partitions = self._partitions.open_of(record.topic_id)
        return partitions[0].policies if partitions else self._partitions.policies_of(topic)

    def _is_subscription_unused(
        self, topic: TopicName, record: TopicRecord, name: str, subscription: SubscriptionRecord
    ) -> bool:
        after_s = self._policies(topic, record).inactive_subscription_s
        if not after_s:
            return False
        attached = [
            live
            for partition in self._partitions.open_of(record.topic_id)
            if (live := partition.subscriptions.get(name)) is not None
        ]
        if any(live.consumers for live in attached):
            return False
        used = max([self._started_us, subscription.created_at, *(live.last_active_us for live in attached)])
        return self._clock.now_us() - used >= after_s * MICROSECONDS

    def _is_topic_unused(self, topic: TopicName, record: TopicRecord) -> bool:
        after_s = self._policies(topic, record).inactive_topic_s
        if not after_s:
            return False
        now, partitions = self._clock.now_us(), self._partitions.open_of(record.topic_id)
        if self._deletion.in_use(topic):
            self._used_us[record.topic_id] = now
            return False
        used = max(
            self._started_us,
            record.created_at,
            self._used_us.get(record.topic_id, 0),
            *(one.traffic.last_us for one in partitions),
        )
        return now - used >= after_s * MICROSECONDS


def _log_postponed(topic: TopicName, index: int, error: DanubeError) -> None:
    log.warning("lifetimes.postponed", topic=str(topic), partition=index, error=error.message)
