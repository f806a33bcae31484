import pytest

from pydanube.core.meters import Meter

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def steady(meter: Meter, seconds: int, start_us: int = START, messages: int = 100, size_bytes: int = 5_000) -> int:
    """Ten batches a second; the time at which it ends."""
    for tenth in range(seconds * 10):
        meter.mark(start_us + tenth * SECOND // 10, messages, size_bytes)
    return start_us + seconds * SECOND


def test_a_meter_that_was_never_marked_shows_nothing():
    assert Meter().rates(START) == (0.0, 0.0)


def test_a_steady_flow_shows_its_rate_from_the_first_seconds_on():
    for seconds in (2, 10, 60, 600):
        meter = Meter()
        now = steady(meter, seconds)
        assert meter.rates(now) == pytest.approx((1_000, 50_000), rel=0.05)


def test_what_stopped_fades_within_the_window():
    meter = Meter()
    now = steady(meter, 60)
    assert meter.rates(now + 10 * SECOND)[0] == pytest.approx(1_000 / 2.718, rel=0.05)
    assert meter.rates(now + 60 * SECOND)[0] < 5


def test_a_single_batch_is_not_taken_for_a_flood():
    meter = Meter()
    meter.mark(START, 500, 50_000)
    assert meter.rates(START)[0] <= 530


def test_a_clock_that_goes_back_is_no_error_and_loses_nothing():
    meter = Meter()
    now = steady(meter, 60)
    meter.mark(now - 30 * SECOND, 100, 5_000)
    messages, _ = meter.rates(now - 30 * SECOND)
    assert messages == pytest.approx(1_000, rel=0.1)
    assert meter.rates(now - 60 * SECOND)[0] >= 0


def test_rates_can_be_asked_without_changing_them():
    meter = Meter()
    now = steady(meter, 20)
    meter.rates(now + 100 * SECOND)
    assert meter.rates(now) == pytest.approx((1_000, 50_000), rel=0.05)
