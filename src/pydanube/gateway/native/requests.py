"""Control requests: from a struct off the wire to a call of the broker, and its result back to a struct.

Text becomes names, positions and types here and nowhere else in this listener. Each request has one function in the
table at the end; a test checks that no request of `codec.native.requests.AnyRequest` is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
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
from pydanube.broker.handlers import carry_out
from pydanube.broker.quotas.throttle import Throttle
from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import FrameKind
from pydanube.core.access import Principal
from pydanube.core.identity import Identity
from pydanube.model.errors import DanubeError, Full, Invalid, NotFound, internal_error
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.topics import SubscriptionType
from pydanube.operations import Operation
from pydanube.runtime.telemetry import get_logger

from .delivery import DeliverySink

log = get_logger(__name__)

_MESSAGE_CHARACTERS_MAX: Final = 2_000
"""The longest error text that is sent; it may quote what the peer sent."""

_CONSUMER_CHARACTERS_MAX: Final = 200


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
    if isinstance(request, Operation):
        found = await carry_out(broker, caller.identity, request)
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


# -- what brokers ask each other ---------------------------------------------------------------------------------------


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
    wire.OpenProducer: _open_producer,
    wire.OpenForwarder: _open_forwarder,
    wire.FenceProducers: _fence_producers,
    wire.CountProducers: _count_producers,
    wire.CloseProducer: _close_producer,
    wire.Subscribe: _subscribe,
    wire.CloseConsumer: _close_consumer,
    wire.Authenticate: _authenticate,
}
