"""Range sets against sets of numbers; processing ranges one by one and all at once must give the same."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.dispatch import ranges as ranges_module
from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.in_flight import CHUNK, InFlightTable
from pydanube.core.dispatch.ranges import RangeArray, RangeSet, bounds, runs, spread, union

spans = st.tuples(st.integers(0, 120), st.integers(-2, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))
many = st.lists(spans, max_size=90)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), spans),
        st.tuples(st.just("remove"), spans),
        st.tuples(st.just("update"), many),
        st.tuples(st.just("take_first"), st.integers(0, 30)),
    ),
    max_size=30,
)


def members(ranges) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


def check(given_set: RangeSet, model: set[int]) -> None:
    assert members(given_set.ranges) == model
    assert given_set.count == len(model)
    assert bool(given_set) is bool(model)
    edges = [edge for one in given_set.ranges for edge in one]
    assert edges == sorted(set(edges)), "sorted, disjoint, and none touches the next"
    assert len(given_set) == len(given_set.ranges)
    if model:
        assert (given_set.first, given_set.end) == (min(model), max(model) + 1)
        assert given_set.first_end == given_set.end_of(min(model))


def apply(target: RangeSet, model: set[int], act: str, what) -> None:
    if act == "add":
        assert target.add(*what) == len(members([what]) - model)
        model |= members([what])
    elif act == "remove":
        assert target.remove(*what) == len(members([what]) & model)
        model -= members([what])
    elif act == "update":
        assert target.update(what) == len(members(what) - model)
        model |= members(what)
    else:
        lowest = sorted(model)[:what]
        assert members(target.take_first(what)) == set(lowest)
        model -= set(lowest)


@given(steps, spans)
def test_a_range_set_is_a_set(script, window):
    target, model = RangeSet(), set()
    for act, what in script:
        apply(target, model, act, what)
        check(target, model)
    assert members(target.within(*window)) == model & members([window])
    assert members(target.outside(*window)) == members([window]) - model
    assert all((offset in target) is (offset in model) for offset in range(135))
    assert members(target.take()) == model and not target


@given(many, many, st.sampled_from([0, 1, 64]))
def test_many_ranges_at_once_are_the_same_as_one_by_one(before, added, far_more):
    one_by_one, at_once = RangeSet(before), RangeSet(before)
    one_by_one.remove(0, 20)
    at_once.remove(0, 20)
    fresh = sum(one_by_one.add(start, end) for start, end in added)
    former = ranges_module._MANY, ranges_module._FAR_MORE
    ranges_module._MANY, ranges_module._FAR_MORE = 1, far_more
    try:
        assert at_once.update(added) == fresh
    finally:
        ranges_module._MANY, ranges_module._FAR_MORE = former
    assert at_once.ranges == one_by_one.ranges
    assert at_once.count == one_by_one.count


@given(st.integers(0, 30), st.lists(many, max_size=6), spans, st.integers(0, 130))
def test_a_cursor_that_takes_many_acks_at_once_is_a_set(position, acks, window, offset):
    cursor, settled = Cursor(position), set(range(position))
    for one in acks:
        assert cursor.ack_many(one) == len(members(one) - settled)
        settled |= members(one)
        lowest = next(number for number in range(1000) if number not in settled)
        assert cursor.position == lowest
        assert cursor.end == max([position - 1, *settled]) + 1
        assert cursor.acked_ahead == sum(number > lowest for number in settled)
        assert cursor.gaps == len(cursor.acked)
    assert members(cursor.missing(*window)) == members([window]) - settled
    assert cursor.is_acked(offset) is (offset in settled)
    assert cursor.next_missing(offset) == next(number for number in range(offset, 1000) if number not in settled)


def test_taking_from_the_front_and_putting_back_in_front_is_cheap_and_right():
    ones = RangeSet((number * 2, number * 2 + 1) for number in range(5000))
    for number in range(3000):
        ones.remove(number * 2, number * 2 + 1)
    assert (ones.first, len(ones)) == (6000, 2000)
    ones.add(5000, 5001)
    ones.add(4000, 4001)
    assert ones.ranges[:3] == [(4000, 4001), (5000, 5001), (6000, 6001)]


@given(st.lists(spans, min_size=1, max_size=30))
def test_spread_and_runs_are_each_others_opposite(ranges):
    offsets = spread(ranges)
    assert offsets.tolist() == [offset for start, end in ranges for offset in range(start, end)]
    assert members(runs(np.unique(offsets))) == set(offsets.tolist())


FAR = 3 * CHUNK
far_spans = st.tuples(st.integers(0, FAR), st.sampled_from([-1, 0, 1, 2, 30, CHUNK, 2 * CHUNK])).map(
    lambda pair: (pair[0], min(pair[0] + pair[1], FAR))
)
table_steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3), st.lists(far_spans, max_size=3)),
        st.tuples(st.just("add_each"), st.integers(1, 3), st.lists(far_spans, max_size=3)),
        st.tuples(st.just("remove"), st.just(0), st.lists(far_spans, max_size=12)),
        st.tuples(st.just("take"), st.integers(1, 3), st.just([])),
        st.tuples(st.just("take two"), st.integers(1, 3), st.just([])),
    ),
    max_size=15,
)


@given(table_steps)
def test_an_in_flight_table_is_a_dictionary_of_offsets(script):
    table, model = InFlightTable(hashed=True), {}
    for act, number, ranges in script:
        named = members(ranges)
        fresh = sorted(named - set(model))
        if act == "add":
            table.add(number, runs(np.array(fresh, np.int64)))
            model |= dict.fromkeys(fresh, (number, 0))
        elif act == "add_each" and fresh:
            offsets = np.array(fresh, np.int64)
            numbers = offsets % 2 + number
            table.add_each(numbers, offsets, (offsets * 7).astype(np.uint32))
            model |= {offset: (offset % 2 + number, offset * 7) for offset in fresh}
        elif act == "remove":
            hashes = table.remove(ranges)
            gone = named & set(model)
            if not any(model[offset][1] == 0 for offset in gone):
                assert sorted(hashes.tolist()) == sorted(model[offset][1] for offset in gone)
            assert len(hashes) == len(gone)
            model = {offset: one for offset, one in model.items() if offset not in named}
        elif act.startswith("take"):
            numbers = [number] if act == "take" else [number, number + 1]
            taken, hashes = table.take(numbers)
            assert members(taken) == {offset for offset, one in model.items() if one[0] in numbers}
            assert len(hashes) == len(members(taken))
            model = {offset: one for offset, one in model.items() if one[0] not in numbers}
        for each in range(1, 5):
            assert table.count.get(each, 0) == sum(one[0] == each for one in model.values())
        for each in (None, 1, 2):
            found = table.within(each, [(0, 5), *((start, start + 97) for start in range(5, FAR, 97))])
            assert members(found) == {offset for offset, one in model.items() if each in (None, one[0])}
            assert [start for start, _ in found] == sorted(start for start, _ in found)
    table.remove([(0, FAR + 1)])
    assert not table._chunks


real_spans = st.tuples(st.integers(0, 120), st.integers(1, 9)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(st.lists(real_spans, min_size=1, max_size=40), min_size=1, max_size=4))
def test_a_union_has_the_offsets_of_all_and_is_merged(lists):
    together = union([RangeArray(*bounds(one)) for one in lists])
    assert members(together) == members([span for one in lists for span in one])
    assert together.is_merged
