"""Single messages for people and for scripts: one line, one card, or one JSON object."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from .output import fields, payload_json, payload_text, printable, size, table

if TYPE_CHECKING:
    from pydanube.client import Message

PAYLOAD_CHARACTERS: Final = 60
"""Of a payload in a list."""
CARD_BYTES: Final = 64 << 10
"""Of a payload that is shown whole."""


def place_of(message: Message) -> str:
    return f"{message.partition}:{message.offset}"


def record(message: Message) -> dict[str, Any]:
    """As `danube consume --json` writes it."""
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
    }


def show_all(messages: Iterable[Message]) -> None:
    """A table with the beginnings of their payloads."""
    table(
        ["message", "published", "key", "bytes", "payload"],
        [
            (
                place_of(one),
                one.publish_time.isoformat(sep=" ", timespec="milliseconds"),
                "" if one.key is None else one.key,
                len(one.payload),
                beginning(one.payload),
            )
            for one in messages
        ],
        right=["message", "bytes"],
    )


def show(message: Message, more: Iterable[tuple[str, object]] = ()) -> None:
    """Everything about one, its payload last."""
    fields(
        [
            ("message", f"{place_of(message)} of {message.topic}"),
            *more,
            ("key", "none" if message.key is None else message.key),
            ("producer", message.producer or "not named"),
            ("published", message.publish_time.isoformat()),
            ("stored", message.append_time.isoformat()),
            *((f"attribute {name}", value) for name, value in message.attributes.items()),
            ("payload", size(len(message.payload))),
        ]
    )
    click.echo()
    terminal = sys.stdout.isatty()
    shown = message.payload[:CARD_BYTES] if terminal else message.payload
    click.echo(payload_text(shown, terminal=True))
    if len(shown) < len(message.payload):
        click.echo(f"... {size(len(message.payload) - len(shown))} more; --json has all of it", err=True)


def beginning(payload: bytes) -> str:
    """The first characters of a payload, on one line."""
    text = printable(payload[: 4 * PAYLOAD_CHARACTERS].decode("utf-8", errors="backslashreplace"))
    cut = len(text) > PAYLOAD_CHARACTERS or len(payload) > 4 * PAYLOAD_CHARACTERS
    return text[: PAYLOAD_CHARACTERS - 3] + "..." if cut else text
