"""The service `danube.ConsumerService`: subscribes, streams messages to consumers, takes acks and nacks.

Existing clients open a stream that ended again at once, so every end that the broker decides on is sent late, and
always as UNAVAILABLE: some clients take a stream that ended well for the end of their work.
"""

from __future__ import annotations

from typing import Any, Final

from pydanube.broker import Broker, UnreadPart
from pydanube.core.access import Action
from pydanube.model.errors import DanubeError, Invalid, Unavailable
from pydanube.model.failure import DELAY_MS_MAX
from pydanube.model.names import TopicAddress, parse_subscription
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.randomness import seeded

from .calls import Call
from .consumer_stream import MADE_TIMES, ConsumerStream
from .messages import API
from .resources import BrokerService, ListenerResources

REFUSED_AFTER_S: Final = (0.5, 1.0)
"""A refused or ended stream is reported to its client after a random time in this range."""

OFFSET_MAX: Final = 2**63 - 1

_ConsumerResponse: Final = API["ConsumerResponse"]
_AckResponse: Final = API["AckResponse"]
_NackResponse: Final = API["NackResponse"]


class ConsumerService(BrokerService):
    """Serves `danube.ConsumerService`."""

    def __init__(self, broker: Broker, resources: ListenerResources) -> None:
        super().__init__(broker, resources)
        self._streams: dict[int, ConsumerStream] = {}
        """By consumer id: the stream that gets the messages."""
        self._random = seeded()
        self._draining = False

    async def subscribe(self, call: Call, request: Any) -> Any:
        address = TopicAddress.parse(request.topic_name)
        try:
            kind = SubscriptionType(request.subscription_type)
        except ValueError:
            raise Invalid(f"subscription type {request.subscription_type} is unknown: use 0 to 3") from None
        name, filters = request.consumer_name, tuple(request.key_filters)
        sessions = self._broker.consumer_sessions
        number = await sessions.subscribe(call.principal, address, request.subscription, name, kind, filters)
        return _ConsumerResponse(request_id=request.request_id, consumer_id=number, consumer_name=name)

    async def receive_messages(self, call: Call, request: Any) -> None:
        """Stream messages until the client or the broker ends it. Cancelled: the client is gone, and what it had not
        acked is delivered again."""
        try:
            await self._stream(call, request.consumer_id)
        except DanubeError as error:
            if not self._draining:
                await self._resources.clock.sleep(self._random.uniform(*REFUSED_AFTER_S))
            raise error

    async def _stream(self, call: Call, consumer_id: int) -> None:
        sessions = self._broker.consumer_sessions
        record = sessions.find(consumer_id)
        if record is None:
            raise Unavailable(f"consumer {consumer_id} is not known: subscribe again")
        url, limit = self._resources.data_url(), self._resources.settings.receive_bytes_max
        unread = self._broker.unread.part(call.principal, MADE_TIMES)
        stream = ConsumerStream(call, record, self._resources.clock, url, limit, unread)
        try:
            await self._run(call, consumer_id, stream, unread)
        finally:
            unread.close()

    async def _run(self, call: Call, consumer_id: int, stream: ConsumerStream, unread: UnreadPart) -> None:
        sessions = self._broker.consumer_sessions
        attached = await sessions.open_stream(call.principal, consumer_id, stream, unread)
        self._streams[consumer_id] = stream
        try:
            if self._draining:
                raise Unavailable("this broker is shutting down: open the stream again")
            await call.open_stream()
            await stream.run(attached)
        finally:
            is_last = self._streams.get(consumer_id) is stream
            if is_last:
                del self._streams[consumer_id]
            await sessions.close_stream(consumer_id, attached, was_replaced=not is_last)

    async def ack(self, call: Call, request: Any) -> Any:
        subscription, offset = parse_subscription(request.subscription_name), request.msg_id.topic_offset
        place = self._acked_place(call, request, subscription)
        if place is not None and offset <= OFFSET_MAX:
            await self._broker.single_acks.ack(call.principal, *place, subscription, offset)
        return _AckResponse(request_id=request.request_id)

    async def nack(self, call: Call, request: Any) -> Any:
        subscription, offset = parse_subscription(request.subscription_name), request.msg_id.topic_offset
        place = self._acked_place(call, request, subscription)
        if place is not None:
            delay_ms = min(request.delay_ms, DELAY_MS_MAX)
            if offset <= OFFSET_MAX:
                await self._broker.single_acks.nack(
                    call.principal, *place, subscription, offset, delay_ms, request.reason
                )
        return _NackResponse(request_id=request.request_id)

    def _acked_place(self, call: Call, request: Any, subscription: str) -> tuple[Any, int] | None:
        """Check that the caller may consume, and return the partition of the message that is acked; None: it does not
        exist, which is no error."""
        if not request.HasField("msg_id"):
            raise Invalid("msg_id is missing: it says which message is meant")
        address = TopicAddress.parse(request.msg_id.topic_name)
        self._broker.addresses.check(call.principal, Action.CONSUME, address, subscription)
        return self._broker.addresses.find(call.principal, address)

    def drain(self) -> None:
        """End all streams: their clients look for the broker again."""
        self._draining = True
        for stream in list(self._streams.values()):
            stream.closed(Unavailable("this broker is shutting down: open the stream again"))
