"""A bucket keeps its rate on average: it makes up for a little lateness, and not for a pause."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.runtime.rates import BURST_S, LATE_S, Bucket


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 5_000)), min_size=1, max_size=50),
)
def test_over_any_period_a_rate_is_exceeded_by_at_most_a_burst_and_a_batch(per_s, arrivals):
    bucket, now, total = Bucket(per_s, 0.0), 0.0, 0
    largest = max(amount for _, amount in arrivals)
    for pause, amount in arrivals:
        now += pause
        now += bucket.wait_s(now)
        assert bucket.wait_s(now) < 1e-6
        bucket.take(amount, now)
        total += amount
        assert total - largest <= per_s * (now + BURST_S) + 1e-3 * per_s


@given(st.integers(1, 10_000), st.integers(1, 1_000_000))
def test_a_batch_of_any_size_may_go_and_its_debt_is_paid_over_time(per_s, amount):
    bucket = Bucket(per_s, 0.0)
    assert bucket.wait_s(0.0) == 0
    bucket.take(amount, 0.0)
    assert bucket.wait_s(0.0) == pytest.approx(max(0.0, amount / per_s - BURST_S))
    assert bucket.wait_s(amount / per_s + 1e-6) == 0


def passed(rate: float, asked: list[tuple[float, int]]) -> list[float]:
    """Return when items are admitted that each come `pause` seconds after the ones before were admitted."""
    bucket, now, times = Bucket(rate, -math.inf, LATE_S, 0.0), 1_000.0, []
    for pause, count in asked:
        now += pause
        now += bucket.admit(count, now)
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
            assert times[last] - times[first] >= due - LATE_S - 1e-6
