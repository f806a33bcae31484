"""Nacks, redelivery, and messages that fail too often; the same for every subscription type unless said otherwise."""

import pytest
from dispatch_harness import DispatchHarness

from pydanube.model.failure import Backoff, FailurePolicy, Poison
from pydanube.model.topics import SubscriptionType

ALL = pytest.mark.parametrize("kind", list(SubscriptionType))
ALL_BUT_KEYED = pytest.mark.parametrize(
    "kind", [one for one in SubscriptionType if one is not SubscriptionType.KEY_SHARED]
)
DEAD = FailurePolicy(redeliveries_max=1, delay_ms=10, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/dead")
DROP = FailurePolicy(redeliveries_max=1, delay_ms=10, poison=Poison.DROP)
BLOCK = FailurePolicy(redeliveries_max=1, delay_ms=10, poison=Poison.BLOCK)
FOR_EVER = FailurePolicy(delay_ms=100, delay_max_ms=400)


def harness(kind: SubscriptionType, policy: FailurePolicy, messages: int = 3) -> DispatchHarness:
    one = DispatchHarness(kind, policy)
    one.join("a")
    one.stored.publish([f"k{number}" for number in range(messages)])
    one.pump()
    return one


def count(one: DispatchHarness, offset: int) -> int:
    counts, _ = one.dispatcher.failure_history([offset])
    return counts[0] if counts else 0


@ALL
def test_a_nacked_message_is_redelivered_after_its_delay_with_count_and_reason(kind):
    one = harness(kind, FOR_EVER)
    assert one.nack(1, reason="no stamp") == []
    assert one.pump() == {}
    assert (one.dispatcher.counts.waiting, one.dispatcher.unacked) == (1, 2)
    one.wait(99)
    assert one.pump() == {}
    one.wait(1)
    assert one.pump() == {"a": [1]}
    assert one.dispatcher.failure_history([0, 1]) == ([0, 1], [None, "no stamp"])


@ALL
def test_the_redelivery_delay_doubles_up_to_its_maximum(kind):
    one = harness(kind, FOR_EVER)
    waits = []
    for _ in range(5):
        one.nack(0)
        waits.append((one.dispatcher.next_due_us - one.now_us) // 1000)
        one.wait(waits[-1])
        assert one.pump() == {"a": [0]}
    assert waits == [100, 200, 400, 400, 400]


@ALL
def test_a_fixed_redelivery_delay_stays(kind):
    one = harness(kind, FailurePolicy(delay_ms=100, backoff=Backoff.FIXED))
    for _ in range(3):
        one.nack(0)
        one.wait(100)
        assert one.pump() == {"a": [0]}


@ALL
def test_the_delay_of_a_nack_replaces_the_delay_of_the_policy(kind):
    one = harness(kind, FOR_EVER)
    one.nack(0, delay_ms=0)
    one.nack(1, delay_ms=7)
    assert one.pump() == {"a": [0]}
    one.wait(7)
    assert one.pump() == {"a": [1]}


@ALL
def test_late_and_repeated_nacks_and_nacks_of_messages_not_in_flight_are_ignored(kind):
    one = harness(kind, FOR_EVER)
    one.ack(0)
    one.nack(0, 1)
    one.nack(1, 2, 3, 4, 5000)
    one.nack(2)
    assert (count(one, 0), count(one, 1), count(one, 2), one.dispatcher.counts.failed) == (0, 1, 1, 2)


@ALL
def test_an_ack_ends_the_delay_and_the_failure_history(kind):
    one = harness(kind, FOR_EVER)
    one.nack(0)
    one.ack(0)
    one.wait(1000)
    assert one.pump() == {}
    assert (one.dispatcher.counts.failed, one.dispatcher.next_due_us) == (0, None)


@ALL
def test_a_consumer_that_detaches_does_not_count_as_a_failure(kind):
    one = harness(kind, DROP)
    for _ in range(4):
        one.join("a")
        assert one.pump() == {"a": [0, 1, 2]}
    assert one.dispatcher.counts.failed == 0


@ALL
def test_an_exhausted_message_is_dropped_once_its_redeliveries_are_used_up(kind):
    one = harness(kind, DROP)
    assert one.nack(1) == []
    one.wait(10)
    one.pump()
    assert one.nack(1) == [(1, "drop")]
    one.wait(1000)
    assert one.pump() == {}
    one.ack(1)
    assert one.dispatcher.unacked == 2


@ALL
def test_a_message_that_could_not_be_dead_lettered_is_exhausted_again_later(kind):
    one = harness(kind, DEAD)
    one.nack(0)
    one.wait(10)
    one.pump()
    assert one.nack(0) == [(0, "dead-letter")]
    assert (one.dispatcher.unacked, one.dispatcher.counts.dead_lettering) == (2, 1)
    one.dispatcher.retry_dead_letter(0, one.now_us + 5000)
    one.wait(5)
    assert [(end.offset, str(end.poison), end.attempts) for end in one.dispatcher.release_due(one.now_us)] == [
        (0, "dead-letter", 2)
    ]
    assert one.pump() == {}
    one.ack(0)
    assert (one.dispatcher.counts.dead_lettering, one.dispatcher.cursor.position) == (0, 1)


@ALL_BUT_KEYED
def test_block_stops_the_subscription_and_a_change_of_policy_releases_it(kind):
    one = harness(kind, BLOCK)
    one.nack(0)
    one.wait(10)
    one.pump()
    assert one.nack(0) == [(0, "block")]
    one.stored.publish(2)
    assert one.pump() == {}
    assert (one.dispatcher.is_blocked, one.dispatcher.counts.blocked) == (True, 1)
    assert one.dispatcher.set_failure_policy(FOR_EVER) == []
    assert one.pump() == {"a": [0, 3, 4]}


@ALL_BUT_KEYED
def test_an_ack_of_the_blocked_message_releases_the_subscription(kind):
    one = harness(kind, BLOCK)
    one.nack(0, delay_ms=0)
    one.pump()
    one.nack(0)
    one.stored.publish(1)
    assert one.pump() == {}
    one.ack(0)
    assert one.pump() == {"a": [3]}


def test_block_on_key_shared_stops_only_its_key():
    one = harness(SubscriptionType.KEY_SHARED, BLOCK)
    one.nack(0, delay_ms=0)
    one.pump()
    assert one.nack(0) == [(0, "block")]
    one.stored.publish(["k0", "k1", "k0"])
    assert one.pump() == {"a": [4]}
    assert not one.dispatcher.is_blocked
    assert (one.dispatcher.counts.held_back, one.dispatcher.counts.blocked_keys) == (2, 1)
    one.dispatcher.set_failure_policy(FOR_EVER)
    assert one.pump() == {"a": [0]}
    one.ack(0)
    assert one.pump() == {"a": [3, 5]}


@ALL
def test_a_blocked_message_ends_as_the_new_policy_says(kind):
    one = harness(kind, BLOCK)
    one.nack(2, delay_ms=0)
    one.pump()
    one.nack(2)
    ended = one.dispatcher.set_failure_policy(DROP)
    assert [(end.offset, end.poison, end.attempts) for end in ended] == [(2, Poison.DROP, 2)]
    assert not one.dispatcher.is_blocked


@ALL
def test_a_stricter_policy_applies_to_messages_that_wait(kind):
    one = harness(kind, FOR_EVER)
    for _ in range(2):
        one.nack(1, delay_ms=0)
        one.pump()
    one.nack(1)
    one.dispatcher.set_failure_policy(DROP)
    one.wait(1000)
    assert [(end.offset, end.attempts) for end in one.dispatcher.release_due(one.now_us)] == [(1, 3)]


@ALL
def test_a_seek_forgets_failures(kind):
    one = harness(kind, BLOCK)
    one.nack(0, delay_ms=0)
    one.pump()
    one.nack(0)
    one.dispatcher.seek(0, 1)
    assert one.pump() == {"a": [0, 1, 2]}
    assert one.dispatcher.counts.failed == one.dispatcher.counts.blocked_keys == 0
