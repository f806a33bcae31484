"""Operations that consume: sessions with long polls and acks, Server-Sent Events, WebSocket. `gateway.http.data` does
the work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from pydanube.broker import Attachment
from pydanube.core.access import Principal
from pydanube.gateway.http import errors
from pydanube.gateway.http.data import DataEndpoints
from pydanube.gateway.http.data.events import MEDIA_TYPE, SubscriptionEvents, TopicEvents, parse_event_id
from pydanube.gateway.http.data.long_poll import LongPoll
from pydanube.gateway.http.data.messages import DeliveredMessage, PayloadForm
from pydanube.gateway.http.data.sessions import Session
from pydanube.gateway.http.data.websocket import PERMITS_MAX, WebSocketConsumer
from pydanube.gateway.http.requests import caller_of
from pydanube.gateway.rows import WINDOW_MESSAGES
from pydanube.model.errors import DanubeError, Invalid
from pydanube.model.failure import DELAY_MS_MAX, REASON_CHARACTERS_MAX
from pydanube.model.limits import PRODUCER_NAME_BYTES_MAX
from pydanube.model.names import TopicName, parse_subscription
from pydanube.model.positions import LATEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.randomness import identity

from . import json_forms
from .operations import BASE, Answer, ApiCall, Operation, PayloadQuery, Schema
from .publishing import data_of

TIMEOUT_MS: Final = 30_000
WAIT_MS: Final = 1_000

ACKS_MAX: Final = 10_000
"""The most ids in one list of a request: reading them holds the event loop for about 3 microseconds each."""

_MessageIds = Annotated[list[str], msgspec.Meta(max_length=ACKS_MAX)]
_Name = Annotated[str, msgspec.Meta(max_length=PRODUCER_NAME_BYTES_MAX)]
_Priority = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class ConsumerChoice(msgspec.Struct):
    """What every consumer asks for."""

    consumer: _Name = ""
    """The name of the consumer. A consumer of the same name is closed. Empty: a name is made up."""
    type: SubscriptionType | None = None
    """The type of the subscription. Absent: that which it has, or exclusive if it does not exist yet."""
    start: Position = LATEST
    """Where the subscription begins if it does not exist yet."""
    priority: _Priority = 0
    """On a failover subscription: the consumer with the lowest number is active."""


class ConsumerOptions(ConsumerChoice):
    """What a consumer asks for."""

    key_filters: list[str] = []
    """On a key-shared subscription: patterns of the keys that the consumer gets."""
    timeout_ms: Annotated[int, msgspec.Meta(ge=1_000, le=3_600_000)] = TIMEOUT_MS
    """The consumer is closed when nothing was heard of it for so long."""


class OpenedConsumer(msgspec.Struct):
    """A consumer that was opened."""

    id: str
    """Names the consumer in the paths of its polls and acks."""
    consumer: str
    timeout_ms: int


class PollQuery(PayloadQuery):
    max: Annotated[int, msgspec.Meta(ge=1, le=WINDOW_MESSAGES)] = 100
    """The most messages in one answer. One that has a MiB of payloads gets no further ones."""
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = WAIT_MS
    """How long to wait if there are no messages. At most http.poll_wait_ms_max."""


class Messages(msgspec.Struct):
    """Messages that were delivered."""

    messages: list[DeliveredMessage]


class Acks(msgspec.Struct):
    """Which messages were processed, and which could not be. Each is named by its id."""

    ack: _MessageIds = []
    nack: _MessageIds = []
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=DELAY_MS_MAX)] | None = None
    """After which time those in nack are delivered again. Absent: as the failure policy says."""
    reason: Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS_MAX)] = ""
    """Why those in nack or reject could not be processed."""
    reject: _MessageIds = []
    """These are not delivered again: the failure policy does with them what it does after the last try."""


class StreamQuery(ConsumerChoice):
    """What the consumer of a stream asks for."""

    payload: PayloadForm = "text"
    """How payloads are written: text (or payload_base64 if it is not UTF-8), json (as a value if it is one), base64."""


class EventsQuery(StreamQuery):
    """What the consumer of a stream of events asks for."""

    ack: Literal["auto", "manual"] = "auto"
    """auto: a message is acknowledged when the operating system has taken its event for sending. manual: the first
    event names the consumer, and the client acknowledges its messages by requests."""


class WebSocketQuery(StreamQuery):
    """What the consumer of a WebSocket asks for."""

    permits: Annotated[int, msgspec.Meta(ge=0, le=PERMITS_MAX)] | None = None
    """How many messages the broker may send before the client permits more. Absent: as many as the client reads."""


class TopicEventsQuery(PayloadQuery):
    start: Position = LATEST
    """Where to begin; the header Last-Event-ID, which browsers send when they connect again, comes first."""


# -- sessions ----------------------------------------------------------------------------------------------------------


async def _open(call: ApiCall) -> Answer:
    options: ConsumerOptions = call.body
    data = data_of(call)
    limit = data.settings.session_timeout_ms_max
    if options.timeout_ms > limit:
        raise Invalid(f"timeout_ms={options.timeout_ms} is too long: at most {limit} (http.session_timeout_ms_max)")
    session = await _open_session(data, call.principal, call.topic, call.subscription, options)
    name = session.subscriber.attachment.consumer
    location = f"{call.request.url.path}/{session.id}"
    return Answer(OpenedConsumer(session.id, name, options.timeout_ms), headers={"location": location})


async def _open_session(
    data: DataEndpoints,
    principal: Principal,
    topic: TopicName,
    subscription: str,
    options: ConsumerChoice,
) -> Session:
    is_reliable = (await data.broker.topics.lookup(principal, topic, create=False)).config.reliable
    attachment = Attachment(
        subscription,
        options.consumer or f"http-{identity()}",
        options.type,
        options.start,
        options.priority,
        options.key_filters if isinstance(options, ConsumerOptions) else (),
        ack_timeouts=is_reliable,
    )
    timeout_ms = options.timeout_ms if isinstance(options, ConsumerOptions) else TIMEOUT_MS
    return await data.sessions.open(principal, topic, attachment, timeout_ms / 1000)


def _session(call: ApiCall) -> Session:
    return data_of(call).sessions.find(call.principal, call.path["consumer"], call.topic, call.subscription)


async def _close(call: ApiCall) -> None:
    data_of(call).sessions.close(_session(call))


async def _poll(call: ApiCall) -> Response:
    query: PollQuery = call.query
    data = data_of(call)
    limit = data.settings.poll_wait_ms_max
    if query.wait_ms > limit:
        raise Invalid(f"wait_ms={query.wait_ms} is too long: at most {limit} (http.poll_wait_ms_max)")
    return LongPoll(data.sessions, _session(call), query.max, query.wait_ms / 1000, query.payload)


async def _ack(call: ApiCall) -> None:
    acks: Acks = call.body
    _session(call).subscriber.settle(acks.ack, acks.nack, acks.delay_ms, acks.reason, acks.reject)


# -- streams -----------------------------------------------------------------------------------------------------------


async def _events(call: ApiCall) -> Response:
    query: EventsQuery = call.query
    data = data_of(call)
    session = await _open_session(data, call.principal, call.topic, call.subscription, query)
    is_auto = query.ack == "auto"
    return SubscriptionEvents(data.sessions, session, query.payload, is_auto, data.heartbeat_s)


async def _topic_events(call: ApiCall) -> Response:
    query: TopicEventsQuery = call.query
    data = data_of(call)
    call.broker.check_may_read(call.principal, call.topic)
    found = await call.broker.topics.lookup(call.principal, call.topic, create=False)
    partitions = found.config.partition_count
    own = call.broker.own_partitions(call.topic)
    starts = dict.fromkeys(own, query.start)
    if last := call.request.headers.get("last-event-id"):
        starts |= {one: start for one, start in parse_event_id(last, partitions).items() if one in starts}
    return TopicEvents(
        call.broker,
        call.principal,
        call.topic,
        starts,
        query.payload,
        data.heartbeat_s,
        data.topic_streams,
    )


async def _no_upgrade(_call: ApiCall) -> Response:
    raise HTTPException(426, "this is for WebSockets: connect with one", {"upgrade": "websocket"})


async def _websocket(websocket: WebSocket) -> None:
    data: DataEndpoints = websocket.app.state.data
    caller = caller_of(websocket)
    try:
        with caller.operation(_WEBSOCKET):
            path, query = websocket.path_params, _websocket_query(websocket)
            topic = TopicName.parse(f"/{path['namespace']}/{path['topic']}")
            subscription = parse_subscription(path["subscription"])
            session = await _open_session(data, caller.principal, topic, subscription, query)
    except HTTPException as error:
        await websocket.send_denial_response(errors.respond(error))
        return
    except DanubeError as error:
        location = errors.location_of(data.broker, websocket.scope, error)
        await websocket.send_denial_response(errors.respond(error, location))
        return
    await WebSocketConsumer(websocket, data.sessions, session, query.payload, query.permits).run()


def _websocket_query(websocket: WebSocket) -> WebSocketQuery:
    form = json_forms.form_of(WebSocketQuery)
    try:
        read = msgspec.convert(dict(websocket.query_params), form.type, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid(f"a query parameter is not what is expected: {error}") from None
    assert form.load is not None
    query: WebSocketQuery = form.load(read)
    return query


_SUBSCRIPTION: Final = f"{BASE}/topics/{{namespace}}/{{topic}}/subscriptions/{{subscription}}"
_CONSUMER: Final = f"{_SUBSCRIPTION}/consumers/{{consumer}}"
_EVENTS: Final[dict[str, Schema]] = {MEDIA_TYPE: {"type": "string"}}
_EXAMPLE_ID: Final = "0.17.0"
_WEBSOCKET: Final = "connectWebSocket"

WEBSOCKET_ROUTES: Final = (WebSocketRoute(f"{_SUBSCRIPTION}/websocket", _websocket),)

OPERATIONS = (
    Operation(
        method="POST",
        path=f"{_SUBSCRIPTION}/consumers",
        name="openConsumer",
        summary="Open a consumer for polls",
        description="The subscription is created if it does not exist, the topic is not. The consumer is closed when "
        "nothing was heard of it for `timeout_ms`, and by a restart of the broker; what it had not acknowledged is "
        "then delivered again.",
        tag="data",
        handler=_open,
        body=ConsumerOptions,
        body_optional=True,
        body_example=ConsumerOptions("worker-1", SubscriptionType.SHARED),
        reply=OpenedConsumer,
        reply_example=OpenedConsumer("6f1c5b0a4b1e4b0f8f6d1f2f3f4f5f6f", "worker-1", TIMEOUT_MS),
        status=201,
    ),
    Operation(
        method="DELETE",
        path=_CONSUMER,
        name="closeConsumer",
        summary="Close a consumer",
        tag="data",
        handler=_close,
    ),
    Operation(
        method="GET",
        path=f"{_CONSUMER}/messages",
        name="receiveMessages",
        summary="Wait for messages",
        description="Answers as soon as there is a message, and with none when the time is over.",
        tag="data",
        handler=_poll,
        takes_messages=True,
        query=PollQuery,
        reply=Messages,
        reply_example=Messages([DeliveredMessage(_EXAMPLE_ID, 0, 17, datetime(2026, 1, 31, 12, tzinfo=UTC), "hello")]),
        errors=(409,),
    ),
    Operation(
        method="POST",
        path=f"{_CONSUMER}/acks",
        name="acknowledgeMessages",
        summary="Acknowledge messages, or give them back",
        description="An acknowledgement is in force with the answer, and durable within 100 ms; a message whose "
        "acknowledgement a crash of the broker lost is delivered again.",
        tag="data",
        handler=_ack,
        body=Acks,
        body_example=Acks([_EXAMPLE_ID]),
    ),
    Operation(
        method="GET",
        path=f"{_SUBSCRIPTION}/events",
        name="streamSubscription",
        summary="Receive the messages of a subscription as Server-Sent Events",
        tag="data",
        handler=_events,
        takes_messages=True,
        query=EventsQuery,
        reply_media=_EVENTS,
        errors=(409,),
    ),
    Operation(
        method="GET",
        path=f"{_SUBSCRIPTION}/websocket",
        name=_WEBSOCKET,
        summary="Receive and acknowledge the messages of a subscription over a WebSocket",
        tag="data",
        handler=_no_upgrade,
        query=WebSocketQuery,
        status=101,
        errors=(409, 426),
    ),
    Operation(
        method="GET",
        path=f"{BASE}/topics/{{namespace}}/{{topic}}/events",
        name="streamTopic",
        summary="Receive the messages of a topic as Server-Sent Events, without a subscription",
        description="The id of each event says where the stream goes on; a browser sends it as Last-Event-ID when it "
        "connects again.",
        tag="data",
        handler=_topic_events,
        takes_messages=True,
        query=TopicEventsQuery,
        reply_media=_EVENTS,
        errors=(409,),
    ),
)
