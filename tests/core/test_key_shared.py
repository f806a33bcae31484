"""The key-shared subscription: messages of one key go to one consumer, in order."""

from collections import Counter

import pytest
from dispatch_harness import MS, DispatchHarness

from pydanube.core.dispatch import dispatcher as dispatcher_module
from pydanube.core.dispatch.key_filters import KEY_FILTERS_MAX, KeyFilter
from pydanube.core.dispatch.ranges import merged
from pydanube.model.errors import Invalid, Refused
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionType

OTHERS = "bcdefghijklmnopqrstuvwxyz"


def harness(policy: FailurePolicy | None = None) -> DispatchHarness:
    return DispatchHarness(SubscriptionType.KEY_SHARED, policy or FailurePolicy(delay_ms=10))


def keys_of(one: DispatchHarness, names: list[str]) -> dict[str, str]:
    """Return the consumer of each key, found out by publishing one message for each."""
    base = one.stored.publish(names)
    owners = {one.stored.keys[offset]: name for name, offsets in one.pump().items() for offset in offsets}
    one.ack(*range(base, one.stored.end))
    return owners


def key_of(one: DispatchHarness, consumer: str) -> str:
    return next(key for key, owner in keys_of(one, [f"key-{n}" for n in range(50)]).items() if owner == consumer)


# -- routing -----------------------------------------------------------------------------------------------------------


def test_a_key_stays_with_its_consumer_and_in_order_over_batches():
    one = harness()
    one.join("a")
    one.join("b")
    got = {}
    for _ in range(5):
        one.stored.publish([f"k{number % 7}" for number in range(20)])
        for name, offsets in one.pump().items():
            for offset in offsets:
                got.setdefault(one.stored.keys[offset], []).append((name, offset))
    assert len({tuple(sorted({name for name, _ in seen})) for seen in got.values()}) == 2
    for seen in got.values():
        assert len({name for name, _ in seen}) == 1
        assert [offset for _, offset in seen] == sorted(offset for _, offset in seen)


def test_a_message_without_a_key_goes_by_its_producers_name():
    one = harness()
    for name in "abcd":
        one.join(name)
    one.stored.publish([None, "x", None], producer="p")
    one.stored.publish(3, producer="p")
    owners = {offset: name for name, offsets in one.pump().items() for offset in offsets}
    assert len({owners[offset] for offset in (0, 2, 3, 4, 5)}) == 1


NAMES = [f"user-{number}" for number in range(10_000)]


def test_keys_are_spread_evenly():
    one = harness()
    for number in range(4):
        one.join(f"c{number}")
    shares = Counter(keys_of(one, NAMES).values())
    assert all(abs(share - 2500) < 0.1 * 2500 for share in shares.values()), shares


def test_a_fifth_consumer_moves_a_fifth_of_the_keys_and_only_to_itself():
    one = harness()
    for number in range(4):
        one.join(f"c{number}")
    before = keys_of(one, NAMES)
    fifth = one.join("c4")
    after = keys_of(one, NAMES)
    moved = [key for key in NAMES if before[key] != after[key]]
    assert all(after[key] == "c4" for key in moved)
    assert 0.7 * 2000 < len(moved) < 1.3 * 2000
    one.dispatcher.detach(fifth)
    assert keys_of(one, NAMES) == before


def test_cumulative_acks_are_refused():
    with pytest.raises(Refused, match="key-shared"):
        harness().dispatcher.check_cumulative()


# -- a key that moves --------------------------------------------------------------------------------------------------


def test_a_key_moves_only_after_its_messages_in_flight_are_acked():
    one = harness()
    one.join("a")
    one.stored.publish(["k", "k"])
    assert one.pump() == {"a": [0, 1]}
    name = next(name for name in OTHERS if takes(one, name, "k"))
    one.stored.publish(["k"])
    assert one.pump() == {}
    assert one.dispatcher.counts.held_back == 1
    one.ack(0)
    assert one.pump() == {}
    one.ack(1)
    assert one.pump() == {name: [2]}


def takes(one: DispatchHarness, consumer: str, key: str) -> bool:
    """Join if the key would belong to this consumer; return whether it does."""
    twin = DispatchHarness(SubscriptionType.KEY_SHARED)
    twin.join("a")
    twin.join(consumer)
    if keys_of(twin, [key])[key] != consumer:
        return False
    one.join(consumer)
    return True


def test_a_nack_lets_a_key_move_and_later_messages_of_the_key_still_wait():
    one = harness()
    one.join("a")
    one.stored.publish(["k"])
    one.pump()
    name = next(name for name in OTHERS if takes(one, name, "k"))
    one.stored.publish(["k"])
    one.pump()
    one.nack(0)
    assert one.pump() == {}
    one.wait(10)
    assert one.pump() == {name: [0]}
    one.ack(0)
    assert one.pump() == {name: [1]}


def test_when_a_consumer_leaves_its_messages_move_at_once_and_stay_in_order():
    one = harness()
    leaver = one.join("a")
    one.stored.publish(["k", "l", "k"])
    one.pump()
    one.join("b")
    one.stored.publish(["k", "l"])
    one.pump()
    one.dispatcher.detach(leaver)
    assert one.pump() == {"b": [0, 1, 2, 3, 4]}


def test_a_slow_consumer_delays_only_its_own_keys():
    one = harness()
    one.join("a")
    slow = one.join("b", messages=0)
    theirs, mine = key_of_consumer_without_credit(one), key_of_consumer_without_credit(one, "a")
    one.stored.publish([theirs, mine, theirs, mine])
    got = one.pump()
    assert list(got) == ["a"] and len(got["a"]) == 2
    assert one.dispatcher.counts.held_back == 2
    one.credit(slow, 1)
    assert len(one.pump()["b"]) == 1
    one.stored.publish([theirs])
    assert one.pump() == {}
    one.credit(slow, 10)
    assert one.pump() == {"b": [2, 4]}


def key_of_consumer_without_credit(one: DispatchHarness, consumer: str = "b") -> str:
    twin = DispatchHarness(SubscriptionType.KEY_SHARED)
    for member in one.dispatcher.members:
        twin.join(member.consumer)
    return key_of(twin, consumer)


# -- a key with a failure ----------------------------------------------------------------------------------------------


def test_after_a_failure_later_messages_of_the_key_wait_and_other_keys_do_not():
    one = harness()
    one.join("a")
    one.stored.publish(["k", "k", "x"])
    one.pump()
    one.nack(0)
    one.stored.publish(["k", "x"])
    assert one.pump() == {"a": [4]}, "offset 1 was delivered before"
    assert (one.dispatcher.counts.held_back, one.dispatcher.counts.blocked_keys) == (1, 1)
    one.wait(10)
    assert one.pump() == {"a": [0]}
    one.ack(0)
    assert one.pump() == {"a": [3]}
    assert one.dispatcher.counts.blocked_keys == 0


def test_two_failures_of_a_key_hold_it_back_until_both_are_acked():
    one = harness()
    one.join("a")
    one.stored.publish(["k", "k"])
    one.pump()
    one.nack(0, 1, delay_ms=0)
    one.stored.publish(["k"])
    assert one.pump() == {"a": [0, 1]}
    one.ack(0)
    assert one.pump() == {}
    one.ack(1)
    assert one.pump() == {"a": [2]}


def test_a_nack_of_a_message_that_is_held_back_is_ignored():
    one = harness()
    one.join("a")
    one.stored.publish(["k"])
    one.pump()
    one.nack(0)
    one.stored.publish(["k"])
    one.pump()
    one.nack(1, delay_ms=0)
    one.wait(10)
    assert one.pump() == {"a": [0]}
    one.ack(0)
    assert one.pump() == {"a": [1]}
    assert one.dispatcher.counts.failed == 0


def test_overlapping_and_empty_ranges_in_one_ack_release_a_key_once():
    one = harness()
    one.join("a")
    one.stored.publish(["k"] * 6)
    one.pump()
    one.dispatcher.ack(merged([(0, 2), (1, 3), (3, 3), (1, 2)]))
    name = next(name for name in OTHERS if takes(one, name, "k"))
    one.stored.publish(["k"])
    assert one.pump() == {}
    one.dispatcher.ack(merged([(4, 6), (9, 2), (3, 5)] * 5))
    assert one.pump() == {name: [6]}


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("globs", "accepted", "refused"),
    [
        (["eu-*"], ["eu-", "eu-1", "eu-\n"], ["us-1", "xeu-1", "EU-1"]),
        (["a?c"], ["abc", "a?c"], ["ac", "abbc"]),
        (["[ab]"], ["[ab]"], ["a", "b", "[ab", "ab]"]),
        (["a[!b]*"], ["a[!b]", "a[!b]cd"], ["ac", "a!"]),
        (["x.y"], ["x.y"], ["xay"]),
        (["eu-*", "us-?"], ["eu-77", "us-1"], ["us-11", "de"]),
        (["*"], ["", "anything"], []),
        ([], ["", "anything"], []),
    ],
)
def test_filters_are_globs_of_which_one_must_match(globs, accepted, refused):
    one = KeyFilter(globs)
    assert [key for key in accepted if not one.accepts(key)] == []
    assert [key for key in refused if one.accepts(key)] == []


@pytest.mark.parametrize("globs", [[""], ["x" * 201], ["x"] * (KEY_FILTERS_MAX + 1)])
def test_filters_have_limits_and_a_refused_one_changes_nothing(globs):
    one = harness()
    first = one.join("a")
    with pytest.raises(Invalid, match="key filters"):
        one.join("a", key_filters=globs)
    assert one.dispatcher.members == [first]


def test_consumers_with_and_without_filters_share_the_keys():
    one = harness()
    one.join("eu", key_filters=["eu-*"])
    one.join("us", key_filters=["us-*", "ca-*"])
    one.join("any")
    owners = keys_of(one, [f"{region}-{number}" for region in ("eu", "us", "ca", "jp") for number in range(50)])
    for region, mine in (("eu", {"eu", "any"}), ("us", {"us", "any"}), ("ca", {"us", "any"}), ("jp", {"any"})):
        assert {owner for key, owner in owners.items() if key.startswith(region)} == mine


def test_messages_that_no_filter_accepts_are_counted_and_wait_for_a_consumer_that_does():
    one = harness()
    one.join("eu", key_filters=["eu-*"])
    one.stored.publish(["jp-1", "eu-1", "jp-1"])
    assert one.pump() == {"eu": [1]}
    one.ack(1)
    assert (one.dispatcher.counts.unmatched, one.dispatcher.cursor.position) == (2, 0)
    other = one.join("us", key_filters=["us-*"])
    assert one.pump() == {}
    assert one.dispatcher.counts.unmatched == 2
    one.dispatcher.detach(other)
    one.join("jp", key_filters=["jp-?"])
    assert one.pump() == {"jp": [0, 2]}
    assert one.dispatcher.counts.unmatched == 0


def test_filters_match_the_producers_name_where_a_message_has_no_key():
    one = harness()
    one.join("a", key_filters=["sensor-*"])
    one.stored.publish([None, "x"], producer="sensor-1")
    one.stored.publish(2, producer="camera-1")
    assert one.pump() == {"a": [0]}
    assert one.dispatcher.counts.unmatched == 3


def test_a_filtered_key_does_not_move_while_it_is_in_flight():
    one = harness()
    one.join("a", key_filters=["k*"])
    one.stored.publish(["k1"])
    one.pump()
    name = next(name for name in OTHERS if takes(one, name, "k1"))
    one.stored.publish(["k1"])
    assert one.pump() == {}
    one.ack(0)
    assert one.pump() == {name: [1]}


# -- delays and bounds -------------------------------------------------------------------------------------------------


def test_a_key_is_ordered_by_delivery_time():
    one = harness()
    one.join("a")
    one.stored.publish(["k", "k", "k"], [one.now_us + 30 * MS, one.now_us + 10 * MS, 0])
    got = one.pump()["a"]
    for _ in range(3):
        one.wait(10)
        got += one.pump().get("a", [])
    assert got == [2, 1, 0]


def test_the_number_of_messages_held_back_for_a_consumer_without_credit_is_bounded(monkeypatch):
    monkeypatch.setattr(dispatcher_module, "HELD_BACK_MAX", 50)
    one = harness()
    one.join("a")
    slow = one.join("b", messages=0)
    for _ in range(50):
        one.stored.publish([f"k{number}" for number in range(10)])
    one.pump()
    assert 50 <= one.dispatcher.counts.held_back < 60
    one.credit(slow, 1000)
    one.pump()
    assert one.dispatcher.unacked == 500


def test_credit_for_one_message_releases_one_message():
    one = harness()
    slow = one.join("b", messages=0)
    one.join("a")
    theirs = key_of_consumer_without_credit(one)
    for _ in range(100):
        one.stored.publish([theirs] * 10)
    one.pump()
    one.credit(slow, 1)
    assert one.dispatcher._ready.count == 1
    assert one.pump() == {"b": [0]}
    assert one.dispatcher.counts.held_back == 999
