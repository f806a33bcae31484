"""Histograms with fixed buckets."""

import random

from pydanube.core.histograms import AGE_US, LATENCY_US, Histogram


def test_a_value_counts_in_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21, 1_000):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2]
    assert histogram.cumulative() == [2, 4, 6]
    assert histogram.total == 1_062


def test_cumulative_counts_are_those_of_a_sorted_list() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    values = [int(chance.expovariate(1 / 50_000)) for _ in range(5_000)]
    for bounds in (LATENCY_US, AGE_US):
        histogram = Histogram(bounds)
        for value in values:
            histogram.observe(value)
        expected = [sum(value <= bound for value in values) for bound in bounds]
        assert histogram.cumulative() == [*expected, len(values)]
        assert histogram.total == sum(values)
