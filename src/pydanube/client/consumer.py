"""The consumer: one queue over all partitions of its topics, acks gathered into few frames, sessions that come back.

The broker pushes within the credit it is given; what the user takes makes room for more. When a connection ends, what
was not acked comes again, and acks that were not confirmed are sent again.

Invariants
    an ack costs no round trip; `flush`, `close` and leaving the block wait until every ack is durable
    a failure of one partition that cannot heal (a takeover, a deleted topic) is raised by the next receive
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from copy import copy
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

from pydanube.codec.native import requests
from pydanube.model.errors import DanubeError, Invalid, NotFound, Unavailable
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.positions import Position
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.randomness import identity
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger

from .acks import Acks
from .credit import Credit
from .message import Message, ReceivedBatch
from .routing import Brokers, worth_retrying
from .settings import ConsumerSettings
from .source import Source
from .stream import Stream
from .wire import wire_start

log = get_logger(__name__)

SHARE_MESSAGES_MIN: Final = 100
SHARE_BYTES_MIN: Final = 64 * 1024
"""What each partition may prefetch however many there are."""


def is_pattern(topic: str) -> bool:
    return any(character in topic for character in "*?[")


class Consumer(Stream):
    """Receives through a subscription. Made by `client.consumer`; belongs to the loop it was opened on."""

    _what = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        topics: str | Iterable[str],
        subscription: str,
        type: str,  # noqa: A002  the word of the contract
        start: str | int | datetime | Position,
        name: str | None,
        settings: ConsumerSettings,
        create_topic: bool,
    ) -> None:
        super().__init__(brokers.clock)
        self.subscription = parse_subscription(subscription)
        self.type = SubscriptionType.parse(type)
        self.name = name or identity()
        self._brokers = brokers
        self._settings = settings
        self._start = wire_start(start)
        self._create_topic = create_topic
        self._names, self._patterns = _split_topics(topics)
        self._tasks = Tasks()
        self._sources: dict[tuple[str, int], Source] = {}
        self._dirty: list[Source] = []
        self._ack_timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()
        self._steering = asyncio.Lock()

    @property
    def topics(self) -> list[str]:
        """The topics it receives from at present."""
        return sorted({topic for topic, _ in self._sources})

    # -- acks --------------------------------------------------------------------------------------------------------

    async def ack(self, received: Message | ReceivedBatch) -> None:
        """A message, or a batch of them, is done. Does not wait for the broker; see `flush`."""
        if type(received) is Message:
            acks = received._delivery.acks
            if acks is not None and acks.end == received.offset:  # the next one: its range grows
                acks.end = received.offset + 1
                return
        self.record_ack(received)

    async def ack_cumulative(self, received: Message | ReceivedBatch) -> None:
        """Everything of its partition up to and including this message (or batch) is done."""
        self.record_ack_cumulative(received)

    def record_ack(self, received: Message | ReceivedBatch) -> None:
        """`ack` for code that does not run as a coroutine, on the loop's thread."""
        acks, ranges = _acks_of(received)
        for start, end in ranges:
            acks.add(start, end)

    def record_ack_cumulative(self, received: Message | ReceivedBatch) -> None:
        acks, ranges = _acks_of(received)
        acks.add_below(ranges[-1][1])

    async def flush(self) -> None:
        """Wait until every ack so far is durable at the broker. Raises Unavailable after `timeout`."""
        open_ends: list[tuple[Source, Acks, int]] = []
        for source in self._sources.values():
            source.send_acks(confirm=True)
            open_ends.append((source, source.acks, source.acks.sent_number + source.acks.dirty))
        try:
            async with asyncio.timeout(self._settings.timeout):
                while open_ends := [one for one in open_ends if self._unconfirmed(*one)]:
                    self._progress.clear()
                    await self._progress.wait()
                    for source, _, _ in open_ends:
                        source.send_acks(confirm=True)
        except TimeoutError:
            raise Unavailable(f"acks were not confirmed within {self._settings.timeout:g} s") from None
        for source in self._sources.values():
            failure, source.ack_failure = source.ack_failure, None
            if failure is not None:
                raise failure

    def _unconfirmed(self, source: Source, acks: Acks, number: int) -> bool:
        if self._failure is not None:
            raise copy(self._failure)
        present = self._sources.get((source.topic, source.partition)) is source and source.acks is acks
        return present and acks.confirmed_number < number

    def source_dirty(self, source: Source) -> None:
        self._dirty.append(source)
        if self._ack_timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._ack_timer = loop.call_later(self._settings.ack_linger_ms / 1_000, self._send_acks)

    def source_confirmed(self) -> None:
        self._progress.set()

    def _send_acks(self) -> None:
        self._ack_timer = None
        dirty, self._dirty = self._dirty, []
        for source in dirty:
            source.send_acks()

    # -- deliveries --------------------------------------------------------------------------------------------------

    def source_delivered(self, batch: ReceivedBatch) -> None:
        self._put(batch)

    def source_restarted(self, source: Source) -> None:
        self._discard(lambda batch: batch.acks is source.acks)

    def source_failed(self, source: Source, error: DanubeError) -> None:
        if isinstance(error, NotFound) and source.topic not in self._names:
            self._sources.pop((source.topic, source.partition), None)  # found by a pattern, deleted since
            return
        self._fail(error)
        self._progress.set()

    def _taken(self, batch: ReceivedBatch) -> None:
        source = self._sources.get((batch.topic, batch.partition))
        if source is not None and source.acks is batch.acks and source.taken(batch):
            self._pause_due = True  # credit leaves when the loop runs

    # -- steering ----------------------------------------------------------------------------------------------------

    async def seek(self, position: str | int | datetime | Position) -> None:
        """Move the subscription, on every partition of its topics: the next message received is from there.

        Durable on return. Acks of messages received before mean nothing afterwards. Cancelled, the subscription may
        have moved on some partitions.
        """
        start = wire_start(position)
        self._check_open()
        async with self._steering:
            sources = list(self._sources.values())
            await asyncio.gather(*(source.detach() for source in sources))
            for source in sources:
                self.source_restarted(source)
            try:
                for topic in self.topics:
                    request = requests.Seek(topic=topic, subscription=self.subscription, position=start)
                    await self._brokers.call(request, requests.Done)
                for source in sources:
                    source.forget_acks()
            finally:
                for source in sources:
                    source.reattach()

    # -- topics ------------------------------------------------------------------------------------------------------

    async def _subscribe_to(self, topics: Sequence[str], start: requests.Start) -> None:
        """Attach to every partition of these topics, or to none."""
        added: list[Source] = []
        for topic in topics:
            added += await self._sources_of(topic, start)
        for source in added:
            self._sources[source.topic, source.partition] = source
        self._share_prefetch()
        try:
            await asyncio.gather(
                *(self._brokers.retrying(source.attach, source.topic, source.partition) for source in added)
            )
        except BaseException:
            for source in added:
                self._sources.pop((source.topic, source.partition), None)
                await source.detach()
            raise

    async def _sources_of(self, topic: str, start: requests.Start) -> list[Source]:
        create = self._create_topic and topic in self._names
        route = await self._brokers.retrying(lambda: self._brokers.route(topic, create))
        return [
            Source(
                self._brokers,
                self._tasks,
                self,
                requests.Subscribe(
                    topic=topic,
                    partition=partition,
                    subscription=self.subscription,
                    consumer=self.name,
                    type=str(self.type),
                    start=start,
                ),
                Credit(1, 1),
            )
            for partition in range(len(route.partitions))
        ]

    def _share_prefetch(self) -> None:
        count = len(self._sources)
        messages = max(self._settings.prefetch_messages // max(count, 1), SHARE_MESSAGES_MIN)
        size = max(self._settings.prefetch_bytes // max(count, 1), SHARE_BYTES_MIN)
        for source in self._sources.values():
            source.credit.aim(min(messages, self._settings.prefetch_messages), min(size, self._settings.prefetch_bytes))

    async def _matching(self) -> list[str]:
        """The topics that a pattern means now."""
        found: set[str] = set()
        for pattern in self._patterns:
            namespace = pattern.split("/")[1]
            request = requests.ListTopics(namespace="" if is_pattern(namespace) else namespace)
            listed = await self._brokers.call(request, requests.Names)
            found.update(topic for topic in listed.names if fnmatchcase(topic, pattern))
        return sorted(found)

    async def _watch(self) -> None:
        """Look for new topics. They are read from their beginning: what came in before they were found counts too."""
        while True:
            await self._brokers.clock.sleep(self._settings.refresh_seconds)
            try:
                present = {topic for topic, _ in self._sources}
                new = [topic for topic in await self._matching() if topic not in present]
                for topic in new:
                    async with self._steering:
                        await self._subscribe_to([topic], requests.Start("earliest"))
            except NotFound:
                continue  # deleted between being listed and being subscribed to
            except DanubeError as error:
                if not worth_retrying(error):
                    self._fail(error)
                    return
                log.warning("consumer.refresh_failed", subscription=self.subscription, error=error.message)

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        topics = list(self._names)
        if self._patterns:
            topics += [topic for topic in await self._matching() if topic not in topics]
        await self._subscribe_to(topics, self._start)
        if self._patterns:
            self._tasks.spawn(self._watch(), f"watch topics for {self.subscription}")

    async def _finish(self) -> None:
        self._wake()
        if self._failure is None:
            await self.flush()

    async def _end(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._send_acks()
        await self._tasks.close()
        await asyncio.gather(*(source.detach() for source in self._sources.values()))
        self._discard(lambda _: True)
        self._wake()


def _acks_of(received: Message | ReceivedBatch) -> tuple[Acks, list[tuple[int, int]]]:
    """Where acks of it are gathered, and its offsets; or Invalid."""
    if isinstance(received, Message) and received._delivery.acks is not None:
        return received._delivery.acks, [(received.offset, received.offset + 1)]
    if isinstance(received, ReceivedBatch) and received.acks is not None:
        return received.acks, received.offset_ranges()
    raise Invalid(f"{received!r} was not received by a consumer: acks take its messages and batches")


def check_ackable(received: Message | ReceivedBatch) -> None:
    _acks_of(received)


def _split_topics(topics: str | Iterable[str]) -> tuple[list[str], list[str]]:
    """Full names, and patterns."""
    given = [topics] if isinstance(topics, str) else list(topics)
    if not given:
        raise Invalid("a consumer needs a topic, a list of topics, or a pattern such as /default/orders-*")
    names: list[str] = []
    patterns: list[str] = []
    for topic in given:
        if isinstance(topic, str) and is_pattern(topic):
            if topic.count("/") != 2 or not topic.startswith("/"):
                raise Invalid(f"pattern {topic!r} is not of full names: write it as /namespace/topic-*")
            patterns.append(topic)
        else:
            names.append(str(TopicName.parse(topic)))
    return list(dict.fromkeys(names)), patterns
