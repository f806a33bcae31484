"""Control requests: from a struct off the wire to a call of the broker, and its result back to a struct.

Text becomes names, positions and types here and nowhere else in this listener. Each request has one function in the
table at the end; a test checks that no request of `codec.native.requests.AnyRequest` is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Protocol

import msgspec

from pydanube.broker import (
    Attachment,
    Broker,
    Consumer,
    Producer,
    SectionRequest,
    StageRequest,
    UnreadPart,
)
from pydanube.broker.handlers import Caller as OperationCaller
from pydanube.broker.handlers import carry_out
from pydanube.broker.quotas.throttle import Throttle
from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import Principal
from pydanube.core.identity import Identity
from pydanube.model.errors import DanubeError, Full, Invalid, NotFound, internal_error
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import TopicName, parse_namespace, parse_subscription
from pydanube.model.paging import TOPIC_NUMBERS, NamePage, Order, PageQuery, TopicPage
from pydanube.model.statistics import TopicSummary
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.operations import Operation
from pydanube.runtime.telemetry import get_logger

from .delivery import DeliverySink

log = get_logger(__name__)

_MESSAGE_CHARACTERS_MAX: Final = 2_000
"""The longest error text that is sent; it may quote what the peer sent."""

_CONSUMER_CHARACTERS_MAX: Final = 200
_GAPS_TOLD_MAX: Final = 1_000
"""The most gaps of one partition in an answer. Each crash of a `written` topic and each restore leaves one gap."""

_PARTITION_BYTES_MAX: Final = 136
_GAP_BYTES_MAX: Final = 19
"""The most bytes that a partition, and one of its gaps, take in the description of a topic."""


class Caller(Protocol):
    """What a request needs of the session it came from."""

    broker: Broker
    principal: Principal
    producers: dict[int, Producer]
    consumers: dict[int, Consumer]

    @property
    def unread(self) -> UnreadPart:
        """What was delivered to its consumers and waits until the client reads."""

    @property
    def identity(self) -> Identity: ...

    @property
    def is_closed(self) -> bool: ...

    async def reauthenticate(self, scheme: str, data: bytes) -> int: ...
    def new_handle(self) -> int: ...
    def new_sink(self) -> DeliverySink: ...
    def add_producer(self, handle: int, producer: Producer) -> None: ...
    def add_consumer(self, sink: DeliverySink, consumer: Consumer) -> None: ...


async def perform(caller: Caller, request: wire.AnyRequest) -> bytes:
    """Carry out `request` and return the head of its answer.

    Cancelled: the broker's call may or may not have happened.
    """
    broker = caller.broker
    with broker.freshness.checked():
        if isinstance(request, Operation):
            found = await carry_out(broker, OperationCaller(caller.principal, caller.identity), request)
        else:
            if request.for_brokers:
                broker.check_is_peer(caller.principal)
            found = await _TABLE[type(request)](caller, request)
        answer = wire.encode_aged(found, broker.freshness.age_s)
    if len(answer) > CONTROL_BYTES_MAX:
        raise Full(f"the answer has {len(answer)} bytes and a frame takes {CONTROL_BYTES_MAX}: ask for less at once")
    return answer


def resource_of(request: wire.AnyRequest) -> str:
    """Return the topic or namespace that a request is about, as rules of access name it; empty: neither."""
    topic = getattr(request, "topic", "") or getattr(request, "target", "")
    if topic:
        return str(topic)
    namespace = getattr(request, "namespace", "")
    return f"/{namespace}" if isinstance(namespace, str) and namespace else ""


def error_frame(correlation: int, error: DanubeError, handle: int = 0) -> bytes:
    failure = wire.Failure.of(error, handle)
    if len(failure.message) > _MESSAGE_CHARACTERS_MAX:
        failure.message = failure.message[:_MESSAGE_CHARACTERS_MAX] + " ..."
    return frames.encode(FrameKind.ERROR, wire.encode(failure), correlation)


def crashed(what: str, error: Exception) -> DanubeError:
    """Log an unexpected exception and return the error that the client is sent for it."""
    log.error("native.request_crashed", what=what, exc_info=error)
    return internal_error(what, error)


# -- topics and namespaces ---------------------------------------------------------------------------------------------


async def _lookup(caller: Caller, request: wire.Lookup) -> wire.Route:
    topic = await caller.broker.lookup(caller.principal, TopicName.parse(request.topic), request.create)
    partitions = [wire.PartitionRoute(one.index, one.owner, one.epoch) for one in topic.partitions]
    config = topic.config
    return wire.Route(
        topic.name,
        topic.topic_id,
        config.partitions > 0,
        config.reliable,
        str(config.ack_level),
        partitions,
        topic.brokers,
    )


async def _create_topic(caller: Caller, request: wire.CreateTopic) -> wire.Done:
    config = TopicConfig(request.partitions, request.reliable, AckLevel.parse(request.ack_level))
    topic = TopicName.parse(request.topic)
    await caller.broker.create_topic(caller.principal, topic, config, choose_level=request.choose_level)
    return wire.Done()


async def _list_topics(caller: Caller, request: wire.ListTopics) -> NamePage:
    namespace = parse_namespace(request.namespace) if request.namespace else None
    return NamePage(await caller.broker.list_topics(caller.principal, namespace))


async def _list_topic_page(caller: Caller, request: wire.ListTopicPage) -> wire.TopicsListed:
    namespace = parse_namespace(request.namespace) if request.namespace else None
    query = PageQuery(filter=request.filter, sort=request.sort, limit=request.limit, after=request.after)
    page = await caller.broker.listing.topics(caller.principal, query, namespace)
    page = cut_page(page, query.order(TOPIC_NUMBERS), CONTROL_BYTES_MAX - wire.ANSWER_BYTES_KEPT)
    return wire.TopicsListed(page.topics, page.next)


def cut_page(page: TopicPage, order: Order, bytes_max: int) -> TopicPage:
    """Return a page with as many topics as fit `bytes_max`, but at least one: without its subscriptions, if it does not
    fit with them."""
    for count, one in enumerate(page.topics):
        bytes_max -= len(msgspec.msgpack.encode(one))
        if bytes_max < 0:
            if count:
                return TopicPage.of(page.topics[:count], order, more=True)
            alone = TopicPage.of([one], order, more=len(page.topics) > 1 or bool(page.next))
            return TopicPage([replace(one, subscriptions=[])], alone.next)
    return page


async def _describe_topic(caller: Caller, request: wire.DescribeTopic) -> wire.Topic:
    topic = await caller.broker.describe_topic(caller.principal, TopicName.parse(request.topic), request.own_only)
    gaps_max = _gaps_told(len(topic.partitions))
    infos = [
        wire.PartitionInfo(
            one.index,
            one.owner,
            one.epoch,
            one.start_offset,
            one.end_offset,
            one.ledgers,
            one.stored_bytes,
            one.health,
            one.missing_offsets if gaps_max else 0,
            one.gaps.largest(gaps_max).ranges,
            one.is_known,
        )
        for one in topic.partitions
    ]
    config = topic.config
    return wire.Topic(
        topic.name,
        topic.topic_id,
        config.partitions,
        config.reliable,
        str(config.ack_level),
        infos,
        topic.subscriptions,
        topic.brokers,
        topic.version,
    )


def _gaps_told(partitions: int) -> int:
    """Return how many gaps of each partition fit an answer: none for a topic with more than 6,700 partitions."""
    room = CONTROL_BYTES_MAX - partitions * _PARTITION_BYTES_MAX
    return max(0, min(_GAPS_TOLD_MAX, room // _GAP_BYTES_MAX // max(1, partitions)))


async def _salvage_topic(caller: Caller, request: wire.SalvageTopic) -> wire.Salvaged:
    topic, to = TopicName.parse(request.topic), TopicName.parse(request.to)
    step = await caller.broker.leftovers.salvage(
        caller.principal, topic, request.partition, to, request.broker, request.drop, request.own_only
    )
    return wire.Salvaged(step)


async def _grow_topic(caller: Caller, request: wire.GrowTopic) -> wire.Done:
    topic = TopicName.parse(request.topic)
    await caller.broker.grow_topic(caller.principal, topic, request.partitions, request.expected)
    return wire.Done()


# -- producers and consumers -------------------------------------------------------------------------------------------


async def _open_producer(caller: Caller, request: wire.OpenProducer) -> wire.ProducerOpened:
    handle = caller.new_handle()
    topic, schema_id, version = TopicName.parse(request.topic), 0, 0
    if request.subject:
        caller.broker.check_may_publish(caller.principal, topic)
        schema_id, version = await caller.broker.schemas.choose(
            caller.principal, topic, request.subject, request.schema_version, request.schema_version_min
        )
    producer = await caller.broker.open_producer(
        caller.principal,
        topic,
        request.partition,
        request.name,
        request.producer_id,
        request.producer_epoch,
        request.access,
        request.opener,
    )
    caller.add_producer(handle, producer)
    return wire.ProducerOpened(
        handle, producer.producer_id, producer.producer_epoch, producer.owner_epoch, schema_id, version
    )


async def _open_forwarder(caller: Caller, request: wire.OpenForwarder) -> wire.ProducerOpened:
    handle, topic = caller.new_handle(), TopicName.parse(request.topic)
    is_proven = caller.broker.peer_requests.is_proven(caller.principal, request.broker, request.proof)
    producer = await caller.broker.open_forwarder(caller.principal, topic, request.partition, is_proven)
    caller.add_producer(handle, producer)
    return wire.ProducerOpened(handle, 0, 0, producer.owner_epoch)


async def _fence_producers(caller: Caller, request: wire.FenceProducers) -> wire.Done:
    caller.broker.peer_requests.fence_producers(caller.principal, request)
    return wire.Done()


async def _count_producers(caller: Caller, request: wire.CountProducers) -> wire.ProducerCount:
    return caller.broker.peer_requests.count_producers(caller.principal, request.topic_id)


async def _ask_topic_use(caller: Caller, request: wire.AskTopicUse) -> wire.TopicUse:
    return wire.TopicUse(caller.broker.peer_requests.topic_use(caller.principal, request))


async def _close_producer(caller: Caller, request: wire.CloseProducer) -> wire.Done:
    producer = caller.producers.pop(request.handle, None)
    if producer is None:
        raise NotFound(f"this connection has no producer with handle {request.handle}")
    producer.close()
    return wire.Done()


async def _subscribe(caller: Caller, request: wire.Subscribe) -> wire.ConsumerOpened:
    if not 0 < len(request.consumer) <= _CONSUMER_CHARACTERS_MAX:
        raise Invalid(f"a consumer's name has 1 to {_CONSUMER_CHARACTERS_MAX} characters")
    sink = caller.new_sink()
    attachment = Attachment(
        parse_subscription(request.subscription),
        request.consumer,
        SubscriptionType.parse(request.type) if request.type else None,
        request.start,
        request.priority,
        request.key_filters,
        request.failure_policy,
        unread=caller.unread,
    )
    topic = TopicName.parse(request.topic)
    consumer = await caller.broker.subscriptions.subscribe(caller.principal, topic, request.partition, attachment, sink)
    caller.add_consumer(sink, consumer)
    return wire.ConsumerOpened(
        sink.handle,
        consumer.subscription_id,
        consumer.position,
        consumer.created,
        consumer.owner_epoch,
        consumer.ack_timeout_ms,
        str(consumer.type),
        consumer.generation,
        consumer.generation,
    )


async def _close_consumer(caller: Caller, request: wire.CloseConsumer) -> wire.Done:
    consumer = caller.consumers.pop(request.handle, None)
    if consumer is None:
        raise NotFound(f"this connection has no consumer with handle {request.handle}")
    consumer.close()
    return wire.Done()


# -- subscriptions, positions, the broker ------------------------------------------------------------------------------


async def _find_offset(caller: Caller, request: wire.FindOffset) -> wire.Offset:
    topic, position = TopicName.parse(request.topic), request.position
    offset = await caller.broker.find_offset(caller.principal, topic, request.partition, position, request.own_only)
    return wire.Offset(offset)


async def _topic_statistics(caller: Caller, request: wire.GetStatistics) -> wire.StatisticsReport:
    topic = TopicName.parse(request.topic)
    return wire.StatisticsReport(await caller.broker.statistics.topic(caller.principal, topic, request.own_only))


# -- what brokers ask each other ---------------------------------------------------------------------------------------


async def _summarize_topics(caller: Caller, request: wire.SummarizeTopics) -> wire.TopicsListed:
    names = [TopicName.parse(one) for one in request.topics]
    found: list[TopicSummary] = []
    left = CONTROL_BYTES_MAX - wire.ANSWER_BYTES_KEPT
    async with aclosing(caller.broker.statistics.summaries(caller.principal, names)) as summaries:
        async for one in summaries:
            left -= len(msgspec.msgpack.encode(one))
            if left < 0 and found:
                return wire.TopicsListed(found, found[-1].topic)
            found.append(one if left >= 0 else replace(one, subscriptions=[]))
    return wire.TopicsListed(found)


# -- staged writes -----------------------------------------------------------------------------------------------------


async def stage(caller: Caller, head: memoryview, body: memoryview) -> bytes:
    """Store the batches of a STAGE frame and return the head of its answer. Cancelled: they may be stored."""
    request = wire.decode(head, wire.Stage)
    sections = [SectionRequest(TopicName.parse(one.topic), one.partition, one.lengths) for one in request.sections]
    staged = StageRequest(
        request.query, request.run, request.batch_id, request.task, request.attempt, request.part, sections
    )
    throttle = caller.broker.throttle
    if throttle.is_active:
        await _stage_within_quotas(caller, throttle, sections, len(body))
    with caller.broker.freshness.checked():
        return wire.encode(wire.Staged(await caller.broker.staging.stage(caller.principal, staged, body)))


async def _stage_within_quotas(
    caller: Caller, throttle: Throttle, sections: Sequence[SectionRequest], body_bytes: int
) -> None:
    """Wait until the rates of quotas allow it to stage these batches. Raises Full for a topic that is full. The lengths
    are those that the client gives, which were not compared with the body yet."""
    sizes: dict[str, int] = {}
    for one in sections:
        caller.broker.check_may_publish(caller.principal, one.topic)
        throttle.check_stored(str(one.topic), one.topic.namespace)
        sizes[one.topic.namespace] = sizes.get(one.topic.namespace, 0) + sum(max(0, size) for size in one.lengths)
    for namespace, size_bytes in sizes.items():
        await throttle.stage(caller.principal, namespace, min(size_bytes, body_bytes), caller)


# -- the connection ----------------------------------------------------------------------------------------------------


async def _authenticate(caller: Caller, request: wire.Authenticate) -> wire.Authenticated:
    return wire.Authenticated(await caller.reauthenticate(request.auth_scheme, request.auth_data))


_TABLE: Final[dict[type[wire.Request], Callable[[Caller, Any], Awaitable[msgspec.Struct]]]] = {
    wire.Lookup: _lookup,
    wire.CreateTopic: _create_topic,
    wire.ListTopics: _list_topics,
    wire.ListTopicPage: _list_topic_page,
    wire.SummarizeTopics: _summarize_topics,
    wire.DescribeTopic: _describe_topic,
    wire.GrowTopic: _grow_topic,
    wire.SalvageTopic: _salvage_topic,
    wire.OpenProducer: _open_producer,
    wire.OpenForwarder: _open_forwarder,
    wire.FenceProducers: _fence_producers,
    wire.CountProducers: _count_producers,
    wire.AskTopicUse: _ask_topic_use,
    wire.CloseProducer: _close_producer,
    wire.Subscribe: _subscribe,
    wire.CloseConsumer: _close_consumer,
    wire.FindOffset: _find_offset,
    wire.GetStatistics: _topic_statistics,
    wire.Authenticate: _authenticate,
}
