"""What ends by itself: messages past retention or time to live, backlogs past their quota, what nobody uses.

One task looks at everything in turn, every so often. What it gives up is durable (starts and cursors); how long a topic
or a subscription has been unused is counted in memory, and a restart begins that count again.
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
"""Partitions that nobody has asked for since the start are opened a few at a time, so that what is in them ends too."""

FAILED_PER_TOPIC: Final = 3
"""Partitions of one topic that are found not to open in one round; others have their turn in the next."""

FORGOTTEN_LATE: Final = 100
"""A silent producer is remembered for longer than the policy says by at most this part of it, and a round."""


class _Care:
    """What one partition's lifetimes are decided by."""

    __slots__ = ("_forgot_us", "expiry", "partition", "retention")

    def __init__(self, partition: StoredPartition) -> None:
        self.partition = partition
        self._forgot_us = 0
        self.expiry = TimeToLive(partition)
        self.retention = Retention(partition)

    async def look(self, now_us: int) -> None:
        """Expired messages count as acked, so what they held back can go in the same round."""
        self._forget_producers(now_us)
        await self.expiry.expire(now_us)
        if self.partition.quota.is_set:
            self.partition.quota.evict(self.partition.stream.end_offset)
        await self.retention.apply(now_us)
        if self.partition.tier is not None:
            await self.partition.tier.tidy()

    def _forget_producers(self, now_us: int) -> None:
        """Those that were silent for too long; looking through all of them is not done in every round."""
        remembered_s = self.partition.policies.deduplication_s
        assert remembered_s is not None
        if now_us - self._forgot_us >= remembered_s * MICROSECONDS // FORGOTTEN_LATE:
            self._forgot_us = now_us
            self.partition.forget_idle_producers()


class Expiration:
    """Ends what has lived long enough."""

    def __init__(
        self,
        registry: Registry,
        partitions: Partitions,
        subscriptions: Subscriptions,
        removal: TopicDeletion,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._subscriptions = subscriptions
        self._removal = removal
        self._clock = clock
        self._started_us = clock.now_us()
        self._cares: dict[tuple[int, int], _Care] = {}
        self._used_us: dict[int, int] = {}
        """When a topic was last seen in use, by id."""
        self._refused: set[tuple[int, int]] = set()
        """Partitions that are damaged: whoever asks for them is told so, nobody else."""
        self._failed: set[tuple[int, int]] = set()
        """Partitions that could not be opened when that was tried last."""

    async def run(self, interval_s: float) -> None:
        """Until it is cancelled, which leaves nothing half done."""
        while True:
            await self._clock.sleep(interval_s)
            await self.round()

    async def round(self) -> None:
        """Look at everything once. What cannot be done now is logged, and tried again in the next round."""
        to_open = OPENED_PER_ROUND
        for topic in self._registry.topics():
            record = self._registry.find_topic(topic)
            if record is None:
                continue
            try:
                if await self._ended_unused(topic, record):
                    continue
                if record.reliable:
                    to_open -= await self._open_some(topic, record, to_open)
                    await self._look(topic, record)
            except NotFound:
                continue  # deleted meanwhile
            except DanubeError as error:
                log.warning("lifetimes.postponed", topic=str(topic), error=error.message)
            await self._clock.sleep(0)  # there may be many: others get their turn in between
        self._forget_closed()

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def _look(self, topic: TopicName, record: TopicRecord) -> None:
        """At each of its partitions, whatever is wrong with another."""
        for partition in self._partitions.open_of(record.topic_id):
            assert isinstance(partition, StoredPartition)
            try:
                await self._care_of(record.topic_id, partition).look(self._clock.now_us())
            except NotFound:
                raise
            except DanubeError as error:
                _postponed(topic, partition.index, error)

    def _care_of(self, topic_id: int, partition: StoredPartition) -> _Care:
        key = (topic_id, partition.index)
        care = self._cares.get(key)
        if care is None or care.partition is not partition:
            care = self._cares[key] = _Care(partition)
        return care

    async def _open_some(self, topic: TopicName, record: TopicRecord, most: int) -> int:
        """How many were opened."""
        config = record.config()
        is_open = {one.index for one in self._partitions.open_of(record.topic_id)}
        if len(is_open) == config.partition_count:
            return 0
        opened = failed = 0
        # Those that failed before come last: the others have their turn first.
        for index in sorted(range(config.partition_count), key=lambda one: (record.topic_id, one) in self._failed):
            if opened >= most or failed >= FAILED_PER_TOPIC:
                break
            if index in is_open or (record.topic_id, index) in self._refused:
                continue
            opened += 1
            try:
                await self._partitions.get(topic, index)
                self._failed.discard((record.topic_id, index))
            except Corrupt:
                self._refused.add((record.topic_id, index))
            except NotFound:
                raise
            except DanubeError as error:
                _postponed(topic, index, error)
                opened, failed = opened - 1, failed + 1  # those of other topics may be better off
                self._failed.add((record.topic_id, index))
        return opened

    def _forget_closed(self) -> None:
        live = {record.topic_id for one in self._registry.topics() if (record := self._registry.find_topic(one))}
        self._cares = {key: one for key, one in self._cares.items() if key[0] in live}
        self._used_us = {topic_id: one for topic_id, one in self._used_us.items() if topic_id in live}
        self._refused = {key for key in self._refused if key[0] in live}
        self._failed = {key for key in self._failed if key[0] in live}

    # -- what nobody uses ----------------------------------------------------------------------------------------------

    async def _ended_unused(self, topic: TopicName, record: TopicRecord) -> bool:
        """Whether the topic is gone; subscriptions that nobody uses go before."""
        if self._policies(topic, record).inactive_subscription_s:
            for name, subscription in list(self._registry.subscriptions(topic).items()):
                is_unused = partial(self._is_subscription_unused, topic, record, name)
                if is_unused(subscription) and await self._subscriptions.remove_if(topic, name, is_unused):
                    log.info("subscription.ended_unused", topic=str(topic), subscription=name)
        is_topic_unused = partial(self._is_topic_unused, topic)
        if not is_topic_unused(record) or not await self._removal.remove_if(topic, is_topic_unused):
            return False
        log.info("topic.ended_unused", topic=str(topic))
        return True

    def _policies(self, topic: TopicName, record: TopicRecord) -> Policies:
        """An open partition has them at hand; working out what is inherited for every topic in every round adds up."""
        partitions = self._partitions.open_of(record.topic_id)
        return partitions[0].policies if partitions else self._partitions.policies_of(topic)

    def _is_subscription_unused(
        self, topic: TopicName, record: TopicRecord, name: str, subscription: SubscriptionRecord
    ) -> bool:
        after_s = self._policies(topic, record).inactive_subscription_s
        if not after_s:
            return False
        lives = [
            live
            for partition in self._partitions.open_of(record.topic_id)
            if (live := partition.subscriptions.get(name)) is not None
        ]
        if any(live.consumers for live in lives):
            return False
        used = max([self._started_us, subscription.created_at, *(live.last_active_us for live in lives)])
        return self._clock.now_us() - used >= after_s * MICROSECONDS

    def _is_topic_unused(self, topic: TopicName, record: TopicRecord) -> bool:
        after_s = self._policies(topic, record).inactive_topic_s
        if not after_s:
            return False
        now, partitions = self._clock.now_us(), self._partitions.open_of(record.topic_id)
        if self._removal.in_use(topic):
            self._used_us[record.topic_id] = now
            return False
        used = max(
            self._started_us,
            record.created_at,
            self._used_us.get(record.topic_id, 0),
            *(one.traffic.last_us for one in partitions),
        )
        return now - used >= after_s * MICROSECONDS


def _postponed(topic: TopicName, index: int, error: DanubeError) -> None:
    log.warning("lifetimes.postponed", topic=str(topic), partition=index, error=error.message)
