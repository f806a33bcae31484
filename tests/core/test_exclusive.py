"""The exclusive subscription, event by event."""

import pytest

from pydanube.core.dispatch.cursor import Cursor
from pydanube.core.dispatch.exclusive import Exclusive
from pydanube.model.errors import Refused
from pydanube.model.limits import ACKED_RANGES_MAX


def attached(position: int = 0, messages: int = 1000) -> Exclusive:
    subscription = Exclusive(Cursor(position))
    holder, _ = subscription.attach("a")
    holder.messages, holder.bytes = messages, 1 << 20
    return subscription


def test_another_name_is_refused_while_the_holder_lives():
    subscription = attached()
    with pytest.raises(Refused, match="held by consumer 'a'"):
        subscription.attach("b")


def test_another_name_is_welcome_once_the_holder_is_gone():
    subscription = attached()
    subscription.detach(subscription.holder)
    holder, former = subscription.attach("b")
    assert former is None
    assert subscription.holder is holder


def test_the_same_name_takes_over_and_gets_the_unacked_again():
    subscription = attached()
    assert subscription.take(0, 10, 100) == [(0, 10)]
    subscription.cursor.ack(0, 4)
    subscription.cursor.ack(6, 7)
    former = subscription.holder
    holder, ended = subscription.attach("a")
    holder.messages, holder.bytes = 10, 10_000
    assert ended is former
    assert subscription.take(0, 10, 100) == [(4, 6), (7, 10)]


def test_a_hold_that_was_taken_over_cannot_let_go_of_the_new_one():
    subscription = attached()
    former = subscription.holder
    subscription.attach("a")
    subscription.detach(former)
    assert subscription.holder is not None


def test_delivery_stops_when_credit_is_used_up_and_counts_rows_and_bytes():
    subscription = attached(messages=10)
    assert subscription.wants
    subscription.take(0, 10, 100)
    assert not subscription.wants
    subscription.holder.messages += 1
    assert subscription.wants
    subscription.holder.bytes = 0
    assert not subscription.wants


def test_a_batch_begun_before_the_position_is_delivered_in_part():
    assert attached(position=7).take(0, 10, 100) == [(7, 10)]


def test_what_was_never_stored_is_settled_by_itself():
    subscription = attached()
    subscription.take(0, 10, 100)
    assert subscription.take(100, 110, 100) == [(100, 110)]
    subscription.cursor.ack(0, 10)
    assert subscription.cursor.position == 100


def test_too_many_gaps_make_delivery_wait():
    subscription = attached(messages=1 << 30)
    subscription.take(0, ACKED_RANGES_MAX * 2 + 1, 1)
    for gap in range(ACKED_RANGES_MAX):
        subscription.cursor.ack(gap * 2 + 1, gap * 2 + 2)
    assert not subscription.wants
    subscription.cursor.ack(0, 1)
    assert subscription.wants


def test_unacked_counts_what_the_holder_has():
    subscription = attached()
    subscription.take(0, 10, 1)
    subscription.cursor.ack(3, 5)
    assert subscription.unacked == 8
    subscription.detach(subscription.holder)
    assert subscription.unacked == 0
