"""When a schedule is due: every so often, or as a cron expression in a time zone says. Times are whole seconds, UTC.

`Every` counts from 1970, so that all workers have the same ticks. `Cron` has five fields: minute, hour, day of the
month, month, day of the week (0 and 7 are Sunday), with lists, ranges, steps and English names: ``0 3 * * mon-fri``. If
both days are given, either is enough.

When the clock changes, a cron expression with hours means the time on the wall, once: a time that the clock skips is
due as much later as the clock jumps (02:30 becomes 03:30), and of a time that comes twice the first one counts. An
expression for every hour goes on as time does: it has no tick in an hour that is skipped, and ticks in both hours of
one that comes twice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from pydanube.model.errors import Invalid
from pydanube.model.text import Duration, read

EVERY_SECONDS_MAX: Final = 366 * 24 * 3600
DAYS_MAX: Final = 9 * 366
"""A date that exists comes within eight years: 29 February skips one leap year in 2100."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ONE_DAY: Final = timedelta(days=1)


class Schedule(Protocol):
    """Says when ticks are due."""

    @property
    def text(self) -> str:
        """What the user wrote."""
        ...

    def next(self, after: int) -> int:
        """Return the first tick after this time."""
        ...

    def last(self, at: int) -> int:
        """Return the newest tick that is due at this time."""
        ...

    def local(self, tick: int) -> datetime:
        """Return the time of a tick as a person reads it."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """A tick at each multiple of an interval since 1970."""

    text: str
    seconds: int

    @classmethod
    def parse(cls, text: str) -> Every:
        seconds = read(Duration(1, EVERY_SECONDS_MAX), text, "the interval")
        if seconds != int(seconds):
            raise Invalid(f"the interval is {text!r}: use whole seconds")
        return cls(text, int(seconds))

    def next(self, after: int) -> int:
        return self.last(after) + self.seconds

    def last(self, at: int) -> int:
        return at - at % self.seconds

    def local(self, tick: int) -> datetime:
        return datetime.fromtimestamp(tick, UTC)


@dataclass(frozen=True)
class Cron:
    """The ticks of a cron expression in a time zone."""

    text: str
    zone: ZoneInfo
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    @classmethod
    def parse(cls, text: str, zone: str = "UTC") -> Cron:
        """Raises Invalid, also for an expression that is never due."""
        fields = text.lower().split() if isinstance(text, str) else []
        if len(fields) != 5:
            raise Invalid(
                f"cron {text!r} does not have five fields: minute, hour, day of the month, month, day of the week"
            )
        minute, hour, day, month, weekday = fields
        found = cls(
            text,
            _zone(zone),
            tuple(sorted(_field(minute, "minute", 0, 59))),
            tuple(sorted(_field(hour, "hour", 0, 23))),
            _field(day, "day of the month", 1, 31),
            _field(month, "month", 1, 12, _MONTHS, 1),
            frozenset(number % 7 for number in _field(weekday, "day of the week", 0, 7, _WEEKDAYS)),
        )
        start = date(2000, 1, 1)
        if not any(found._matches(start + index * _ONE_DAY) for index in range(DAYS_MAX)):
            raise Invalid(f"cron {text!r} is never due: no month that it names has such a day")
        return found

    def next(self, after: int) -> int:
        for ticks in self._days_from(after, _ONE_DAY):
            index = bisect_right(ticks, after)
            if index < len(ticks):
                return ticks[index]
        raise AssertionError("an expression that is never due was refused")

    def last(self, at: int) -> int:
        for ticks in self._days_from(at, -_ONE_DAY):
            index = bisect_right(ticks, at)
            if index:
                return ticks[index - 1]
        raise AssertionError("an expression that is never due was refused")

    def local(self, tick: int) -> datetime:
        return datetime.fromtimestamp(tick, self.zone)

    def _days_from(self, time: int, step: timedelta) -> Iterator[tuple[int, ...]]:
        """Yield the ticks of each day that has some, beginning a day early: a skipped time may end in the next one."""
        day = datetime.fromtimestamp(time, self.zone).date() - step
        for _ in range(DAYS_MAX):
            if self._matches(day):
                yield _ticks(self, day)
            day += step

    def _matches(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return by_day or by_weekday
        return by_day and by_weekday


@lru_cache(maxsize=256)
def _ticks(cron: Cron, day: date) -> tuple[int, ...]:
    """Return the ticks of a day in order."""
    is_hourly = len(cron.hours) == 24
    found: set[int] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            wall = datetime(day.year, day.month, day.day, hour, minute)  # noqa: DTZ001  the zone follows
            first = wall.replace(tzinfo=cron.zone)
            is_skipped = first.astimezone(UTC).astimezone(cron.zone).replace(tzinfo=None) != wall
            if not (is_hourly and is_skipped):
                found.add(int(first.timestamp()))
            if is_hourly and not is_skipped:
                found.add(int(first.replace(fold=1).timestamp()))
    return tuple(sorted(found))


def _field(
    text: str, what: str, first: int, last: int, names: tuple[str, ...] = (), named_from: int = 0
) -> frozenset[int]:
    """Return the numbers of one field. Raises Invalid."""

    def number(word: str) -> int:
        value = names.index(word) + named_from if word in names else int(word) if word.isdecimal() else -1
        if not first <= value <= last:
            raise Invalid(f"{what} {text!r} of cron: use numbers from {first} to {last}{' or names' * bool(names)}")
        return value

    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        width = int(step) if step.isdecimal() else 0 if "/" in part else 1
        if not width:
            raise Invalid(f"{what} {text!r} of cron: the step in {part!r} is not a number from 1")
        if span == "*":
            start, end = first, last
        else:
            low, dash, high = span.partition("-")
            start = number(low)
            end = number(high) if dash else last if step else start
            if end < start:
                raise Invalid(f"{what} {text!r} of cron: {span!r} ends before it begins")
        found.update(range(start, end + 1, width))
    return frozenset(found)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, TypeError, LookupError):
        raise Invalid(f"time zone {name!r} is not known here: write it as Europe/Vienna, or install tzdata") from None
