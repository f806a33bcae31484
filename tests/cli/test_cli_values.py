"""How people write durations, places, positions and policies."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.cli import values
from pydanube.cli.output import span
from pydanube.model.errors import Invalid
from pydanube.model.policies import FIELDS, BacklogAction
from pydanube.model.positions import EARLIEST, Position
from pydanube.runtime.clock import SystemClock


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("30", 30), ("1.5", 1.5), ("500ms", 0.5), ("30s", 30), ("10m", 600), ("2h", 7200), ("7d", 604_800)],
)
def test_durations(text: str, seconds: float):
    assert values.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1", "1y", "ten", "1 0", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_what_is_no_duration_is_refused_with_examples(text: str):
    with pytest.raises(Invalid, match="30s, 10m"):
        values.duration(text)


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_invalid(text: str):
    for parse in (values.duration, values.position, values.moment, values.place, values.redeliveries, values.policy):
        with suppress(Invalid):
            parse(text)


@given(st.integers(1, 10**6), st.sampled_from(["m", "h", "d", "w"]))
def test_durations_are_exact_in_every_unit(hundredths: int, unit: str):
    seconds, left = divmod(hundredths * {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}[unit], 100)
    text = f"ttl_s={hundredths // 100}.{hundredths % 100:02}{unit}"
    if left:
        with pytest.raises(Invalid, match="whole seconds"):
            values.policy(text)
    else:
        assert values.policy(text) == ("ttl_s", seconds)


def test_a_number_of_redeliveries_that_is_too_long_is_none():
    with pytest.raises(Invalid, match="use 0 to 65535"):
        values.redeliveries("9" * 5_000)


@pytest.mark.parametrize("text", ["-10m", "now-10m"])
def test_a_position_may_be_told_as_how_long_ago(text: str):
    found = values.position(text)
    assert found.kind == "time"
    ago = SystemClock().now_us() - found.value
    assert 600_000_000 <= ago < 660_000_000


@pytest.mark.parametrize("text", ["-5", "now-10"])
def test_how_long_ago_needs_a_unit(text: str):
    number = text.removeprefix("now")
    with pytest.raises(Invalid) as refused:
        values.position(text)
    assert refused.value.message == f"{text!r} has no unit: use {number}s, {number}m or {number}h for how long ago"


def test_other_positions_stay_what_they_are():
    assert values.position("earliest") == EARLIEST
    assert values.position("1000") == Position("offset", 1000)
    with pytest.raises(Invalid, match="-10m"):
        values.position("yesterday")


def test_a_place_is_partition_and_offset():
    assert values.place("2:1742") == (2, 1742)
    for wrong in ("1742", "2:", ":5", "a:b", "1:-5", f"0:{2**63}"):
        with pytest.raises(Invalid, match="PARTITION:OFFSET"):
            values.place(wrong)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("retention_s=7d", ("retention_s", 604_800)),
        ("retention-bytes=10GiB", ("retention_bytes", 10 << 30)),
        ("retention_s=-1", ("retention_s", -1)),
        ("backlog_action=evict", ("backlog_action", BacklogAction.EVICT)),
        ("publish_bytes_per_s=1MiB", ("publish_bytes_per_s", 1 << 20)),
        ("producers_max=0", ("producers_max", 0)),
        ("ttl_s=0.14h", ("ttl_s", 504)),
        ("ttl_s=0.55m", ("ttl_s", 33)),
        ("retention_s=1.1d", ("retention_s", 95_040)),
        ("ttl_s=2000ms", ("ttl_s", 2)),
    ],
)
def test_policies_take_units(text: str, change: tuple[str, int]):
    assert values.policy(text) == change


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("retention=7d", "is unknown: did you mean 'retention_s'"),
        ("colour=7", "is unknown: use one of producers_max"),
        ("ttl_s", "NAME=VALUE"),
        ("ttl_s=", "NAME=VALUE"),
        ("ttl_s=1500ms", "whole seconds"),
        ("ttl_s=0.140001h", "whole seconds"),
        ("ttl_s=999999999999.999999s", "whole seconds"),
        (f"producers_max={'9' * 5_000}", "a whole number"),
        ("producers_max=many", "a whole number"),
        ("producers_max=1MiB", "a whole number"),
        ("publish_messages_per_s=10m", "a whole number"),
        ("message_bytes_max=5 parsecs", "a size"),
        ("ttl_s=-1", "is not a duration"),
        ("backlog_action=pray", "use refuse or evict"),
    ],
)
def test_a_wrong_policy_is_told_what_is_right(text: str, told: str):
    with pytest.raises(Invalid, match=told):
        values.policy(text)


def test_every_policy_can_be_set():
    for name in FIELDS:
        assert values.policy(f"{name}={'refuse' if name == 'backlog_action' else 5}")[0] == name


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.01, "0s"),
        (0.44, "0.4s"),
        (4, "4s"),
        (59.2, "59s"),
        (59.9, "1m"),
        (150, "2m 30s"),
        (3600, "1h"),
        (90_000, "1d 1h"),
    ],
)
def test_durations_for_people(seconds: float, shown: str):
    assert span(seconds) == shown
