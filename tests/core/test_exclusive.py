"""The exclusive subscription, event by event."""

import pytest
from dispatch_harness import DispatchHarness

from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.dispatcher import Dispatcher
from pydanube.model.errors import Held, Invalid
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.model.topics import SubscriptionType


def harness(**options) -> DispatchHarness:
    return DispatchHarness(SubscriptionType.EXCLUSIVE, **options)


def test_another_name_is_refused_while_a_consumer_is_attached():
    one = harness()
    one.join("a")
    with pytest.raises(Held, match="held by consumer 'a'"):
        one.join("b")
    assert [member.consumer for member in one.dispatcher.members] == ["a"]


def test_another_name_may_attach_once_the_consumer_is_detached():
    one = harness()
    one.dispatcher.detach(one.join("a"))
    one.join("b")
    one.stored.publish(3)
    assert one.pump() == {"b": [0, 1, 2]}


def test_the_same_name_takes_over_and_gets_the_unacked_again():
    one = harness()
    first = one.join("a")
    one.stored.publish(10)
    one.pump()
    one.ack(0, 1, 2, 3, 6)
    second, ended = one.attach("a")
    assert ended is first
    one.credit(second, 10)
    assert one.pump() == {"a": [4, 5, 7, 8, 9]}


def test_detaching_a_member_that_was_replaced_does_not_detach_the_new_one():
    one = harness()
    first, second = one.join("a"), one.join("a")
    one.dispatcher.detach(first)
    assert one.dispatcher.members == [second]


def test_delivery_stops_when_credit_in_messages_or_bytes_is_used_up():
    one = harness()
    member = one.join("a", messages=10, size_bytes=1 << 20)
    for _ in range(3):
        one.stored.publish(10)
    assert one.pump() == {"a": list(range(10))}
    assert one.pump() == {}
    one.credit(member, 1)
    assert one.pump() == {"a": list(range(10, 20))}, "a batch is not cut for its one consumer"
    member.messages, member.bytes = 100, 0
    assert one.pump() == {}


def test_a_paused_consumer_gets_nothing_until_it_resumes():
    one = harness()
    member = one.join("a")
    member.paused = True
    one.stored.publish(2)
    assert one.pump() == {}
    member.paused = False
    one.credited(member)
    assert one.pump() == {"a": [0, 1]}


def test_a_batch_begun_before_the_position_is_delivered_in_part():
    one = harness(position=7)
    one.join("a")
    one.stored.publish(10)
    assert one.pump() == {"a": [7, 8, 9]}


def test_offsets_that_were_never_stored_are_acked_automatically():
    one = harness()
    one.join("a")
    one.stored.publish(10)
    one.stored.leave_gap(90)
    one.stored.publish(10)
    assert one.pump() == {"a": [*range(10), *range(100, 110)]}
    one.ack(*range(10))
    assert one.dispatcher.cursor.position == 100


def test_delays_are_ignored_and_order_is_kept():
    one = harness()
    one.join("a")
    one.stored.publish(3, [one.now_us + 10**9, 0, one.now_us + 1])
    assert one.pump() == {"a": [0, 1, 2]}


def test_acks_come_in_any_order_and_late_or_repeated_ones_are_no_error():
    one = harness()
    one.join("a")
    one.stored.publish(10)
    one.pump()
    assert one.ack(7, 3) == 2
    assert one.ack(7, 3, 4) == 1
    assert one.dispatcher.ack([(0, 8)]) == 5
    assert (one.dispatcher.cursor.position, one.dispatcher.unacked) == (8, 2)


def test_cumulative_acks_are_allowed():
    harness().dispatcher.check_cumulative()


def test_key_filters_are_refused():
    with pytest.raises(Invalid, match="key filters are for key-shared"):
        harness().join("a", key_filters=["x*"])


def with_too_many_gaps(one: DispatchHarness) -> None:
    one.stored.publish(2 * ACKED_RANGES_MAX + 1)
    one.pump()
    one.ack(*range(1, 2 * ACKED_RANGES_MAX, 2))


def test_too_many_gaps_make_delivery_wait():
    one = harness()
    one.join("a")
    with_too_many_gaps(one)
    end = one.stored.publish(1)
    assert one.pump() == {}
    one.ack(0)
    assert one.pump() == {"a": [end]}


def test_too_many_gaps_do_not_keep_the_next_consumer_from_closing_them():
    one = harness()
    one.join("a")
    with_too_many_gaps(one)
    one.stored.publish(1)
    one.join("a")
    assert one.pump() == {"a": list(range(0, 2 * ACKED_RANGES_MAX + 1, 2))}


def test_too_many_gaps_do_not_outlive_a_restart():
    one = harness()
    one.join("a")
    with_too_many_gaps(one)
    cursor = one.dispatcher.cursor
    one.dispatcher = Dispatcher(
        SubscriptionType.EXCLUSIVE, Cursor(cursor.position, cursor.acked), one.dispatcher.failure_policy
    )
    one.join("a")
    assert one.pump() == {"a": list(range(0, 2 * ACKED_RANGES_MAX + 1, 2))}


def test_unacked_counts_what_is_in_flight():
    one = harness()
    member = one.join("a")
    one.stored.publish(10)
    one.pump()
    one.ack(3, 4)
    assert (one.dispatcher.unacked, one.dispatcher.unacked_of(member)) == (8, 8)
    one.dispatcher.detach(member)
    assert one.dispatcher.unacked == 0


def test_after_a_seek_everything_from_there_is_delivered_again():
    one = harness()
    one.join("a")
    one.stored.publish(10)
    one.pump()
    one.ack(*range(10))
    one.dispatcher.seek(6, 1)
    assert one.pump() == {"a": [6, 7, 8, 9]}
    one.dispatcher.seek(10, 2)
    assert one.pump() == {}
