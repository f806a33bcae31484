"""Makes messages of the lines that `danube produce` reads: payloads, keys before a delimiter, or JSON objects.

A JSON line has the fields that `danube consume --json` prints, so that its output can be published as it is. Errors
name the line.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Final, Literal

import msgspec

from pydanube.client.producing.message_intake import attributes_size, checked_payload, delivery_time_us
from pydanube.client.producing.partitioning import encoded_key
from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.runtime.clock import SystemClock

JSON_LINE_BYTES_MAX: Final = 8 * MESSAGE_BYTES_MAX
"""The longest line of JSON: a payload of control characters, each written as \\u0000, takes six times its bytes."""


@dataclass(frozen=True, slots=True)
class InputMessages:
    """Messages that were read together."""

    payloads: list[bytes]
    keys: list[str | None] | None = None
    attributes: list[dict[str, str]] | None = None
    times: list[tuple[datetime | None, datetime | None]] = field(default_factory=list)
    """The publish time and the delivery time of each message, where its line may tell them."""

    def __len__(self) -> int:
        return len(self.payloads)

    def check(self) -> None:
        """Raise Invalid for a message that no broker would take."""
        for payload in self.payloads:
            checked_payload(payload)
        for key in self.keys or ():
            if key is not None:
                encoded_key(key)
        for attributes in self.attributes or ():
            attributes_size(attributes)
        for _, deliver_at in self.times:
            if deliver_at is not None:
                delivery_time_us(deliver_at, None, SystemClock())

    @property
    def delayed(self) -> bool:
        """Whether a message has a delivery time of its own."""
        return any(deliver_at is not None for _, deliver_at in self.times)


async def plain(source: AsyncIterator[list[bytes]]) -> AsyncIterator[InputMessages]:
    """Yield messages without keys."""
    async for payloads in source:
        yield InputMessages(payloads)


async def keyed(source: AsyncIterator[list[bytes]], delimiter: bytes) -> AsyncIterator[InputMessages]:
    """Yield messages of lines such as KEY:PAYLOAD. What is before the first delimiter is the key.

    A line without a delimiter, and one that begins with it, has no key.
    """
    numbers = count(1)
    async for lines in source:
        payloads: list[bytes] = []
        keys: list[str | None] = []
        for line, number in zip(lines, numbers, strict=False):
            before, found, after = line.partition(delimiter)
            payloads.append(after if found else line)
            keys.append(_key(number, before) if found and before else None)
        yield InputMessages(payloads, keys)


def _key(number: int, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Invalid(f"line {number}: the key {text[:40]!r} is not UTF-8, and keys are text") from None


class JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `consume --json`. What the broker gives a message is read, and not sent."""

    payload: str
    payload_encoding: Literal["utf-8", "base64"] = "utf-8"
    key: str | None = None
    attributes: dict[str, str] = {}
    publish_time: datetime | None = None
    deliver_at: datetime | None = None
    topic: str = ""
    partition: int = 0
    offset: int = 0
    append_time: str = ""
    producer: str = ""
    redeliveries: int = 0
    failure_reason: str | None = None

    def content(self) -> bytes:
        if self.payload_encoding == "utf-8":
            return self.payload.encode()
        return base64.b64decode(self.payload.encode(), validate=True)


async def from_json(source: AsyncIterator[list[bytes]]) -> AsyncIterator[InputMessages]:
    """Yield messages of lines that are JSON objects. Empty lines are passed over."""
    decode = msgspec.json.Decoder(JsonLine).decode
    numbers = count(1)
    async for lines in source:
        found = [_parsed(decode, number, line) for line, number in zip(lines, numbers, strict=False) if line.strip()]
        yield InputMessages(
            [payload for payload, _ in found],
            [line.key for _, line in found],
            [line.attributes for _, line in found],
            [(line.publish_time, line.deliver_at) for _, line in found],
        )


def _parsed(decode: Callable[[bytes], JsonLine], number: int, line: bytes) -> tuple[bytes, JsonLine]:
    try:
        parsed = decode(line)
        return parsed.content(), parsed
    except msgspec.ValidationError as error:
        raise Invalid(f"line {number}: {error}; use lines as 'danube consume --json' prints them") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid(f"line {number} is not a JSON object: {error}") from None
    except binascii.Error as error:
        raise Invalid(f"line {number}: its payload is not base64: {error}") from None
