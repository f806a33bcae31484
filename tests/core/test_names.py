"""Names, positions and errors: parsed once, then held as proof."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.model import errors
from pydanube.model.errors import Invalid, NotOwner
from pydanube.model.names import TopicName
from pydanube.model.positions import Position, datetime_from_micros, micros_from_datetime
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig


@pytest.mark.parametrize(
    "text", ["", "orders", "/orders", "default/orders", "/default/", "/a/b/c", "/default/or ders", "/d/ö", "/d/a..b", 7]
)
def test_what_is_not_a_full_name_is_refused_with_an_example(text):
    with pytest.raises(Invalid):
        TopicName.parse(text)


def test_a_name_is_its_text():
    name = TopicName.parse("/default/orders-dlq")
    assert (name.namespace, name.topic, str(name)) == ("default", "orders-dlq", "/default/orders-dlq")
    assert name.partition(3) == "/default/orders-dlq-part-3"


@pytest.mark.parametrize(
    ("topic", "reserved"),
    [("a-part-0", True), ("a-part-12", True), ("a-part-01", False), ("part-1", False), ("a-part-x", False)],
)
def test_the_suffix_of_partitions_is_reserved(topic, reserved):
    assert TopicName("default", topic).names_partition is reserved


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("earliest", Position("earliest")),
        ("latest", Position("latest")),
        (17, Position("offset", 17)),
        ("17", Position("offset", 17)),
        ("1970-01-01T00:00:01Z", Position("time", 1_000_000)),
        ("1970-01-01T00:00:01", Position("time", 1_000_000)),
        ("1970-01-01T02:00:00+02:00", Position("time", 0)),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), Position("time", 1_000_000)),
    ],
)
def test_positions_are_written_in_several_ways(written, meant):
    assert Position.parse(written) == meant


@pytest.mark.parametrize("written", ["", "tomorrow", -1, None, True, 1.5, "-3"])
def test_what_is_no_position_is_refused(written):
    with pytest.raises(Invalid, match="not a position"):
        Position.parse(written)


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_go_to_micros_and_back(moment):
    assert datetime_from_micros(micros_from_datetime(moment)) == moment


def test_every_error_has_a_code_of_its_own_and_comes_back_from_it():
    codes = [kind.code for kind in errors.tree()]
    assert len(codes) == len(set(codes)) == 15
    for kind in errors.tree():
        again = errors.from_code(kind.code, "why", "host:1")
        assert type(again) is kind
        assert again.message == "why"
    assert errors.from_code(NotOwner.code, "why", "host:1").owner == "host:1"
    assert type(errors.from_code(999, "from a later release")) is errors.DanubeError


def test_only_unavailable_asks_for_the_same_request_again():
    assert [kind for kind in errors.tree() if kind.retryable] == [errors.Unavailable]


def test_levels_and_types_are_words():
    assert [str(level) for level in AckLevel] == ["memory", "written", "durable", "stored"]
    assert AckLevel.parse("written") is AckLevel.WRITTEN
    assert [str(kind) for kind in SubscriptionType] == ["exclusive", "shared", "failover", "key-shared"]
    assert SubscriptionType.parse("key-shared") is SubscriptionType.KEY_SHARED
    for parse in (AckLevel.parse, SubscriptionType.parse):
        with pytest.raises(Invalid, match="unknown"):
            parse("best")


def test_a_topic_has_a_bounded_number_of_partitions():
    assert TopicConfig().partition_count == 1
    assert TopicConfig(partitions=1).partition_count == 1
    with pytest.raises(Invalid, match="out of range"):
        TopicConfig(partitions=10_001)
