"""Slices count in the order of their numbers, whatever the order in which they are stored."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.slice_sequence import SliceSequence
from pydanube.model.settings.sections import SliceSettings

LIMITS = SliceSettings(in_flight_max=3, interval_ms=1000, slice_bytes=100, waiting_bytes_max=1000)


def sent(sequence: SliceSequence, now: float = 0.0) -> int:
    sequence.add(10, now)
    return sequence.take(now)


def test_the_first_slice_leaves_at_once() -> None:
    sequence = SliceSequence(LIMITS)
    assert sequence.due_at() == inf
    sequence.add(10, 5.0)
    assert sequence.due_at() == 5.0


def test_while_one_is_in_flight_the_next_waits_for_the_interval() -> None:
    sequence = SliceSequence(LIMITS)
    sent(sequence, 5.0)
    sequence.add(10, 5.1)
    assert sequence.due_at() == 6.0


def test_a_full_slice_does_not_wait_for_the_interval() -> None:
    sequence = SliceSequence(LIMITS)
    sent(sequence, 5.0)
    sequence.add(100, 5.1)
    assert sequence.due_at() == -inf


def test_without_room_nothing_leaves() -> None:
    sequence = SliceSequence(LIMITS)
    for _ in range(3):
        sent(sequence)
    sequence.add(100, 0.0)
    assert sequence.due_at() == inf
    sequence.stored(1)
    assert sequence.due_at() == -inf


def test_state_alone_waits_until_its_time_and_leaves_with_data_before() -> None:
    sequence = SliceSequence(LIMITS)
    sequence.add(10, 9.0)
    assert sequence.due_at() == 9.0
    sequence.add(10, 2.0)
    assert sequence.due_at() == 2.0


def test_a_slice_counts_only_after_the_one_before_it() -> None:
    sequence = SliceSequence(LIMITS)
    for _ in range(3):
        sent(sequence)
    assert list(sequence.stored(1)) == []
    assert list(sequence.stored(2)) == []
    assert list(sequence.stored(0)) == [0, 1, 2]


def test_nothing_behind_a_marker_counts() -> None:
    sequence = SliceSequence(LIMITS)
    for _ in range(2):
        sent(sequence)
    sequence.sealed(0)
    assert list(sequence.stored(0)) == []
    assert not sequence.has_room(1)


def test_too_much_is_refused_but_one_record_always_fits() -> None:
    sequence = SliceSequence(LIMITS)
    assert sequence.has_room(5000)
    sequence.add(5000, 0.0)
    assert not sequence.has_room(1)
    sequence.take(0.0)
    assert not sequence.has_room(1)
    sequence.stored(0)
    assert sequence.has_room(1)


def test_what_counts_does_not_wait_any_more_also_while_something_behind_it_is_stored() -> None:
    sequence = SliceSequence(LIMITS)
    for number in range(200):  # always one is stored behind one that is on its way
        sequence.add(400, 0.0)
        sequence.take(0.0)
        if number % 2:
            sequence.stored(number)
            if number > 1:
                sequence.stored(number - 3)
        assert sequence.waiting_bytes <= 4 * 400


@given(st.permutations(range(8)))
def test_whatever_the_order_of_answers_each_number_counts_once_and_in_order(order: list[int]) -> None:
    sequence = SliceSequence(SliceSettings(in_flight_max=8))
    for _ in range(8):
        sent(sequence)
    counted: list[int] = []
    answered: set[int] = set()
    for number in order:
        answered.add(number)
        counted += sequence.stored(number)
        assert counted == list(range(len(counted)))
        assert set(counted) <= answered
    assert counted == list(range(8))
    assert sequence.waiting_bytes == 0
