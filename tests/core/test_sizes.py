import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.core import sizes as sizes_module
from pydanube.core.sizes import FIRST_STEP_BYTES, POINTS_MAX, Sizes

MB = 1_000_000

BATCHES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 1_000), st.integers(1, 200_000)), min_size=1, max_size=60
)


def filled(batches: list[tuple[int, int, int]], start: int = 0) -> tuple[Sizes, list[tuple[int, int, int]]]:
    """Batches of (skipped offsets, messages, bytes), and where each lies."""
    sizes, stored, offset = Sizes(start), [], start
    for skipped, messages, size in batches:
        base = offset + skipped
        offset = base + messages
        sizes.add(base, offset, size)
        stored.append((base, offset, size))
    return sizes, stored


@given(BATCHES, st.integers(0, 10_000))
def test_all_of_it_is_counted_exactly(batches, start):
    sizes, stored = filled(batches, start)
    assert sizes.between(start, stored[-1][1]) == sum(size for _, _, size in stored)
    assert sizes.between(0, 1 << 60) == sum(size for _, _, size in stored)


@given(BATCHES, st.data())
def test_a_part_is_off_by_less_than_a_step_and_a_batch_at_either_end(batches, data):
    sizes, stored = filled(batches)
    first = data.draw(st.integers(0, len(stored) - 1))
    last = data.draw(st.integers(first, len(stored) - 1))
    exact = sum(size for _, _, size in stored[first : last + 1])
    allowed = 2 * (FIRST_STEP_BYTES + 200_000)
    assert abs(sizes.between(stored[first][0], stored[last][1]) - exact) <= allowed


@given(BATCHES, st.integers(0, 1_000_000))
def test_the_last_so_many_bytes_begin_where_between_says_so(batches, wanted):
    sizes, stored = filled(batches)
    end = stored[-1][1]
    start = sizes.start_of_last(wanted, end)
    assert 0 <= start <= end
    assert sizes.between(start, end) <= wanted + 1
    if start > 0 and wanted:
        assert sizes.between(start - 1, end) >= wanted - 1


def test_a_change_of_message_size_is_seen():
    sizes = Sizes(0)
    for batch in range(1_000):
        sizes.add(batch * 100, batch * 100 + 100, 10_000)  # 100 bytes each
    for batch in range(1_000, 1_100):
        sizes.add(batch * 100, batch * 100 + 100, 1_000_000)  # 10 kB each
    assert sizes.between(0, 100_000) == pytest.approx(10_000_000, rel=0.05)
    assert sizes.between(100_000, 110_000) == pytest.approx(100_000_000, rel=0.05)
    assert sizes.start_of_last(50_000_000, 110_000) == pytest.approx(105_000, rel=0.01)


def test_memory_stays_bounded_however_much_is_stored():
    sizes = Sizes(0)
    for batch in range(20_000):
        sizes.add(batch * 10, batch * 10 + 10, 1_000_000)
    assert len(sizes._offsets) <= POINTS_MAX
    assert sizes.between(0, 200_000) == 20_000 * 1_000_000
    assert sizes.between(100_000, 200_000) == pytest.approx(10_000 * 1_000_000, rel=0.01)


def test_an_empty_partition_has_no_bytes():
    sizes = Sizes(500)
    assert sizes.between(0, 1_000) == 0
    assert sizes.start_of_last(10, 500) == 500


# -- trimming ----------------------------------------------------------------------------------------------------------


class Kept:
    """The batches of a partition, one by one, and what `Sizes` makes of them."""

    def __init__(self) -> None:
        self.sizes = Sizes(0)
        self.batches: list[tuple[int, int, int]] = []
        self.start = self.end = 0

    def add(self, messages: int, size: int, skipped: int = 0) -> None:
        base = self.end + skipped
        self.end = base + messages
        self.batches.append((base, self.end, size))
        self.sizes.add(base, self.end, size)

    def trim(self, start: int) -> None:
        self.start = max(self.start, start)
        self.batches = [one for one in self.batches if one[1] > self.start]
        self.sizes.trim(self.start)

    def bytes_from(self, offset: int) -> int:
        """Exact, where a batch begins at the offset."""
        return sum(size for base, _, size in self.batches if base >= offset)

    def error_from(self, offset: int) -> int:
        return abs(self.sizes.between(offset, self.end) - self.bytes_from(offset))


def test_after_a_terabyte_of_which_little_is_kept_estimates_are_good_again():
    kept = Kept()
    for _ in range(10_000):
        kept.add(messages=1_000, size=100 * MB)
    kept.trim(kept.end - 1_000)
    for messages, size in ((1, 1 * MB), (1_000, MB // 10), (1, 1 * MB)):
        kept.add(1, 1)
        mark = kept.end
        for _ in range(1_000):
            kept.add(messages, size)
        assert kept.sizes.between(mark, kept.end) == pytest.approx(kept.bytes_from(mark), rel=0.02)
    found = kept.sizes.start_of_last(200 * MB, kept.end)
    assert kept.bytes_from(found) == pytest.approx(200 * MB, rel=0.02)
    assert kept.sizes.start_of_last(500_000 * MB, kept.end) <= kept.start, "more than is kept, less than there ever was"


@pytest.mark.parametrize("seed", range(5))
def test_while_about_as_much_is_kept_all_the_time_estimates_stay_as_good(seed: int):
    chance, kept, limit, largest = random.Random(seed), Kept(), 64 << 20, 256 << 10
    step = 8 * limit // POINTS_MAX
    for _ in range(200):
        messages, size = chance.choice([1, 10, 1_000]), chance.randint(1, largest)
        for _ in range(chance.randint(1, 200)):
            kept.add(messages, size)
        kept.trim(kept.sizes.start_of_last(limit, kept.end))
        offsets = [base for base, _, _ in kept.batches if base >= kept.start]
        assert max(map(kept.error_from, chance.choices(offsets, k=10))) <= 4 * (step + largest)
        assert len(kept.sizes._offsets) <= POINTS_MAX


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 100), st.integers(1, 5_000)),
        st.tuples(st.just("trim"), st.floats(0, 1)),
    ),
    max_size=150,
)


@given(STEPS, st.data())
def test_whatever_comes_and_goes_points_stay_few_and_exact_and_errors_smaller_than_the_bytes_between_two(steps, data):
    with pytest.MonkeyPatch.context() as small:
        small.setattr(sizes_module, "POINTS_MAX", 16)
        small.setattr(sizes_module, "FIRST_STEP_BYTES", 1_000)
        kept = Kept()
        for step in steps:
            match step:
                case ("add", skipped, messages, size):
                    kept.add(messages, size, skipped)
                case ("trim", part):
                    kept.trim(kept.start + round((kept.end - kept.start) * part))
        sizes = kept.sizes
        points = [*zip(sizes._offsets, sizes._totals, strict=True), (sizes._end, sizes._bytes)]
        assert len(points) <= 17 and points == sorted(points)
        assert points[0][0] <= kept.start or not kept.batches
        widest = max((high - low for (_, low), (_, high) in pairwise(points)), default=0)
        for base, _, _ in kept.batches:
            if base >= kept.start:
                assert kept.error_from(base) <= widest
        for offset, total in points:
            if offset >= kept.start:
                assert sizes._bytes - total == kept.bytes_from(offset)
        wanted = data.draw(st.integers(1, 100_000))
        start = sizes.start_of_last(wanted, kept.end)
        assert points[0][0] <= start <= kept.end and sizes.between(start, kept.end) <= wanted + 1
        assert start == points[0][0] or sizes.between(start - 1, kept.end) >= wanted - 1
