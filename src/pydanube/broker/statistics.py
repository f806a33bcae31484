"""Statistics of a topic, collected from its partitions, subscriptions and consumers.

Counters are kept where things happen, and cost an addition per batch. What takes a read, such as the age of the oldest
unacked message, is found out here, on request. `all` reads nothing: it is for listings and for metrics of thousands of
topics.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from pydanube.broker.partitions.backlog_quota import backlog_bytes
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import BROKER, Action, Authorizer, Principal
from pydanube.model.errors import DanubeError, NotFound
from pydanube.model.names import TopicName
from pydanube.model.statistics import PartitionStatistics, SubscriptionStatistics, TopicStatistics, TopicSummary
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.slices import Slices
from pydanube.storage.stream import PartitionStream, append_time_at

from .topic_summaries import summarize


class Statistics:
    """Every call names a principal, and the authorizer is asked first."""

    def __init__(self, registry: Registry, partitions: Partitions, authorizer: Authorizer, clock: Clock) -> None:
        self._registry = registry
        self._partitions = partitions
        self._authorizer = authorizer
        self._clock = clock

    async def topic(self, principal: Principal, topic: TopicName) -> TopicStatistics:
        """Return the statistics of a topic, and open its partitions for that. One that cannot be opened is listed with
        the reason in `health`."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        config = self._registry.topic(topic).config()
        found = [await self._partition(topic, index) for index in range(config.partition_count)]
        return TopicStatistics(str(topic), config.reliable, found)

    def all(self, principal: Principal, namespace: str | None = None) -> AsyncGenerator[list[TopicSummary]]:
        """Yield a summary of every topic, or of every topic of a namespace, ordered by name, in chunks.

        Opens no partition and reads no log: see `TopicSummary`. Neither making a chunk nor the pauses between hold the
        event loop for more than a few milliseconds, so a caller may work on each chunk for as long. Topics that are
        created or deleted meanwhile may be missing.
        """
        self._authorizer.check(principal, Action.DESCRIBE, BROKER if namespace is None else f"/{namespace}")
        if namespace is not None:
            self._registry.namespace(namespace)
        return self._summaries(self._registry.topics(namespace))

    async def _summaries(self, names: list[TopicName]) -> AsyncGenerator[list[TopicSummary]]:
        slices, chunk, pauses = Slices(self._clock), list[TopicSummary](), 0
        for name in names:
            summary = await self.summary(name, slices)
            if summary is not None:
                chunk.append(summary)
            if chunk and (slices.pauses > pauses or slices.is_spent):
                await slices.pause()
                yield chunk
                chunk = []
                await slices.pause()
                pauses = slices.pauses
        if chunk:
            yield chunk

    async def summary(self, name: TopicName, slices: Slices) -> TopicSummary | None:
        """Return the summary of one topic; None if it does not exist. Asks no authorizer: the caller has."""
        record = self._registry.find_topic(name)
        if record is None:
            return None
        partitions = self._partitions.open_of(record.topic_id)
        subscriptions = len(self._registry.subscriptions(name))
        return await summarize(name, record, subscriptions, partitions, self._clock.now_us(), slices)

    async def _partition(self, topic: TopicName, index: int) -> PartitionStatistics:
        try:
            partition = await self._partitions.get(topic, index)
        except NotFound:
            raise
        except DanubeError as error:
            return PartitionStatistics(index, health=error.message)
        health, ages = "ok", _Ages(partition.stream, self._clock.now_us())
        subscriptions: list[SubscriptionStatistics] = []
        for _, live in sorted(partition.subscriptions.items()):
            counted = live.statistics()
            try:
                age_s = await ages.at(counted.position) if counted.backlog else 0.0
            except DanubeError as error:
                health, age_s = error.message, 0.0
            stream = partition.stream
            size = backlog_bytes(partition.sizes, stream.gaps, live.cursor, stream.end_offset)
            subscriptions.append(replace(counted, backlog_bytes=size, backlog_s=age_s))
        return self._counted(partition, subscriptions, health)

    def _counted(
        self, partition: Partition, subscriptions: list[SubscriptionStatistics], health: str
    ) -> PartitionStatistics:
        about, traffic = partition.describe(""), partition.traffic
        messages_per_s, bytes_per_s = traffic.meter.rates(self._clock.now_us())
        return PartitionStatistics(
            index=partition.index,
            start_offset=about.start_offset,
            end_offset=about.end_offset,
            missing_offsets=about.missing_offsets,
            stored_bytes=about.stored_bytes,
            producers=partition.producers,
            published=traffic.published,
            published_bytes=traffic.published_bytes,
            messages_per_s=messages_per_s,
            bytes_per_s=bytes_per_s,
            unheard=traffic.unheard,
            throttled_s=traffic.throttled_s,
            schema_warnings=partition.intake.warned if partition.intake is not None else 0,
            subscriptions=subscriptions,
            health=health,
        )


class _Ages:
    """The ages of messages of one partition. Each offset is read once, also if several subscriptions are there."""

    def __init__(self, stream: PartitionStream, now_us: int) -> None:
        self._stream = stream
        self._now_us = now_us
        self._known: dict[int, float] = {}

    async def at(self, offset: int) -> float:
        """Return the seconds since the message at `offset`, or the first stored one after it, was appended."""
        if offset not in self._known:
            appended_us = await append_time_at(self._stream, offset)
            age_us = self._now_us - appended_us if appended_us is not None else 0
            self._known[offset] = max(0, age_us) / MICROSECONDS
        return self._known[offset]
