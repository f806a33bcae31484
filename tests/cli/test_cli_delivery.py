"""Subscriptions from the command line: types, failure policies, moving, skipping and looking, against a real broker.
`danube dlq`: letters listed, shown and sent back, against a real broker."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import commands
import pytest
from commands import answer, consumed

from pydanube import connect_blocking

pytestmark = pytest.mark.process


def test_a_failure_policy_is_set_at_creation_shown_and_changed_in_part(danube, topic):
    danube("topics", "create", topic)
    made = danube(
        "subscriptions", "create", topic, "work", "--type", "shared", "--max-redeliveries", "3",
        "--ack-timeout", "30s", "--delay", "2", "--max-delay", "5m", "--backoff", "fixed", "--poison", "drop",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    policy = {
        "redeliveries_max": 3,
        "ack_timeout_ms": 30_000,
        "delay_ms": 2_000,
        "delay_max_ms": 300_000,
        "backoff": "fixed",
        "poison": "drop",
        "dead_letter_topic": "",
    }
    described = answer(danube("subscriptions", "describe", topic, "work", "--json"))
    assert (described["type"], described["failure_policy"], described["consumers"]) == ("shared", policy, [])
    shown = danube("subscriptions", "failure-policy", topic, "work").stdout
    assert "at most 3" in shown
    assert "drop" in shown
    changed = danube("subscriptions", "failure-policy", topic, "work", "--dead-letter-topic", "/default/dead", "--json")
    policy |= {"poison": "dead-letter", "dead_letter_topic": "/default/dead"}
    described = {"topic": topic, "subscription": "work", "version": ANY}
    assert answer(changed) == {**described, **policy}
    unlimited = danube("subscriptions", "failure-policy", topic, "work", "--max-redeliveries", "unlimited", "--json")
    assert "dead-letter happens after the last try, and tries are unlimited" in unlimited.stderr
    policy |= {"redeliveries_max": None}
    assert answer(unlimited) == {**described, **policy}
    assert answer(danube("subscriptions", "describe", topic, "work", "--json"))["failure_policy"] == policy


def test_a_limit_of_unacked_messages_is_shown_and_changed(danube, topic):
    danube("topics", "create", topic)
    danube("subscriptions", "create", topic, "work")
    assert danube("subscriptions", "unacked-max", topic, "work").stdout == "unlimited\n"
    assert danube("subscriptions", "unacked-max", topic, "work", "1000").stdout == "at most 1000 per partition\n"
    assert answer(danube("subscriptions", "describe", topic, "work", "--json"))["unacked_max"] == 1000
    assert "at most 1000 per partition" in danube("subscriptions", "describe", topic, "work").stdout
    assert answer(danube("subscriptions", "unacked-max", topic, "work", "unlimited", "--json"))["unacked_max"] == 0
    wrong = danube("subscriptions", "unacked-max", topic, "work", "0")
    assert wrong.returncode == 2 and "use 1 to" in wrong.stderr


def test_a_delay_longer_than_the_longest_raises_it_and_poison_without_a_limit_is_remarked(danube, topic):
    danube("topics", "create", topic)
    danube("subscriptions", "create", topic, "work")
    policy = answer(danube("subscriptions", "failure-policy", topic, "work", "--delay", "10m", "--json"))
    assert (policy["delay_ms"], policy["delay_max_ms"]) == (600_000, 600_000)
    never = danube("subscriptions", "failure-policy", topic, "work", "--poison", "drop")
    assert never.returncode == 0
    assert "set --max-redeliveries" in never.stderr
    wrong = danube("subscriptions", "failure-policy", topic, "work", "--max-delay", "1s")
    assert wrong.returncode == 1
    assert len(wrong.stderr.splitlines()) == 1


def test_seeking_takes_ends_offsets_times_and_how_long_ago(danube, topic):
    danube("produce", topic, stdin="0\n1\n2\n3\n")
    danube("subscriptions", "create", topic, "sub")

    def position() -> int:
        return answer(danube("subscriptions", "describe", topic, "sub", "--json"))["partitions"][0]["position"]

    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for where, place in [("earliest", 0), ("latest", 4), ("2", 2), ("-10m", 0), (later, 4), ("-10h", 0)]:
        moved = danube("subscriptions", "seek", topic, "sub", where)
        assert moved.returncode == 0, moved.stderr
        assert position() == place
    assert danube("subscriptions", "seek", topic, "sub", "--to", "3", "--partition", "0").returncode == 0
    assert position() == 3
    assert danube("subscriptions", "seek", topic, "sub", "1", "--partition", "7").returncode == 1
    told = answer(danube("subscriptions", "seek", topic, "sub", "-10m", "--json"))
    assert told["positions"] == [[0, 0]]
    shown = danube("subscriptions", "seek", topic, "sub", "latest").stdout
    assert shown == f"moved sub on {topic} to latest (partition 0: offset 4)\n"


def test_an_offset_that_only_some_partitions_have_is_refused_with_a_way_out(danube, topic):
    danube("produce", topic, "--partitions", "2", "--partition", "1", stdin="x\n" * 5)
    danube("subscriptions", "create", topic, "sub")
    refused = danube("subscriptions", "seek", topic, "sub", "3")
    assert (refused.returncode, "--partition" in refused.stderr) == (1, True)
    assert f"partition 0 of {topic}" in refused.stderr
    told = answer(danube("subscriptions", "seek", topic, "sub", "3", "--partition", "1", "--json"))
    assert told["positions"] == [[1, 3]]


def test_peeking_consumes_nothing_and_skipping_settles(danube, topic):
    danube("produce", topic, "-k", "user-1", stdin="a\nb\nc\nd\n")
    danube("subscriptions", "create", topic, "sub", "--from", "earliest")
    for _ in range(2):
        seen = answer(danube("subscriptions", "peek", topic, "sub", "-n", "3", "--json"))
        assert [(one["offset"], one["key"], one["payload"]) for one in seen] == [
            (0, "user-1", "a"),
            (1, "user-1", "b"),
            (2, "user-1", "c"),
        ]
    skipped = danube("subscriptions", "skip", topic, "sub", "--offset", "0:0", "--offset", "0:2")
    assert skipped.stdout == f"skipped 2 messages of sub on {topic}\n", skipped.stderr
    again = danube("subscriptions", "skip", topic, "sub", "--offset", "0:0", "--offset", "0:0")
    assert again.stdout == f"skipped 0 messages of sub on {topic}; 1 was acked or skipped before\n"
    past = danube("subscriptions", "skip", topic, "sub", "--offset", "0:99")
    assert (past.returncode, "past the end" in past.stderr) == (1, True)
    table = danube("subscriptions", "peek", topic, "sub").stdout.splitlines()
    assert [line.split()[-1] for line in table] == ["payload", "b", "d"]
    assert danube("consume", topic, "-s", "sub", "--count", "2").stdout == "b\nd\n"


def test_a_backlog_is_cleared_only_when_that_is_said_twice(danube, topic):
    danube("produce", topic, "--partitions", "3", stdin="x\n" * 30)
    danube("subscriptions", "create", topic, "sub", "--from", "earliest")
    refused = danube("subscriptions", "skip", topic, "sub", "--all")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert answer(danube("subscriptions", "describe", topic, "sub", "--json"))["lag"] == 30
    cleared = danube("subscriptions", "skip", topic, "sub", "--all", "--yes", "--json")
    assert answer(cleared) == {"topic": topic, "subscription": "sub", "asked": "all", "skipped": 30}
    assert danube("subscriptions", "skip", topic, "sub", "--all", "--yes").stdout.startswith("skipped 0 messages")
    assert answer(danube("subscriptions", "describe", topic, "sub", "--json"))["lag"] == 0


def test_progress_is_advanced_by_compare_and_set(danube, topic):
    danube("produce", topic, stdin="x\n" * 10)
    danube("subscriptions", "create", topic, "engine", "--from", "earliest")
    there = danube("subscriptions", "advance", topic, "engine", "--expected", "0", "--to", "6", "--json")
    assert answer(there) == {"topic": topic, "subscription": "engine", "partition": 0, "position": 6}
    late = danube("subscriptions", "advance", topic, "engine", "--expected", "0", "--to", "8")
    assert late.returncode == 1
    assert len(late.stderr.splitlines()) == 1
    assert answer(danube("subscriptions", "describe", topic, "engine", "--json"))["lag"] == 4


@pytest.mark.parametrize("kind", ["shared", "failover", "key-shared"])
def test_every_type_of_subscription_can_be_consumed(danube, topic, kind):
    danube("produce", topic, "-k", "k", stdin="a\nb\nc\n")
    options = {"failover": ["--priority", "2"], "key-shared": ["--key-filter", "k*"]}.get(kind, [])
    first = consumed(
        danube, topic, "-s", "sub", "--type", kind, "--name", "me", *options, "--from", "earliest", "--count", "2"
    )
    assert [(one["payload"], one["redeliveries"], one["failure_reason"]) for one in first] == [
        ("a", 0, None),
        ("b", 0, None),
    ]
    again = danube("consume", topic, "-s", "sub", "--count", "1")
    assert again.stdout == "c\n", again.stderr
    described = answer(danube("subscriptions", "describe", topic, "sub", "--json"))
    assert (described["type"], described["lag"]) == (kind, 0)
    other = danube("consume", topic, "-s", "sub", "--type", "exclusive", "--timeout", "1")
    assert other.returncode == 1
    assert kind in other.stderr


def test_options_of_a_type_take_the_type_of_the_subscription_that_exists(danube, topic):
    danube("produce", topic, "-k", "eu-1", "-m", "european")
    danube("subscriptions", "create", topic, "keys", "--type", "key-shared", "--from", "earliest")
    danube("subscriptions", "create", topic, "hot", "--type", "failover", "--from", "earliest")
    filtered = danube("consume", topic, "-s", "keys", "--key-filter", "eu-*", "--count", "1")
    assert filtered.stdout == "european\n", filtered.stderr
    assert danube("consume", topic, "-s", "hot", "--priority", "3", "--count", "1").stdout == "european\n"
    other = danube("consume", topic, "-s", "hot", "--key-filter", "eu-*", "--count", "1")
    assert (other.returncode, "the subscription is failover" in other.stderr) == (2, True)
    new = danube("consume", topic, "-s", "new", "--priority", "1", "--timeout", "1")
    assert (new.returncode, "add --type" in new.stderr) == (2, True)


def test_messages_can_be_made_to_fail_and_to_die(danube, topic):
    letters = f"{topic[:100]}-dlq"
    danube("topics", "create", letters)
    danube("produce", topic, "-m", "one")
    danube(
        "subscriptions", "create", topic, "sub", "--from", "earliest", "--max-redeliveries", "1", "--delay", "10ms",
        "--dead-letter-topic", letters,
    )  # fmt: skip
    seen = consumed(danube, topic, "-s", "sub", "--count", "2", "--nack", "--reason", "no stock", "--prefetch", "1")
    assert [(one["redeliveries"], one["failure_reason"]) for one in seen] == [(0, None), (1, "no stock")]
    (letter,) = consumed(danube, letters, "--from", "earliest", "--count", "1")
    assert letter["attributes"]["x-failure-reason"] == "no stock"


def test_a_consumer_may_have_an_ack_timeout_of_its_own(danube, topic):
    danube("produce", topic, "-m", "one")
    danube("subscriptions", "create", topic, "sub", "--from", "earliest", "--delay", "10ms")
    seen = consumed(danube, topic, "-s", "sub", "--no-ack", "--ack-timeout", "200ms", "--count", "2")
    assert [(one["redeliveries"], one["failure_reason"]) for one in seen] == [(0, None), (1, "ack timeout")]


def test_a_key_filter_leaves_other_keys_alone(danube, topic):
    danube("produce", topic, "-k", "us-1", "-m", "american")
    danube("produce", topic, "-k", "eu-1", "-m", "european")
    seen = danube(
        "consume", topic, "-s", "eu", "--type", "key-shared", "--key-filter", "eu-*", "--from", "earliest",
        "--count", "1",
    )  # fmt: skip
    assert seen.stdout == "european\n", seen.stderr
    assert answer(danube("subscriptions", "describe", topic, "eu", "--json"))["lag"] == 1


def test_delayed_messages_come_when_they_are_due(danube, topic):
    far = datetime.now(UTC) + timedelta(hours=2)
    danube("produce", topic, "-m", "never", "--deliver-at", far.isoformat())
    danube("subscriptions", "create", topic, "sub", "--type", "shared", "--from", "earliest")
    due = datetime.now(UTC) + timedelta(seconds=3)
    danube("produce", topic, "-m", "late", "--deliver-at", due.isoformat())
    danube("produce", topic, "-m", "now")
    never = next(one for one in answer(danube("subscriptions", "peek", topic, "sub", "--json")) if one["offset"] == 0)
    assert (never["deliver_at"], never["until"]) == (far.isoformat(), far.isoformat())
    assert f"delayed until {far:%m-%d %H:%M:%S}" in danube("subscriptions", "peek", topic, "sub").stdout
    received = consumed(danube, topic, "-s", "sub", "--count", "2")
    assert {one["payload"] for one in received} == {"now", "late"}
    assert datetime.now(UTC) >= due
    figures = answer(danube("topics", "stats", topic, "--json"))
    assert figures["total"]["subscriptions"][0]["delayed"] == 1


def test_everything_can_be_sent_to_one_partition(danube, topic):
    danube("produce", topic, "--partitions", "4", "--partition", "2", stdin="x\n" * 10)
    told = answer(danube("produce", topic, "--partition", "2", "--access", "exclusive", "-m", "x", "--json"))
    assert told["partitions"] == {"2": {"first": 10, "last": 10}}
    assert danube("produce", topic, "--partition", "9", "-m", "x").returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "/default/t", "--key-filter", "a*"),
        ("consume", "/default/t", "-s", "s", "--type", "shared", "--priority", "1"),
        ("consume", "/default/t", "--nack"),
        ("consume", "/default/t", "-s", "s", "--nack", "--no-ack"),
        ("consume", "/default/t", "-s", "s", "--reason", "why"),
        ("consume", "/default/t", "--prefetch", "1"),
        ("consume", "shop/orders-*"),
        ("consume", "/default/t", "-s", "s", "--type", "shared", "--key-filter", "a*"),
        ("produce", "/default/t", "-m", "x", "--deliver-after", "1", "--deliver-at", "2026-01-01T00:00:00Z"),
        ("produce", "/default/t", "-m", "x", "--deliver-after", "soon"),
        ("produce", "/default/t", "-m", "x", "--deliver-at", "soon"),
        ("produce", "/default/t", "-m", "x", "--access", "mine"),
        ("subscriptions", "create", "/default/t", "s", "--poison", "dead-letter"),
        ("subscriptions", "create", "/default/t", "s", "--max-redeliveries", "-1"),
        ("subscriptions", "create", "/default/t", "s", "--max-redeliveries", "70000"),
        ("subscriptions", "create", "/default/t", "s", "--delay", "10s", "--max-delay", "1s"),
        ("subscriptions", "create", "/default/t", "s", "--dead-letter-topic", "shop/dead"),
        ("subscriptions", "seek", "/default/t", "s"),
        ("subscriptions", "seek", "/default/t", "s", "1", "--to", "2"),
        ("subscriptions", "seek", "/default/t", "s", "-10"),
        ("subscriptions", "skip", "/default/t", "s"),
        ("subscriptions", "skip", "/default/t", "s", "--all", "--offset", "0:1"),
        ("subscriptions", "skip", "/default/t", "s", "--offset", "1742"),
        ("subscriptions", "skip", "/default/t", "s", "--all"),
        ("subscriptions", "peek", "/default/t", "s", "-n", "0"),
        ("subscriptions", "advance", "/default/t", "s", "--to", "5"),
        ("topics", "grow", "/default/t", "0"),
        ("topics", "policies", "/default/t", "--set", "ttl=5"),
        ("topics", "policies", "/default/t", "--set", "ttl_s=5", "--unset", "ttl_s"),
        ("topics", "policies", "/default/t", "--set", f"ttl_s={2**60}"),
        ("namespaces", "policies", "/default/t"),
        ("top", "--interval", "0"),
        ("top", "shop/orders"),
        ("dlq", "show", "/default/dead", "5"),
        ("dlq", "redrive", "/default/dead"),
        ("dlq", "redrive", "/default/dead", "0:1", "--all"),
        ("dlq", "redrive", "/default/dead", "--all"),
        ("dlq", "redrive", "/default/dead", "--from-topic", "/default/t"),
        ("dlq", "drop", "/default/dead"),
        ("dlq", "drop", "/default/dead", "--all"),
        ("dlq", "drop", "/default/dead", "0:1", "--from-subscription", "s"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_and_needs_no_broker(arguments):
    done = commands.danube(*arguments, url="danube://127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert "Error: " in done.stderr


def test_a_message_that_blocks_is_seen_and_skipped(danube, served, topic):
    danube("produce", topic, stdin="poison\nfine\n")
    danube(
        "subscriptions", "create", topic, "sub", "--from", "earliest", "--max-redeliveries", "0", "--poison", "block"
    )
    with connect_blocking(served.url) as client, client.consumer(topic, subscription="sub") as consumer:
        consumer.nack(consumer.receive(timeout=60), reason="cannot be parsed")

    def figures() -> dict:
        (found,) = answer(danube("topics", "stats", topic, "--json"))["total"]["subscriptions"]
        return found

    deadline = time.monotonic() + 120
    while figures()["blocked"] != 1:
        assert time.monotonic() < deadline, figures()
    assert "1 blocked" in danube("top", topic).stdout
    blocked, behind = answer(danube("subscriptions", "peek", topic, "sub", "--json"))
    assert (blocked["state"], blocked["redeliveries"], blocked["failure_reason"]) == ("blocked", 1, "cannot be parsed")
    assert (behind["state"], behind["redeliveries"], behind["failure_reason"]) == ("ready", 0, None)
    assert "blocked, failed once: cannot be parsed" in danube("subscriptions", "peek", topic, "sub").stdout
    assert danube("subscriptions", "skip", topic, "sub", "--offset", "0:0").returncode == 0
    assert danube("consume", topic, "-s", "sub", "--count", "1").stdout == "fine\n"
    assert figures()["blocked"] == 0


def test_a_message_that_comes_again_tells_why(danube, served, topic):
    danube("produce", topic, "-m", "one")
    danube("subscriptions", "create", topic, "sub", "--type", "shared", "--from", "earliest", "--delay", "10ms")
    with connect_blocking(served.url) as client, client.consumer(topic, subscription="sub", type="shared") as consumer:
        consumer.nack(consumer.receive(timeout=60), reason="no stock")
    (message,) = consumed(danube, topic, "-s", "sub", "--count", "1")
    assert (message["redeliveries"], message["failure_reason"]) == (1, "no stock")


@pytest.fixture
def dead(danube, served, topic):
    """Return a function that lets `count` messages be dead-lettered and returns the dead letter topic."""

    def die(count: int) -> str:
        letters = f"{topic[:100]}-dlq"
        danube("topics", "create", topic)
        made = danube(
            "subscriptions", "create", topic, "work", "--type", "shared", "--max-redeliveries", "0",
            "--dead-letter-topic", letters,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        lines = "".join(f"order {number}\n" for number in range(count))
        danube("produce", topic, "-k", "user-1", "-a", "source=shop", stdin=lines)
        with (
            connect_blocking(served.url) as client,
            client.consumer(topic, subscription="work", type="shared") as consumer,
        ):
            for _ in range(count):
                consumer.nack(consumer.receive(timeout=60), reason="no stock\x1b[2J")
            deadline = time.monotonic() + 120
            while client.describe_subscription(topic, "work").partitions[0].lag:
                assert time.monotonic() < deadline
        return letters

    return die


def test_letters_are_listed_and_shown_with_all_that_is_known(danube, topic, dead):
    letters = dead(3)
    listed = answer(danube("dlq", "list", letters, "--json"))
    assert [one["letter"] for one in listed] == ["0:0", "0:1", "0:2"]
    assert sorted(one["message"]["payload"] for one in listed) == ["order 0", "order 1", "order 2"]
    first = listed[0]
    assert (first["original_topic"], first["original_subscription"]) == (topic, "work")
    assert (first["original_partition"], first["original_offset"] in range(3)) == (0, True)
    assert (first["message"]["key"], first["message"]["attributes"]["source"]) == ("user-1", "shop")
    assert first["reason"] == "no stock\x1b[2J"
    table = danube("dlq", "list", letters, "-n", "2")
    assert table.stdout.splitlines()[0].split() == [
        "letter", "died", "tries", "from", "subscription", "message", "key", "reason",
    ]  # fmt: skip
    assert len(table.stdout.splitlines()) == 3
    assert "only the first 2 are shown" in table.stderr
    assert "\x1b" not in table.stdout
    shown = danube("dlq", "show", letters, "0:1").stdout
    for told in (topic, "subscription work", "attribute x-failure-reason", "no stock\\x1b[2J", "order"):
        assert told in shown
    assert "\x1b" not in shown
    assert answer(danube("dlq", "show", letters, "0:1", "--json"))["letter"] == "0:1"
    missing = danube("dlq", "show", letters, "0:99")
    assert (missing.returncode, len(missing.stderr.splitlines())) == (1, 1)
    assert danube("dlq", "list", "/default/no-such-topic").returncode == 1


def test_letters_go_back_one_by_one_and_all_at_once(danube, topic, dead):
    letters = dead(5)
    danube("subscriptions", "create", topic, "again")
    one = danube("dlq", "redrive", letters, "0:1")
    assert (one.returncode, one.stdout) == (0, f"sent back 1 letter of {letters}\n"), one.stderr
    assert [left["letter"] for left in answer(danube("dlq", "list", letters, "--json"))] == ["0:0", "0:2", "0:3", "0:4"]
    assert len(answer(danube("dlq", "list", letters, "--redriven", "--json"))) == 5
    rest = answer(danube("dlq", "redrive", letters, "--all", "--rate", "100", "--yes", "--json"))
    assert rest == {"topic": letters, "redriven": 4, "stayed": {}, "interrupted": False}
    empty = danube("dlq", "list", letters)
    assert (empty.returncode, empty.stdout, empty.stderr) == (0, "", f"no dead letters are left in {letters}\n")
    received = danube("consume", topic, "-s", "again", "--count", "5").stdout.splitlines()
    assert sorted(received) == [f"order {number}" for number in range(5)]
    twice = danube("dlq", "redrive", letters, "0:1")
    assert twice.returncode == 1
    assert twice.stderr == "danube: 1 letter stayed; 0:1: it was redriven or dropped before\n"


def test_letters_are_chosen_by_where_they_came_from_sent_elsewhere_and_dropped(danube, topic, dead):
    letters = dead(3)
    danube("topics", "create", f"{topic}-repaired")
    none = danube("dlq", "redrive", letters, "--from-subscription", "other", "--yes")
    assert (none.returncode, none.stdout) == (0, f"sent back 0 letters of {letters}\n"), none.stderr
    assert "no dead letters that failed for other are left" in none.stderr
    elsewhere = danube("dlq", "redrive", letters, "0:0", "--to", f"{topic}-repaired")
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert danube("consume", f"{topic}-repaired", "--from", "earliest", "--count", "1").stdout.startswith("order ")
    one = danube("dlq", "drop", letters, "0:1")
    assert (one.returncode, one.stdout) == (0, f"dropped 1 letter of {letters}\n"), one.stderr
    assert answer(danube("dlq", "list", letters, "--from-subscription", "other", "--json")) == []
    assert [left["letter"] for left in answer(danube("dlq", "list", letters, "--from-topic", topic, "--json"))] == [
        "0:2"
    ]
    rest = answer(danube("dlq", "drop", letters, "--from-topic", topic, "--yes", "--json"))
    assert rest == {"topic": letters, "dropped": 1, "stayed": {}, "interrupted": False}
    assert len(answer(danube("dlq", "list", letters, "--redriven", "--json"))) == 3


def test_nothing_is_made_of_a_topic_that_has_no_letters(danube, topic):
    danube("produce", topic, "-m", "no letter")
    danube("subscriptions", "create", topic, "work", "--max-redeliveries", "0", "--dead-letter-topic", "/default/dead")
    for command in (("list",), ("redrive", "--all", "--yes"), ("drop", "--all", "--yes")):
        done = danube("dlq", command[0], topic, *command[1:])
        assert done.returncode == 0, done.stderr
        assert done.stderr == (f"no dead letters are left in {topic}; messages that die here go to /default/dead\n"), (
            done.stderr
        )
    one = danube("dlq", "redrive", topic, "0:0")
    assert (one.returncode, "it is no dead letter" in one.stderr) == (1, True)
    assert answer(danube("dlq", "list", topic, "--json")) == []
    listed = answer(danube("subscriptions", "list", topic, "--json"))
    assert [one["subscription"] for one in listed] == ["work"]


def test_letters_whose_topic_is_gone_stay(danube, topic, dead):
    letters = dead(2)
    danube("topics", "delete", topic, "--yes")
    done = danube("dlq", "redrive", letters, "--all", "--yes")
    assert done.returncode == 1
    assert "2 letters stayed" in done.stderr
    assert len(answer(danube("dlq", "list", letters, "--json"))) == 2


def test_ctrl_c_ends_a_redrive_in_order_and_says_how_far_it_got(danube, start, dead):
    letters = dead(20)
    process = start("dlq", "redrive", letters, "--all", "--yes", "--rate", "2", "--json")
    deadline = time.monotonic() + 120
    while len(answer(danube("dlq", "list", letters, "--json"))) == 20:
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    told = json.loads(output)
    assert told["interrupted"]
    assert 0 < told["redriven"] < told["total"] == 20
    assert f"interrupted: {told['redriven']} of 20 letters sent back" in errors
    assert len(answer(danube("dlq", "list", letters, "--json"))) == 20 - told["redriven"]
