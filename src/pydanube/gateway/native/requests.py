"""Control requests: from a struct off the wire to a call of the broker, and its result back to a struct.

Text becomes names, positions and types here and nowhere else in this listener. Each request has one function in the
table at the end; a test checks that no request of `codec.native.requests.AnyRequest` is missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydanube.broker import Attachment, Consumer, Producer, SectionRequest, StageRequest
from pydanube.broker.handlers import carry_out
from pydanube.broker.quotas.throttle import Throttle
from pydanube.codec.native import frames
from pydanube.codec.native import requests as wire
from pydanube.codec.native.frames import FrameKind
from pydanube.model.errors import DanubeError, Full, Invalid, NotFound, internal_error
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.topics import SubscriptionType
from pydanube.operations import Operation
from pydanube.runtime.telemetry import get_logger

if TYPE_CHECKING:
    from .session import Session

log = get_logger(__name__)

_MESSAGE_CHARACTERS_MAX: Final = 2_000
"""The longest error text that is sent; it may quote what the peer sent."""

_CONSUMER_CHARACTERS_MAX: Final = 200


async def perform(session: Session, request: wire.AnyRequest) -> bytes:
    """Carry out `request` and return the head of its answer.

    Cancelled: the broker's call may or may not have happened.
    """
    broker = session.broker
    if isinstance(request, Operation):
        found = await carry_out(broker, session.identity, request)
    else:
        if request.for_brokers:
            broker.check_is_peer(session.principal)
        found = await _TABLE[type(request)](session, request)
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


async def _open_producer(session: Session, request: wire.OpenProducer) -> wire.ProducerOpened:
    handle = session.new_handle()
    topic, schema_id, version = TopicName.parse(request.topic), 0, 0
    if request.subject:
        session.broker.check_may_publish(session.principal, topic)
        schema_id, version = await session.broker.schemas.choose(
            session.principal, topic, request.subject, request.schema_version, request.schema_version_min
        )
    producer = await session.broker.open_producer(
        session.principal,
        topic,
        request.partition,
        request.name,
        request.producer_id,
        request.producer_epoch,
        request.access,
        request.opener,
    )
    session.add_producer(handle, producer)
    return wire.ProducerOpened(
        handle, producer.producer_id, producer.producer_epoch, producer.owner_epoch, schema_id, version
    )


async def _open_forwarder(session: Session, request: wire.OpenForwarder) -> wire.ProducerOpened:
    handle, topic = session.new_handle(), TopicName.parse(request.topic)
    is_proven = session.broker.peer_requests.is_proven(session.principal, request.broker, request.proof)
    producer = await session.broker.open_forwarder(session.principal, topic, request.partition, is_proven)
    session.add_producer(handle, producer)
    return wire.ProducerOpened(handle, 0, 0, producer.owner_epoch)


async def _fence_producers(session: Session, request: wire.FenceProducers) -> wire.Done:
    session.broker.peer_requests.fence_producers(session.principal, request)
    return wire.Done()


async def _count_producers(session: Session, request: wire.CountProducers) -> wire.ProducerCount:
    return session.broker.peer_requests.count_producers(session.principal, request.topic_id)


async def _close_producer(session: Session, request: wire.CloseProducer) -> wire.Done:
    return _close(session.producers.pop(request.handle, None), "producer", request.handle)


async def _subscribe(session: Session, request: wire.Subscribe) -> wire.ConsumerOpened:
    if not 0 < len(request.consumer) <= _CONSUMER_CHARACTERS_MAX:
        raise Invalid(f"a consumer's name has 1 to {_CONSUMER_CHARACTERS_MAX} characters")
    sink = session.new_sink()
    attachment = Attachment(
        parse_subscription(request.subscription),
        request.consumer,
        SubscriptionType.parse(request.type) if request.type else None,
        request.start,
        request.priority,
        request.key_filters,
        request.failure_policy,
        unread=session.unread,
    )
    topic = TopicName.parse(request.topic)
    consumer = await session.broker.subscriptions.subscribe(
        session.principal, topic, request.partition, attachment, sink
    )
    session.add_consumer(sink, consumer)
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


async def _close_consumer(session: Session, request: wire.CloseConsumer) -> wire.Done:
    return _close(session.consumers.pop(request.handle, None), "consumer", request.handle)


def _close(opened: Producer | Consumer | None, what: str, handle: int) -> wire.Done:
    if opened is None:
        raise unknown_handle(what, handle)
    opened.close()
    return wire.Done()


def unknown_handle(what: str, handle: int) -> NotFound:
    return NotFound(f"this connection has no {what} with handle {handle}")


# -- staged writes -----------------------------------------------------------------------------------------------------


async def stage(session: Session, head: memoryview, body: memoryview) -> bytes:
    """Store the batches of a STAGE frame and return the head of its answer. Cancelled: they may be stored."""
    request = wire.decode(head, wire.Stage)
    sections = [SectionRequest(TopicName.parse(one.topic), one.partition, one.lengths) for one in request.sections]
    staged = StageRequest(
        request.query, request.run, request.batch_id, request.task, request.attempt, request.part, sections
    )
    throttle = session.broker.throttle
    if throttle.is_active:
        await _stage_within_quotas(session, throttle, sections, len(body))
    return wire.encode(wire.Staged(await session.broker.staging.stage(session.principal, staged, body)))


async def _stage_within_quotas(
    session: Session, throttle: Throttle, sections: Sequence[SectionRequest], body_bytes: int
) -> None:
    """Wait until the rates of quotas allow it to stage these batches. Raises Full for a topic that is full. The lengths
    are those that the client gives, which were not compared with the body yet."""
    sizes: dict[str, int] = {}
    for one in sections:
        session.broker.check_may_publish(session.principal, one.topic)
        throttle.check_stored(str(one.topic), one.topic.namespace)
        sizes[one.topic.namespace] = sizes.get(one.topic.namespace, 0) + sum(max(0, size) for size in one.lengths)
    for namespace, size_bytes in sizes.items():
        await throttle.stage(session.principal, namespace, min(size_bytes, body_bytes), session)


# -- the connection ----------------------------------------------------------------------------------------------------


async def _authenticate(session: Session, request: wire.Authenticate) -> wire.Authenticated:
    return wire.Authenticated(await session.reauthenticate(request.auth_scheme, request.auth_data))


_TABLE: Final[dict[type[wire.Request], Callable[[Session, Any], Awaitable[msgspec.Struct]]]] = {
    wire.OpenProducer: _open_producer,
    wire.OpenForwarder: _open_forwarder,
    wire.FenceProducers: _fence_producers,
    wire.CountProducers: _count_producers,
    wire.CloseProducer: _close_producer,
    wire.Subscribe: _subscribe,
    wire.CloseConsumer: _close_consumer,
    wire.Authenticate: _authenticate,
}
