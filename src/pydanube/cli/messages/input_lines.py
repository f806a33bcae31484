"""Makes messages of the lines that `danube produce` reads: payloads, keys before a delimiter, or JSON objects.

A JSON line has the fields that `danube consume --json` or `kcat -J` prints, so that their output can be published as it
is; with `--decode`, its payload is a JSON value. Errors name the line.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

import msgspec

from pydanube.client.producing.message_intake import attributes_size, checked_payload, delivery_time_us
from pydanube.client.producing.partitioning import encoded_key
from pydanube.model.errors import Invalid
from pydanube.model.limits import MESSAGE_BYTES_MAX
from pydanube.model.positions import datetime_from_micros
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
    numbers: Sequence[int] = ()
    """The line of each message, or its number if there are no lines."""
    unit: Literal["line", "message"] = "line"
    """What the numbers count."""

    def place(self, row: int) -> str:
        """Return where the message was read, for an error."""
        return f"{self.unit} {self.numbers[row]}"

    def without_empty(self) -> InputMessages:
        """Return the messages that have a payload or a key."""
        keys = self.keys or [None] * len(self)
        kept = [row for row, payload in enumerate(self.payloads) if payload.strip() or keys[row] is not None]
        if len(kept) == len(self):
            return self
        return InputMessages(
            [self.payloads[row] for row in kept],
            self.keys and [self.keys[row] for row in kept],
            self.attributes and [self.attributes[row] for row in kept],
            self.times and [self.times[row] for row in kept],
            [self.numbers[row] for row in kept],
            self.unit,
        )

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


async def plain(
    source: AsyncIterator[list[bytes]], unit: Literal["line", "message"] = "line"
) -> AsyncIterator[InputMessages]:
    """Yield messages without keys; `unit` is what errors call each of them."""
    begin = 1
    async for payloads in source:
        yield InputMessages(payloads, numbers=range(begin, begin + len(payloads)), unit=unit)
        begin += len(payloads)


async def keyed(source: AsyncIterator[list[bytes]], delimiter: bytes) -> AsyncIterator[InputMessages]:
    """Yield messages of lines such as KEY:PAYLOAD. What is before the first delimiter is the key.

    A line without a delimiter, and one that begins with it, has no key.
    """
    begin = 1
    async for lines in source:
        payloads: list[bytes] = []
        keys: list[str | None] = []
        numbers = range(begin, begin + len(lines))
        for number, line in zip(numbers, lines, strict=True):
            before, found, after = line.partition(delimiter)
            payloads.append(after if found else line)
            keys.append(_key(number, before) if found and before else None)
        yield InputMessages(payloads, keys, numbers=numbers)
        begin += len(lines)


def _key(number: int, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise Invalid(f"line {number}: the key {text[:40]!r} is not UTF-8, and keys are text") from None


class JsonLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of `consume --json`. What the broker gives a message is read, and not sent."""

    payload: msgspec.Raw
    payload_encoding: Literal["utf-8", "base64", "json"] = "utf-8"
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
    schema_id: int = 0
    schema_version: int = 0
    subject: str | None = None
    tstype: str = ""
    """What `ts` is. This and the next three are of kcat."""
    ts: int = 0
    """The timestamp of Kafka, in milliseconds since 1970; not positive: none."""
    broker: int = -1
    headers: list[str | None] = []
    """Names and values in turn. Of several values of a name the last one counts."""

    @property
    def is_of_kcat(self) -> bool:
        return bool(self.tstype)

    @property
    def all_attributes(self) -> dict[str, str]:
        if not self.headers:
            return self.attributes
        values = [one or "" for one in self.headers]
        return self.attributes | dict(zip(values[::2], values[1::2], strict=True))

    @property
    def published_at(self) -> datetime | None:
        if self.publish_time is None and self.ts > 0:
            return datetime_from_micros(self.ts * 1_000)
        return self.publish_time

    def content(self) -> bytes:
        """Return the payload; a value of JSON as its text."""
        if self.payload_encoding == "json":
            return bytes(self.payload)
        if self.is_of_kcat and bytes(self.payload)[:1] != b'"':  # a tombstone, or a value that kcat has decoded
            return b"" if bytes(self.payload) == b"null" else bytes(self.payload)
        try:
            text = msgspec.json.decode(self.payload, type=str)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} - at `$.payload`") from None
        return text.encode() if self.payload_encoding == "utf-8" else base64.b64decode(text.encode(), validate=True)


class _Record(msgspec.Struct):
    """What a line has that `consume --json` or `kcat -J` printed."""

    topic: str
    partition: int
    offset: int
    payload: msgspec.Raw


def is_record(line: bytes) -> bool:
    """Return whether a line is a message as `consume --json` or `kcat -J` prints it, with its place."""
    try:
        msgspec.json.decode(line, type=_Record)
        msgspec.json.decode(line, type=JsonLine)
    except (msgspec.DecodeError, UnicodeError):
        return False
    return True


async def recognised(source: AsyncIterator[list[bytes]], noticed: Callable[[], None]) -> AsyncIterator[InputMessages]:
    """Yield messages of lines: of JSON objects if the first is a record, after calling `noticed`, else payloads."""
    first = await anext(source, None)
    if first is None:
        return

    async def everything() -> AsyncIterator[list[bytes]]:
        yield first
        async for some in source:
            yield some

    if is_record(first[0]):
        noticed()
        parsed = from_json(everything())
    else:
        parsed = plain(everything())
    async for messages in parsed:
        yield messages


async def from_json(source: AsyncIterator[list[bytes]], *, encoded: bool = False) -> AsyncIterator[InputMessages]:
    """Yield messages of lines that are JSON objects. Empty lines are passed over.

    With `encoded`, payloads will be encoded with a schema, and are texts or values of JSON; else they are sent as they
    are.
    """
    decode = msgspec.json.Decoder(JsonLine).decode
    begin = 1
    async for lines in source:
        numbers = [number for number, line in enumerate(lines, begin) if line.strip()]
        found = [_parsed(decode, number, lines[number - begin], encoded) for number in numbers]
        begin += len(lines)
        yield InputMessages(
            [payload for payload, _ in found],
            [line.key for _, line in found],
            [line.all_attributes for _, line in found],
            [(line.published_at, line.deliver_at) for _, line in found],
            numbers,
        )


def _parsed(decode: Callable[[bytes], JsonLine], number: int, line: bytes, encoded: bool) -> tuple[bytes, JsonLine]:
    try:
        parsed = decode(line)
        if parsed.payload_encoding == "json" and not encoded:
            raise Invalid(f"line {number}: its payload was decoded with a schema; --schema encodes it again")
        if parsed.payload_encoding == "base64" and encoded:
            raise Invalid(f"line {number}: its payload is base64, and --schema takes JSON, as --decode prints it")
        _ = parsed.all_attributes, parsed.published_at  # raise ValueError
        return parsed.content(), parsed
    except msgspec.ValidationError as error:
        raise Invalid(f"line {number}: {error}; use lines as 'consume --json' or 'kcat -J' prints them") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid(f"line {number} is not a JSON object: {error}") from None
    except binascii.Error as error:
        raise Invalid(f"line {number}: its payload is not base64: {error}") from None
    except (ValueError, OverflowError):
        raise Invalid(f"line {number}: its headers are not names and values in turn, or ts is no time") from None
