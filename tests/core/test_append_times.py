import random

import pytest

from pydanube.core.append_times import FIRST_STEP_US, POINTS_MAX, AppendTimes


def test_nothing_is_known_before_the_first_batch() -> None:
    assert AppendTimes().at(7) == 0


def test_offsets_before_the_first_batch_have_its_time_and_those_after_the_last_one_its() -> None:
    times = AppendTimes()
    times.add(100, 5_000_000)
    times.add(200, 9_000_000)
    assert [times.at(offset) for offset in (0, 100)] == [5_000_000] * 2
    assert times.at(150) == 7_000_000
    assert [times.at(offset) for offset in (200, 1_000)] == [9_000_000] * 2


def test_batches_of_one_step_are_interpolated_up_to_the_last_one() -> None:
    times = AppendTimes()
    for number in range(10):
        times.add(number * 10, 1_000_000 + number * FIRST_STEP_US // 20)
    assert times.at(90) == 1_000_000 + 9 * FIRST_STEP_US // 20
    assert times.at(45) == pytest.approx(1_000_000 + 4.5 * FIRST_STEP_US / 20)


@pytest.mark.parametrize("seed", range(5))
def test_the_error_is_less_than_the_step_however_long_it_runs(seed: int) -> None:
    print("seed", seed)
    rng, times, stored, offset, now_us = random.Random(seed), AppendTimes(), [], 0, 1_000_000
    for _ in range(20_000):
        times.add(offset, now_us)
        stored.append((offset, now_us))
        offset += rng.randrange(1, 1_000)
        now_us += rng.randrange(0, 400_000)
    assert len(times._offsets) <= POINTS_MAX
    widest = max(rng.choice((0, 400_000)), times._step_us) + 400_000
    for base, appended_us in rng.sample(stored, 500):
        assert abs(times.at(base) - appended_us) <= widest
    times.trim(stored[10_000][0])
    for base, appended_us in rng.sample(stored[10_000:], 500):
        assert abs(times.at(base) - appended_us) <= widest


def test_a_clock_that_goes_back_makes_no_time_fall() -> None:
    times = AppendTimes()
    for offset, now_us in ((0, 10_000_000), (10, 2_000_000), (20, 12_000_000)):
        times.add(offset, now_us)
    found = [times.at(offset) for offset in range(21)]
    assert found == sorted(found)
