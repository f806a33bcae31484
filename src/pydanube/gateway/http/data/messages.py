"""Messages as JSON: read from publish requests, written for consumers (docs/http-data.md).

{"payload": "text"}                      the payload is this text in UTF-8
{"payload": {"id": 1}}                   any other JSON value: the payload is the value as it is written
{"payload_base64": "AAEC"}               any bytes
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

import msgspec
from starlette.datastructures import Headers

from pydanube.codec.batch import Batch
from pydanube.gateway.sends import SentMessage
from pydanube.model.errors import Invalid
from pydanube.model.limits import BATCH_MESSAGES_MAX
from pydanube.model.positions import datetime_from_micros, micros_from_datetime

JSON: Final = "application/json"
NDJSON: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})

KEY_HEADER: Final = "x-danube-key"
PUBLISH_TIME_HEADER: Final = "x-danube-publish-time"
DELIVER_AT_HEADER: Final = "x-danube-deliver-at"
ATTRIBUTE_HEADER: Final = "x-danube-attribute-"

PayloadForm = Literal["text", "json", "base64"]
"""How a consumer gets payloads. text: as a string, or as `payload_base64` if it is not UTF-8. json: as a JSON value,
or as with `text` if it is none. base64: always as `payload_base64`."""

BodyForm = Literal["json", "ndjson", "raw", "unsaid"]
"""unsaid: the client named no media type, or the one that curl sends by itself; raw, unless it is a message in JSON."""


class PublishedMessage(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One message of a publish request."""

    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    attributes: dict[str, str] | None = None
    publish_time: datetime | int | None = None
    """When the event happened: ISO 8601, or microseconds since 1970. None: now."""
    deliver_at: datetime | int | None = None
    """Not to be delivered before this time."""


class PublishBody(PublishedMessage, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a publish request: either one message, or `messages`."""

    messages: list[PublishedMessage] | msgspec.UnsetType = msgspec.UNSET


class _TextMessage(PublishedMessage, forbid_unknown_fields=True):
    payload: str | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]  # narrower, and read at once


class _TextBody(PublishBody, forbid_unknown_fields=True):
    """A body whose payloads are all text: reading such a one takes half the time."""

    payload: str | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]
    messages: list[_TextMessage] | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]


class MessageColumns(NamedTuple):
    """The messages of one publish request. Times are in microseconds."""

    payloads: list[bytes]
    keys: list[str | None]
    attributes: list[dict[str, str] | None] | None
    """None: no message has any."""
    publish_times: int | list[int]
    deliver_at: list[int] | None
    is_batch: bool

    def select(self, rows: Sequence[int]) -> MessageColumns:
        """Return some of the messages."""
        return MessageColumns(
            [self.payloads[row] for row in rows],
            [self.keys[row] for row in rows],
            None if self.attributes is None else [self.attributes[row] for row in rows],
            self.publish_times if isinstance(self.publish_times, int) else [self.publish_times[row] for row in rows],
            None if self.deliver_at is None else [self.deliver_at[row] for row in rows],
            self.is_batch,
        )

    def first(self) -> SentMessage:
        times, delays = self.publish_times, self.deliver_at
        return SentMessage(
            self.payloads[0],
            self.keys[0],
            None if self.attributes is None else self.attributes[0],
            times if isinstance(times, int) else times[0],
            0 if delays is None else delays[0],
        )


_read_texts: Final = msgspec.json.Decoder(_TextBody).decode
_read_body: Final = msgspec.json.Decoder(PublishBody).decode
_read_lines: Final = msgspec.json.Decoder(PublishedMessage).decode_lines
_read_text: Final = msgspec.json.Decoder(str).decode
_TIME_MAX: Final = 2**63 - 1
_SAYS_NOTHING: Final = ("", "application/x-www-form-urlencoded")
_MESSAGE_HINT: Final = 'a message is {"payload": ...}, and with ?format=raw the whole body is one payload'


def body_form(form: str, content_type: str) -> BodyForm:
    """Return how the body of a publish is to be read: as the client says, or by the media type of the body. What is
    neither JSON nor NDJSON is the payload of one message."""
    if form:
        if form not in ("json", "ndjson", "raw"):
            raise Invalid(f"format={form!r} is unknown: use json, ndjson or raw")
        return form  # type: ignore[return-value]
    media = content_type.partition(";")[0].strip().lower()
    if media == JSON:
        return "json"
    if media in _SAYS_NOTHING:
        return "unsaid"
    return "ndjson" if media in NDJSON else "raw"


def read_messages(body: bytes, form: BodyForm, headers: Headers, now_us: int) -> MessageColumns:
    """Return the messages of a publish request. Raises Invalid with the number of the message that is wrong, counted
    from 0."""
    if form == "unsaid":
        _refuse_envelope(body)
    if form in ("raw", "unsaid"):
        return _raw_message(body, headers, now_us)
    try:
        if not body.isascii():
            body.decode()  # values are stored as they are written, so that msgspec would not look into them
        found, is_batch = (_read_lines(body), True) if form == "ndjson" else _read_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not what is expected here: {error}; {_MESSAGE_HINT}") from None
    except RecursionError:
        raise Invalid("the body is nested too deeply") from None
    if not 1 <= len(found) <= BATCH_MESSAGES_MAX:
        raise Invalid(f"a batch has 1 to {BATCH_MESSAGES_MAX} messages, and this one has {len(found)}")
    return _columns(found, is_batch, now_us)


def _refuse_envelope(body: bytes) -> None:
    """Raise Invalid for a message in JSON whose sender has not said that it is one."""
    if body.lstrip()[:1] != b"{":
        return
    try:
        found = _read_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if (found.payload, found.payload_base64, found.messages) != (msgspec.UNSET,) * 3:
        raise Invalid(
            "the body is a message in JSON, and its media type does not say so: add the header Content-Type: "
            "application/json, or publish the JSON itself as a payload with ?format=raw"
        )


def _read_json(body: bytes) -> tuple[Sequence[PublishedMessage], bool]:
    read: PublishBody
    try:
        read = _read_texts(body)
    except msgspec.ValidationError:
        read = _read_body(body)
    if isinstance(read.messages, msgspec.UnsetType):
        return [read], False
    if read != type(read)(messages=read.messages):
        raise Invalid("the body has fields of a message beside messages: it is either one message or a list of them")
    return read.messages, True


def _columns(found: Sequence[Any], is_batch: bool, now_us: int) -> MessageColumns:
    """Return the messages as columns. The usual ones, which have text and no times, take a few microseconds."""
    count = len(found)
    times: int | list[int] = now_us
    given_times = [one.publish_time for one in found]
    if given_times.count(None) != count:
        times = [_micros(one, "publish_time", row, now_us) for row, one in enumerate(given_times)]
    delays: list[int] | None = None
    given_delays = [one.deliver_at for one in found]
    if given_delays.count(None) != count:
        delays = [_micros(one, "deliver_at", row, 0) for row, one in enumerate(given_delays)]
    texts = [one.payload for one in found]
    if set(map(type, texts)) == {str} and [one.payload_base64 for one in found].count(msgspec.UNSET) == count:
        payloads = list(map(str.encode, texts))
    else:
        payloads = [_payload(one, row) for row, one in enumerate(found)]
    attributes = [one.attributes for one in found]
    return MessageColumns(
        payloads,
        [one.key for one in found],
        attributes if attributes.count(None) != count else None,
        times,
        delays,
        is_batch,
    )


def _payload(message: Any, row: int) -> bytes:
    raw, encoded = message.payload, message.payload_base64
    if isinstance(raw, msgspec.UnsetType):
        if isinstance(encoded, msgspec.UnsetType):
            raise Invalid(f"message {row} has neither payload nor payload_base64")
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError as error:
            raise Invalid(f"message {row}: payload_base64 is not Base64: {error}") from None
    if not isinstance(encoded, msgspec.UnsetType):
        raise Invalid(f"message {row} has both payload and payload_base64")
    if isinstance(raw, str):
        return raw.encode()
    written = bytes(raw)
    if not written.startswith(b'"'):
        return written
    try:
        return _read_text(written).encode()
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Invalid(f"message {row}: payload is not text: {error}") from None


def _micros(moment: datetime | int | None, what: str, row: int, default: int) -> int:
    if moment is None:
        return default
    if isinstance(moment, datetime):
        return micros_from_datetime(moment)
    if not 0 <= moment <= _TIME_MAX:
        raise Invalid(f"message {row}: {what} {moment} is not a time in microseconds since 1970")
    return moment


def _raw_message(body: bytes, headers: Headers, now_us: int) -> MessageColumns:
    """Return the message of a body that is a payload; its key, times and attributes are in headers."""
    attributes = {
        name.removeprefix(ATTRIBUTE_HEADER): value
        for name, value in headers.items()
        if name.startswith(ATTRIBUTE_HEADER) and name != ATTRIBUTE_HEADER
    }
    deliver_at = _time_header(headers, DELIVER_AT_HEADER, 0)
    return MessageColumns(
        [body],
        [headers.get(KEY_HEADER)],
        [attributes] if attributes else None,
        _time_header(headers, PUBLISH_TIME_HEADER, now_us),
        [deliver_at] if deliver_at else None,
        is_batch=False,
    )


def _time_header(headers: Headers, name: str, default: int) -> int:
    text = headers.get(name)
    if text is None:
        return default
    try:
        return _micros(int(text) if text.isdecimal() else datetime.fromisoformat(text), name, 0, 0)
    except ValueError:
        raise Invalid(f"{name} {text[:40]!r} is not a time: use ISO 8601, or microseconds since 1970") from None


# -- for consumers -----------------------------------------------------------------------------------------------------


class DeliveredMessage(msgspec.Struct, omit_defaults=True):
    """One message as consumers get it."""

    id: str
    """What the consumer acknowledges it by."""
    partition: int
    offset: int
    publish_time: datetime
    payload: Any = msgspec.UNSET
    payload_base64: str | msgspec.UnsetType = msgspec.UNSET
    key: str | None = None
    attributes: dict[str, str] = {}
    producer: str = ""
    redeliveries: int = 0
    """How often it failed before."""
    reason: str | None = None
    """Why it failed last."""
    schema_id: int = 0
    schema_version: int = 0


_encode: Final = msgspec.json.Encoder().encode


def encode_message(
    batch: Batch,
    row: int,
    partition: int,
    message_id: str,
    form: PayloadForm,
    redeliveries: int = 0,
    reason: str | None = None,
) -> bytes:
    """Return one message as JSON."""
    payload, as_base64 = shown_payload(batch.payloads[row], form)
    header = batch.header
    return _encode(
        DeliveredMessage(
            id=message_id,
            partition=partition,
            offset=batch.offset_at(row),
            publish_time=datetime_from_micros(batch.publish_time_at(row)),
            payload=payload,
            payload_base64=as_base64,
            key=batch.keys[row],
            attributes=batch.attributes[row],
            producer=batch.producer_name,
            redeliveries=redeliveries,
            reason=reason,
            schema_id=header.schema_id,
            schema_version=header.schema_version,
        )
    )


def shown_payload(payload: bytes, form: PayloadForm) -> tuple[Any, Any]:
    """Return the fields `payload` and `payload_base64`, one of which is absent."""
    if form != "base64":
        if form == "json" and _is_json(payload):
            return msgspec.Raw(payload), msgspec.UNSET
        try:
            return payload.decode(), msgspec.UNSET
        except UnicodeDecodeError:
            pass
    return msgspec.UNSET, base64.b64encode(payload).decode()


def _is_json(payload: bytes) -> bool:
    """Return whether the payload is one JSON value, which can be put into an answer as it is."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
