"""Where `danube consume` begins and ends, and which partitions it reads."""

from __future__ import annotations

import json

import pytest

from pydanube.cli.messages.reading import Bounds
from pydanube.model.gaps import Gaps
from pydanube.model.topics import PartitionDescription

pytestmark = pytest.mark.process


@pytest.fixture
def numbers(danube, topic) -> str:
    """A topic with three partitions; partition N has the messages N0 to N9."""
    for partition in range(3):
        messages = [f"-m{partition}{number}" for number in range(10)]
        made = danube("produce", topic, "--partitions", "3", "--partition", str(partition), *messages)
        assert made.returncode == 0, made.stderr
    return topic


def lines(danube, *arguments: str) -> list[str]:
    done = danube("consume", *arguments)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split())


def test_exit_ends_after_what_is_stored(danube, numbers):
    assert lines(danube, numbers, "-e") == sorted(f"{a}{b}" for a in range(3) for b in range(10))
    assert lines(danube, numbers, "--exit", "--from", "8") == ["08", "09", "18", "19", "28", "29"]
    assert lines(danube, numbers, "-e", "--from", "latest") == []


def test_exit_ends_on_an_empty_topic_and_on_a_pattern_that_nothing_matches(danube, topic):
    danube("topics", "create", topic, "--partitions", "2")
    assert lines(danube, topic, "-e") == []
    assert lines(danube, f"{topic}-none-*", "-e") == []
    assert danube("consume", f"{topic}-none-*", "-e").stderr == f"no topic matches {topic}-none-*\n"


def test_exit_before_the_count_is_no_failure(danube, numbers):
    assert len(lines(danube, numbers, "-e", "--count", "100", "--timeout", "60")) == 30


def test_the_last_messages_of_each_partition(danube, numbers):
    assert lines(danube, numbers, "--last", "2", "-e") == ["08", "09", "18", "19", "28", "29"]
    assert lines(danube, numbers, "--last", "1", "--count", "3") == ["09", "19", "29"]
    assert len(lines(danube, numbers, "--last", "1000", "-e")) == 30


def test_an_offset_from_the_end_is_answered_with_last(danube, topic):
    refused = danube("consume", topic, "--from", "-5", "-e")
    assert refused.returncode == 2
    assert "use -5s, -5m or -5h for how long ago, or --last 5 for the last 5 messages" in refused.stderr


def test_the_last_messages_are_counted_without_offsets_that_hold_none():
    gaps = Gaps([(40, 100_000), (100_002, 200_000)])
    partition = PartitionDescription(0, "", 1, 10, 200_000, 1, 1, missing_offsets=199_958, gaps=gaps)
    starts = {last: Bounds(last=last).of(partition)[0].value for last in (1, 2, 3, 32, 33, 10**30)}
    assert starts == {1: 100_001, 2: 100_000, 3: 39, 32: 10, 33: 10, 10**30: 10}


def test_partitions_can_be_chosen(danube, numbers):
    assert lines(danube, numbers, "-p", "1", "-e") == [f"1{number}" for number in range(10)]
    assert lines(danube, numbers, "-p", "0", "--partition", "2", "--last", "1", "-e") == ["09", "29"]
    refused = danube("consume", numbers, "-p", "7", "-e")
    assert refused.returncode == 1
    assert refused.stderr == f"danube: {numbers} has no partition 7: it has 3, counted from 0\n"


def test_until_an_offset(danube, numbers):
    assert lines(danube, numbers, "--until", "2") == ["00", "01", "10", "11", "20", "21"]
    assert lines(danube, numbers, "--from", "8", "--until", "9") == ["08", "18", "28"]
    assert lines(danube, numbers, "--until", "latest") == lines(danube, numbers, "-e")
    assert len(lines(danube, numbers, "--until", "1000", "-e")) == 30


def test_until_a_time(danube, topic):
    for text in ("before", "after"):
        danube("produce", topic, "-m", text)
    told = danube("consume", topic, "-e", "--json").stdout.splitlines()
    second = json.loads(told[1])["append_time"]
    assert lines(danube, topic, "--until", second) == ["before"]
    assert lines(danube, topic, "--from", second, "--until", "-0s") == ["after"]


def test_until_an_offset_that_is_to_come_waits_for_it(danube, topic):
    danube("produce", topic, "-m", "one")
    assert danube("consume", topic, "--until", "2", "--timeout", "0.5", "--count", "2").returncode == 1
    danube("produce", topic, "-m", "two", "-m", "three")
    assert lines(danube, topic, "--until", "2") == ["one", "two"]


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
def test_a_subscription_can_exit_at_its_end_too(danube, numbers, kind: str):
    options = ["-s", "s", "--type", kind, "-e", "--from", "earliest"]
    assert len(lines(danube, numbers, *options)) == 30
    danube("produce", numbers, "--partition", "1", "-m", "new")
    assert lines(danube, numbers, *options) == ["new"], "what came before is acked"
    assert lines(danube, numbers, *options) == []


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_subscription_exits_at_its_end_although_nothing_is_acked(danube, numbers, kind: str):
    options = ["-s", "s", "--type", kind, "-e", "--from", "earliest", "--no-ack"]
    assert len(lines(danube, numbers, *options)) == 30
    assert len(lines(danube, numbers, *options)) == 30


def test_a_subscription_does_not_wait_for_keys_that_its_filter_refuses(danube, topic):
    for key in ("a", "b"):
        danube("produce", topic, "-k", key, "-m", key)
    options = ["-s", "s", "--type", "key-shared", "-e", "--from", "earliest"]
    assert lines(danube, topic, *options, "--key-filter", "a*") == ["a"]
    assert lines(danube, topic, *options) == ["b"]


def test_a_subscription_does_not_wait_for_messages_that_are_delayed(danube, topic):
    danube("produce", topic, "-m", "later", "--deliver-after", "1h")
    danube("produce", topic, "-m", "now")
    assert lines(danube, topic, "-s", "s", "--type", "shared", "-e", "--from", "earliest") == ["now"]


def test_a_new_subscription_that_starts_at_the_end_says_so(danube, numbers):
    done = danube("consume", numbers, "-s", "new", "-e")
    assert (done.returncode, done.stdout) == (0, "")
    assert "--from earliest" in done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--last", "1", "--from", "earliest"], "--from and --last"),
        (["--until", "earliest"], "nothing to read"),
        (["--until", "2999-01-01T00:00:00Z"], "in the future"),
        (["-s", "s", "--last", "1"], "--last"),
        (["-s", "s", "--until", "1"], "--until"),
        (["-s", "s", "-p", "0"], "--partition"),
        (["-s", "s", "-e", "--nack"], "comes again"),
    ],
)
def test_bounds_that_make_no_sense_are_wrong_usage(danube, topic, options: list[str], named: str):
    refused = danube("consume", topic, *options)
    assert (refused.returncode, named in refused.stderr) == (2, True), refused.stderr
