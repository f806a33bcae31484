"""What a consumer sends as the reply to a request."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

from pydanube.client.typed.schema_sources import value_type_of
from pydanube.client.typed.value_type import ValueType
from pydanube.codec.batch.message_columns import attribute_bytes, payload_bytes
from pydanube.model.errors import Invalid
from pydanube.model.limits import CONTROL_BYTES_MAX
from pydanube.model.replies import FAILURE_CHARACTERS_MAX, REPLY_TO, ReplyHead

from .messages import Message

_ATTRIBUTES_BYTES_MAX: Final = CONTROL_BYTES_MAX // 2
"""The most bytes of attributes of a reply, so that its head fits a frame."""


def answer_payload(answer: object) -> bytes:
    """Return the payload of an answer: bytes, or a value of a class that can have a schema. Raises Invalid."""
    if not isinstance(answer, bytes | bytearray | memoryview):
        answer = _value_type_of(cast(Hashable, type(answer))).encode(answer)
    return payload_bytes(answer, 0)


def answer_head(attributes: Mapping[str, str] | None = None) -> ReplyHead:
    """Return everything of a reply but its payload. Raises Invalid."""
    if attributes:
        names, values = attribute_bytes(attributes, 0)
        if sum(map(len, names)) + sum(map(len, values)) > _ATTRIBUTES_BYTES_MAX:
            raise Invalid(f"the attributes of a reply have at most {_ATTRIBUTES_BYTES_MAX} bytes")
    return ReplyHead(attributes=dict(attributes or {}))


def failure_head(error: str | BaseException, kind: str) -> ReplyHead:
    """Return the reply that a request has failed. Raises Invalid."""
    if isinstance(error, BaseException):
        kind = kind or type(error).__name__
        error = str(error)
    if not (isinstance(error, str) and isinstance(kind, str)):
        raise Invalid(f"error {error!r} of kind {kind!r} is neither text nor an exception")
    return ReplyHead(_readable(error), _readable(kind))


def inbox_of(message: Message[Any]) -> str:
    """Return the address that replies to a request go to. Raises Invalid if the message is no request."""
    if not isinstance(message, Message) or not message.is_request:
        raise Invalid(f"{message!r} is no request: only messages of `client.request` and `client.gather` are answered")
    return message.attributes[REPLY_TO]


def _readable(text: str) -> str:
    # the text of an OSError may quote a file name that is not UTF-8
    return text.encode("utf-8", "backslashreplace").decode()[:FAILURE_CHARACTERS_MAX]


@lru_cache(maxsize=1_000)
def _value_type_of(kind: Hashable) -> ValueType[Any]:
    return value_type_of(kind)
