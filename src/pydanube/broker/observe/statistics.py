"""Statistics of a topic, collected from its partitions, subscriptions and consumers.

Counters are kept where things happen, and cost an addition per batch. What takes a read, such as the age of the oldest
unacked message, is found out here, on request. `all` reads nothing: it is for listings and for metrics of thousands of
topics.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.observe.summaries import merge_summaries, summarize
from pydanube.broker.partitions.backlog_quota import backlog_bytes
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.security.visibility import topic_filter
from pydanube.core.access import Action, Principal, visible_subscriptions
from pydanube.model.errors import DanubeError, NotFound
from pydanube.model.names import TopicName
from pydanube.model.paging import TopicPage
from pydanube.model.statistics import PartitionStatistics, SubscriptionStatistics, TopicStatistics, TopicSummary
from pydanube.operations.topics import GetStatistics, SummarizeTopics
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.long_work import Slices
from pydanube.runtime.tasks import run_together
from pydanube.storage.stream import PartitionStream, append_time_at

SUMMARIES_AT_ONCE: Final = 500
"""Topics of which another broker is asked in one request. With a few subscriptions each they fit the answer."""


class Statistics:
    """Every call names a principal, and the authorizer is asked first: `all` shows the topics that the caller may see,
    and every call the subscriptions that it may see."""

    def __init__(self, context: BrokerContext, partitions: Partitions) -> None:
        self._registry = context.registry
        self._partitions = partitions
        self._authorizer = context.authorizer
        self._clock = context.clock
        self._gathering = context.gathering

    async def topic(self, principal: Principal, topic: TopicName, own_only: bool = False) -> TopicStatistics:
        """Return the statistics of a topic, and open its partitions for that. One that cannot be opened, or whose owner
        does not answer, is listed with the reason in `health`. With `own_only`, only the partitions that this broker
        owns; otherwise the other owners are asked too."""
        self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        await self._registry.refresh_topic(topic)
        record = self._registry.topic(topic)
        asked = GetStatistics(topic=topic, own_only=own_only)
        gathered = await self._gathering.read(record, asked, lambda own: self._own_partitions(topic, own))
        missing = {index: PartitionStatistics(index, health=error.message) for index, error in gathered.missing.items()}
        found = {**gathered.found, **missing}
        shown = [self._shown_partition(principal, topic, found[index]) for index in sorted(found)]
        return TopicStatistics(str(topic), record.reliable, shown)

    async def _own_partitions(self, topic: TopicName, own: Sequence[int]) -> dict[int, PartitionStatistics]:
        return {index: await self._partition(topic, index) for index in own}

    def _shown_partition(self, principal: Principal, topic: TopicName, one: PartitionStatistics) -> PartitionStatistics:
        shown = set(self._visible(principal, str(topic), [each.name for each in one.subscriptions]))
        if len(shown) == len(one.subscriptions):
            return one
        return replace(one, subscriptions=[each for each in one.subscriptions if each.name in shown])

    def _shown(self, principal: Principal, one: TopicSummary) -> TopicSummary:
        shown = set(self._visible(principal, one.topic, [each.name for each in one.subscriptions]))
        if len(shown) == len(one.subscriptions):
            return one
        return replace(one, subscriptions=[each for each in one.subscriptions if each.name in shown])

    def _visible(self, principal: Principal, topic: str, names: Sequence[str]) -> list[str]:
        return visible_subscriptions(self._authorizer, principal, topic, names)

    def all(self, principal: Principal, namespace: str | None = None) -> AsyncGenerator[list[TopicSummary]]:
        """Yield a summary of every topic that the caller may see, or of those of a namespace, by name, in chunks.

        Opens no partition and reads no log: see `TopicSummary`. Neither making a chunk nor the pauses between hold the
        event loop for more than a few milliseconds, so a caller may work on each chunk for as long. Topics that are
        created or deleted meanwhile may be missing.
        """
        if namespace is not None and self._authorizer.allows(principal, Action.DESCRIBE, f"/{namespace}"):
            self._registry.namespace(namespace)
        return self._summaries(principal, self._registry.topics(namespace), namespace)

    async def _summaries(
        self, principal: Principal, names: list[TopicName], namespace: str | None
    ) -> AsyncGenerator[list[TopicSummary]]:
        is_visible = topic_filter(self._authorizer, principal, namespace)
        slices, chunk, pauses = Slices(self._clock), list[TopicSummary](), 0
        for name in names:
            summary = await self.summary(principal, name, slices) if is_visible(name) else None
            if summary is not None:
                chunk.append(summary)
            if chunk and (slices.pauses > pauses or slices.is_spent):
                await slices.pause()
                yield chunk
                chunk = []
                await slices.pause()
                pauses = slices.pauses
            elif not chunk:
                await slices.pause_if_spent()
                pauses = slices.pauses
        if chunk:
            yield chunk

    async def summary(self, principal: Principal, name: TopicName, slices: Slices) -> TopicSummary | None:
        """Return the summary of one topic; None if it does not exist, or the caller may not see it."""
        if not self._authorizer.allows(principal, Action.DESCRIBE, str(name)):
            return None
        record = self._registry.find_topic(name)
        if record is None:
            return None
        partitions = self._partitions.open_of(record.topic_id)
        subscriptions = self._visible(principal, str(name), list(self._registry.subscriptions(name)))
        found = await summarize(name, record, len(subscriptions), partitions, self._clock.now_us(), slices)
        return self._shown(principal, found)

    async def summaries(self, principal: Principal, names: Sequence[TopicName]) -> AsyncGenerator[TopicSummary]:
        """Yield what this broker has counted of some topics that the caller may see, without those of which no
        partition is open here."""
        slices = Slices(self._clock)
        for name in names:
            summary = await self.summary(principal, name, slices)
            if summary is not None and summary.open_partitions:
                yield summary
            await slices.pause_if_spent()

    async def add_others(self, principal: Principal, summaries: list[TopicSummary]) -> list[TopicSummary]:
        """Return the summaries, which the caller may see, with what the other owners of these topics have counted.
        `health` names an owner that does not answer, and a broker that is away and that partitions wait for."""
        if self._gathering.is_alone:
            return summaries
        owners: dict[str, list[TopicName]] = {}
        merged = {one.topic: one for one in summaries}
        for name in (TopicName.parse(one.topic) for one in summaries):
            record = self._registry.find_topic(name)
            if record is not None:
                merged[str(name)] = _with_health(merged[str(name)], self._partitions.routing.health(name, record))
                shares = self._gathering.shares(record.topic_id, range(record.config().partition_count))
                for broker in shares.others:
                    owners.setdefault(broker, []).append(name)
        asking = [self._ask_owner(broker, names) for broker, names in owners.items()]
        for answers in await run_together(asking):
            for topic, one in answers.items():
                known = merged[topic]
                if isinstance(one, DanubeError):
                    merged[topic] = _with_health(known, one.message)
                else:
                    merged[topic] = merge_summaries(known, one)
        return [self._shown(principal, one) for one in merged.values()]

    async def _ask_owner(self, broker: str, names: list[TopicName]) -> dict[str, TopicSummary | DanubeError]:
        """Ask one broker for the summaries of topics that it owns partitions of, as many at a time as it can answer."""
        found: dict[str, TopicSummary | DanubeError] = {}
        while names:
            some, names = names[:SUMMARIES_AT_ONCE], names[SUMMARIES_AT_ONCE:]
            asked = [str(name) for name in some]
            answer = (await self._gathering.ask({broker: SummarizeTopics(topics=some)}, TopicPage))[broker]
            if isinstance(answer, DanubeError):
                return found | {str(name): answer for name in [*some, *names]}
            found |= {one.topic: one for one in answer.topics if one.topic in asked}
            if answer.next in asked:
                names = some[asked.index(answer.next) + 1 :] + names
        return found

    async def _partition(self, topic: TopicName, index: int) -> PartitionStatistics:
        try:
            partition = await self._partitions.get(topic, index)
        except NotFound:
            raise
        except DanubeError as error:
            return PartitionStatistics(index, health=error.message)
        health, ages = partition.describe("").health, _Ages(partition.stream, self._clock.now_us())
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


def _with_health(known: TopicSummary, health: str) -> TopicSummary:
    """Return a summary with this added to what is wrong with the topic already; 'ok' adds nothing."""
    if health == "ok":
        return known
    return replace(known, health=health if known.health == "ok" else f"{known.health}; {health}")
