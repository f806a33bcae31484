"""The partition sources of one consumer: finds the partitions of its topics and attaches a source to each of them.

Sends the acks and nacks of all sources together, moves all of them with a seek, and looks for new topics and
partitions.

A consumer that opens attaches to every partition, and grants credit to none of them before it can serve: until then
the broker takes nothing from other consumers for it. Partitions whose broker is away are attached as soon as it is
back, and the consumer serves the others meanwhile.

Invariants
    an open consumer is attached to a partition of each of its topics, at least: so the subscription exists there, and
    keeps every message from then on
    no message is delivered to a consumer before it is open
    the prefetch limits hold over all sources together (but each gets at least a hundredth of them, and one message)
    topics that a pattern matches later, and partitions that are added later, are read from their beginning, so that no
    message is missed that was published before they were found
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from pydanube.client.connection.connection import Connection
from pydanube.client.connection.routing import Brokers, worth_retrying
from pydanube.client.settings import ConsumerSettings
from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.failure import FailurePolicy
from pydanube.model.names import TopicName
from pydanube.model.paging import NamePage
from pydanube.model.positions import Position
from pydanube.model.topics import SubscriptionDescription, SubscriptionType
from pydanube.operations import Done, topics
from pydanube.operations.subscriptions import DescribeSubscription, Seek
from pydanube.runtime.tasks import Tasks, run_together
from pydanube.runtime.telemetry import get_logger

from .acks import Acks
from .messages import ReceivedBatch
from .partition_source import PartitionSource
from .receiver_queue import ReceiverQueue

log = get_logger(__name__)

SHARES_MAX: Final = 100
"""The prefetch limits are divided into at most this many shares, so that one busy partition among many stays fast."""

REQUESTS_AT_ONCE: Final = 128
"""Unanswered requests while a consumer opens: enough to keep a broker busy, which works on 64 of one connection at
once, and few enough that each is answered long before it times out."""

PATIENCE_S: Final = 5.0
"""How long a consumer that opens waits for a partition before it opens with the others of the topic."""

AWAY_SHARE: Final = 0.05
"""The part of it that is enough for a partition without an owner, when it has waited in the queue for all of it."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def _for_all(items: Sequence[ItemT], work: Callable[[ItemT], Awaitable[ResultT]]) -> list[ResultT]:
    """Await `work` for every item, REQUESTS_AT_ONCE at a time, and return the results in the order of the items.

    The first failure cancels the others and is raised.
    """
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(item: ItemT) -> ResultT:
        async with slots:
            return await work(item)

    return await run_together(one(item) for item in items)


def is_pattern(topic: str) -> bool:
    return any(character in topic for character in "*?[")


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The options of a consumer, checked: what its Subscribe requests are made of."""

    names: Sequence[str]
    patterns: Sequence[str]
    subscription: str
    type: SubscriptionType | None
    start: Position
    consumer: str
    create_topic: bool
    priority: int = 0
    key_filters: Sequence[str] = ()
    failure_policy: FailurePolicy | None = None
    ack_timeout_s: float | None = None


class PartitionSources:
    """Every partition that one consumer receives from."""

    def __init__(
        self, brokers: Brokers, options: SubscribeOptions, settings: ConsumerSettings, queue: ReceiverQueue[Any]
    ) -> None:
        self._brokers = brokers
        self._options = options
        self._settings = settings
        self._queue = queue
        self._tasks = Tasks()
        self._sources: dict[tuple[str, int], PartitionSource] = {}
        self._partitioned: set[str] = set()
        """Partitioned topics, which may get more partitions."""
        self._waiting: set[PartitionSource] = set()
        """Sources that could not be attached while the consumer was opened, and are still tried."""
        self._with_acks: list[PartitionSource] = []
        self._with_nacks: list[PartitionSource] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._acks_progressed = asyncio.Event()
        """Set when acks were confirmed or need no confirmation any more."""
        self._changing_sources = asyncio.Lock()
        """Held while sources are added or a seek detaches them."""
        self._failure: DanubeError | None = None
        self._closed = False

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in list(self._sources)})  # a copy: threads read this too

    @property
    def waiting(self) -> int:
        """How many partitions wait for their broker since the consumer was opened."""
        return len(self._waiting)

    @property
    def type(self) -> SubscriptionType | None:
        """The type of the subscription; None before the first source is attached."""
        return next((source.type for source in list(self._sources.values()) if source.type is not None), None)

    def type_of(self, topic: str) -> SubscriptionType | None:
        """Return the type of the subscription on one topic: each topic has a subscription of its own."""
        return next((source.type for source in self._sources.values() if source.topic == topic), None)

    def connection_of(self, topic: str, partition: int) -> Connection | None:
        """Return the connection that a partition is consumed over; None: there is none at this moment."""
        source = self._sources.get((topic, partition))
        return None if source is None else source.connection

    async def open(self) -> None:
        """Attach to every partition, or raise the first refusal. Cancelled or failed, the caller closes this."""
        topics = list(self._options.names)
        if self._options.patterns:
            topics += [topic for topic in await self._matching_topics() if topic not in topics]
        await self._attach_to(topics, self._options.start)
        if self._options.failure_policy is not None:
            await asyncio.gather(*map(self._compare_policy, self._options.names))
        if self._options.patterns or self._partitioned:
            self._tasks.spawn(self._attach_new(), f"watch topics for {self._options.subscription}")

    async def _compare_policy(self, topic: str) -> None:
        """Log a failure policy that the subscription had before, if it is not the one that was given here."""
        given, subscription = self._options.failure_policy, self._options.subscription
        asked = DescribeSubscription(topic=TopicName.parse(topic), subscription=subscription)
        with suppress(DanubeError):  # who may consume need not be allowed to describe
            stored = (await self._brokers.call(asked, SubscriptionDescription)).failure_policy
            if stored != given:
                advice = "the stored one counts: client.set_failure_policy changes it"
                about = {"topic": topic, "subscription": subscription, "stored": str(stored), "given": str(given)}
                log.warning("consumer.failure_policy_differs", **about, advice=advice)

    async def close(self) -> None:
        """Detach every source, after a last attempt to send the collected acks and nacks."""
        self._closed = True
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._send_acks()
        self._send_nacks()
        for source in self._sources.values():
            source.stop(Refused("this consumer is closed"))
        await self._tasks.close()
        await asyncio.gather(*(source.detach() for source in self._sources.values()))

    def abandon(self) -> None:
        """End every session without waiting for the broker, which does not answer."""
        for source in self._sources.values():
            source.abandon()

    def consumed(self, batch: ReceivedBatch[Any]) -> bool:
        """Count a batch that the user begins with. Returns whether a broker was sent new credit."""
        source = self._sources.get((batch.topic, batch.partition))
        return source is not None and source.acks is batch.acks and source.consumed(batch)

    async def seek(self, position: Position) -> None:
        """Detach every source, move the subscription on every topic, and attach the sources again."""
        async with self._changing_sources:
            sources = list(self._sources.values())
            await asyncio.gather(*(source.detach() for source in sources))
            for source in sources:
                self.discard_deliveries(source)
            try:
                for topic in self.topics:
                    name, subscription = TopicName.parse(topic), self._options.subscription
                    request = Seek(topic=name, subscription=subscription, position=position)
                    await self._brokers.call(request, Done)
                    for source in sources:
                        if source.topic == topic:
                            source.replace_acks()
            finally:
                self._acks_progressed.set()  # a flush no longer waits for the acks that were replaced
                for source in sources:
                    source.reattach()

    # -- acks --------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every ack so far is durable at its broker. Raises Unavailable after the client's timeout."""
        waiting: list[tuple[PartitionSource, Acks, int]] = []
        for source in self._sources.values():
            source.send_acks(confirm=True)
            waiting.append((source, source.acks, source.acks.sent_number + source.acks.has_acks))
        try:
            async with asyncio.timeout(self._settings.timeout):
                while waiting := [one for one in waiting if self._unconfirmed(*one)]:
                    self._acks_progressed.clear()
                    await self._acks_progressed.wait()
                    for source, _, _ in waiting:
                        source.send_acks(confirm=True)
        except TimeoutError:
            raise Unavailable(f"acks were not confirmed within {self._settings.timeout:g} s") from None
        for source in self._sources.values():
            if (failure := source.take_ack_failure()) is not None:
                raise failure

    def _unconfirmed(self, source: PartitionSource, acks: Acks, number: int) -> bool:
        if self._failure is not None:
            raise copy(self._failure)
        present = self._sources.get((source.topic, source.partition)) is source and source.acks is acks
        return present and acks.confirmed_number < number

    def _send_acks(self) -> None:
        self._ack_timer = None
        sources, self._with_acks = self._with_acks, []
        for source in sources:
            source.send_acks()

    def _send_nacks(self) -> None:
        sources, self._with_nacks = self._with_nacks, []
        for source in sources:
            source.send_acks()

    # -- what sources call: see SourceListener -----------------------------------------------------------------------

    def attached(self, source: PartitionSource) -> None:
        if source in self._waiting:
            self._waiting.discard(source)
            log.info("consumer.partition_attached", **self._about(source))

    def _about(self, source: PartitionSource) -> dict[str, object]:
        return {"topic": source.topic, "partition": source.partition, "subscription": self._options.subscription}

    def schedule_acks(self, source: PartitionSource) -> None:
        self._with_acks.append(source)
        if self._ack_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._ack_timer = loop.call_later(self._settings.ack_linger_ms / 1_000, self._send_acks)

    def schedule_nacks(self, source: PartitionSource) -> None:
        self._with_nacks.append(source)
        if len(self._with_nacks) == 1:
            asyncio.get_running_loop().call_soon(self._send_nacks)

    def acks_confirmed(self) -> None:
        self._acks_progressed.set()

    def ack_timeout_changed(self) -> None:
        self._queue.restore_chunk()

    def delivered(self, batch: ReceivedBatch[Any]) -> None:
        self._queue.put(batch)

    def discard_deliveries(self, source: PartitionSource) -> list[ReceivedBatch[Any]]:
        return self._queue.discard(lambda batch: batch.acks is source.acks)

    def source_failed(self, source: PartitionSource, error: DanubeError) -> None:
        about = self._about(source)
        self._waiting.discard(source)
        if isinstance(error, NotFound) and source.topic not in self._options.names:
            self._sources.pop((source.topic, source.partition), None)  # found by a pattern, deleted since
            log.info("consumer.topic_deleted", **about)
        else:
            if self._failure is None and not self._closed:
                log.warning("consumer.failed", **about, error=error.message)
            self._failure = self._failure or error
            source.acks.close(error)
            self._queue.fail(error)
        self._acks_progressed.set()

    # -- topics ------------------------------------------------------------------------------------------------------

    async def _attach_to(self, topics: Sequence[str], start: Position) -> None:
        """Attach to every partition of these topics whose broker is there, and go on trying the others; or raise the
        first refusal and attach to none."""
        found = await _for_all(topics, lambda topic: self._new_sources(topic, start))
        added = [source for sources in found for source in sources]
        for source in added:
            self._sources[source.topic, source.partition] = source
        try:
            await self._attach(added)
        except BaseException:
            for source in added:
                self._sources.pop((source.topic, source.partition), None)
                self._waiting.discard(source)
                await source.detach()
            raise
        self._share_prefetch()

    async def _attach(self, sources: Sequence[PartitionSource]) -> None:
        """Attach these sources; at least one of each topic, or raise Unavailable. The others are tried further."""
        timeout, counts = self._brokers.timeout, Counter(one.topic for one in sources)
        patience_s = min(PATIENCE_S, timeout / 2)
        deadline = self._brokers.clock.monotonic() + patience_s
        errors: dict[PartitionSource, Unavailable] = {}

        async def try_to_attach(source: PartitionSource, seconds: float) -> None:
            try:
                await self._brokers.retrying(source.attach, source.topic, source.partition, seconds)
                errors.pop(source, None)
            except Unavailable as error:
                errors[source] = error

        def patience(source: PartitionSource) -> float:
            if counts[source.topic] == 1:
                return timeout
            left_s = deadline - self._brokers.clock.monotonic()
            return max(left_s, patience_s * AWAY_SHARE) if source.is_away else patience_s

        def not_served() -> list[PartitionSource]:
            served = {one.topic for one in sources if one not in errors}
            return [one for one in sources if one.topic not in served]

        await _for_all(sources, lambda one: try_to_attach(one, patience(one)))
        absent = [one for one in not_served() if counts[one.topic] > 1]
        await _for_all(absent, lambda one: try_to_attach(one, timeout - patience_s))
        for source in not_served():
            raise errors[source]
        for source, error in errors.items():
            log.warning("consumer.partition_unavailable", **self._about(source), error=error.message)
            self._waiting.add(source)
            source.reattach()

    async def _new_sources(self, topic: str, start: Position) -> list[PartitionSource]:
        """Return a source for every partition of the topic that has none yet."""
        options = self._options
        create = options.create_topic and topic in options.names
        route = await self._brokers.retrying(lambda: self._brokers.route(topic, create, age_max=0.0))
        if route.partitioned:
            self._partitioned.add(topic)
        subscriptions = [
            requests.Subscribe(
                topic=topic,
                partition=partition,
                subscription=options.subscription,
                consumer=options.consumer,
                type="" if options.type is None else str(options.type),
                start=start,
                priority=options.priority,
                key_filters=list(options.key_filters),
                failure_policy=options.failure_policy,
            )
            for partition in range(len(route.partitions))
            if (topic, partition) not in self._sources
        ]
        away = {one.index for one in route.partitions if not one.owner}
        return [
            PartitionSource(
                self._brokers,
                self._tasks,
                self,
                one,
                options.ack_timeout_s,
                one.partition in away,
                self._settings.on_partition,
            )
            for one in subscriptions
        ]

    def _share_prefetch(self) -> None:
        """Divide the prefetch limits among the sources, which grant credit from now on; each gets at least one message,
        or nothing would arrive."""
        shares, settings = min(len(self._sources) or 1, SHARES_MAX), self._settings
        for source in self._sources.values():
            source.set_prefetch(max(1, settings.prefetch_messages // shares), max(1, settings.prefetch_bytes // shares))

    async def _matching_topics(self) -> list[str]:
        """Return the existing topics that match a pattern of the consumer."""
        found: set[str] = set()
        for pattern in self._options.patterns:
            namespace = pattern.split("/")[1]
            request = topics.ListTopics(namespace="" if is_pattern(namespace) else namespace)
            listed = await self._brokers.call(request, NamePage)
            found.update(topic for topic in listed.names if fnmatchcase(topic, pattern))
        return sorted(found)

    async def _new_topics(self) -> list[str]:
        present = {topic for topic, _ in self._sources}
        return [topic for topic in await self._matching_topics() if topic not in present]

    async def _grown_topics(self) -> list[str]:
        """Return the topics that have partitions without a source."""
        grown: list[str] = []
        for topic in sorted(self._partitioned & {topic for topic, _ in self._sources}):
            try:
                route = await self._brokers.route(topic, age_max=self._settings.refresh_seconds / 2)
            except NotFound:
                continue  # its sources fail by themselves
            if any((topic, partition) not in self._sources for partition in range(len(route.partitions))):
                grown.append(topic)
        return grown

    async def _attach_new(self) -> None:
        """Look for new topics and new partitions regularly and attach to them, until the consumer is closed."""
        while True:
            await self._brokers.clock.sleep(self._settings.refresh_seconds)
            try:
                for topic in [*await self._grown_topics(), *await self._new_topics()]:
                    with suppress(NotFound):  # deleted since it was listed
                        async with self._changing_sources:
                            await self._attach_to([topic], Position("earliest"))
            except DanubeError as error:
                if not worth_retrying(error):
                    self._failure = self._failure or error
                    self._queue.fail(error)
                    return
                log.warning("consumer.refresh_failed", subscription=self._options.subscription, error=error.message)
