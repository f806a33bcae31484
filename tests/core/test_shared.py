"""The shared subscription: every consumer gets the same number of messages."""

from itertools import chain, cycle

import pytest
from dispatch_harness import DispatchHarness
from hypothesis import given
from hypothesis import strategies as st

from pydanube.model.errors import Refused
from pydanube.model.topics import SubscriptionType


def harness() -> DispatchHarness:
    return DispatchHarness(SubscriptionType.SHARED)


@given(st.lists(st.integers(1, 36), min_size=1), st.booleans())
def test_36_messages_to_3_consumers_are_12_each_however_they_are_batched(sizes, at_once):
    one = harness()
    got = {name: [] for name in "abc"}
    for name in got:
        one.join(name)
    for size in cycle(sizes):
        one.stored.publish(min(size, 36 - one.stored.end))
        if not at_once or one.stored.end == 36:
            for name, offsets in one.pump().items():
                got[name] += offsets
        if one.stored.end == 36:
            break
    assert [len(offsets) for offsets in got.values()] == [12, 12, 12]
    assert sorted(chain.from_iterable(got.values())) == list(range(36))


def test_one_batch_is_cut_into_a_slice_for_each():
    one = harness()
    for name in "abc":
        one.join(name)
    one.stored.publish(9)
    assert one.pump() == {"a": [0, 1, 2], "b": [3, 4, 5], "c": [6, 7, 8]}


def test_a_consumer_without_credit_gets_nothing_and_the_others_get_everything():
    one = harness()
    one.join("a", messages=2)
    one.join("b")
    paused = one.join("c")
    paused.paused = True
    one.stored.publish(10)
    got = one.pump()
    assert len(got["a"]) == 2
    assert sorted(got["a"] + got["b"]) == list(range(10))


def test_a_consumer_never_gets_more_than_its_credit_and_the_rest_waits():
    one = harness()
    first, second = one.join("a", messages=3), one.join("b", messages=2)
    one.stored.publish(10)
    got = one.pump()
    assert (len(got["a"]), len(got["b"])) == (3, 2)
    assert one.pump() == {}
    one.credit(first, 1)
    one.credit(second, 10)
    assert sorted(chain.from_iterable(one.pump().values())) == [5, 6, 7, 8, 9]


def test_when_a_consumer_leaves_its_unacked_messages_go_to_the_others():
    one = harness()
    leaver = one.join("a")
    one.join("b")
    one.stored.publish(8)
    got = one.pump()
    one.ack(got["a"][0])
    one.dispatcher.detach(leaver)
    assert one.pump() == {"b": got["a"][1:]}


def test_no_message_is_lost_when_two_consumers_leave_with_half_of_the_messages_each():
    one = harness()
    leavers = [one.join("a"), one.join("b")]
    for _ in range(2000):
        one.stored.publish(1)
    one.pump()
    assert [one.dispatcher.unacked_of(member) for member in leavers] == [1000, 1000]
    for member in leavers:
        one.dispatcher.detach(member)
    one.join("c")
    assert one.pump() == {"c": list(range(2000))}


def test_a_delayed_message_does_not_delay_the_messages_after_it():
    one = harness()
    one.join("a")
    one.stored.publish(4, [0, one.now_us + 30_000, 0, one.now_us + 10_000])
    assert one.pump() == {"a": [0, 2]}
    assert (one.dispatcher.counts.delayed, one.dispatcher.next_due_us) == (2, one.now_us + 10_000)
    one.wait(10)
    assert one.pump() == {"a": [3]}
    one.wait(19)
    assert one.pump() == {}
    one.wait(1)
    assert one.pump() == {"a": [1]}
    assert (one.dispatcher.counts.delayed, one.dispatcher.next_due_us) == (0, None)


def test_a_delayed_message_that_is_acked_first_is_never_delivered():
    one = harness()
    one.join("a")
    one.stored.publish(2, [one.now_us + 10_000, 0])
    one.pump()
    one.ack(0)
    one.wait(20)
    assert one.pump() == {}
    assert one.dispatcher.counts.delayed == 0


def test_cumulative_acks_are_refused():
    with pytest.raises(Refused, match="cumulative acks do not fit a shared subscription"):
        harness().dispatcher.check_cumulative()
