"""Stored messages as administrators see them in JSON: read from a topic, peeked from a backlog, or dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec

from pydanube.gateway.http.data.messages import PayloadForm, shown_payload
from pydanube.model.limits import NAME_CHARACTERS_MAX
from pydanube.model.messages import StoredMessage
from pydanube.model.positions import Position, datetime_from_micros
from pydanube.operations.topics import READ_AT_ONCE, ReadMessages

from .operations import TOPIC_PATH, ApiCall, Operation, PartitionIndex, PayloadQuery


class ShownMessage(msgspec.Struct):
    """A message as it is stored."""

    partition: int
    offset: int
    publish_time: datetime
    append_time: datetime
    payload: Any = msgspec.UNSET
    """The payload as text, or as a JSON value if that was asked for."""
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    """The payload in Base64, if it is not text or Base64 was asked for."""
    key: str | None = None
    attributes: dict[str, str] = {}
    producer: str = ""
    deliver_at: datetime | None = None
    """The time before which the message is not delivered."""
    schema_id: int = 0
    schema_version: int = 0


def show(message: StoredMessage, form: PayloadForm) -> ShownMessage:
    """Return a stored message with its payload in this form."""
    payload, as_base64 = shown_payload(message.payload, form)
    return ShownMessage(
        message.partition,
        message.offset,
        datetime_from_micros(message.publish_time),
        datetime_from_micros(message.append_time),
        payload,
        as_base64,
        message.key,
        message.attributes,
        message.producer,
        datetime_from_micros(message.deliver_at) if message.deliver_at else None,
        message.schema_id,
        message.schema_version,
    )


EXAMPLE: Final = ShownMessage(
    0, 950, datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 12, tzinfo=UTC), "hello", key="user-1"
)


class MessageQuery(PayloadQuery):
    partition: PartitionIndex = 0
    """The partition that is read."""
    start: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS_MAX)] = "earliest"
    """The position of the first message: an offset, a time, earliest or latest; `next` of the page before."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=READ_AT_ONCE)] = 100
    """The most messages. There are fewer if they are large."""


class MessagePage(msgspec.Struct):
    """Messages of one partition, in order."""

    messages: list[ShownMessage]
    next: int
    """The offset at which the next page begins."""
    end: int
    """The end of the partition: at `next` = `end` there is nothing more for now."""


async def _read(call: ApiCall) -> MessagePage:
    query: MessageQuery = call.query
    asked = ReadMessages(
        topic=call.topic, partition=query.partition, start=Position.parse(query.start), messages_max=query.limit
    )
    found = await call.broker.messages.read(call.principal, asked)
    return MessagePage([show(one, query.payload) for one in found.messages], found.next_offset, found.end_offset)


OPERATIONS: Final = (
    Operation(
        method="GET",
        path=f"{TOPIC_PATH}/messages",
        name="readMessages",
        summary="Read stored messages of a partition, without a subscription",
        tag="data",
        handler=_read,
        query=MessageQuery,
        reply=MessagePage,
        reply_example=MessagePage([EXAMPLE], 951, 1_000),
        errors=(409,),
    ),
)
