"""`danube produce` and `danube consume` against a real broker process."""

from __future__ import annotations

import base64
import json
import signal
from pathlib import Path

import commands
import pytest
from commands import consumed

from pydanube.model.limits import MESSAGE_BYTES_MAX

pytestmark = pytest.mark.process


def test_a_text_is_published_and_received(danube, topic):
    told = danube("produce", topic, "-m", "hello, danube")
    assert told.returncode == 0, told.stderr
    assert told.stdout == ""
    assert told.stderr.startswith(f"published 1 message (13 B) to {topic} in ")
    assert "partition 0: offset 0" in told.stderr
    received = danube("consume", topic, "--from", "earliest", "--count", "1")
    assert (received.returncode, received.stdout) == (0, "hello, danube\n")


def test_json_tells_everything_about_a_message(danube, topic):
    danube("produce", topic, "-m", "{}", "-k", "user-1", "-a", "region=eu", "-a", "empty=")
    (message,) = consumed(danube, topic, "--from", "earliest", "--count", "1")
    assert set(message) == {
        "topic", "partition", "offset", "key", "payload", "payload_encoding", "attributes",
        "publish_time", "append_time", "producer", "deliver_at", "redeliveries", "failure_reason",
        "schema_id", "schema_version",
    }  # fmt: skip
    assert message["topic"] == topic
    assert (message["partition"], message["offset"], message["redeliveries"]) == (0, 0, 0)
    assert (message["key"], message["payload"]) == ("user-1", "{}")
    assert message["attributes"] == {"region": "eu", "empty": ""}
    assert message["publish_time"] <= message["append_time"]


def test_binary_payloads_are_whole_in_json_and_safe_as_text(danube, topic, tmp_path: Path):
    payload = b"\xff\x00\x1b[2J"
    (tmp_path / "f").write_bytes(payload)
    danube("produce", topic, "--file", str(tmp_path / "f"), "--whole")
    (message,) = consumed(danube, topic, "--from", "earliest", "--count", "1")
    assert message["payload_encoding"] == "base64"
    assert base64.b64decode(message["payload"]) == payload
    text = danube("consume", topic, "--from", "earliest", "--count", "1").stdout
    assert text.startswith("\\xff")


def test_stdin_lines_become_messages_in_order(danube, topic):
    lines = [f"line {number}" for number in range(5_000)]
    told = danube("produce", topic, "--json", stdin="\n".join(lines) + "\n")
    assert json.loads(told.stdout)["messages"] == 5_000
    received = danube("consume", topic, "--from", "earliest", "--count", "5000")
    assert received.stdout.splitlines() == lines


def test_no_lines_publish_nothing_and_succeed(danube, topic):
    told = danube("produce", topic, stdin="")
    assert told.returncode == 0
    assert "published 0 messages" in told.stderr


def test_a_failure_says_how_many_were_stored(danube, topic):
    told = danube("produce", topic, stdin="short\n" + "x" * (MESSAGE_BYTES_MAX + 300_000))
    assert told.returncode == 1
    assert "of 1 messages were published before it failed" in told.stderr
    assert "line 2 is longer than a message may be" in told.stderr


def test_texts_are_repeated_up_to_a_count(danube, topic):
    danube("produce", topic, "-m", "a", "-m", "b", "--count", "5")
    assert danube("consume", topic, "--from", "earliest", "--count", "5").stdout == "a\nb\na\nb\na\n"


def test_partitions_are_created_and_read_together(danube, topic):
    told = danube("produce", topic, "--partitions", "4", stdin="\n".join(map(str, range(100))))
    assert told.returncode == 0, told.stderr
    described = json.loads(danube("topics", "describe", topic, "--json").stdout)
    assert described["config"]["partitions"] == 4
    received = consumed(danube, topic, "--from", "earliest", "--count", "100")
    assert sorted(int(message["payload"]) for message in received) == list(range(100))
    again = danube("produce", topic, "-m", "x", "--partitions", "2")
    assert again.returncode == 0
    assert "--partitions is ignored" in again.stderr


def test_a_key_keeps_its_messages_in_one_partition(danube, topic):
    danube("produce", topic, "--partitions", "4", "-k", "user-1", stdin="\n".join(map(str, range(50))))
    received = consumed(danube, topic, "--from", "earliest", "--count", "50")
    assert len({message["partition"] for message in received}) == 1
    assert [int(message["payload"]) for message in received] == list(range(50))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_batches_arrive_as_they_were(danube, topic, compression):
    danube("produce", topic, "--compression", compression, stdin="again and again\n" * 200)
    assert danube("consume", topic, "--from", "earliest", "--count", "200").stdout == "again and again\n" * 200


def test_a_subscription_resumes_where_it_stopped_and_says_that_from_is_ignored(danube, topic):
    danube("produce", topic, stdin="one\ntwo\nthree\n")
    first = danube("consume", topic, "-s", "sub", "--from", "earliest", "--count", "2")
    assert first.stdout == "one\ntwo\n", first.stderr
    second = danube("consume", topic, "-s", "sub", "--from", "earliest", "--count", "1")
    assert second.stdout == "three\n"
    assert "--from is ignored because the subscription sub exists" in second.stderr


def test_without_ack_everything_comes_again(danube, topic):
    danube("produce", topic, stdin="one\ntwo\n")
    for _ in range(2):
        seen = danube("consume", topic, "-s", "look", "--from", "earliest", "--count", "2", "--no-ack")
        assert seen.stdout == "one\ntwo\n", seen.stderr


def test_from_an_offset_and_from_a_time(danube, topic):
    danube("produce", topic, stdin="0\n1\n2\n")
    danube("produce", topic, "-m", "3")
    assert danube("consume", topic, "--from", "2", "--count", "2").stdout == "2\n3\n"
    last = consumed(danube, topic, "--from", "3", "--count", "1")[0]
    assert danube("consume", topic, "--from", last["append_time"], "--count", "1").stdout.endswith("3\n")


def test_a_timeout_ends_it_and_a_count_that_was_not_reached_is_a_failure(danube, topic):
    danube("produce", topic, "-m", "only one")
    enough = danube("consume", topic, "--from", "earliest", "--timeout", "3")
    assert (enough.returncode, enough.stdout) == (0, "only one\n")
    short = danube("consume", topic, "--from", "earliest", "--timeout", "3", "--count", "2")
    assert (short.returncode, short.stdout) == (1, "only one\n")
    assert short.stderr == "danube: received 1 of 2 messages: nothing more came for 3 s\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_in_order_with_acks_flushed(danube, start, topic, number):
    danube("produce", topic, stdin="one\ntwo\n")
    process = start("consume", topic, "-s", "sub", "--from", "earliest")
    assert [process.stdout.readline(), process.stdout.readline()] == ["one\n", "two\n"]
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    described = json.loads(danube("subscriptions", "describe", topic, "sub", "--json").stdout)
    assert described["lag"] == 0


def test_a_reader_that_goes_away_is_no_failure(danube, start, topic):
    danube("produce", topic, stdin="x\n" * 20_000)
    process = start("consume", topic, "--from", "earliest", "--count", "20000")
    assert process.stdout.readline() == "x\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=120) == 0


def test_no_broker_is_one_clear_line(danube):
    done = danube("topics", "list", url="danube://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("danube: ")
    assert "127.0.0.1:1" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "shop/orders", "-m", "x"),
        ("produce", "/default/t", "-m", "x", "--file", __file__),
        ("produce", "/default/t", "--whole"),
        ("produce", "/default/t", "-m", "x", "-a", "novalue"),
        ("consume", "/default/t", "--from", "yesterday"),
        ("consume", "/default/t", "-s", "no spaces"),
        ("consume", "/default/t", "--type", "broadcast"),
        ("consume", "/default/t", "--type", "exclusive"),
        ("consume", "/default/t", "--no-ack"),
        ("topics", "delete", "/default/t"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2_and_needs_no_broker(arguments):
    done = commands.danube(*arguments, url="danube://127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert "Error: " in done.stderr


def test_whoever_waits_for_a_full_backlog_is_told_why(danube, start, topic):
    danube("topics", "create", topic)
    danube("subscriptions", "create", topic, "asleep")
    danube("topics", "policies", topic, "--set", "backlog_messages_max=1")
    assert danube("produce", topic, "-m", "one").returncode == 0
    process = start("produce", topic, "-m", "two")
    told = process.stderr.readline()
    assert told.startswith("waiting: "), told
    assert "backlog" in told
    assert danube("subscriptions", "skip", topic, "asleep", "--all", "--yes").returncode == 0
    assert process.wait(timeout=120) == 0
    assert process.stderr.read().startswith("published 1 message")


def test_one_call_has_one_key(danube, topic):
    done = danube("produce", topic, "-k", "a", "-k", "b", "-m", "x")
    assert (done.returncode, "give one key" in done.stderr) == (2, True)
