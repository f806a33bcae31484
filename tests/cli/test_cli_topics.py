"""Growing, policies and statistics of topics from the command line, against a real broker. `danube topics`,
`namespaces`, `subscriptions` and `brokers` against a real broker process."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys

import pytest
from commands import answer

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "delete", "/default/no-such-topic"),
        ("namespaces", "delete", "no-such-namespace"),
        ("subscriptions", "delete", "/default/no-such-topic", "s"),
    ],
)
def test_deleting_what_does_not_exist_does_not_advise_to_create_it(danube, words: tuple[str, ...]):
    refused = danube(*words, "--yes")
    assert refused.returncode == 1
    assert "does not exist" in refused.stderr
    assert "create" not in refused.stderr
    assert " list` shows those that do" in refused.stderr


def test_a_topic_grows_and_never_shrinks(danube, topic):
    danube("produce", topic, "--partitions", "2", stdin="x\n" * 10)
    grown = danube("topics", "grow", topic, "5")
    assert grown.stdout == f"{topic} has 5 partitions\n", grown.stderr
    assert answer(danube("topics", "describe", topic, "--json"))["config"]["partitions"] == 5
    smaller = danube("topics", "grow", topic, "3")
    assert smaller.returncode == 1
    assert len(smaller.stderr.splitlines()) == 1


def test_a_topic_is_unloaded_and_opens_again(danube, topic):
    danube("topics", "create", topic)
    danube("produce", topic, stdin="kept\n")
    before = json.loads(danube("topics", "describe", topic, "--json").stdout)["partitions"][0]
    assert danube("topics", "unload", topic).stdout == f"unloaded {topic}\n"
    after = json.loads(danube("topics", "describe", topic, "--json").stdout)["partitions"][0]
    assert (after["end_offset"], after["epoch"]) == (before["end_offset"], before["epoch"] + 1)
    assert json.loads(danube("topics", "unload", topic, "--json").stdout) == {"topic": topic, "unloaded": True}
    assert "does not exist" in danube("topics", "unload", "/default/nothing").stderr


def test_help_says_what_growing_breaks(danube):
    assert "breaks the order per key" in " ".join(danube("topics", "grow", "--help").stdout.split())


def given(policies: dict) -> dict:
    return {name: value for name, value in policies.items() if value is not None}


def test_policies_are_shown_set_and_inherited_again(danube):
    danube("namespaces", "create", "limits")
    danube("topics", "create", "/limits/t")
    told = answer(danube("namespaces", "policies", "limits", "--set", "ttl_s=1h", "--json"))
    assert (given(told["own"]), told["effective"]["ttl_s"]) == ({"ttl_s": 3600}, 3600)
    changes = ("--set", "retention-bytes=1GiB", "--set", "backlog_action=evict")
    told = answer(danube("topics", "policies", "/limits/t", *changes, "--json"))
    assert given(told["own"]) == {"retention_bytes": 1 << 30, "backlog_action": "evict"}
    assert told["effective"]["ttl_s"] == 3600
    shown = danube("topics", "policies", "/limits/t").stdout.splitlines()
    assert any(line.split() == ["retention_bytes", "1.0", "GiB", "the", "topic"] for line in shown)
    assert any(line.split() == ["ttl_s", "1h", "the", "namespace"] for line in shown)
    assert any(line.split() == ["retention_s", "7d", "the", "broker"] for line in shown)
    assert (told["from"]["retention_bytes"], told["from"]["ttl_s"]) == ("topic", "namespace")
    assert told["from"]["retention_s"] == "broker"
    told = answer(danube("topics", "policies", "/limits/t", "--unset", "retention_bytes", "--json"))
    assert given(told["own"]) == {"backlog_action": "evict"}
    assert danube("topics", "policies", "/limits/no-such").returncode == 1
    assert danube("namespaces", "policies", "no-such").returncode == 1


def test_retention_0_keeps_nothing_and_that_is_said(danube, topic):
    danube("topics", "create", topic)
    told = danube("topics", "policies", topic, "--set", "retention_s=0")
    assert f"{topic} has no subscription and keeps nothing now" in told.stderr
    assert any(
        line.split() == ["retention_s", "nothing", "once", "consumed", "the", "topic"]
        for line in told.stdout.splitlines()
    )
    danube("subscriptions", "create", topic, "sub")
    assert danube("topics", "policies", topic, "--set", "retention_bytes=0").stderr == ""
    assert "nothing is kept once every subscription" in " ".join(danube("topics", "policies", "--help").stdout.split())
    danube("namespaces", "create", "fleeting")
    assert "keep nothing now" in danube("namespaces", "policies", "fleeting", "--set", "retention_bytes=0").stderr


def test_policies_of_stored_messages_are_refused_where_nothing_is_stored(danube, topic):
    danube("topics", "create", topic, "--non-reliable")
    told = danube("topics", "policies", topic, "--set", "ttl_s=5")
    assert (told.returncode, "ttl_s cannot be set" in told.stderr) == (1, True)
    assert danube("topics", "policies", topic, "--set", "producers_max=5").returncode == 0
    assert danube("produce", topic, "-m", "x", "--deliver-after", "5").returncode == 1
    assert answer(danube("topics", "describe", topic, "--json"))["config"]["ack_level"] != "durable"


def test_what_exists_already_is_described_where_it_differs(danube, topic):
    danube("topics", "create", topic, "--non-reliable")
    again = danube("topics", "create", topic, "--if-not-exists")
    assert (again.returncode, "non-partitioned, non-reliable" in again.stderr) == (0, True)
    assert danube("topics", "create", topic, "--non-reliable", "--if-not-exists").stderr == ""


def test_statistics_of_a_topic(danube, topic):
    danube("produce", topic, "--partitions", "2", stdin="hello\n" * 40)
    danube("subscriptions", "create", topic, "late", "--from", "earliest", "--type", "shared")
    assert danube("consume", topic, "-s", "late", "--count", "15").returncode == 0
    told = answer(danube("topics", "stats", topic, "--json"))
    assert (told["topic"], told["reliable"], len(told["partitions"])) == (topic, True, 2)
    (late,) = told["total"]["subscriptions"]
    assert (late["name"], late["type"], late["backlog"]) == ("late", "shared", 25)
    assert late["backlog_bytes"] > 0
    assert late["backlog_s"] > 0
    assert sum(one["end_offset"] for one in told["partitions"]) == 40
    shown = danube("topics", "stats", topic, "-v").stdout
    for word in ("25 messages", "unacked", "waiting", "delayed", "held", "unmatched", "blocked", "dropped", "msg/s"):
        assert word in shown
    assert "backlog of late" in shown
    short = danube("topics", "stats", topic).stdout
    assert "25 messages" in short
    assert "dropped" not in short
    assert "unmatched" not in short
    assert danube("topics", "stats", "/default/no-such").returncode == 1


def test_a_non_reliable_topic_counts_what_nobody_heard(danube, topic):
    told = danube("produce", topic, "--non-reliable", "--partitions", "2", stdin="x\n" * 7)
    assert told.returncode == 0, told.stderr
    figures = answer(danube("topics", "stats", topic, "--json"))
    assert (figures["reliable"], figures["total"]["unheard"]) == (False, 7)
    assert "unheard" in danube("topics", "stats", topic).stdout
    danube("topics", "create", f"{topic}-2")
    assert "--non-reliable is ignored" in danube("produce", f"{topic}-2", "--non-reliable", "-m", "x").stderr


def test_top_is_printed_once_where_there_is_no_terminal(danube, topic):
    danube("produce", topic, stdin="x\n" * 5)
    danube("subscriptions", "create", topic, "waits", "--from", "earliest")
    lines = danube("top", topic).stdout.splitlines()
    assert lines[0].startswith("1 topic  in ")
    assert lines[1].split()[:3] == ["topic", "subscription", "type"]
    assert lines[2].split()[:3] == [topic, "waits", "exclusive"]
    assert "no consumer" in lines[2]
    assert any(topic in line for line in danube("top", "--sort", "name").stdout.splitlines())
    (one,) = answer(danube("top", topic, "--json", "--once"))["topics"]
    assert (one["topic"], one["total"]["subscriptions"][0]["backlog"]) == (topic, 5)
    missing = danube("top", "/default/no-such")
    assert missing.returncode == 1
    assert len(missing.stderr.splitlines()) == 1


def test_top_of_all_topics_opens_none_of_them(danube, topic):
    def found(name: str) -> dict:
        return next(one for one in answer(danube("top", "--json", "--once"))["topics"] if one["topic"] == name)

    def stays_closed(name: str) -> bool:
        """Whether a new topic is closed after everything that top shows of it."""
        danube("topics", "create", name)
        (line,) = [line for line in danube("top").stdout.splitlines() if line.startswith(f"{name} ")]
        return line.endswith("not open") and (found(name)["open_partitions"], found(name)["published"]) == (0, 0)

    # The broker itself opens a partition now and then, to see what has expired.
    assert any(stays_closed(f"{topic}-{number}") for number in range(5))
    danube("produce", topic, stdin="x\n" * 5)
    danube("subscriptions", "create", topic, "waits", "--from", "earliest")
    assert (found(topic)["open_partitions"], found(topic)["published"]) == (1, 5)
    (subscription,) = found(topic)["subscriptions"]
    assert (subscription["name"], subscription["backlog"], subscription["consumers"]) == ("waits", 5, 0)


def test_top_writes_a_document_each_interval_until_it_is_told_to_end(danube, start, topic):
    danube("topics", "create", topic)
    process = start("top", topic, "--json", "--interval", "100ms")
    times = [json.loads(process.stdout.readline())["time"] for _ in range(3)]
    assert times == sorted(set(times))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_top_takes_over_a_terminal_and_gives_it_back(danube, served, topic):
    danube("topics", "create", topic)
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pydanube.cli", "top", topic, "--interval", "100ms"],
        stdin=its,
        stdout=its,
        stderr=its,
        env=os.environ | {"DANUBE_URL": served.url, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "20"},
    )
    os.close(its)
    seen = b""
    while b"q ends" not in seen or topic.encode()[:15] not in seen:
        seen += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
    os.close(ours)
    assert process.wait(timeout=120) == 0
    assert b"\x1b[?1049h" in seen
    assert b"\x1b[?1049l" in seen


@pytest.fixture
def shelf(danube) -> str:
    """Create a namespace with five topics, the third of which has 20 messages."""
    danube("namespaces", "create", "shelf")
    for number in range(5):
        danube("topics", "create", f"/shelf/t{number}", "--if-not-exists")
    return "shelf"


def test_topics_are_listed_in_pages(danube, shelf):
    danube("produce", "/shelf/t2", stdin="x\n" * 20)
    everything = [f"/shelf/t{number}" for number in range(5)]
    assert danube("topics", "list", "-n", shelf).stdout.split() == everything
    assert answer(danube("topics", "list", "--filter", "/shelf/*", "--json")) == everything
    assert answer(danube("topics", "list", "-n", shelf, "--reverse", "--json")) == everything[::-1]
    first = danube("topics", "list", "-n", shelf, "--sort", "published", "--limit", "1")
    assert first.stdout == "/shelf/t2\n", first.stderr
    token = first.stderr.split("--after ")[1].strip()
    rest = danube("topics", "list", "-n", shelf, "--sort", "published", "--after", token)
    assert sorted(rest.stdout.split()) == [name for name in everything if name != "/shelf/t2"]
    page = answer(danube("topics", "list", "-n", shelf, "--limit", "5", "--json"))
    assert page == {"topics": everything, "next": ""}
    assert danube("topics", "list", "--sort", "size").returncode == 2
    wrong = danube("topics", "list", "--after", "nonsense")
    assert wrong.returncode == 1
    assert "page token" in wrong.stderr
    page = answer(danube("namespaces", "list", "--filter", "she", "--limit", "1", "--json"))
    assert page == {"namespaces": ["shelf"], "next": ""}
    assert danube("namespaces", "list", "--filter", "shelf").stdout == "shelf\n"


def test_statistics_without_a_topic_are_a_table_of_all(danube, shelf):
    danube("subscriptions", "create", "/shelf/t2", "billing", "--from", "earliest")
    danube("produce", "/shelf/t2", stdin="x\n" * 20)
    shown = danube("topics", "stats", "--filter", "/shelf/*", "--sort", "backlog", "--limit", "1")
    head, line = shown.stdout.splitlines()
    assert head.split() == [
        "topic",
        "open",
        "producers",
        "msg/s",
        "bytes/s",
        "published",
        "stored",
        "subscriptions",
        "backlog",
        "oldest",
    ]
    assert line.split()[:3] == ["/shelf/t2", "1/1", "0"], shown.stderr
    assert "there are more: add --after " in shown.stderr
    found = answer(danube("topics", "stats", "--filter", "/shelf/*", "--json"))
    assert [one["topic"] for one in found] == [f"/shelf/t{number}" for number in range(5)]
    assert found[2]["published"] >= 20
    assert found[2]["subscriptions"][0]["backlog"] >= 20
    assert danube("topics", "stats", "/shelf/t2", "--limit", "3").returncode == 2


def test_a_change_that_expects_an_earlier_version_is_refused(danube, topic):
    danube("topics", "create", topic, "--partitions", "1")
    danube("subscriptions", "create", topic, "billing")
    read = answer(danube("topics", "policies", topic, "--json"))["version"]
    assert read == answer(danube("topics", "describe", topic, "--json"))["version"]
    assert danube("topics", "policies", topic, "--set", "ttl_s=5", "--expected", read).returncode == 0
    for words in (
        ("topics", "policies", topic, "--set", "ttl_s=6"),
        ("topics", "grow", topic, "2"),
        ("topics", "delete", topic, "--yes"),
        ("subscriptions", "failure-policy", topic, "billing", "--delay", "2"),
        ("subscriptions", "unacked-max", topic, "billing", "7"),
        ("subscriptions", "delete", topic, "billing", "--yes"),
        ("namespaces", "policies", "default", "--set", "ttl_s=7"),
    ):
        refused = danube(*words, "--expected", read)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), words
        assert "has changed since" in refused.stderr
    found = answer(danube("subscriptions", "failure-policy", topic, "billing", "--delay", "2", "--json"))
    assert found["delay_ms"] == 2000
    described = answer(danube("subscriptions", "describe", topic, "billing", "--json"))
    assert described["version"] == found["version"]
    assert danube("subscriptions", "delete", topic, "billing", "--yes", "--expected", found["version"]).returncode == 0


def test_a_topic_is_truncated_after_a_confirmation(danube, topic):
    danube("produce", topic, stdin="".join(f"{number}\n" for number in range(10)))
    refused = danube("topics", "truncate", topic, "--before", "4")
    assert (refused.returncode, "add --yes" in refused.stderr) == (2, True)
    assert answer(danube("topics", "truncate", topic, "--before", "4", "--yes", "--json")) == {"positions": [[0, 4]]}
    assert danube("consume", topic, "--from", "earliest", "--count", "1").stdout.startswith("4")
    past = danube("topics", "truncate", topic, "--before", "11", "--yes")
    assert (past.returncode, "ends at 10" in past.stderr) == (1, True)
    done = danube("topics", "truncate", topic, "--before", "latest", "--partition", "0", "--yes")
    assert done.stdout == f"truncated {topic} (partition 0: offset 10)\n"


def test_the_ack_level_changes_and_what_survives_is_said(danube, topic):
    danube("topics", "create", topic)
    described = danube("topics", "describe", topic).stdout
    assert "a crash of the broker's machine; not the loss of its disk" in described
    assert "broker lost" not in described, "no other broker could go on"
    changed = danube("topics", "set-ack-level", topic, "stored")
    assert changed.stdout == f"{topic} has the ack level stored\n"
    described = danube("topics", "describe", topic).stdout
    assert "the loss of the broker with its disk" in described
    told = json.loads(danube("topics", "describe", topic, "--json").stdout)
    assert told["when_broker_is_lost"] == "other brokers go on when its session is over; nothing is lost"


def test_taking_over_from_nobody_and_salvaging_into_the_same_topic_are_refused_in_one_line(danube, topic):
    danube("topics", "create", topic)
    for words in (("takeover", topic), ("salvage", topic, "--to", topic)):
        refused = danube("topics", *words)
        assert refused.returncode == 1
        assert len(refused.stderr.splitlines()) == 1
    assert danube("brokers", "leftovers").stdout == "no leftovers\n"


def test_a_broker_alone_moves_drains_and_removes_nothing_and_says_so_in_one_line(danube, topic):
    danube("topics", "create", topic)
    name = answer(danube("brokers", "describe", "--json"))["node"]
    for words in (
        ("topics", "move", topic, "--to", name),
        ("brokers", "drain", name, "--wait"),
        ("brokers", "resume", name),
        ("brokers", "remove", name),
    ):
        refused = danube(*words)
        assert refused.returncode == 1
        (line,) = refused.stderr.splitlines()
        assert "no part of a cluster" in line


def test_the_life_of_a_topic(danube, topic):
    assert (
        danube("topics", "create", topic, "--partitions", "3", "--ack-level", "written").stdout == f"created {topic}\n"
    )
    assert topic in danube("topics", "list").stdout.splitlines()
    assert topic in answer(danube("topics", "list", "--namespace", "default", "--json"))
    described = answer(danube("topics", "describe", topic, "--json"))
    assert (described["name"], described["config"]["partitions"]) == (topic, 3)
    assert described["config"]["ack_level"] == "written"
    assert [one["index"] for one in described["partitions"]] == [0, 1, 2]
    table = danube("topics", "describe", topic).stdout
    assert "written" in table
    assert "end offset" in table
    assert danube("topics", "delete", topic, "--yes").stdout == f"deleted {topic}\n"
    assert topic not in danube("topics", "list").stdout.splitlines()


def test_a_topic_that_exists_is_refused_unless_that_is_fine(danube, topic):
    danube("topics", "create", topic)
    again = danube("topics", "create", topic)
    assert again.returncode == 1
    assert topic in again.stderr
    fine = danube("topics", "create", topic, "--if-not-exists", "--json")
    assert answer(fine) == {"topic": topic, "created": False}
    assert fine.stderr == ""
    other = danube("topics", "create", topic, "--if-not-exists", "--partitions", "4")
    assert other.returncode == 0
    assert "created with other settings: non-partitioned, reliable, durable acks" in other.stderr


def test_a_url_that_is_none_is_wrong_usage(danube):
    done = danube("topics", "list", "--url", "ftp://127.0.0.1:6655")
    assert done.returncode == 2
    assert "danube://" in done.stderr


def test_a_topic_that_does_not_exist_is_one_clear_line(danube):
    done = danube("topics", "describe", "/default/no-such-topic")
    assert done.returncode == 1
    assert "/default/no-such-topic" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_life_of_a_namespace(danube):
    assert danube("namespaces", "create", "shop").stdout == "created shop\n"
    assert {"default", "shop"} <= set(answer(danube("namespaces", "list", "--json")))
    danube("topics", "create", "/shop/orders")
    assert answer(danube("namespaces", "describe", "shop", "--json")) == {
        "namespace": "shop",
        "topics": ["/shop/orders"],
    }
    full = danube("namespaces", "delete", "shop", "--yes")
    assert full.returncode == 1
    danube("topics", "delete", "/shop/orders", "--yes")
    assert danube("namespaces", "delete", "shop", "--yes").stdout == "deleted shop\n"
    assert danube("namespaces", "describe", "shop").returncode == 1


def test_the_life_of_a_subscription(danube, topic):
    danube("produce", topic, stdin="0\n1\n2\n3\n")
    assert danube("subscriptions", "create", topic, "billing", "--from", "1").stdout == f"created billing on {topic}\n"
    (listed,) = answer(danube("subscriptions", "list", topic, "--json"))
    assert (listed["topic"], listed["subscription"], listed["type"]) == (topic, "billing", "exclusive")
    assert (listed["backlog"], listed["consumers"]) == (3, 0)
    described = answer(danube("subscriptions", "describe", topic, "billing", "--json"))
    assert (described["type"], described["lag"], described["partitions"][0]["position"]) == ("exclusive", 3, 1)
    moved = danube("subscriptions", "seek", topic, "billing", "--to", "3")
    assert moved.stdout == f"moved billing on {topic} to 3 (partition 0: offset 3)\n", moved.stderr
    assert danube("consume", topic, "-s", "billing", "--count", "1").stdout == "3\n"
    assert "billing" in danube("subscriptions", "describe", topic, "billing").stdout
    assert danube("subscriptions", "delete", topic, "billing", "--yes").stdout == f"deleted billing of {topic}\n"
    assert answer(danube("subscriptions", "list", topic, "--json")) == []


def test_brokers(danube):
    (only,) = answer(danube("brokers", "list", "--json"))
    assert only["state"] == "ok"
    assert answer(danube("brokers", "describe", "--json"))["node"] == only["name"]
    assert only["name"] in danube("brokers", "describe").stdout


def test_the_status_of_a_cluster_of_one(danube, served):
    about = answer(danube("cluster", "status", "--json"))
    (only,) = about["brokers"]
    assert (about["coordinator"], only["name"], only["state"]) == (only["name"], only["name"], "ok")
    assert only["addresses"]["native"] == served.url.removeprefix("danube://")
    assert only["since"] > 0
    shown = danube("cluster", "status").stdout
    assert f"{only['name']} *" in shown
    assert about["cluster"] in shown


def test_a_broker_alone_is_upgraded(danube):
    about = answer(danube("cluster", "upgrade", "--json"))
    (only,) = about["brokers"]
    assert (about["level"], about["highest"], about["behind"]) == (only["level"], only["level"], [])
    assert answer(danube("cluster", "upgrade", "--finish", "--json")) == about, "there is nothing to raise"
    shown = danube("cluster", "upgrade").stdout
    assert f"feature level {about['level']}, can be raised to {about['highest']}" in shown
    assert only["name"] in shown


def test_the_description_of_a_broker_names_its_listeners(danube, served):
    told = answer(danube("brokers", "describe", "--json"))["addresses"]
    assert told["native"] == served.url.removeprefix("danube://")
    assert f"native address  {told['native']}" in danube("brokers", "describe").stdout
