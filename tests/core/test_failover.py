"""The failover subscription: one is active, others stand by."""

from dispatch_harness import Desk

from pydanube.model.topics import SubscriptionType


def desk(partition: int = 0) -> Desk:
    return Desk(SubscriptionType.FAILOVER, partition=partition)


def test_the_first_by_priority_then_by_name_is_active():
    one = desk()
    one.join("a", priority=1)
    one.join("c", priority=0)
    one.join("b", priority=0)
    one.stored.publish(2)
    assert one.pump() == {"b": [0, 1]}
    assert [member.consumer for member in one.dispatcher.members if one.dispatcher.is_active(member)] == ["b"]


def test_when_it_goes_the_next_takes_over_with_the_unacked_first_and_in_order():
    one = desk()
    active = one.join("a", messages=7)
    one.join("b")
    for _ in range(4):
        one.stored.publish(5)
    assert one.pump() == {"a": list(range(10))}
    one.ack(0, 4, 5)
    one.dispatcher.detach(active)
    assert one.pump() == {"b": [1, 2, 3, 6, 7, 8, 9, *range(10, 20)]}


def test_one_that_stands_by_gets_nothing_however_much_room_it_has():
    one = desk()
    one.join("a", messages=0)
    one.join("b")
    one.stored.publish(2)
    assert one.pump() == {}


def test_one_with_a_better_priority_takes_over_at_once():
    one = desk()
    one.join("a", priority=5)
    one.stored.publish(4)
    one.pump()
    one.ack(0)
    one.join("z", priority=4)
    assert one.pump() == {"z": [1, 2, 3]}


def test_one_that_goes_while_standing_by_changes_nothing():
    one = desk()
    one.join("a")
    standby = one.join("b")
    one.stored.publish(2)
    one.pump()
    one.dispatcher.detach(standby)
    assert one.pump() == {}
    assert one.dispatcher.unacked == 2


def test_one_that_stands_by_and_attaches_again_takes_nothing_from_the_active_one():
    one = desk(partition=1)
    for name in "abc":
        one.join(name)
    one.stored.publish(2)
    assert one.pump() == {"b": [0, 1]}
    one.join("a")
    assert one.pump() == {}


def test_partitions_are_spread_over_consumers_of_one_priority():
    active = []
    for partition in range(6):
        one = desk(partition)
        for name in "cab":
            one.join(name)
        one.join("z", priority=1)
        one.stored.publish(1)
        active += one.pump()
    assert active == ["a", "b", "c", "a", "b", "c"]


def test_what_waits_for_its_next_try_comes_to_the_next_consumer():
    one = desk()
    active = one.join("a")
    one.join("b")
    one.stored.publish(3)
    one.pump()
    one.nack(1, delay_ms=50)
    one.dispatcher.detach(active)
    assert one.pump() == {"b": [0, 2]}
    one.wait(50)
    assert one.pump() == {"b": [1]}
