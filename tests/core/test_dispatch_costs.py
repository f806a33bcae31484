"""The cost of dispatch, counted in operations or compared between a small and a large case, never timed."""

import sys
from fnmatch import fnmatchcase

import numpy as np
import pytest
from dispatch_harness import MS, DispatchHarness
from hypothesis import given
from hypothesis import strategies as st

from pydanube.core.dispatch import dispatcher as dispatcher_module
from pydanube.core.dispatch import key_filters as key_filters_module
from pydanube.core.dispatch import key_table as key_table_module
from pydanube.core.dispatch.key_filters import GlobAutomaton, KeyFilter, LiteralGlob, compile_globs
from pydanube.core.dispatch.key_table import SLOTS, KeyTable
from pydanube.core.dispatch.members import Member, RoundRobin
from pydanube.core.dispatch.ranges import RangeSet, merged
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionType

KEYED, SHARED = SubscriptionType.KEY_SHARED, SubscriptionType.SHARED


def calls_of(act) -> int:
    """Return how many functions Python calls while `act` runs."""
    count = 0

    def note(_frame, event, _argument) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def grows_with(act, small: int = 500, factor: int = 8) -> float:
    """Return how many times as many calls a case needs that is `factor` times as large."""
    return calls_of(act(small * factor)) / calls_of(act(small))


def keyed(messages: int, key=lambda number: "k") -> DispatchHarness:
    one = DispatchHarness(KEYED, FailurePolicy(delay_ms=0))
    one.join("a")
    for first in range(0, messages, 100):
        one.stored.publish([key(number) for number in range(first, min(first + 100, messages))])
    one.pump()
    return one


# -- failures of a key -------------------------------------------------------------------------------------------------


def test_the_cost_of_a_failure_of_one_key_does_not_depend_on_how_many_there_are():
    def fail_and_ack(messages: int):
        one = keyed(messages)

        def act() -> None:
            one.nack(*range(messages))
            assert one.pump() == {"a": list(range(messages))}
            one.ack(*range(messages))

        return act

    assert grows_with(fail_and_ack) < 12


def test_an_acked_failure_releases_only_messages_that_are_behind_no_other_failure():
    one = keyed(40)
    one.nack(*range(40), delay_ms=10)
    for _ in range(20):
        one.stored.publish(["k"] * 50)
    one.pump()
    one.wait(10)
    assert one.pump() == {"a": list(range(40))}
    one.offers = 0
    for offset in range(39):
        one.ack(offset)
        assert one.pump() == {}
    assert one.offers == 0
    one.ack(39)
    assert one.pump() == {"a": list(range(40, 1040))}


def test_later_messages_of_a_key_wait_for_both_of_two_failures():
    one = keyed(4, lambda number: "k")
    one.nack(0, delay_ms=10)
    one.nack(3, delay_ms=10)
    one.ack(1, 2)
    one.dispatcher.detach(one.dispatcher.members[0])
    one.join("a")
    one.stored.publish(["k"])
    one.wait(10)
    assert one.pump() == {"a": [0, 3]}
    one.ack(0)
    assert one.pump() == {}
    one.ack(3)
    assert one.pump() == {"a": [4]}


# -- large acks and nacks ----------------------------------------------------------------------------------------------


def test_repeated_ranges_of_an_ack_are_processed_once():
    one = DispatchHarness(SHARED, FailurePolicy())
    one.join("a")
    one.stored.publish(400)
    one.pump()
    one.nack(*range(200, 400), delay_ms=86_400_000)
    assert calls_of(lambda: one.dispatcher.ack(merged([(0, 200)] * 10_000))) < 500
    assert one.dispatcher.cursor.position == 200


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_nack_of_many_messages_costs_a_few_calls_each(kind):
    one = DispatchHarness(kind, FailurePolicy())
    one.join("a")
    one.stored.publish([f"k{number % 50}" for number in range(5000)])
    one.pump()
    assert calls_of(lambda: one.dispatcher.nack([(0, 5000)], one.now_us)) < 15 * 5000


def test_merged_ranges_are_the_same_offsets():
    assert merged([(5, 7), (1, 3), (3, 5), (9, 9), (12, 11), (20, 21)] * 30) == [(1, 7), (20, 21)]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=150),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 9)), max_size=150),
)
def test_subtracting_many_ranges_is_removing_each(these, those):
    left = RangeSet((start, start + count) for start, count in these)
    again = RangeSet(left.ranges)
    removed = merged([(start, start + count) for start, count in those])
    left.subtract(removed)
    for start, end in removed:
        again.remove(start, end)
    assert (left.ranges, left.count) == (again.ranges, again.count)


# -- time --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KEYED, SHARED])
def test_messages_due_at_the_same_time_become_ready_in_portions(kind, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "DUE_AT_ONCE", 100)
    one = DispatchHarness(kind)
    one.join("a")
    one.stored.publish(["k"] * 1000, [one.now_us + 10 * MS] * 1000)
    one.pump()
    one.wait(10)
    one.dispatcher.release_due(one.now_us)
    assert one.dispatcher._ready.count == 100
    assert one.pump() == {"a": list(range(1000))}


def test_delivery_times_against_the_order_of_offsets_cost_one_offer_per_message_of_a_key():
    keys = 50
    one = DispatchHarness(KEYED)
    one.join("a")
    one.stored.publish([f"k{n % keys}" for n in range(1000)], [one.now_us + 10 * MS - n for n in range(1000)])
    one.pump()
    one.wait(10)
    one.offers = 0
    delivered = one.pump()["a"]
    assert one.offers <= 1000 / keys + 1
    for key in range(keys):
        mine = [offset for offset in delivered if offset % keys == key]
        assert mine == sorted(mine, reverse=True)


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_an_offer_assigns_at_most_rows_max_and_the_rest_follows_in_order(kind):
    one = DispatchHarness(kind)
    one.join("a")
    one.rows_max = 30
    one.stored.publish(100)
    got = []
    while (wanted := one.dispatcher.offset_to_read) < 100:
        delivered = {}
        one._offer(wanted, delivered)
        assert 0 < len(delivered["a"]) <= 30
        got += delivered["a"]
    assert got == list(range(100))


def test_the_rest_of_a_batch_does_not_delay_messages_that_become_due():
    one = DispatchHarness(SHARED, FailurePolicy())
    one.join("a")
    one.stored.publish(100)
    one.rows_max = 10
    one._offer(0, {})
    one.nack(3, delay_ms=5)
    one.wait(5)
    assert one.dispatcher.has_due(one.now_us)
    one.dispatcher.release_due(one.now_us)
    assert one.dispatcher.offset_to_read == 3


# -- many consumers ----------------------------------------------------------------------------------------------------


def table_of(members) -> np.ndarray:
    table = KeyTable()
    for member in members:
        table.add(member)
    return table._slots


def test_a_table_after_joins_and_leaves_equals_a_new_table_of_the_members_left():
    members = [Member(f"c{number}") for number in range(60)]
    table = KeyTable()
    for member in members:
        table.add(member)
    table.remove(members[40:])
    table.remove([members[3]])
    left = [*members[:3], *members[4:40]]
    assert (table._slots == table_of(left)).all()
    table.remove(left)
    assert (table._slots == -1).all()


def test_a_leave_looks_only_at_the_slots_of_the_member(monkeypatch):
    scored = []
    scores = key_table_module._scores

    def counting(seeds, slots):
        found = scores(seeds, slots)
        scored.append(found.size)
        return found

    members = [Member(f"c{number}") for number in range(200)]
    table = KeyTable()
    for member in members:
        table.add(member)
    monkeypatch.setattr(key_table_module, "_scores", counting)
    table.remove([members[0]])
    assert sum(scored) < 2 * SLOTS
    scored.clear()
    table.add(members[0])
    assert sum(scored) == SLOTS


@pytest.mark.parametrize("kind", [KEYED, SHARED])
def test_the_cost_of_a_join_or_leave_does_not_depend_on_how_many_members_there_are(kind):
    def join_and_leave(consumers: int):
        def act() -> None:
            one = DispatchHarness(kind)
            members = [one.join(f"c{number}", messages=10) for number in range(consumers)]
            one.dispatcher.detach(*members)
            assert one.dispatcher.members == []

        return act

    assert grows_with(join_and_leave, small=50) < 10


def test_a_message_costs_the_same_with_thousands_of_consumers():
    def assign(consumers: int):
        one = DispatchHarness(SHARED)
        for number in range(consumers):
            one.join(f"c{number}")
        for _ in range(20):
            one.stored.publish(1)

        def act() -> None:
            for wanted in range(20):
                one._offer(wanted, {})

        return act

    for factor in (8, 16):
        assert calls_of(assign(100 * factor)) < 1.5 * calls_of(assign(100)) + 100 * factor


def test_a_member_that_cannot_receive_is_looked_at_once():
    order = RoundRobin()
    members = [Member(f"c{number}") for number in range(1000)]
    for member in members:
        order.add(member)
    assert not order.can_receive
    assert calls_of(lambda: order.can_receive) < 20
    members[7].messages = members[7].bytes = 1
    order.add(members[7])
    assert order.first(5) == [members[7]]


def test_a_member_whose_bytes_were_estimated_too_high_keeps_its_place():
    order, member = RoundRobin(), Member("a", messages=5, bytes=100)
    order.add(member)
    member.charge(1, 200)
    assert not order.can_receive
    member.correct_estimate(10)
    assert order.can_receive


# -- filters -----------------------------------------------------------------------------------------------------------

texts = st.text("ab*?[\n", max_size=12)


@given(st.lists(texts.filter(bool), max_size=6), st.text("ab?*[\n", max_size=12))
def test_globs_match_as_fnmatch_does(globs, key):
    expected = any(fnmatchcase(key, one.replace("[", "[[]")) for one in globs)
    assert any(one.matches(key) for one in compile_globs(globs)) is expected
    assert any(GlobAutomaton([one]).matches(key) for one in globs) is expected
    assert any(LiteralGlob(one).matches(key) for one in globs if "?" not in one) <= expected


def test_an_automaton_looks_at_every_character_once():
    evil = ["*" + "a?" * 90 + f"z{number}*" for number in range(50)]
    matchers = compile_globs(evil)
    assert len(matchers) == -(-50 // (key_filters_module._BITS_MAX // 185))
    assert calls_of(lambda: KeyFilter(evil[:20]).accepts("a" * 10_000)) < 20 * 400 + 3 * 10_000


def test_long_keys_are_not_cached():
    one = DispatchHarness(KEYED)
    one.join("a", key_filters=["a*"])
    one.stored.publish(["a" * 60_000, "ab"])
    assert one.pump() == {"a": [0, 1]}
    assert list(one.dispatcher._policy._table._cached) == ["ab"]


def test_long_keys_are_matched_a_few_at_a_time_and_none_is_lost(monkeypatch):
    monkeypatch.setattr(key_table_module, "MATCHED_AT_ONCE", 2 * 3 * 1001)
    one = DispatchHarness(KEYED)
    one.join("a", key_filters=["a*", "*b?"])
    one.join("b", key_filters=["b*"])
    one.stored.publish([("a" if number % 3 else "b") * 1000 for number in range(20)])
    got = one.pump()
    assert one.offers == 10
    assert sorted(got["a"] + got["b"]) == list(range(20))
    assert got["a"] == sorted(got["a"])
    assert one.dispatcher.drain_cost() > 0
    assert one.dispatcher.drain_cost() == 0
