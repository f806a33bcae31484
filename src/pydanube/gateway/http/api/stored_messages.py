"""Stored messages as administrators see them in JSON: peeked from a backlog, or dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from pydanube.gateway.http.data.messages import PayloadForm, shown_payload
from pydanube.model.messages import StoredMessage
from pydanube.model.positions import datetime_from_micros


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
