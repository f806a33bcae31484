"""The consumer: one queue over all partitions of its topics, acks gathered into few frames, sessions that come back.

The broker pushes within the credit it is given; what the user takes makes room for more. When a connection ends, what
was not acked comes again, and acks that were not confirmed are sent again.

Invariants
    an ack costs no round trip; `flush`, `close` and leaving the block wait until every ack is durable
    a failure of one partition that cannot heal (a takeover, a deleted topic) is raised by the next receive
"""

from __future__ import annotations

from collections.abc import Iterable

from pydanube.model.errors import Invalid
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.randomness import identity

from .acks import Acks
from .message import Message, ReceivedBatch
from .routing import Brokers
from .settings import ConsumerSettings
from .sources import Sources, Wish, is_pattern
from .stream import Stream
from .wire import AnyPosition, wire_start


class Consumer(Stream):
    """Receives through a subscription. Made by `client.consumer`; belongs to the loop it was opened on."""

    _what = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        topics: str | Iterable[str],
        subscription: str,
        type: str,  # noqa: A002  the word of the contract
        start: AnyPosition,
        name: str | None,
        settings: ConsumerSettings,
        create_topic: bool,
    ) -> None:
        super().__init__(brokers.clock)
        self.subscription = parse_subscription(subscription)
        self.type = SubscriptionType.parse(type)
        self.name = name or identity()
        names, patterns = _split_topics(topics)
        wish = Wish(names, patterns, self.subscription, self.type, wire_start(start), self.name, create_topic)
        self._sources = Sources(brokers, wish, settings, self._queue)

    @property
    def topics(self) -> list[str]:
        """The topics it receives from at present."""
        return self._sources.topics

    async def ack(self, received: Message | ReceivedBatch) -> None:
        """A message, or a batch of them, is done. Does not wait for the broker; see `flush`."""
        if type(received) is Message:
            acks = received._delivery.acks
            if acks is not None and acks.end == received.offset:  # the next one: its range grows
                acks.end = received.offset + 1
                return
        record_ack(received)

    async def ack_cumulative(self, received: Message | ReceivedBatch) -> None:
        """Everything of its partition up to and including this message (or batch) is done."""
        record_ack_cumulative(received)

    async def flush(self) -> None:
        """Wait until every ack so far is durable at the broker. Raises Unavailable after the client's timeout."""
        await self._sources.flush()

    async def seek(self, position: AnyPosition) -> None:
        """Move the subscription, on every partition of its topics: the next message received is from there.

        Durable on return. Acks of messages received before mean nothing afterwards. Cancelled, the subscription may
        have moved on some partitions.
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
    acks, ranges = acks_of(received)
    for start, end in ranges:
        acks.add(start, end)


def record_ack_cumulative(received: Message | ReceivedBatch) -> None:
    acks, ranges = acks_of(received)
    acks.add_below(ranges[-1][1])


def acks_of(received: Message | ReceivedBatch) -> tuple[Acks, list[tuple[int, int]]]:
    """Where acks of it are gathered, and its offsets; or Invalid."""
    if isinstance(received, Message) and received._delivery.acks is not None:
        return received._delivery.acks, [(received.offset, received.offset + 1)]
    if isinstance(received, ReceivedBatch) and received.acks is not None:
        return received.acks, received.offset_ranges()
    raise Invalid(f"{received!r} was not received by a consumer: acks take its messages and batches")


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
