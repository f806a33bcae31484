"""Where reading starts: at an end of the log, at an offset, or at an append time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

from .errors import Invalid

type_names = "earliest, latest, an offset such as 1000, or a time such as 2026-01-31T12:00:00Z"


@dataclass(frozen=True, slots=True)
class Position:
    """`value` is an offset or microseconds since 1970 in UTC; the two ends have none."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0

    @classmethod
    def parse(cls, text: object) -> Self:
        """From what a person or a program writes: a word, an offset, a datetime, or a timestamp in ISO 8601."""
        match text:
            case Position():
                return cls(text.kind, text.value)
            case "earliest":
                return cls("earliest")
            case "latest":
                return cls("latest")
            case datetime():
                return cls("time", micros_from_datetime(text))
            case int() if not isinstance(text, bool) and text >= 0:
                return cls("offset", text)
            case str() if text.isdecimal():
                return cls("offset", int(text))
            case str():
                try:
                    return cls("time", micros_from_datetime(datetime.fromisoformat(text)))
                except ValueError:
                    pass
        raise Invalid(f"{text!r} is not a position: use {type_names}")

    def __str__(self) -> str:
        if self.kind == "time":
            return datetime_from_micros(self.value).isoformat()
        return str(self.value) if self.kind == "offset" else self.kind


EARLIEST = Position("earliest")
LATEST = Position("latest")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_from_datetime(moment: datetime) -> int:
    """Microseconds since 1970. A datetime without a zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def datetime_from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
