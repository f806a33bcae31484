"""Formats single messages: as a table row, in full, or as a JSON object."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from pydanube.cli.output import fields, payload_json, payload_text, printable, size, table
from pydanube.cli.standard_streams import is_terminal

if TYPE_CHECKING:
    from datetime import datetime

    from pydanube.client import Message, PeekedMessage

PAYLOAD_CHARACTERS: Final = 60
"""The characters of a payload that a list shows."""
CARD_BYTES: Final = 64 << 10
"""The bytes of a payload that `show` prints on a terminal."""


def place_of(message: Message) -> str:
    return f"{message.partition}:{message.offset}"


def record(message: Message) -> dict[str, Any]:
    """Return the JSON form that `danube consume --json` writes."""
    payload, encoding = payload_json(message.payload)
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "key": message.key,
        "payload": payload,
        "payload_encoding": encoding,
        "attributes": message.attributes,
        "publish_time": message.publish_time.isoformat(),
        "append_time": message.append_time.isoformat(),
        "producer": message.producer,
        "deliver_at": _iso(message.deliver_at),
        "redeliveries": message.redeliveries,
        "failure_reason": message.failure_reason,
        "schema_id": message.schema_id,
        "schema_version": message.schema_version,
    }


def pending(message: PeekedMessage) -> dict[str, Any]:
    """Return the JSON form of why the message is pending."""
    return {"state": message.state, "until": _iso(message.until), "consumer": message.consumer or None}


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def state_of(message: PeekedMessage) -> str:
    """Return why the message is pending, such as "waiting until 01-31 12:00:05, failed 2 times: no stock"."""
    told: str = message.state
    if message.until is not None:
        told += f" until {message.until:%m-%d %H:%M:%S}"
    if message.consumer:
        told += f" by {message.consumer}"
    if message.redeliveries:
        told += f", failed {'once' if message.redeliveries == 1 else f'{message.redeliveries} times'}"
    return told + (f": {message.failure_reason}" if message.failure_reason else "")


def show_all(messages: Iterable[PeekedMessage]) -> None:
    """Print a table of messages with their state and the beginning of their payloads."""
    times = "%m-%d %H:%M:%S" if is_terminal(sys.stdout) else "%Y-%m-%d %H:%M:%S.%f%z"
    table(
        ["message", "published", "key", "bytes", "state", "payload"],
        [
            (
                place_of(one),
                one.publish_time.strftime(times),
                "" if one.key is None else one.key,
                len(one.payload),
                state_of(one),
                beginning(one.payload),
            )
            for one in messages
        ],
        right=["message", "bytes"],
        cut=["key", "state", "payload"],
    )


def show(message: Message, more: Iterable[tuple[str, object]] = ()) -> None:
    """Print everything about one message, its payload last."""
    fields(
        [
            ("message", f"{place_of(message)} of {message.topic}"),
            *more,
            ("key", "none" if message.key is None else message.key),
            ("producer", message.producer or "not named"),
            ("published", message.publish_time.isoformat()),
            ("stored", message.append_time.isoformat()),
            *([("deliver at", message.deliver_at.isoformat())] if message.deliver_at is not None else []),
            *((f"attribute {name}", value) for name, value in message.attributes.items()),
            ("payload", size(len(message.payload))),
        ]
    )
    click.echo()
    terminal = is_terminal(sys.stdout)
    shown = message.payload[:CARD_BYTES] if terminal else message.payload
    click.echo(payload_text(shown, terminal=True))
    if len(shown) < len(message.payload):
        click.echo(f"... {size(len(message.payload) - len(shown))} more; --json has all of it", err=True)


def beginning(payload: bytes) -> str:
    """Return the first characters of a payload, on one line."""
    text = printable(payload[: 4 * PAYLOAD_CHARACTERS].decode("utf-8", errors="backslashreplace"))
    cut = len(text) > PAYLOAD_CHARACTERS or len(payload) > 4 * PAYLOAD_CHARACTERS
    return text[: PAYLOAD_CHARACTERS - 3] + "..." if cut else text
