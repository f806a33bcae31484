"""Where reading starts: at the start or the end of the log, at an offset, or at an append time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self

import msgspec

from .errors import Invalid

OFFSET_END: Final = 1 << 63
"""Every offset is below this: offsets are sent and stored as signed 64-bit numbers."""

type_names = "earliest, latest, an offset such as 1000, or a time such as 2026-01-31T12:00:00Z"


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """A position. `value` is an offset, or microseconds since 1970 in UTC; "earliest" and "latest" have none."""

    kind: Literal["earliest", "latest", "offset", "time"] = "latest"
    value: int = 0

    def __post_init__(self) -> None:
        if self.kind == "offset" and not 0 <= self.value < OFFSET_END:
            raise Invalid(f"position offset {self.value} is negative or too large: use an offset of the partition")

    @classmethod
    def parse(cls, text: object) -> Self:
        """Parse "earliest", "latest", an offset, a datetime, or a timestamp in ISO 8601."""
        try:
            position = cls._parsed(text)
        except (Invalid, ValueError, OverflowError):  # too many digits, or an impossible offset or time
            position = None
        if position is None or not position._in_range():
            raise Invalid(f"{text!r} is not a position: use {type_names}")
        return position

    @classmethod
    def _parsed(cls, text: object) -> Self | None:
        match text:
            case Position():
                return cls(text.kind, text.value)
            case "earliest":
                return cls("earliest")
            case "latest":
                return cls("latest")
            case datetime():
                return cls("time", micros_from_datetime(text))
            case int() if not isinstance(text, bool):
                return cls("offset", text)
            case str() if text.isdecimal():
                return cls("offset", int(text))
            case str():
                return cls("time", micros_from_datetime(datetime.fromisoformat(text)))
        return None

    def _in_range(self) -> bool:
        match self.kind:
            case "offset":
                return 0 <= self.value < OFFSET_END
            case "time":
                return _TIME_MIN <= self.value <= _TIME_MAX
        return True

    def __str__(self) -> str:
        if self.kind == "time":
            return datetime_from_micros(self.value).isoformat()
        return str(self.value) if self.kind == "offset" else self.kind


EARLIEST = Position("earliest")
LATEST = Position("latest")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros_from_datetime(moment: datetime) -> int:
    """Return microseconds since 1970. A datetime without a time zone counts as UTC. Raises Invalid for other types."""
    if not isinstance(moment, datetime):
        raise Invalid(f"{moment!r} is not a time: use a datetime")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def datetime_from_micros(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def utc_text(micros: int) -> str:
    """Return a time as messages show it, to the second."""
    return datetime_from_micros(micros).strftime("%Y-%m-%d %H:%M:%S UTC")


_TIME_MIN: Final = micros_from_datetime(datetime.min.replace(tzinfo=UTC))
_TIME_MAX: Final = micros_from_datetime(datetime.max.replace(tzinfo=UTC))
"""The range of a datetime in UTC: the years 1 to 9999."""
