"""Filter pushdown: what filters rule out, and which of them Spark need not evaluate again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

import pydanube
from pydanube.spark.options import ReadOptions
from pydanube.spark.reading.batch_reader import DanubePushingReader
from pydanube.spark.reading.planning import DanubePartition
from pydanube.spark.reading.pushdown import IntSpan, PushedFilters, push_filters

if TYPE_CHECKING:
    from spark_broker import Broker


def one(filter_: Filter) -> tuple[PushedFilters, bool]:
    """Push one filter; return the result, and whether it is evaluated completely."""
    found, left = push_filters([filter_], PushedFilters())
    assert left in ([], [filter_])
    return found, bool(left)


@pytest.mark.parametrize(
    ("filter_", "admitted"),
    [
        (EqualTo(("topic",), "/default/a"), ["/default/a"]),
        (In(("topic",), ("/default/a", "/default/c")), ["/default/a"]),
        (Not(EqualTo(("topic",), "/default/a")), ["/default/b"]),
        (StringStartsWith(("topic",), "/default/"), ["/default/a", "/default/b"]),
        (IsNotNull(("topic",)), ["/default/a", "/default/b"]),
        (GreaterThan(("topic",), "/default/a"), ["/default/b"]),
    ],
)
def test_topics_are_ruled_out_for_good(filter_: Filter, admitted: list[str]) -> None:
    found, again = one(filter_)
    assert [name for name in ("/default/a", "/default/b") if found.admits(name, 0)] == admitted
    assert not again


@pytest.mark.parametrize(
    ("filter_", "admitted"),
    [
        (EqualTo(("partition",), 1), [1]),
        (GreaterThanOrEqual(("partition",), 2), [2, 3]),
        (Not(In(("partition",), (0, 3))), [1, 2]),
        (LessThanOrEqual(("partition",), 1), [0, 1]),
    ],
)
def test_partitions_are_ruled_out_for_good(filter_: Filter, admitted: list[int]) -> None:
    found, again = one(filter_)
    assert [number for number in range(4) if found.admits("/default/a", number)] == admitted
    assert not again


@pytest.mark.parametrize(
    ("filter_", "span", "again"),
    [
        (EqualTo(("offset",), 5), IntSpan(5, 6), False),
        (GreaterThan(("offset",), 5), IntSpan(6, IntSpan().high), False),
        (LessThan(("offset",), 5), IntSpan(0, 5), False),
        (LessThanOrEqual(("offset",), 5), IntSpan(0, 6), False),
        (In(("offset",), (9, 3)), IntSpan(3, 10), True),
        (Not(EqualTo(("offset",), 5)), IntSpan(), True),
    ],
)
def test_offsets_are_cut(filter_: Filter, span: IntSpan, again: bool) -> None:
    found, left = one(filter_)
    assert (found.offsets, left) == (span, again)


def test_times_cut_and_are_looked_at_again() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    found, left = push_filters(
        [GreaterThanOrEqual(("append_time",), noon), LessThan(("append_time",), noon)], PushedFilters()
    )
    assert found.append_times == IntSpan(1_769_860_800_000_000, 1_769_860_800_000_000)
    assert found.limits_append_time and len(left) == 2 and not PushedFilters().limits_append_time


LAST = datetime.max.replace(tzinfo=UTC)


def offsets_left(broker: Broker, *filters: Filter, **options: str) -> int:
    """Return how many offsets a batch plans to read."""
    given = {"servers": broker.servers, "topic": "/default/orders", "timeout": "10", **options}
    reader = DanubePushingReader(ReadOptions.parse(given))
    list(reader.pushFilters(list(filters)))
    return sum(one.size for one in reader.partitions() if isinstance(one, DanubePartition))


def test_times_that_nothing_was_appended_at_rule_out_everything_or_nothing(
    client: pydanube.BlockingClient, broker: Broker
) -> None:
    with client.producer("/default/orders") as producer:
        producer.send_many([b"x"] * 10)
    before_1970 = datetime(1960, 1, 1, tzinfo=UTC)
    far_west = timezone(timedelta(hours=-12))  # the year 9999 ends half a day later there
    for moment, older_left, younger_left in [
        (before_1970, 0, 10),
        (datetime(1970, 1, 1, tzinfo=UTC), 0, 10),
        (datetime(2020, 1, 1, tzinfo=UTC), 0, 10),
        (LAST, 10, 0),
        (datetime.max.replace(tzinfo=far_west), 10, 0),
    ]:
        for older in (LessThan, LessThanOrEqual):
            assert offsets_left(broker, older(("append_time",), moment)) == older_left, moment
        for younger in (GreaterThan, GreaterThanOrEqual):
            assert offsets_left(broker, younger(("append_time",), moment)) == younger_left, moment
        assert offsets_left(broker, EqualTo(("append_time",), moment)) == 0
    both = GreaterThanOrEqual(("append_time",), before_1970), LessThanOrEqual(("append_time",), LAST)
    assert offsets_left(broker, *both) == 10


def test_bounds_may_be_times_that_nothing_was_appended_at(client: pydanube.BlockingClient, broker: Broker) -> None:
    with client.producer("/default/orders") as producer:
        producer.send_many([b"x"] * 10)
    for start, left in [("1960-01-01", 10), ("-50000 weeks", 10), ("9999-12-31T23:59:59Z", 0)]:
        assert offsets_left(broker, startingTimestamp=start) == left
        assert offsets_left(broker, endingTimestamp=start) == 10 - left


def test_keys_and_publish_times_are_looked_at_row_by_row_where_they_are_read() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rows = pa.record_batch(
        {
            "key": pa.array(["a", None, "ab", "b"]),
            "publish_time": pa.array([noon] * 3 + [None], pa.timestamp("us", tz="UTC")),
        }
    )
    found, left = push_filters([StringStartsWith(("key",), "a"), EqualTo(("publish_time",), noon)], PushedFilters())
    assert found.rows.apply(rows).column("key").to_pylist() == ["a", "ab"]
    assert found.rows.columns == ["key", "publish_time"] and len(left) == 2
    found, _ = push_filters([In(("key",), ("b", "c"))], PushedFilters())
    assert found.rows.apply(rows).column("key").to_pylist() == ["b"]


@pytest.mark.parametrize(
    "filter_",
    [EqualTo(("payload",), b"x"), EqualTo(("attributes", "a"), "x"), EqualTo(("offset",), None), EqualTo(("key",), 5)],
)
def test_what_means_nothing_here_is_left_to_spark(filter_: Filter) -> None:
    assert one(filter_) == (PushedFilters(), True)
