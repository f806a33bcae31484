"""`where` and `columns` against a plain filter of all rows: by themselves, and in reads of a topic of a broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import pydanube
from pydanube.client.tables.conditions import Where

TOPIC = "/default/orders"
Row = Mapping[str, Any]

PLAIN: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, value: one == value,
    "!=": lambda one, value: one != value,
    "<": lambda one, value: one < value,
    "<=": lambda one, value: one <= value,
    ">": lambda one, value: one > value,
    ">=": lambda one, value: one >= value,
    "in": lambda one, value: one in value,
    "not in": lambda one, value: one not in value,
}


def holds(row: Row, condition: tuple[str, str, Any]) -> bool:
    """Return whether a row satisfies a condition, as SQL has it."""
    column, operator, value = condition
    if value is None:
        return (row[column] is None) == (operator == "=")
    return row[column] is not None and PLAIN[operator](row[column], value)


def wanted(row: Row, where: Any) -> bool:
    groups = [where] if not where or isinstance(where[0], tuple) else where
    return any(all(holds(row, one) for one in group) for group in groups)


def conditions(values: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Return a strategy of conditions on the columns, with values such as they have."""

    def on(column: str) -> st.SearchStrategy[tuple[str, str, Any]]:
        one = st.tuples(st.just(column), st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), values[column])
        several = st.tuples(st.just(column), st.sampled_from(["in", "not in"]), st.lists(values[column], max_size=3))
        null = st.tuples(st.just(column), st.sampled_from(["=", "!="]), st.none())
        return st.one_of(one, one, several, null)

    group = st.lists(st.sampled_from(sorted(values)).flatmap(on), min_size=1, max_size=3)
    return st.one_of(group, st.lists(group, min_size=1, max_size=3))


# -- conditions by themselves ------------------------------------------------------------------------------------------

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "number": st.integers(-3, 3),
    "large": st.sampled_from([-(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]),
    "real": st.sampled_from([-1.5, 0.0, 1.0, 2.5]),
    "text": st.sampled_from(["", "a", "b", "ä"]),
    "raw": st.sampled_from([b"", b"a", b"\xff"]),
    "flag": st.booleans(),
}
TYPES = {
    "number": pa.int32(),
    "large": pa.int64(),
    "real": pa.float64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "flag": pa.bool_(),
}
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | one for name, one in VALUES.items()}), max_size=12)


@given(ROWS, conditions(VALUES))
def test_rows_that_satisfy_the_conditions_are_kept(rows: list[Row], where: Any) -> None:
    parsed = Where.parse(where)
    parsed.check(TYPES)
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(TYPES.items()))
    assert parsed.apply(batch).to_pylist() == [row for row in rows if wanted(row, where)]


@given(ROWS, conditions(VALUES), st.sets(st.sampled_from(sorted(VALUES))))
def test_conditions_can_be_evaluated_in_two_steps(rows: list[Row], where: Any, first: set[str]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(TYPES.items()))
    before, after = Where.parse(where).split(lambda name: name in first)
    assert set(before.columns) <= first
    assert after.apply(before.apply(batch)).to_pylist() == [row for row in rows if wanted(row, where)]


# -- reads of a topic --------------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int
    item: str | None


def publish_orders(client: pydanube.BlockingClient) -> None:
    """Publish to three partitions messages that differ in keys, fields and times."""
    client.create_topic(TOPIC, partitions=3)
    with client.producer(TOPIC, schema=Order, partition_by="round-robin") as producer:
        for number in range(45):
            key = None if number % 4 == 0 else f"k{number % 3}"
            producer.send(Order(number, None if number % 5 == 0 else f"i{number % 7}"), key=key)


START = datetime(2020, 1, 1, tzinfo=UTC)


def test_a_read_returns_what_a_plain_filter_leaves(danube_url: str) -> None:
    with pydanube.connect_blocking(danube_url) as client:
        publish_orders(client)
        rows = client.read(TOPIC).to_arrow().to_pylist()
        times = [row["append_time"] for row in rows]
        beside = [START, times[0] + timedelta(microseconds=1), times[-1] + timedelta(days=1)]
        values: dict[str, st.SearchStrategy[Any]] = {
            "partition": st.integers(-1, 3),
            "offset": st.integers(-1, 16),
            "append_time": st.sampled_from([*times, *beside, datetime.max.replace(tzinfo=UTC)]),
            "key": st.sampled_from(["k0", "k1", "k2", "none"]),
            "id": st.integers(0, 45),
            "item": st.sampled_from(["i0", "i3", "none"]),
            "topic": st.sampled_from([TOPIC, "/default/others"]),
        }
        some_columns = st.none() | st.lists(st.sampled_from(sorted(rows[0])), min_size=1, unique=True)

        @settings(max_examples=60, deadline=None)
        @given(conditions(values), some_columns, st.integers(0, 16), st.integers(0, 16))
        def compare(where: Any, columns: list[str] | None, start: int, end: int) -> None:
            found = client.read(TOPIC, where=where, columns=columns, start=start, end=end)
            assert found.to_arrow().to_pylist() == [
                {name: row[name] for name in columns or row}
                for row in rows
                if start <= row["offset"] < end and wanted(row, where)
            ]

        compare()
