"""Operations that publish: messages of a topic, requests, and webhooks. `gateway.http.data` does the work."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

import msgspec
from starlette.responses import Response

from pydanube.gateway.http import errors
from pydanube.gateway.http.data import DataEndpoints
from pydanube.gateway.http.data.messages import (
    PayloadForm,
    PublishBody,
    PublishedMessage,
    body_form,
    read_messages,
    shown_payload,
)
from pydanube.gateway.http.data.publishing import PRODUCER, PartlyStored, PublishTarget, StoredAt
from pydanube.gateway.http.requests import LISTENER, address_of
from pydanube.model.errors import Invalid, NotFound, Unauthenticated
from pydanube.model.limits import KIB, NAME_CHARACTERS_MAX, PARTITIONS_MAX, PRODUCER_NAME_BYTES_MAX

from .operations import BASE, JSON, ApiCall, Operation, Schema

LARGE_BODY_BYTES: Final = 256 * KIB
"""A larger body is read in a thread: parsing it takes milliseconds."""


REQUEST_TIMEOUT_MS: Final = 5_000


class PublishQuery(msgspec.Struct):
    partition: Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)] | None = None
    """The partition of all messages. Absent: that of the key of each message, and any one for those without a key."""
    producer: Annotated[str, msgspec.Meta(min_length=1, max_length=PRODUCER_NAME_BYTES_MAX)] = PRODUCER
    """The name of the producer; consumers see it, and requests of one name count as one producer."""
    subject: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = ""
    """The subject in the schema registry that the payloads fit. The first publish with one binds the topic to it."""
    version: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    """The version of the subject. 0: the latest."""
    format: Literal["auto", "json", "ndjson", "raw"] = "auto"
    """How the body is read. auto: by its media type, see docs/http-data.md."""


class PublishResult(msgspec.Struct):
    """Where the messages were stored, in the order of the request."""

    offsets: list[StoredAt]


def data_of(call: ApiCall) -> DataEndpoints:
    """Return what the data operations of this listener share."""
    found: DataEndpoints = call.request.app.state.data
    return found


async def _publish(call: ApiCall) -> Response:
    query: PublishQuery = call.query
    data, headers = data_of(call), call.request.headers
    form = body_form("" if query.format == "auto" else query.format, headers.get("content-type", ""))
    body = await call.request.body()
    now_us = data.clock.now_us()
    if len(body) > LARGE_BODY_BYTES and form != "raw":
        messages = await asyncio.to_thread(read_messages, body, form, headers, now_us)
    else:
        messages = read_messages(body, form, headers, now_us)
    target = PublishTarget(call.topic, query.partition, query.producer, query.subject, query.version)
    try:
        stored = await data.publisher.publish(call.principal, target, messages, len(body))
    except PartlyStored as partly:
        return _partly_stored(partly)
    return Response(msgspec.json.encode(PublishResult(stored)), media_type=JSON)


def _partly_stored(partly: PartlyStored) -> Response:
    """Answer with the error of the partition that failed, and which messages were stored all the same."""
    problem: dict[str, Any] = msgspec.to_builtins(errors.problem_of(partly.error))
    problem["offsets"] = partly.offsets
    status, headers = errors.status_of(partly.error), errors.headers_of(partly.error)
    return Response(msgspec.json.encode(problem), status, headers, errors.PROBLEM)


class RequestQuery(msgspec.Struct):
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=3_600_000)] = REQUEST_TIMEOUT_MS
    """How long to wait for a reply. At most http.poll_wait_ms_max."""
    format: Literal["auto", "json", "raw"] = "auto"
    """How the body is read. auto: by its media type, see docs/http-data.md."""
    payload: PayloadForm = "text"
    """How the payload of the reply is written: text (or payload_base64 if it is not UTF-8), json (as a value if it is
    one), base64."""


class RequestReply(msgspec.Struct, omit_defaults=True):
    """The reply to a request."""

    payload: Any = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    attributes: dict[str, str] = {}


async def _request(call: ApiCall) -> Response:
    query: RequestQuery = call.query
    data, headers = data_of(call), call.request.headers
    limit = data.settings.poll_wait_ms_max
    if query.timeout_ms > limit:
        raise Invalid(f"timeout_ms={query.timeout_ms} is too long: at most {limit} (http.poll_wait_ms_max)")
    form = body_form("" if query.format == "auto" else query.format, headers.get("content-type", ""))
    message = read_messages(await call.request.body(), form, headers, data.clock.now_us())
    replied = await data.requester.request(call.principal, call.topic, message, query.timeout_ms)
    payload, as_base64 = shown_payload(replied.payload, query.payload)
    reply = RequestReply(payload, as_base64, replied.attributes)
    return Response(msgspec.json.encode(reply), media_type=JSON)


async def _webhook(call: ApiCall) -> PublishResult:
    """Publish a webhook. With authentication, an unknown name and a wrong signature have the same answer as every
    failure: strangers do not learn which webhooks there are, and wait as others do who fail."""
    name, headers, webhooks = call.path["webhook"], call.request.headers, data_of(call).webhooks
    address = address_of(call.request.scope)
    try:
        with webhooks.proving(name, address):
            webhooks.check(name, headers)  # before the body is read
            body = await call.request.body()
            signature = webhooks.verify(name, headers, body)
    except (NotFound, Unauthenticated) as error:
        await call.broker.security.refuse(address, error.message, LISTENER)
        raise
    call.request.state.connection.unproven.proved()
    call.caller.count()  # from here on
    await call.caller.admit(str(webhooks.topic_of(name)))
    return PublishResult([await webhooks.receive(call.principal, name, signature, headers, body)])


def _body_schema() -> Schema:
    _, found = msgspec.json.schema_components([PublishBody], ref_template="{name}")
    schema = dict(found["PublishBody"])
    schema["properties"]["messages"]["items"] = found["PublishedMessage"]
    schema["description"] = "One message, or `messages`. A message has either payload or payload_base64."
    return schema


def _message_schema() -> Schema:
    _, found = msgspec.json.schema_components([PublishedMessage], ref_template="{name}")
    return {**found["PublishedMessage"], "description": "It has either payload or payload_base64."}


_ANY_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
_STORED: Final = PublishResult([StoredAt(0, 17)])

OPERATIONS = (
    Operation(
        method="POST",
        path=f"{BASE}/topics/{{namespace}}/{{topic}}/messages",
        name="publishMessages",
        summary="Publish messages",
        description="The answer comes when the messages have the ack level of the topic. `messages`, and the lines of "
        "NDJSON, become one batch (on a partitioned topic one for each partition), which is stored whole or not at "
        "all. A body of any other media type is the payload of one message, with key and attributes from the headers "
        "X-Danube-Key and X-Danube-Attribute-{name}.",
        tag="data",
        handler=_publish,
        query=PublishQuery,
        reads_body=True,
        body_example={"payload": {"id": 1}, "key": "alice"},
        body_media={JSON: _body_schema(), "application/x-ndjson": _ANY_BYTES, "application/octet-stream": _ANY_BYTES},
        reply=PublishResult,
        reply_example=_STORED,
    ),
    Operation(
        method="POST",
        path=f"{BASE}/topics/{{namespace}}/{{topic}}/request",
        name="request",
        summary="Publish a request and wait for its reply",
        description="Publishes one message, and answers with the first reply of a consumer. The body is as in "
        "publishMessages, with one message. 503 comes at once if the topic is not reliable and nobody consumes it.",
        tag="data",
        handler=_request,
        query=RequestQuery,
        reads_body=True,
        body_example={"payload": {"product": "tea", "count": 3}},
        body_media={JSON: _message_schema(), "application/octet-stream": _ANY_BYTES},
        reply=RequestReply,
        reply_example=RequestReply('{"cents": 750}'),
        errors=(404, 409, 502, 504),
    ),
    Operation(
        method="POST",
        path="/webhooks/{webhook}",
        name="receiveWebhook",
        summary="Receive a webhook",
        description="Publishes the body to the topic that the settings bind the name to, if it is signed with the "
        "secret of the webhook.",
        tag="data",
        handler=_webhook,
        reads_body=True,
        body_media={"application/octet-stream": _ANY_BYTES, JSON: {}},
        reply=PublishResult,
        reply_example=_STORED,
    ),
)
