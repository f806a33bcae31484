"""Acks are collected in few ranges, none is lost, and credit is granted as the user takes messages."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from client_harness import offsets
from hypothesis import given
from hypothesis import strategies as st

from pydanube.client.consuming.acks import Acks, merge_ranges
from pydanube.client.consuming.partition_source import FlowControl

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def gathered() -> tuple[Acks, list[int]]:
    calls: list[int] = []
    return Acks(lambda: calls.append(1), lambda: None), calls


class TestAcks:
    def test_of_consecutive_messages_are_one_range(self) -> None:
        acks, calls = gathered()
        for offset in range(5, 500):
            acks.add(offset, offset + 1)
        assert len(calls) == 1
        assert acks.take() == (1, [(5, 500)], 0)
        assert not acks.has_acks

    def test_out_of_order_are_merged_when_they_are_taken(self) -> None:
        acks, calls = gathered()
        for start, end in ((10, 11), (12, 13), (11, 12), (3, 5), (4, 6)):
            acks.add(start, end)
        assert acks.take().ranges == [(3, 6), (10, 13)]
        assert len(calls) == 1

    def test_that_are_cumulative_are_kept_apart(self) -> None:
        acks, calls = gathered()
        acks.add_cumulative(7)
        acks.add_cumulative(5)
        acks.add(9, 10)
        assert acks.take() == (1, [(9, 10)], 7)
        assert len(calls) == 1
        acks.add_cumulative(6)
        assert len(calls) == 2

    def test_stay_until_they_are_confirmed(self) -> None:
        acks, _ = gathered()
        acks.add(0, 5)
        first = acks.take()
        acks.add(5, 9)
        second = acks.take()
        assert acks.unconfirmed() == (2, [(0, 9)], 0)
        acks.confirm(first.number)
        assert acks.unconfirmed() == (2, [(5, 9)], 0)
        acks.confirm(second.number)
        assert acks.unconfirmed() is None
        assert acks.confirmed_number == acks.sent_number == 2

    def test_of_scattered_offsets_are_one_array_until_a_nack_withdraws_some(self) -> None:
        acks, calls = gathered()
        acks.add_scattered(np.array([1, 2, 5, 9]))
        acks.add_scattered(np.array([3, 9, 11]))
        acks.nack([(5, 6)], -1, "")
        acks.add_scattered(np.array([20, 22]))
        first = acks.take()
        assert first.range_list() == [(1, 4), (9, 10), (11, 12), (20, 21), (22, 23)]
        acks.add_scattered(np.array([30, 31, 40]))
        assert acks.take().range_list() == [(30, 32), (40, 41)]
        left = acks.unconfirmed()
        assert left is not None and left.range_list() == [*first.range_list(), (30, 32), (40, 41)]
        assert len(calls) == 2

    @given(st.lists(st.one_of(st.tuples(st.just("add"), RANGES), st.just(("take", None)), st.just(("confirm", None)))))
    def test_are_always_collected_sent_or_confirmed(
        self, steps: list[tuple[str, list[tuple[int, int]] | None]]
    ) -> None:
        acks, calls = gathered()
        done: set[int] = set()
        sent: dict[int, set[int]] = {}
        confirmed: set[int] = set()
        for step, ranges in steps:
            if step == "add":
                for start, end in ranges or []:
                    acks.add(start, end)
                    done |= set(range(start, end))
            elif step == "take":
                taken = acks.take()
                assert taken.ranges == merge_ranges(taken.ranges)
                sent[taken.number] = offsets(taken.ranges)
            elif sent:
                number = min(sent)
                acks.confirm(number)
                confirmed |= sent.pop(number)
        left = acks.unconfirmed()
        waiting = offsets(acks.take().ranges)
        assert done == waiting | confirmed | (offsets(left.ranges) if left else set())
        assert len(calls) <= len(steps)


@given(RANGES)
def test_merged_ranges_hold_the_same_offsets_and_do_not_touch(ranges: list[tuple[int, int]]) -> None:
    result = merge_ranges(ranges)
    assert offsets(result) == offsets(ranges)
    assert all(before[1] < after[0] for before, after in pairwise(result))


class TestCredit:
    def test_is_given_in_full_at_first_and_then_by_halves(self) -> None:
        credit = FlowControl(100, 1_000)
        assert credit.grant() == (100, 1_000)
        assert credit.grant() is None
        credit.consumed(49, 10)
        assert credit.grant() is None
        credit.consumed(1, 0)
        assert credit.grant() == (50, 10)

    def test_is_given_for_bytes_too(self) -> None:
        credit = FlowControl(100, 1_000)
        credit.grant()
        credit.consumed(1, 600)
        assert credit.grant() == (1, 600)

    def test_makes_up_for_a_batch_that_was_larger_than_it(self) -> None:
        credit = FlowControl(10, 1_000)
        credit.grant()
        credit.consumed(500, 5_000)  # the broker's account stands at -490 and -4,000
        assert credit.grant() == (500, 5_000)

    def test_can_shrink_without_going_negative(self) -> None:
        credit = FlowControl(100, 1_000)
        credit.grant()
        credit.set_target(10, 100)
        assert credit.grant() is None
        credit.consumed(95, 950)
        assert credit.grant() == (5, 50)
