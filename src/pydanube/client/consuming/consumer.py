"""The consumer: one queue over all partitions of its topics, acks gathered into few frames, sessions that come back.

The broker pushes within the credit it is given; what the user takes makes room for more. When a connection ends, what
was not acked comes again, and acks that were not confirmed are sent again.

A message that cannot be managed is given back with `nack`: the subscription's failure policy says when it comes again,
and what becomes of it when it fails too often. With an ack timeout, a message that the application took and has not
settled in time is given back by itself; one that was only sent ahead is not.

Invariants
    an ack or a nack costs no round trip; `flush`, `close` and leaving the block wait until every ack is durable
    a failure of one partition that cannot heal (a takeover, a deleted topic) is raised by the next receive
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass

from pydanube.client.connection.routing import Brokers
from pydanube.client.positions import AnyPosition, wire_start
from pydanube.client.settings import ConsumerSettings, check_count, check_number, is_utf8
from pydanube.model.errors import Invalid, Refused
from pydanube.model.failure import DELAY_MS_MAX, REASON_CHARACTERS_MAX, FailurePolicy
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.randomness import identity

from .acks import Acks
from .message_stream import MessageStream
from .messages import Message, ReceivedBatch
from .partition_sources import PartitionSources, SubscribeOptions, is_pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """What a user said about a consumer, not yet checked."""

    subscription: str
    type: str | None
    start: AnyPosition
    name: str | None
    priority: int
    key_filters: Iterable[str]
    failure_policy: FailurePolicy | None
    ack_timeout: float | None
    create_topic: bool


class Consumer(MessageStream):
    """Receives through a subscription. Made by `client.consumer`; belongs to the loop it was opened on."""

    _what = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        topics: str | Iterable[str],
        wanted: ConsumerOptions,
        settings: ConsumerSettings,
    ) -> None:
        super().__init__(brokers.clock)
        self.subscription = parse_subscription(wanted.subscription)
        self._type = None if wanted.type is None else SubscriptionType.parse(wanted.type)
        self.name = _checked_name(wanted.name) or identity()
        names, patterns = _split_topics(topics)
        self._sources = PartitionSources(brokers, self._wish(names, patterns, wanted), settings, self._queue)

    def _wish(self, names: list[str], patterns: list[str], wanted: ConsumerOptions) -> SubscribeOptions:
        check_count("priority", wanted.priority, 0, 2**31 - 1)
        if wanted.priority and self._type not in (None, SubscriptionType.FAILOVER):
            raise Invalid(f"priority belongs to failover subscriptions, this one is {self._type}")
        if wanted.ack_timeout is not None:
            check_number("ack_timeout", wanted.ack_timeout, 0, DELAY_MS_MAX / 1_000)
        if wanted.failure_policy is not None and not isinstance(wanted.failure_policy, FailurePolicy):
            raise Invalid(f"failure_policy={wanted.failure_policy!r} is none: use pydanube.FailurePolicy(...)")
        return SubscribeOptions(
            names,
            patterns,
            self.subscription,
            self._type,
            wire_start(wanted.start),
            self.name,
            wanted.create_topic,
            wanted.priority,
            _filters(wanted.key_filters, self._type),
            wanted.failure_policy,
            wanted.ack_timeout,
        )

    @property
    def type(self) -> SubscriptionType | None:
        """Of the subscription: what was asked for, or, once it is open, what it turned out to be."""
        return self._sources.type if self._type is None else self._type

    @property
    def topics(self) -> list[str]:
        """The topics it receives from at present."""
        return self._sources.topics

    async def ack(self, received: Message | ReceivedBatch) -> None:
        """A message, or a batch of them, is done. Does not wait for the broker; see `flush`.

        Refused once the consumer that received it is closed, or has failed: the message comes again.
        """
        if type(received) is Message:
            acks = received._delivery.acks
            if acks is not None and acks.end == received.offset:  # the next one: its range grows
                acks.end = received.offset + 1
                return
        record_ack(received)

    async def ack_cumulative(self, received: Message | ReceivedBatch) -> None:
        """Everything of its partition up to and including this message (or batch) is done.

        Refused on shared and key-shared subscriptions, where others have messages from between.
        """
        self._check_cumulative(received)
        record_ack_cumulative(received)

    async def nack(self, received: Message | ReceivedBatch, delay: float | None = None, reason: str = "") -> None:
        """A message, or a batch of them, was not managed: it comes again. Does not wait for the broker.

        delay       seconds until then; None: as the subscription's failure policy says, longer with each failure
        reason      shown by `message.failure_reason` when it comes again, and by its dead letter

        Counts as a failure: after as many redeliveries as the failure policy allows the message becomes a dead letter,
        is dropped, or blocks. Takes back an ack of it that has not been sent yet.
        """
        record_nack(received, *checked_nack(delay, reason))

    def _check_cumulative(self, received: Message | ReceivedBatch) -> None:
        kind = self._type
        if kind is None and isinstance(received, Message | ReceivedBatch):
            kind = self._sources.type_of(received.topic)
        if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            raise Refused(f"a {kind} subscription has no cumulative ack: others hold messages from between, use ack")

    async def flush(self) -> None:
        """Wait until every ack so far is durable at the broker. Raises Unavailable after the client's timeout."""
        self._check_open()
        await self._sources.flush()

    async def seek(self, position: AnyPosition) -> None:
        """Move the subscription, on every partition of its topics: the next message received is from there.

        Durable on return. Acks and nacks of messages received before mean nothing afterwards, in whichever consumer of
        the subscription. Cancelled, the subscription may have moved on some partitions.
        """
        start = wire_start(position)
        self._check_open()
        await self._sources.seek(start)

    # -- beginning and end -------------------------------------------------------------------------------------------

    def _taken(self, batch: ReceivedBatch) -> None:
        if self._sources.taken(batch):
            self._pause_due = True  # credit leaves when the loop runs

    async def _begin(self) -> None:
        await self._sources.open()

    async def _finish(self) -> None:
        self._queue.wake()
        if self._queue.failure is None:
            await self._sources.flush()

    async def _end(self) -> None:
        await self._sources.close()
        self._queue.close()


def record_ack(received: Message | ReceivedBatch) -> None:
    """`Consumer.ack`, for code on the loop's thread that is no coroutine."""
    if isinstance(received, ReceivedBatch) and received.is_scattered:
        acks = received.acks
        if acks is not None and acks.closed is None and acks.unsettled is None:
            acks.add_scattered(received.offsets)
            return
    acks, ranges = acks_of(received)
    acks.add_many(ranges)


def record_ack_cumulative(received: Message | ReceivedBatch) -> None:
    acks, ranges = acks_of(received)
    acks.add_below(ranges[-1][1])


def record_nack(received: Message | ReceivedBatch, delay_ms: int, reason: str) -> None:
    acks, ranges = acks_of(received)
    acks.nack(ranges, delay_ms, reason)


def checked_nack(delay: float | None, reason: str) -> tuple[int, str]:
    """Delay in milliseconds (-1: the policy's) and reason, as they travel; or Invalid."""
    if delay is not None:
        check_number("delay", delay, 0, DELAY_MS_MAX / 1_000)
    if not isinstance(reason, str):
        raise Invalid(f"reason {reason!r} is not text")
    written = reason.encode("utf-8", "backslashreplace").decode()  # an OSError may quote a file name that is no text
    return -1 if delay is None else round(delay * 1_000), written[:REASON_CHARACTERS_MAX]


def acks_of(received: Message | ReceivedBatch) -> tuple[Acks, list[tuple[int, int]]]:
    """Where acks of it are gathered, and its offsets; or Invalid, or why its consumer cannot take them any more."""
    acks: Acks | None = None
    if isinstance(received, Message):
        acks, ranges = received._delivery.acks, [(received.offset, received.offset + 1)]
    elif isinstance(received, ReceivedBatch):
        acks, ranges = received.acks, received.offset_ranges()
    if isinstance(received, list | tuple):
        raise Invalid("acks and nacks take one message or one batch: call them for each, or receive batches")
    if acks is None:
        raise Invalid(f"{received!r} was not received by a consumer: acks and nacks take its messages and batches")
    if acks.closed is not None:
        raise copy(acks.closed)
    return acks, ranges


def _checked_name(name: str | None) -> str | None:
    if name is not None and not is_utf8(name):
        raise Invalid(f"consumer name {name!r} is not text that can be written as UTF-8")
    return name


def _filters(given: Iterable[str], kind: SubscriptionType | None) -> Sequence[str]:
    filters = [given] if isinstance(given, str) else list(given)
    if filters and kind not in (None, SubscriptionType.KEY_SHARED):
        raise Invalid(f"key_filters belong to key-shared subscriptions, this one is {kind}")
    for one in filters:
        if not one or not is_utf8(one):
            raise Invalid(f"key filter {one!r} is not a glob such as 'user-*'")
    return filters


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
