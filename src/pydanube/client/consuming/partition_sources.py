"""What works behind a consumer: a source for every partition of its topics, and the acks they send together.

Invariants
    the prefetch limits hold over all sources together (but each has a hundredth, and one message, if there are many)
    topics that a pattern finds later, and partitions that are added later, are read from their beginning: what came in
    before they were found counts too
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Protocol, TypeVar

from pydanube.client.connection.routing import Brokers, worth_retrying
from pydanube.client.settings import ConsumerSettings
from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.tasks import Tasks, run_together
from pydanube.runtime.telemetry import get_logger

from .acks import Acks
from .messages import ReceivedBatch
from .partition_source import FlowControl, PartitionSource

log = get_logger(__name__)

SHARES_MAX: Final = 100
"""Where there are more sources than this, each has this part of the prefetch limits: one alone must get ahead too."""


REQUESTS_AT_ONCE: Final = 128
"""Unanswered requests while a consumer opens: enough to keep a broker busy, which runs 64 of a connection at once, and
few enough that each is answered long before its time is over."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


async def _all_of(items: Sequence[ItemT], work: Callable[[ItemT], Awaitable[ResultT]]) -> list[ResultT]:
    """Do the work for every item, REQUESTS_AT_ONCE at a time, and return the results in their order. The first failure
    ends the others and is raised. Cancelled, all of them are."""
    places = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def one(item: ItemT) -> ResultT:
        async with places:
            return await work(item)

    return await run_together(one(item) for item in items)


def is_pattern(topic: str) -> bool:
    return any(character in topic for character in "*?[")


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """What a consumer asked for."""

    names: Sequence[str]
    patterns: Sequence[str]
    subscription: str
    type: SubscriptionType | None
    start: requests.Start
    consumer: str
    create_topic: bool
    priority: int = 0
    key_filters: Sequence[str] = ()
    failure_policy: FailurePolicy | None = None
    ack_timeout_s: float | None = None


class Queue(Protocol):
    """Where received batches go: the consumer's stream."""

    def put(self, batch: ReceivedBatch) -> None: ...
    def discard(self, unwanted: Callable[[ReceivedBatch], bool]) -> list[ReceivedBatch]: ...
    def rechunk(self) -> None: ...
    def fail(self, error: DanubeError) -> None: ...


class PartitionSources:
    """Every partition that one consumer receives from."""

    def __init__(self, brokers: Brokers, wish: SubscribeOptions, settings: ConsumerSettings, queue: Queue) -> None:
        self._brokers = brokers
        self._wish = wish
        self._settings = settings
        self._queue = queue
        self._tasks = Tasks()
        self._sources: dict[tuple[str, int], PartitionSource] = {}
        self._growing: set[str] = set()
        """Topics that may get more partitions."""
        self._dirty: list[PartitionSource] = []
        self._nacked: list[PartitionSource] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()
        self._steering = asyncio.Lock()
        self._failure: DanubeError | None = None
        self._closed = False

    @property
    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self._sources})

    @property
    def type(self) -> SubscriptionType | None:
        """What the subscription turned out to be; None before that is known."""
        return next((source.type for source in self._sources.values() if source.type is not None), None)

    def type_of(self, topic: str) -> SubscriptionType | None:
        """The same, of one topic: each has a subscription of its own."""
        return next((source.type for source in self._sources.values() if source.topic == topic), None)

    async def open(self) -> None:
        """Attach to everything; raises what the first refusal says. Cancelled: to be closed."""
        topics = list(self._wish.names)
        if self._wish.patterns:
            topics += [topic for topic in await self._matching() if topic not in topics]
        await self._attach_to(topics, self._wish.start)
        if self._wish.patterns or self._growing:
            self._tasks.spawn(self._watch(), f"watch topics for {self._wish.subscription}")

    async def close(self) -> None:
        """Let go of everything; acks that can still leave do."""
        self._closed = True
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._send_acks()
        self._send_nacks()
        for source in self._sources.values():
            source.stopped = True
            source.acks.close(Refused("this consumer is closed"))
        await self._tasks.close()
        await asyncio.gather(*(source.detach() for source in self._sources.values()))

    def taken(self, batch: ReceivedBatch) -> bool:
        """The user begins with this batch; True when that gave a broker new credit."""
        source = self._sources.get((batch.topic, batch.partition))
        return source is not None and source.acks is batch.acks and source.taken(batch)

    async def seek(self, position: requests.Start) -> None:
        async with self._steering:
            sources = list(self._sources.values())
            await asyncio.gather(*(source.detach() for source in sources))
            for source in sources:
                self.restarted(source)
            try:
                for topic in self.topics:
                    request = requests.Seek(topic=topic, subscription=self._wish.subscription, position=position)
                    await self._brokers.call(request, requests.Done)
                    for source in sources:
                        if source.topic == topic:
                            source.forget_acks()
            finally:
                self._progress.set()  # whoever waits for acks that were forgotten waits no longer
                for source in sources:
                    source.reattach()

    # -- acks --------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until every ack so far is durable."""
        waiting: list[tuple[PartitionSource, Acks, int]] = []
        for source in self._sources.values():
            source.send_acks(confirm=True)
            waiting.append((source, source.acks, source.acks.sent_number + source.acks.dirty))
        try:
            async with asyncio.timeout(self._settings.timeout):
                while waiting := [one for one in waiting if self._unconfirmed(*one)]:
                    self._progress.clear()
                    await self._progress.wait()
                    for source, _, _ in waiting:
                        source.send_acks(confirm=True)
        except TimeoutError:
            raise Unavailable(f"acks were not confirmed within {self._settings.timeout:g} s") from None
        for source in self._sources.values():
            failure, source.ack_failure = source.ack_failure, None
            if failure is not None:
                raise failure

    def _unconfirmed(self, source: PartitionSource, acks: Acks, number: int) -> bool:
        if self._failure is not None:
            raise copy(self._failure)
        present = self._sources.get((source.topic, source.partition)) is source and source.acks is acks
        return present and acks.confirmed_number < number

    def dirty(self, source: PartitionSource) -> None:
        self._dirty.append(source)
        if self._ack_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._ack_timer = loop.call_later(self._settings.ack_linger_ms / 1_000, self._send_acks)

    def nacked(self, source: PartitionSource) -> None:
        self._nacked.append(source)
        if len(self._nacked) == 1:
            asyncio.get_running_loop().call_soon(self._send_nacks)

    def _send_nacks(self) -> None:
        nacked, self._nacked = self._nacked, []
        for source in nacked:
            source.send_acks()

    def timeout_changed(self) -> None:
        self._queue.rechunk()

    def confirmed(self) -> None:
        self._progress.set()

    def _send_acks(self) -> None:
        self._ack_timer = None
        dirty, self._dirty = self._dirty, []
        for source in dirty:
            source.send_acks()

    # -- what sources tell -------------------------------------------------------------------------------------------

    def delivered(self, batch: ReceivedBatch) -> None:
        self._queue.put(batch)

    def restarted(self, source: PartitionSource) -> list[ReceivedBatch]:
        return self._queue.discard(lambda batch: batch.acks is source.acks)

    def failed(self, source: PartitionSource, error: DanubeError) -> None:
        if isinstance(error, NotFound) and source.topic not in self._wish.names:
            self._sources.pop((source.topic, source.partition), None)  # found by a pattern, deleted since
        else:
            self._failure = self._failure or error
            source.acks.close(error)
            self._queue.fail(error)
        self._progress.set()

    # -- topics ------------------------------------------------------------------------------------------------------

    async def _attach_to(self, topics: Sequence[str], start: requests.Start) -> None:
        """Attach to every partition of these topics, or to none."""
        found = await _all_of(topics, lambda topic: self._sources_of(topic, start))
        added = [source for sources in found for source in sources]
        for source in added:
            self._sources[source.topic, source.partition] = source
        self._share_prefetch()
        try:
            await _all_of(added, lambda one: self._brokers.retrying(one.attach, one.topic, one.partition))
        except BaseException:
            for source in added:
                self._sources.pop((source.topic, source.partition), None)
                await source.detach()
            raise

    async def _sources_of(self, topic: str, start: requests.Start) -> list[PartitionSource]:
        """A source for every partition that has none yet."""
        wish = self._wish
        create = wish.create_topic and topic in wish.names
        route = await self._brokers.retrying(lambda: self._brokers.route(topic, create, age_max=0.0))
        if route.partitioned:
            self._growing.add(topic)
        subscriptions = [
            requests.Subscribe(
                topic=topic,
                partition=partition,
                subscription=wish.subscription,
                consumer=wish.consumer,
                type="" if wish.type is None else str(wish.type),
                start=start,
                priority=wish.priority,
                key_filters=list(wish.key_filters),
                failure_policy=wish.failure_policy,
            )
            for partition in range(len(route.partitions))
            if (topic, partition) not in self._sources
        ]
        return [
            PartitionSource(self._brokers, self._tasks, self, one, FlowControl(1, 1), wish.ack_timeout_s)
            for one in subscriptions
        ]

    def _share_prefetch(self) -> None:
        """Of few messages each source gets few, but one at least: where there is none, nothing comes."""
        share, settings = min(len(self._sources) or 1, SHARES_MAX), self._settings
        for source in self._sources.values():
            source.credit.aim(max(1, settings.prefetch_messages // share), max(1, settings.prefetch_bytes // share))

    async def _matching(self) -> list[str]:
        """The topics that the patterns mean now."""
        found: set[str] = set()
        for pattern in self._wish.patterns:
            namespace = pattern.split("/")[1]
            request = requests.ListTopics(namespace="" if is_pattern(namespace) else namespace)
            listed = await self._brokers.call(request, requests.Names)
            found.update(topic for topic in listed.names if fnmatchcase(topic, pattern))
        return sorted(found)

    async def _unknown(self) -> list[str]:
        present = {topic for topic, _ in self._sources}
        return [topic for topic in await self._matching() if topic not in present]

    async def _grown(self) -> list[str]:
        """The topics that have partitions without a source."""
        grown: list[str] = []
        for topic in sorted(self._growing & {topic for topic, _ in self._sources}):
            try:
                route = await self._brokers.route(topic, age_max=self._settings.refresh_seconds / 2)
            except NotFound:
                continue  # its sources are told
            if any((topic, partition) not in self._sources for partition in range(len(route.partitions))):
                grown.append(topic)
        return grown

    async def _watch(self) -> None:
        """Look for new topics and new partitions, for ever. Cancelled, the consumer is being closed."""
        while True:
            await self._brokers.clock.sleep(self._settings.refresh_seconds)
            try:
                for topic in [*await self._grown(), *await self._unknown()]:
                    with suppress(NotFound):  # deleted since it was listed
                        async with self._steering:
                            await self._attach_to([topic], requests.Start("earliest"))
            except DanubeError as error:
                if not worth_retrying(error):
                    self._failure = self._failure or error
                    self._queue.fail(error)
                    return
                log.warning("consumer.refresh_failed", subscription=self._wish.subscription, error=error.message)
