"""The failover subscription: one consumer is active, others stand by."""

from dispatch_harness import DispatchHarness

from pydanube.model.topics import SubscriptionType


def harness(partition: int = 0) -> DispatchHarness:
    return DispatchHarness(SubscriptionType.FAILOVER, partition=partition)


def test_the_first_by_priority_then_by_name_is_active():
    one = harness()
    one.join("a", priority=1)
    one.join("c", priority=0)
    one.join("b", priority=0)
    one.stored.publish(2)
    assert one.pump() == {"b": [0, 1]}
    assert [member.consumer for member in one.dispatcher.members if one.dispatcher.is_active(member)] == ["b"]


def test_when_the_active_consumer_detaches_the_next_one_gets_the_unacked_messages_first_and_in_order():
    one = harness()
    active = one.join("a", messages=7)
    one.join("b")
    for _ in range(4):
        one.stored.publish(5)
    assert one.pump() == {"a": list(range(10))}
    one.ack(0, 4, 5)
    one.dispatcher.detach(active)
    assert one.pump() == {"b": [1, 2, 3, 6, 7, 8, 9, *range(10, 20)]}


def test_a_standby_gets_nothing_however_much_credit_it_has():
    one = harness()
    one.join("a", messages=2)
    one.join("b")
    one.stored.publish(2)
    assert one.pump() == {"a": [0, 1]}
    one.stored.publish(2)
    assert one.pump() == {}


def test_a_preferred_consumer_takes_nothing_over_before_its_first_credit():
    one = harness()
    one.join("a", priority=5)
    one.stored.publish(4)
    assert one.pump() == {"a": [0, 1, 2, 3]}
    preferred, _ = one.attach("z", priority=4)
    one.stored.publish(2)
    assert one.pump() == {"a": [4, 5]}
    one.ack(0, 4)
    one.credit(preferred, 10)
    assert one.pump() == {"z": [1, 2, 3, 5]}


def test_an_active_consumer_that_attaches_again_elects_no_third_one_before_its_credit():
    one = harness()
    one.join("a")
    one.join("b")
    one.stored.publish(2)
    assert one.pump() == {"a": [0, 1]}
    again, _ = one.attach("a")
    assert one.pump() == {}
    one.credit(again, 10)
    assert one.pump() == {"a": [0, 1]}


def test_a_consumer_that_detaches_before_its_first_credit_changes_nothing():
    one = harness()
    one.join("b")
    one.stored.publish(2)
    one.pump()
    opening, _ = one.attach("a")
    one.dispatcher.detach(opening)
    one.credit(opening, 10)
    assert (one.pump(), one.dispatcher.unacked) == ({}, 2)


def test_a_consumer_with_a_better_priority_takes_over_at_once():
    one = harness()
    one.join("a", priority=5)
    one.stored.publish(4)
    one.pump()
    one.ack(0)
    one.join("z", priority=4)
    assert one.pump() == {"z": [1, 2, 3]}


def test_a_standby_that_detaches_changes_nothing():
    one = harness()
    one.join("a")
    standby = one.join("b")
    one.stored.publish(2)
    one.pump()
    one.dispatcher.detach(standby)
    assert one.pump() == {}
    assert one.dispatcher.unacked == 2


def test_a_standby_that_attaches_again_takes_nothing_from_the_active_consumer():
    one = harness(partition=1)
    for name in "abc":
        one.join(name)
    one.stored.publish(2)
    assert one.pump() == {"b": [0, 1]}
    one.join("a")
    assert one.pump() == {}


def test_partitions_are_spread_over_consumers_of_one_priority():
    active = []
    for partition in range(6):
        one = harness(partition)
        for name in "cab":
            one.join(name)
        one.join("z", priority=1)
        one.stored.publish(1)
        active += one.pump()
    assert active == ["a", "b", "c", "a", "b", "c"]


def test_a_message_that_waits_for_redelivery_goes_to_the_next_consumer():
    one = harness()
    active = one.join("a")
    one.join("b")
    one.stored.publish(3)
    one.pump()
    one.nack(1, delay_ms=50)
    one.dispatcher.detach(active)
    assert one.pump() == {"b": [0, 2]}
    one.wait(50)
    assert one.pump() == {"b": [1]}
