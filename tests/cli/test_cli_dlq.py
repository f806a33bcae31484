"""`danube dlq`: letters listed, shown and sent back, against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from pydanube import connect_blocking

pytestmark = pytest.mark.process


def answer(done) -> object:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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


def test_ctrl_c_ends_a_redrive_in_order_and_says_how_far_it_got(danube, served, dead):
    letters = dead(20)
    process = subprocess.Popen(
        [sys.executable, "-m", "pydanube.cli", "dlq", "redrive", letters, "--all", "--yes", "--rate", "2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"DANUBE_URL": served.url},
    )
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
