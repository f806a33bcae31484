import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.sizes import FIRST_STEP_BYTES, POINTS_MAX, Sizes

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
