"""Filter pushdown: which topics, partitions, offsets and rows the filters of a query rule out.

What is ruled out at planning is never read. Filters on topic, partition and offset are evaluated completely here, and
Spark does not evaluate them again. Filters on times and keys only reduce what is read, and Spark evaluates them again.
Filters that are not supported here are left to Spark.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeGuard

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pydanube.model.positions import OFFSET_END, micros_from_datetime

PUSHING_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"

_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda one, value: one == value,
    EqualNullSafe: lambda one, value: one == value,
    GreaterThan: lambda one, value: one > value,
    GreaterThanOrEqual: lambda one, value: one >= value,
    LessThan: lambda one, value: one < value,
    LessThanOrEqual: lambda one, value: one <= value,
    In: lambda one, value: one in value,
    StringStartsWith: lambda one, value: one.startswith(value),
    StringEndsWith: lambda one, value: one.endswith(value),
    StringContains: lambda one, value: value in one,
}


def is_pushdown_requested() -> bool:
    """Return whether Spark started this process to push filters down.

    Spark rejects a reader with `pushFilters` if ``spark.sql.python.filterPushdown.enabled`` is off, and does not tell
    the data source the value. But only if it is on, Spark runs the module PUSHING_WORKER.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return PUSHING_WORKER in sys.modules or getattr(main, "name", "") == PUSHING_WORKER


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one column of a row. Picklable; a null never satisfies it."""

    column: str
    name: str
    """A function of pyarrow.compute, or "is_in"."""
    value: Any

    @classmethod
    def from_filter(cls, column: str, one: Filter) -> Condition | None:
        """Return the condition of a filter, or None if Arrow cannot evaluate the filter."""
        value = getattr(one, "value", None)
        match one:
            case EqualTo() | EqualNullSafe() if _fits(column, value):
                return cls(column, "equal", value)
            case GreaterThan() | GreaterThanOrEqual() | LessThan() | LessThanOrEqual() if _fits(column, value):
                return cls(column, _ARROW_NAMES[type(one)], value)
            case In() if one.value and all(_fits(column, each) for each in one.value):
                return cls(column, "is_in", tuple(one.value))
            case StringStartsWith() if column == "key" and isinstance(value, str):
                return cls(column, "starts_with", value)
        return None

    def mask(self, rows: pa.RecordBatch) -> Any:
        values = rows.column(self.column)
        match self.name:
            case "is_in":
                return pc.is_in(values, value_set=pa.array(self.value, values.type))
            case "starts_with":
                return pc.starts_with(values, pattern=self.value)
        return getattr(pc, self.name)(values, pa.scalar(self.value, values.type))


_ARROW_NAMES: Final = {
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}


def _fits(column: str, value: object) -> bool:
    return isinstance(value, str if column == "key" else datetime)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Conditions that a row must all satisfy."""

    conditions: tuple[Condition, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.conditions)

    def with_condition(self, condition: Condition) -> RowFilter:
        return RowFilter((*self.conditions, condition))

    @property
    def columns(self) -> list[str]:
        """The columns that the conditions read."""
        return list(dict.fromkeys(one.column for one in self.conditions))

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that satisfy all conditions."""
        for one in self.conditions:
            rows = rows.filter(one.mask(rows))
        return rows


# -- pushing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IntSpan:
    """Integers [low, high): offsets, or times in microseconds."""

    low: int = 0
    high: int = OFFSET_END

    def narrow(self, one: Filter, number: int) -> IntSpan | None:
        """Return the part of the span that satisfies a comparison with `number`; None: not a comparison."""
        match one:
            case EqualTo() | EqualNullSafe():
                return IntSpan(max(self.low, number), min(self.high, number + 1))
            case GreaterThan():
                return IntSpan(max(self.low, number + 1), self.high)
            case GreaterThanOrEqual():
                return IntSpan(max(self.low, number), self.high)
            case LessThan():
                return IntSpan(self.low, min(self.high, number))
            case LessThanOrEqual():
                return IntSpan(self.low, min(self.high, number + 1))
        return None


ANY_TIME: Final = IntSpan(0, micros_from_datetime(datetime.max.replace(tzinfo=UTC)) + 1)
"""From 1970 to the end of the year 9999: the times that a broker can look up."""


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """What remains to be read after the filters of a query."""

    partition_filters: tuple[Filter, ...] = ()
    """The filters on topics and partitions."""
    offsets: IntSpan = IntSpan()
    append_times: IntSpan = ANY_TIME
    """Microseconds since 1970."""
    rows: RowFilter = RowFilter()

    def admits(self, topic: str, partition: int) -> bool:
        values = {"topic": topic, "partition": partition}
        return all(_matches(one, values) for one in self.partition_filters)

    @property
    def limits_append_time(self) -> bool:
        return self.append_times != ANY_TIME


def push_filters(filters: Iterable[Filter], before: PushedFilters) -> tuple[PushedFilters, list[Filter]]:
    """Add the filters to `before`; return the result and the filters that Spark has to evaluate too."""
    remaining: list[Filter] = []
    merged = before
    for one in filters:
        merged, answered = _push_filter(merged, one)
        if not answered:
            remaining.append(one)
    return merged, remaining


def _push_filter(merged: PushedFilters, one: Filter) -> tuple[PushedFilters, bool]:
    """Add one filter; return the result and whether Spark need not evaluate the filter again."""
    column = column_of(one)
    value = getattr(one, "value", None)
    match column:
        case "topic" | "partition" if _decidable(one, str if column == "topic" else int):
            return replace(merged, partition_filters=(*merged.partition_filters, one)), True
        case "offset" if _is_int(value) and (span := merged.offsets.narrow(one, value)) is not None:
            return replace(merged, offsets=span), True
        case "offset" if isinstance(one, In) and one.value and all(map(_is_int, one.value)):
            low, high = max(merged.offsets.low, min(one.value)), min(merged.offsets.high, max(one.value) + 1)
            return replace(merged, offsets=IntSpan(low, high)), False
        case "append_time" if isinstance(value, datetime):
            span = merged.append_times.narrow(one, micros_from_datetime(value))
            return (merged if span is None else replace(merged, append_times=span)), False
        case "publish_time" | "key":
            condition = Condition.from_filter(column, one)
            return (merged if condition is None else replace(merged, rows=merged.rows.with_condition(condition))), False
    return merged, False


def column_of(one: Filter) -> str:
    """Return the column that a filter is about; empty for a part of a column."""
    attribute: tuple[str, ...] = getattr(one.child if isinstance(one, Not) else one, "attribute", ())
    return attribute[0] if len(attribute) == 1 else ""


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _decidable(one: Filter, kind: type) -> bool:
    """Return whether the filter can be evaluated for a value of type `kind` that is never null."""
    match one:
        case Not():
            return not isinstance(one.child, Not) and _decidable(one.child, kind)
        case IsNull() | IsNotNull():
            return True
        case In():
            return all(type(value) is kind for value in one.value)
        case StringStartsWith() | StringEndsWith() | StringContains():
            return kind is str and type(one.value) is str
    return type(one) in _COMPARISONS and type(getattr(one, "value", None)) is kind


def _matches(one: Filter, values: dict[str, Any]) -> bool:
    match one:
        case Not():
            return not _matches(one.child, values)
        case IsNull():
            return False
        case IsNotNull():
            return True
    return _COMPARISONS[type(one)](values[column_of(one)], one.value)  # type: ignore[attr-defined]
