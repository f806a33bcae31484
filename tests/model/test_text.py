"""Text to values: one grammar for flags, numbers, sizes and durations, and one hint for misspelt names."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.model.errors import Invalid
from pydanube.model.limits import KIB, MIB
from pydanube.model.text import Choice, Duration, Flag, Number, Size, did_you_mean, nearest, read, seconds


@given(st.integers(0, 2**50))
def test_a_size_is_shown_as_text_that_is_read_as_the_same_size(size: int) -> None:
    kind = Size(0, 2**50)
    assert kind.read(kind.show(size)) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("7", 7),
        ("12B", 12),
        ("64KiB", 64 * KIB),
        ("64 kib", 64 * KIB),
        ("64k", 64 * KIB),
        (" 2MiB ", 2 * MIB),
        ("1g", 1 << 30),
        ("1GB", 10**9),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert Size(0, 2**50).read(text) == size


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0", "0"),
        ("30", "30"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("1e2", "100"),
        ("500ms", "0.5"),
        ("1.5 s", "1.5"),
        ("0.14h", "504"),
        (" 7d ", "604800"),
        ("1w", "604800"),
        ("10 minutes", "600"),
        ("15M", "900"),
        ("1 Hour", "3600"),
        ("3  days", "259200"),
        ("250 milliseconds", "0.25"),
    ],
)
def test_a_duration_is_seconds_or_has_a_unit(text: str, told: str) -> None:
    assert seconds(text) == Decimal(told)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 parsec", "nan", "inf", "1..5", ".", "1e999", "٣s", "1s 2s", "9" * 99]
)
def test_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        seconds(text)


def test_a_number_alone_is_no_duration_where_it_might_mean_something_else() -> None:
    assert Duration().read("10") == 10
    with pytest.raises(ValueError):
        Duration(needs_unit=True).read("10")


def test_an_error_says_where_the_text_is_and_what_is_allowed() -> None:
    for kind, allowed in (
        (Flag(), "true or false"),
        (Number(1, 9), "a whole number from 1 to 9"),
        (Size(1, MIB), 'a size from 1 to 1MiB, such as 4096 or "64MiB"'),
        (Duration(0.1, 60), "a time such as 30s, 15m or 1h, from 0.1 to 60 seconds"),
        (Duration(), "a time such as 30s, 15m or 1h"),
        (Choice(("red", "blue")), "one of red, blue"),
    ):
        for wrong in ("perhaps", "-1", None, 1.5):
            with pytest.raises(Invalid) as refused:
                read(kind, wrong, "option x")
            assert refused.value.message == f"option x is {wrong!r}: use {allowed}"


@given(st.text())
def test_no_text_makes_a_kind_do_anything_but_read_or_refuse(text: str) -> None:
    for kind in (Flag(), Number(0, 100), Size(0, 100), Duration(), Choice(("red",))):
        try:
            kind.read(text)
        except ValueError:
            continue


def test_a_misspelt_name_is_answered_with_the_one_that_was_meant() -> None:
    known = ("startingOffsets", "endingOffsets")
    assert nearest("STARTINGOFFSET", known) == "startingOffsets"
    assert did_you_mean("startingoffset", known) == "did you mean 'startingOffsets'?"
    assert did_you_mean("zzz", known) == "known are startingOffsets, endingOffsets"
    assert did_you_mean("zzz", known, "there are") == "there are startingOffsets, endingOffsets"
    assert did_you_mean("zzz", known, otherwise="look it up") == "look it up"
    assert did_you_mean("zzz", []) == "there are none"
