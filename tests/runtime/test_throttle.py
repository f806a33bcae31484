"""A throttle keeps the rate on average while items come without a pause, and starts anew after a pause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.runtime.throttle import LATE_SECONDS, Throttle


def passed(rate: float, asked: list[tuple[float, int]]) -> list[float]:
    """Return when items are admitted that each come `pause` seconds after the ones before were admitted."""
    throttle, now, times = Throttle(rate), 1_000.0, []
    for pause, count in asked:
        now += pause
        now += throttle.admit(count, now)
        times.append(now)
    return times


def test_things_pass_one_by_one_at_the_rate():
    begin, *rest = passed(10, [(0, 1)] * 4)
    assert [round(one - begin, 6) for one in rest] == [0.1, 0.2, 0.3]


def test_more_at_once_make_the_next_wait_longer():
    begin, then = passed(10, [(0, 5), (0, 1)])
    assert then - begin == pytest.approx(0.5)


def test_a_little_lateness_is_made_up_for():
    times = passed(100, [(0.004, 1)] * 1_001)
    assert times[-1] - times[0] == pytest.approx(10)


def test_after_a_pause_the_rate_counts_from_there():
    *_, begin, second, third = passed(10, [(0, 1), (60, 1), (0, 1), (0, 1)])
    assert (second - begin, third - begin) == pytest.approx((0.1, 0.2))


@given(st.floats(0.1, 1_000), st.lists(st.tuples(st.floats(0, 10), st.integers(1, 100)), min_size=1))
def test_no_stretch_of_time_has_more_than_its_rate(rate: float, asked: list[tuple[float, int]]):
    times = passed(rate, asked)
    counts = [count for _, count in asked]
    for first in range(len(times)):
        for last in range(first, len(times)):
            due = sum(counts[first:last]) / rate  # the last ones have just begun to count
            assert times[last] - times[first] >= due - LATE_SECONDS - 1e-6
