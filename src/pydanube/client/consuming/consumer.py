"""The consumer: receives from all partitions of its topics through one queue, and reconnects by itself.

The broker pushes messages within the credit it is granted; messages that the user takes make new credit available.
After a disconnect the broker redelivers what was not acked, and acks that were not confirmed are sent again.

An application that cannot process a message nacks it: the failure policy of the subscription says when it is
redelivered, and what happens if it fails too often. With an ack timeout, a message that the application has received
and neither acked nor nacked in time is nacked automatically; prefetched messages are not.

Invariants
    an ack or a nack costs no round trip; `flush`, `close` and leaving the block wait until every ack is durable
    a permanent failure of one partition (a takeover by another consumer, a deleted topic) is raised by the next receive
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from pydanube.client.connection.routing import Brokers, close_limit_reason
from pydanube.client.positions import AnyPosition
from pydanube.client.settings import ConsumerSettings, check_count, check_number, is_utf8
from pydanube.client.typed.value_reader import ValueReader
from pydanube.client.typed.value_type import ValueT
from pydanube.codec.native.requests import Reply
from pydanube.model.errors import Invalid, Refused, Unavailable
from pydanube.model.failure import DELAY_MS_MAX, REASON_CHARACTERS_MAX, FailurePolicy
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.positions import Position
from pydanube.model.replies import ReplyHead
from pydanube.model.topics import SubscriptionType, SubscriptionTypeName
from pydanube.runtime.randomness import identity

from .acks import Acks
from .message_stream import MessageStream
from .messages import Message, ReceivedBatch
from .partition_sources import PartitionSources, SubscribeOptions, is_pattern
from .responding import answer_head, answer_payload, failure_head, inbox_of

AnyReceived = Message[Any] | ReceivedBatch[Any]
"""What can be acked and nacked."""

TOPICS_SHOWN: Final = 3
"""How many topics the repr of a consumer names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """The options of a consumer as the user passed them, not checked; see `Client.consumer`."""

    subscription: str
    type: SubscriptionTypeName | None
    start: AnyPosition
    name: str | None
    priority: int
    key_filters: Iterable[str]
    failure_policy: FailurePolicy | None
    ack_timeout: float | None
    create_topic: bool


class Consumer(MessageStream[ValueT]):
    """Receives messages through a subscription. Made by `client.consumer`; used on the event loop that opened it."""

    _what = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        topics: str | Iterable[str],
        options: ConsumerOptions,
        settings: ConsumerSettings,
        values: ValueReader[ValueT] | None = None,
    ) -> None:
        super().__init__(brokers.clock, values)
        self._brokers = brokers
        self.subscription = parse_subscription(options.subscription)
        self._type = None if options.type is None else SubscriptionType.parse(options.type)
        self.name = _checked_name(options.name) or identity()
        names, patterns = _split_topics(topics)
        self._given = (*names, *patterns)
        self._sources = PartitionSources(brokers, self._checked(names, patterns, options), settings, self._queue)

    def _checked(self, names: list[str], patterns: list[str], options: ConsumerOptions) -> SubscribeOptions:
        check_count("priority", options.priority, 0, 2**31 - 1)
        if options.priority and self._type not in (None, SubscriptionType.FAILOVER):
            raise Invalid(f"priority belongs to failover subscriptions, this one is {self._type}")
        if options.ack_timeout is not None:
            check_number("ack_timeout", options.ack_timeout, 0, DELAY_MS_MAX / 1_000)
        if options.failure_policy is not None and not isinstance(options.failure_policy, FailurePolicy):
            raise Invalid(f"failure_policy={options.failure_policy!r} is none: use pydanube.FailurePolicy(...)")
        return SubscribeOptions(
            names,
            patterns,
            self.subscription,
            self._type,
            Position.parse(options.start),
            self.name,
            options.create_topic,
            options.priority,
            _checked_filters(options.key_filters, self._type),
            options.failure_policy,
            options.ack_timeout,
        )

    def _describe(self) -> str:
        topics = self.topics or list(self._given)
        more = f" and {len(topics) - TOPICS_SHOWN} more" if len(topics) > TOPICS_SHOWN else ""
        kind = f" type={self.type}" if self.type is not None else ""
        state = self._state if self._queue.failure is None else "failed"
        if self._sources.waiting:
            state += f", {self._sources.waiting} partitions wait for their broker"
        shown = ", ".join(topics[:TOPICS_SHOWN])
        return f"subscription={self.subscription!r}{kind} name={self.name!r} of {shown}{more} {state}"

    @property
    def type(self) -> SubscriptionType | None:
        """The type of the subscription: the one asked for; if none was, that of the subscription, known once open."""
        return self._sources.type if self._type is None else self._type

    @property
    def topics(self) -> list[str]:
        """The topics that the consumer receives from at present."""
        return self._sources.topics

    async def ack(self, received: AnyReceived) -> None:
        """Acknowledge a message, or all messages of a batch. Does not wait for the broker; see `flush`.

        Raises Refused if the consumer that received it is closed or has failed: the message is redelivered.
        """
        if type(received) is Message:
            acks = received._delivery.acks
            if acks is not None and acks.end == received.offset:  # the next offset: extend the range
                acks.end = received.offset + 1
                return
        record_ack(received)

    async def ack_cumulative(self, received: AnyReceived) -> None:
        """Acknowledge every message of the partition up to and including this message or batch.

        Raises Refused on shared and key-shared subscriptions, where other consumers hold some of those messages.
        """
        self._check_cumulative(received)
        record_ack_cumulative(received)

    async def nack(self, received: AnyReceived, delay: float | None = None, reason: str = "") -> None:
        """Return a message, or all messages of a batch, for redelivery. Does not wait for the broker.

        delay       seconds until the redelivery; None: the subscription's failure policy decides, longer each time
        reason      shown by `failure_reason` of the redelivered message, and by its dead letter

        A nack counts as a failure: after as many redeliveries as the failure policy allows, the message is
        dead-lettered, dropped, or blocks the subscription. A nack withdraws an ack that has not been sent yet.
        """
        record_nack(received, *checked_nack(delay, reason))

    async def reject(self, received: AnyReceived, reason: str = "") -> None:
        """Give up a message, or all messages of a batch, that no further try can process. Does not wait for the broker.

        The subscription's failure policy does at once what it does after the last try: it publishes the message to the
        dead letter topic with `reason`, drops it, or blocks the subscription if there is no dead letter topic. A broker
        of an earlier release takes this as a `nack`.
        """
        record_reject(received, checked_reason(reason))

    async def respond(
        self, message: Message[Any], answer: object, *, attributes: Mapping[str, str] | None = None
    ) -> None:
        """Answer a request: a message whose caller waits in `client.request` or `client.gather`.

        answer      bytes, or a value of a class that `schema` of a consumer could be

        Does not wait for the caller, which may be gone, and does not acknowledge the message. A caller of `request`
        gets the first answer only. Raises Invalid if the message is no request.
        """
        await self._reply(message, answer_head(attributes), answer_payload(answer))

    async def respond_error(self, message: Message[Any], error: str | BaseException, kind: str = "") -> None:
        """Answer a request with an error: its caller's `request` raises RequestFailed with this text. Otherwise as
        `respond`.

        kind        what kind of error it is, for the caller to look at; by default the name of the exception
        """
        await self._reply(message, failure_head(error, kind), b"")

    async def _reply(self, message: Message[Any], head: ReplyHead, payload: bytes) -> None:
        """Send a reply to the broker that delivered the request; if that is away, any other one takes it there."""
        reply = Reply(inbox_of(message), len(payload), head)
        self._check_open()
        connection = self._sources.connection_of(message.topic, message.partition)
        if connection is None:
            connection = await self._brokers.retrying(self._brokers.connect_any)
        connection.reply(reply, payload)

    def _check_cumulative(self, received: AnyReceived) -> None:
        kind = self._type
        if kind is None and isinstance(received, Message | ReceivedBatch):
            kind = self._sources.type_of(received.topic)
        if kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            raise Refused(f"a {kind} subscription has no cumulative ack: others hold messages from between, use ack")

    async def flush(self) -> None:
        """Wait until every ack so far is durable at its broker. Raises Unavailable after the client's timeout."""
        self._check_open()
        await self._sources.flush()

    async def seek(self, position: AnyPosition) -> None:
        """Move the subscription to `position` on every partition of its topics; receiving continues from there.

        Durable on return. Acks and nacks of messages that any consumer of the subscription received before have no
        effect afterwards. Cancelled, the subscription may have moved on some partitions only.
        """
        start = Position.parse(position)
        self._check_open()
        await self._sources.seek(start)

    # -- beginning and end -------------------------------------------------------------------------------------------

    def _batch_begun(self, batch: ReceivedBatch[ValueT]) -> None:
        if self._sources.consumed(batch):
            self._pause_due = True  # the credit is sent when the event loop runs

    async def _begin(self) -> None:
        if self._values is not None:
            await self._values.open()
        await self._sources.open()

    async def _finish(self, timeout: float | None) -> None:
        self._queue.wake()
        if self._queue.failure is not None:
            return
        try:
            async with self._brokers.close_limit(timeout):
                await self._sources.flush()
        except TimeoutError:
            self._sources.abandon()
            raise Unavailable(
                f"acks were not confirmed before the consumer was closed: {close_limit_reason(timeout)}; "
                f"these messages may be redelivered"
            ) from None

    async def _end(self) -> None:
        await self._sources.close()
        self._queue.close()


def record_ack(received: AnyReceived) -> None:
    """Do what `Consumer.ack` does, for callers on the event loop's thread that are not coroutines."""
    if isinstance(received, ReceivedBatch) and received.is_scattered:
        acks = received.acks
        if acks is not None and acks.closed is None and acks.timeouts is None:
            acks.add_scattered(received.offsets)
            return
    acks, ranges = acks_of(received)
    acks.add_many(ranges)


def record_ack_cumulative(received: AnyReceived) -> None:
    acks, ranges = acks_of(received)
    acks.add_cumulative(ranges[-1][1])


def record_nack(received: AnyReceived, delay_ms: int, reason: str) -> None:
    acks, ranges = acks_of(received)
    acks.nack(ranges, delay_ms, reason)


def record_reject(received: AnyReceived, reason: str) -> None:
    acks, ranges = acks_of(received)
    acks.nack(ranges, -1, reason, reject=True)


def checked_nack(delay: float | None, reason: str) -> tuple[int, str]:
    """Return the delay in milliseconds (-1: the failure policy decides) and the reason to send. Raises Invalid."""
    if delay is not None:
        check_number("delay", delay, 0, DELAY_MS_MAX / 1_000)
    return -1 if delay is None else round(delay * 1_000), checked_reason(reason)


def checked_reason(reason: str) -> str:
    """Return the reason of a failure as it is sent. Raises Invalid."""
    if not isinstance(reason, str):
        raise Invalid(f"reason {reason!r} is not text")
    # the text of an OSError may quote a file name that is not UTF-8
    return reason.encode("utf-8", "backslashreplace").decode()[:REASON_CHARACTERS_MAX]


def acks_of(received: AnyReceived) -> tuple[Acks, list[tuple[int, int]]]:
    """Return the `Acks` that `received` belongs to, and its offsets.

    Raises Invalid if a consumer did not receive it, and the reason if its consumer cannot ack any more.
    """
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


def _checked_filters(given: Iterable[str], kind: SubscriptionType | None) -> Sequence[str]:
    filters = [given] if isinstance(given, str) else list(given)
    if filters and kind not in (None, SubscriptionType.KEY_SHARED):
        raise Invalid(f"key_filters belong to key-shared subscriptions, this one is {kind}")
    for one in filters:
        if not one or not is_utf8(one):
            raise Invalid(f"key filter {one!r} is not a glob such as 'user-*'")
    return filters


def _split_topics(topics: str | Iterable[str]) -> tuple[list[str], list[str]]:
    """Split the topics that the user passed into full names and patterns. Raises Invalid."""
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
