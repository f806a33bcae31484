"""Parses times, durations, places of messages, schemas and policies from the command line. Raises Invalid otherwise.

Durations and sizes are those of `model.text`. A place is PARTITION:OFFSET.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pydanube.model.errors import Invalid
from pydanube.model.limits import UNACKED_MAX
from pydanube.model.policies import FIELDS, BacklogAction
from pydanube.model.positions import OFFSET_END, Position
from pydanube.model.schemas import parse_subject
from pydanube.model.text import Size, did_you_mean, read, seconds

from .synonyms import Command

if TYPE_CHECKING:
    import click

_AGO: Final = re.compile(r"(?:now)?-([0-9.]+ ?[a-z]+)")
_AGO_WITHOUT_UNIT: Final = re.compile(r"(?:now)?(-[0-9.]+)")
_WORDS: Final = dict.fromkeys(("beginning", "begin", "start", "first", "oldest"), "earliest") | dict.fromkeys(
    ("end", "last", "newest", "now"), "latest"
)
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_BYTES: Final = Size(0, 2**53 - 1)
_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,19})")


def duration(text: str) -> float:
    """Return a duration in seconds."""
    return float(_seconds(text))


def _seconds(text: str) -> Decimal:
    """Return the exact seconds: 0.14h is exactly 504."""
    try:
        return seconds(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a duration: use seconds, or a unit as in 500ms, 30s, 10m, 2h, 7d") from None


def position(text: str) -> Position:
    """Parse a position as `Position.parse` does, how long ago, such as -10m, or a word that other tools use."""
    text = _WORDS.get(text.lower(), text)
    if without_unit := _AGO_WITHOUT_UNIT.fullmatch(text):
        number = without_unit[1]
        raise Invalid(f"{text!r} has no unit: use {number}s, {number}m or {number}h for how long ago")
    matched = _AGO.fullmatch(text)
    if matched is None:
        try:
            return Position.parse(text)
        except Invalid as error:
            raise Invalid(f"{error.message}, or how long ago: -10m") from None
    from pydanube.runtime.clock import SystemClock

    return Position("time", max(0, SystemClock().now_us() - round(duration(matched[1]) * 1_000_000)))


def moment(text: str) -> datetime:
    """Parse a time in ISO 8601; UTC if it has no zone."""
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a time: write it as 2026-01-31T12:00:00Z") from None
    return told if told.tzinfo is not None else told.replace(tzinfo=UTC)


def place(text: str) -> tuple[int, int]:
    """Parse PARTITION:OFFSET."""
    matched = _PLACE.fullmatch(text)
    if matched is None or int(matched[2]) >= OFFSET_END:
        raise Invalid(f"{text!r} is not the place of a message: write it as PARTITION:OFFSET, for example 0:1742")
    return int(matched[1]), int(matched[2])


UNLIMITED: Final = -1


def redeliveries(text: str) -> int:
    """Parse a number of redeliveries, or UNLIMITED."""
    if text == "unlimited":
        return UNLIMITED
    if not _NUMBER.fullmatch(text):
        raise Invalid(f"{text!r} is not a number of redeliveries: use 0 to 65535, or unlimited")
    return int(text)


def unacked_max(text: str) -> int:
    """Parse a limit of unacked messages; 'unlimited' is 0."""
    if text == "unlimited":
        return 0
    if not _NUMBER.fullmatch(text) or not 0 < int(text) <= UNACKED_MAX:
        raise Invalid(f"{text!r} is not a number of unacked messages: use 1 to {UNACKED_MAX}, or unlimited")
    return int(text)


def policy_name(text: str) -> str:
    name = text.replace("-", "_")
    if name not in FIELDS:
        raise Invalid(f"policy {text!r} is unknown: {did_you_mean(name, FIELDS, 'use one of')}")
    return name


def policy(text: str) -> tuple[str, int]:
    """Parse NAME=VALUE. Sizes and durations may have units."""
    name, equals, value = text.partition("=")
    if not equals or not value:
        raise Invalid(f"{text!r} sets no policy: write it as NAME=VALUE, for example retention_s=7d")
    name = policy_name(name)
    return name, _policy_value(name, value)


def _policy_value(name: str, value: str) -> int:
    if name == "backlog_action":
        return BacklogAction.parse(value)
    if value == "-1" and name.startswith("retention_"):
        return -1
    if _NUMBER.fullmatch(value):
        return int(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return _whole_seconds(name, value)
    if "bytes" in name:
        return read(_BYTES, value, f"policy {name}")
    raise Invalid(f"policy {name} takes a whole number, not {value!r}")


def _whole_seconds(name: str, value: str) -> int:
    told = _seconds(value)
    if told % 1:
        raise Invalid(f"policy {name} takes whole seconds, not {value!r}")
    return int(told)


def byte_count(text: str) -> int:
    """Parse a number of bytes, which may have a unit, such as 10MB."""
    return read(_BYTES, text, "the size")


def some_bytes(text: str) -> int:
    """Parse a number of bytes that is not 0."""
    return read(Size(1, _BYTES.maximum), text, "the size")


class TakesAgo(Command):
    """A command with a position argument, for which -10m is a value and not an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"now{one}" if _AGO.fullmatch(one) else one for one in args])


@dataclass(frozen=True, slots=True)
class SchemaName:
    """SUBJECT or SUBJECT:VERSION. Version 0: the latest."""

    subject: str
    version: int = 0

    @classmethod
    def parse(cls, text: str) -> SchemaName:
        """Parse a subject with an optional version. What follows the last colon is a version if it is a number or
        `latest`: names of subjects may have colons too."""
        subject, colon, version = text.rpartition(":")
        if colon and (version == "latest" or version.isdigit()):
            return cls(parse_subject(subject), schema_version(version))
        return cls(parse_subject(text))


def schema_reference(text: str) -> tuple[str, SchemaName]:
    """Parse NAME=SUBJECT:VERSION: the name that a definition uses, and what it means."""
    name, equals, schema = text.partition("=")
    if not equals or not name:
        raise Invalid(f"{text!r} is not a reference: write it as NAME=SUBJECT:VERSION, such as shop.Address=address:1")
    return name, SchemaName.parse(schema)


def schema_version(text: str) -> int:
    """Parse a version; 0: the latest."""
    if text == "latest":
        return 0
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) < 2**31:
        raise Invalid(f"{text!r} is not a version: use a number from 1 on, or latest")
    return int(text)
