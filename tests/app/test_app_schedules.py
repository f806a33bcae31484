"""When schedules are due: intervals, cron expressions, time zones, and the days on which clocks change."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

import pydanube
from pydanube.app.schedules import Cron, Every, Schedule


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def ticks(schedule: Schedule, start: str, count: int) -> list[str]:
    found, time = [], at(start)
    for _ in range(count):
        time = schedule.next(time)
        found.append(datetime.fromtimestamp(time, UTC).strftime("%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["01-31 12:20", "01-31 12:40", "01-31 13:00"]),
        ("5,35 8-9 * * *", ["02-01 08:05", "02-01 08:35", "02-01 09:05"]),
        ("0 3 * * mon", ["02-02 03:00", "02-09 03:00", "02-16 03:00"]),
        ("0 0 * * 7", ["02-01 00:00", "02-08 00:00", "02-15 00:00"]),
        ("0 0 13 * fri", ["02-06 00:00", "02-13 00:00", "02-20 00:00"]),
        ("0 0 1 jan-mar/2 *", ["03-01 00:00", "01-01 00:00", "03-01 00:00"]),
        ("0 12 29 feb *", ["02-29 12:00", "02-29 12:00", "02-29 12:00"]),
        ("50/5 12 * * *", ["01-31 12:50", "01-31 12:55", "02-01 12:50"]),
    ],
)
def test_cron_is_due_when_its_fields_match(expression: str, expected: list[str]) -> None:
    assert ticks(Cron.parse(expression), "2026-01-31 12:00", 3) == expected


def test_intervals_count_from_1970() -> None:
    assert ticks(Every.parse("45m"), "2026-01-31 12:00", 2) == ["01-31 12:45", "01-31 13:30"]
    assert ticks(Every.parse("1d"), "2026-01-31 12:00", 1) == ["02-01 00:00"]


VIENNA = "Europe/Vienna"


def test_a_time_that_the_clock_skips_is_due_as_much_later() -> None:
    """On 29 March 2026 Vienna goes from 02:00 (01:00 UTC) to 03:00."""
    assert ticks(Cron.parse("30 2 * * *", VIENNA), "2026-03-27 12:00", 3) == [
        "03-28 01:30",
        "03-29 01:30",
        "03-30 00:30",
    ]


def test_a_time_that_comes_twice_is_due_the_first_time() -> None:
    """On 25 October 2026 Vienna has 02:30 at 00:30 and at 01:30 UTC."""
    assert ticks(Cron.parse("30 2 * * *", VIENNA), "2026-10-24 12:00", 2) == ["10-25 00:30", "10-26 01:30"]


def test_an_expression_for_every_hour_goes_on_as_time_does() -> None:
    half = Cron.parse("*/30 * * * *", VIENNA)
    for day in ("03-29", "10-25"):
        assert ticks(half, f"2026-{day} 00:00", 4) == [f"{day} {time}" for time in ("00:30", "01:00", "01:30", "02:00")]


@pytest.mark.parametrize("zone", ["UTC", VIENNA, "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu"])
def test_the_last_tick_is_the_one_before_the_next(zone: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for expression in ("*/7 * * * *", "15 2,3 * * *", "0 0 31 * *", "59 23 * * sun"):
        cron = Cron.parse(expression, zone)
        for _ in range(10):
            time = rng.randrange(at("2025-01-01 00:00"), at("2028-01-01 00:00"))
            following = cron.next(time)
            assert cron.last(time) <= time < following
            assert cron.last(following) == following
            assert cron.next(cron.last(time)) == following
            assert cron.last(following - 1) == cron.last(time)


def test_a_tick_is_shown_in_its_time_zone() -> None:
    local = Cron.parse("0 3 * * *", VIENNA).local(at("2026-07-01 01:00"))
    assert (local.hour, local.tzinfo) == (3, ZoneInfo(VIENNA))


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("0 3 * *", "does not have five fields"),
        ("60 * * * *", "minute '60'"),
        ("0 3 * * noday", "day of the week 'noday'"),
        ("0 3 * * 5-2", "ends before it begins"),
        ("*/0 * * * *", "the step"),
        ("0 0 30 feb *", "is never due"),
        ("0 0 31 4,6,9,11 *", "is never due"),
    ],
)
def test_an_expression_that_cannot_work_names_the_function(expression: str, said: str) -> None:
    app = pydanube.App()

    async def report() -> None: ...

    with pytest.raises(pydanube.Invalid, match=r"report \(test_app_schedules.py:\d+\): ") as raised:
        app.cron(expression)(report)
    assert said in raised.value.message


def test_other_mistakes_of_schedules_name_the_function_too() -> None:
    app = pydanube.App()

    async def report() -> None: ...

    async def orders(order: dict[str, int]) -> None: ...

    with pytest.raises(pydanube.Invalid, match=r"report .*time zone 'Europe/Wien'"):
        app.cron("0 3 * * *", zone="Europe/Wien")(report)
    with pytest.raises(pydanube.Invalid, match=r"report .*no option 'retry' of a schedule: there are topic, "):
        app.every("5m", retry=3)(report)  # type: ignore[call-arg]
    with pytest.raises(pydanube.Invalid, match=r"report .*interval is 'soon'"):
        app.every("soon")(report)
    with pytest.raises(pydanube.Invalid, match=r"report .*whole seconds"):
        app.every("1.5s")(report)
    with pytest.raises(pydanube.Invalid, match=r"orders .*no value but a pydanube.Tick"):
        app.every("5m")(orders)
