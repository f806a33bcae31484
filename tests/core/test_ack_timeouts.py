"""Ack timeouts that the broker counts, delays of nacks with bounds, and messages that are given up."""

import pytest
from dispatch_harness import DispatchHarness

from pydanube.model.failure import ACK_TIMEOUT, DANUBE, Backoff, FailurePolicy, Poison
from pydanube.model.topics import SubscriptionType

ALL = pytest.mark.parametrize("kind", list(SubscriptionType))
TIMED = FailurePolicy(redeliveries_max=1, ack_timeout_ms=100, delay_ms=10, poison=Poison.DROP)
DEAD = FailurePolicy(delay_ms=10, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/dead")


def harness(kind: SubscriptionType, policy: FailurePolicy = TIMED, messages: int = 3) -> DispatchHarness:
    one = DispatchHarness(kind, policy)
    one.join("a", is_timed=True)
    one.stored.publish([f"k{number}" for number in range(messages)])
    one.pump()
    return one


@ALL
def test_a_message_that_is_not_acked_in_time_fails_and_is_redelivered(kind):
    one = harness(kind)
    one.ack(0)
    one.wait(99)
    assert (one.time_out(), one.dispatcher.counts.waiting) == ([], 0)
    one.wait(1)
    assert (one.time_out(), one.dispatcher.counts.waiting) == ([], 2)
    one.wait(10)
    assert one.pump() == {"a": [1, 2]}
    assert one.dispatcher.failure_history([1, 2]) == ([1, 1], [ACK_TIMEOUT, ACK_TIMEOUT])
    one.wait(100)
    assert one.time_out() == [(1, "drop"), (2, "drop")]


@ALL
def test_a_redelivery_has_the_whole_ack_timeout_again(kind):
    one = harness(kind)
    one.wait(60)
    one.nack(0, delay_ms=0)
    assert one.pump() == {"a": [0]}
    one.wait(40)
    one.time_out()
    assert one.dispatcher.counts.waiting == 2, "only the two that were not delivered again have timed out"
    one.wait(60)
    assert one.time_out() == [(0, "drop")]


@ALL
def test_a_changed_ack_timeout_applies_to_what_is_in_flight(kind):
    one = harness(kind, FailurePolicy())
    one.wait(200)
    assert one.dispatcher.next_timeout_us is None
    one.dispatcher.set_failure_policy(FailurePolicy(ack_timeout_ms=250))
    assert one.dispatcher.next_timeout_us == one.now_us + 50_000
    one.dispatcher.set_failure_policy(FailurePolicy(ack_timeout_ms=150))
    one.time_out()
    assert one.dispatcher.counts.waiting == 3


@ALL
def test_timeouts_are_not_counted_for_consumers_that_count_them_themselves(kind):
    one = DispatchHarness(kind, TIMED)
    one.join("a")
    one.stored.publish(3)
    one.pump()
    assert not one.dispatcher.counts_timeouts and one.dispatcher.next_timeout_us is None


@ALL
def test_the_timeout_of_a_message_that_waited_in_a_listener_counts_from_when_it_was_sent(kind):
    one = harness(kind)
    one.wait(50)
    one.dispatcher.restart_timeouts([(0, 2)], one.now_us)
    one.wait(50)
    one.time_out()
    assert one.dispatcher.failure_history([0, 1, 2])[0] == [0, 0, 1]
    one.wait(50)
    one.time_out()
    assert one.dispatcher.counts.waiting == 3


def test_nothing_times_out_after_its_consumer_is_gone_or_the_subscription_was_moved():
    one = harness(SubscriptionType.SHARED)
    one.dispatcher.detach(*one.dispatcher.members)
    assert not one.dispatcher.counts_timeouts
    one.join("b", is_timed=True)
    assert one.pump() == {"b": [0, 1, 2]}
    one.dispatcher.seek(0, 1)
    assert not one.dispatcher.counts_timeouts


# -- delays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted_ms", "waits_ms"),
    [
        (0, [1_000, 2_000, 4_000]),
        (3_000, [3_000, 3_000, 4_000]),
        (2**64 - 1, [60_000, 60_000, 60_000]),
    ],
)
def test_a_bounded_delay_is_between_the_backoff_and_the_maximum_of_the_policy(wanted_ms, waits_ms):
    one = harness(SubscriptionType.SHARED, DANUBE)
    for expected in waits_ms:
        one.nack(0, delay_ms=wanted_ms, bounded=True)
        assert (one.dispatcher.next_due_us - one.now_us) // 1000 == expected
        one.wait(expected)
        one.pump()


def test_a_bounded_delay_of_a_fixed_backoff_and_one_that_is_not_given():
    policy = FailurePolicy(delay_ms=500, delay_max_ms=800, backoff=Backoff.FIXED)
    assert [policy.bounded_delay_ms(3, wanted) for wanted in (0, 600, 900)] == [500, 600, 800]
    one = harness(SubscriptionType.SHARED, policy)
    one.nack(0, delay_ms=None, bounded=True)
    assert one.dispatcher.next_due_us == one.now_us + 500_000


# -- giving up ---------------------------------------------------------------------------------------------------------


@ALL
def test_a_message_that_is_given_up_is_exhausted_at_its_first_failure(kind):
    one = harness(kind, DEAD)
    assert one.give_up(1, reason="too large") == [(1, "dead-letter", 1)]
    assert one.give_up(1) == [], "once"
    assert one.dispatcher.counts.dead_lettering == 1
    one.ack(1)
    assert one.dispatcher.counts.failed == 0


@ALL
def test_a_message_that_is_given_up_does_not_come_back_when_it_cannot_be_dead_lettered(kind):
    one = harness(kind, DEAD)
    one.give_up(1)
    one.dispatcher.retry_dead_letter(1, one.now_us + 1000)
    one.wait(1)
    assert [ended.offset for ended in one.dispatcher.release_due(one.now_us)] == [1]
    assert one.pump() == {}


@ALL
def test_a_message_that_blocks_because_it_was_given_up_is_delivered_once_when_the_policy_changes(kind):
    one = harness(kind, FailurePolicy(poison=Poison.BLOCK))
    assert one.give_up(0) == [(0, "block", 1)]
    assert one.dispatcher.counts.blocked == 1
    one.dispatcher.set_failure_policy(DEAD)
    assert one.pump() == {"a": [0]}
    assert one.give_up(0) == [(0, "dead-letter", 2)]


def test_a_message_that_went_to_another_consumer_is_not_given_up():
    one = DispatchHarness(SubscriptionType.SHARED, DEAD)
    a, b = one.join("a"), one.join("b")
    one.stored.publish(2)
    assert one.pump() == {"a": [0], "b": [1]}
    assert one.dispatcher.give_up([(0, 2)], "why", b)[0].offset == 1
    assert one.dispatcher.unacked_of(a) == 1


# -- the limit of unacked messages -------------------------------------------------------------------------------------


@ALL
def test_not_more_messages_are_in_flight_than_the_limit_allows(kind):
    one = DispatchHarness(kind)
    one.dispatcher.unacked_max = 4
    one.join("a")
    one.stored.publish([f"k{number}" for number in range(10)])
    assert one.pump() == {"a": [0, 1, 2, 3]}
    one.ack(1)
    assert one.pump() == {"a": [4]}
    one.nack(0, delay_ms=0)
    assert one.pump() == {"a": [0]}
    one.dispatcher.unacked_max = 2
    one.ack(2, 3)
    assert (one.pump(), one.dispatcher.unacked) == ({}, 2)
    one.dispatcher.unacked_max = 0
    assert one.pump() == {"a": [5, 6, 7, 8, 9]}


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 36])
def test_a_limit_keeps_the_round_robin_of_a_shared_subscription(limit):
    one = DispatchHarness(SubscriptionType.SHARED)
    one.dispatcher.unacked_max = limit
    members = [one.join(name) for name in "abc"]
    for _ in range(9):
        one.stored.publish(4)
    got = {member.consumer: 0 for member in members}
    while delivered := one.pump():
        assert sum(map(len, delivered.values())) <= limit
        for name, offsets in delivered.items():
            got[name] += len(offsets)
            one.ack(*offsets)
    assert got == {"a": 12, "b": 12, "c": 12}


@ALL
@pytest.mark.parametrize("per_timeout", [6, 40, 700])
def test_a_consumer_slower_than_the_ack_timeout_gets_little_twice_and_loses_nothing(kind, per_timeout):
    """The consumer takes everything at once, as clients of the gRPC API do, and processes it in that order."""
    one = DispatchHarness(kind, FailurePolicy(redeliveries_max=5, ack_timeout_ms=1000, delay_ms=10, poison=Poison.DROP))
    one.join("a", is_timed=True)
    messages = 20 * per_timeout
    one.stored.publish([f"k{number % 50}" for number in range(messages)])
    taken, received, acked, lost = list[int](), 0, set[int](), list[tuple[int, str]]()
    steps = 20
    for step in range(steps * 60):
        lost += one.time_out()
        taken += one.pump().get("a", [])
        count = (step + 1) * per_timeout // steps - step * per_timeout // steps
        one.ack(*taken[:count]) if taken[:count] else None
        acked.update(taken[:count])
        received += len(taken[:count])
        del taken[:count]
        one.wait(1000 // steps)
    assert (lost, acked) == ([], set(range(messages)))
    assert received < 3 * messages
