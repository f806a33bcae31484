"""Counting messages between offsets of which some hold none."""

from hypothesis import given
from hypothesis import strategies as st

from pydanube.model.gaps import NO_GAPS, Gaps

END = 60
RANGES = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=6)
OFFSET = st.integers(0, END)


def missing_of(gaps: Gaps) -> set[int]:
    return {offset for start, end in gaps.ranges for offset in range(start, end)}


@given(RANGES)
def test_ranges_are_put_in_order_and_joined(ranges: list[tuple[int, int]]) -> None:
    gaps = Gaps(ranges)
    assert missing_of(gaps) == {offset for start, end in ranges for offset in range(start, end)}
    assert all(end < start for (_, end), (start, _) in zip(gaps.ranges, gaps.ranges[1:], strict=False))


@given(RANGES, OFFSET, OFFSET)
def test_counts_are_those_of_the_offsets_one_by_one(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    gaps = Gaps(ranges)
    missing = missing_of(gaps)
    inside = [offset for offset in range(start, end) if offset in missing]
    assert gaps.missing(start, end) == len(inside)
    assert gaps.messages(start, end) == len(range(start, end)) - len(inside)
    assert [offset for one in gaps.within(start, end) for offset in range(*one)] == inside
    existing = [offset for offset in range(start, end) if offset not in missing]
    assert [offset for one in gaps.existing(start, end) for offset in range(*one)] == existing
    assert gaps.skip(start) == next(offset for offset in range(start, END + 1) if offset not in missing)
    assert gaps.rewind(start) == next(offset for offset in range(start, -1, -1) if offset - 1 not in missing)
    assert missing_of(Gaps.outside(gaps.ranges, start, end)) == set(existing)


@given(RANGES, OFFSET, st.integers(1, END))
def test_a_number_of_messages_is_gone_forward_and_back(ranges: list[tuple[int, int]], place: int, count: int) -> None:
    gaps = Gaps(ranges)
    missing = missing_of(gaps)
    after = [offset for offset in range(place, 3 * END) if offset not in missing]
    assert gaps.forward(place, count) == after[count - 1] + 1
    before = [offset for offset in range(-3 * END, place) if offset not in missing]
    assert gaps.back(place, count) == before[-count]
    assert gaps.forward(place, 0) == place == gaps.back(place, 0)


def test_the_largest_are_kept_where_not_all_can_be_told() -> None:
    gaps = Gaps([(0, 1), (10, 90), (100, 102), (200, 1000)])
    assert gaps.largest(2) == Gaps([(10, 90), (200, 1000)])
    assert gaps.largest(4) is gaps
    assert not NO_GAPS and NO_GAPS.messages(5, 9) == 4 and NO_GAPS.skip(7) == 7
