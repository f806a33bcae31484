"""Batch reads: the messages between two bounds, as the topics are when the query is planned. Driver side and tasks.

Spark creates the reader, calls `partitions` once, and sends a copy of the reader with each partition to a task.
Connections are opened where they are used and are never pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pydanube.model.errors import Invalid, NotFound
from pydanube.runtime.clock import SystemClock
from pydanube.spark.options import ReadOptions
from pydanube.spark.python_workers import message_first

from . import pushdown
from .bounds import Bound, Bounds
from .broker_queries import BrokerQueries
from .data_loss import fail_or_log
from .direct_reads import locate_segments
from .fetching import read_task
from .offsets import Offsets, View
from .planning import (
    BATCH_SPLIT_ROWS,
    DanubePartition,
    OffsetRange,
    TimeLookup,
    check_named_partitions,
    keep_assigned,
    plan_tasks,
    ranges_between,
    resolve_bounds,
    time_lookups,
)


def batch_reader(options: ReadOptions) -> DanubeReader:
    return DanubePushingReader(options) if pushdown.is_pushdown_requested() else DanubeReader(options)


class DanubeReader(DataSourceReader):
    """Reads the messages between two bounds."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = pushdown.PushedFilters()

    @message_first
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with BrokerQueries(options.servers, options.timeout_s, options.credentials) as queries:
            ranges = locate_segments(self._plan_ranges(queries), options, queries.blocking)
            servers = queries.client.servers
        tasks = plan_tasks(ranges, options.min_partitions, options.max_records or BATCH_SPLIT_ROWS)
        return [DanubePartition(one.ranges, servers) for one in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, self._pushed.rows)

    # -- planning ------------------------------------------------------------------------------------------------------

    def _plan_ranges(self, queries: BrokerQueries) -> list[OffsetRange]:
        options = self._options
        topics = {*options.topics, *queries.list_matching(options.patterns)}
        if not topics:
            raise NotFound(f"no topic matches {options.topic}")
        view = keep_assigned(queries.view_topics(topics, set(topics) - set(options.topics)), options.assigned)
        now_us = SystemClock().now_us()
        begin = _resolve(queries, options.start or Bounds("startingOffsets", Bound("earliest")), view, now_us)
        end = _resolve(queries, options.end or Bounds("endingOffsets", Bound("latest")), view, now_us)
        _check_order(options, begin, end)
        ranges, losses = ranges_between(begin, end, view)
        if losses:
            fail_or_log(losses, options.fail_on_data_loss, queries.describe_retention(one.topic for one in losses))
        return self._apply_filters(queries, ranges)

    def _apply_filters(self, queries: BrokerQueries, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of the ranges that the pushed filters do not rule out."""
        wanted = self._pushed
        ranges = [one for one in ranges if wanted.admits(one.topic, one.partition)]
        ranges = [_clip(one, wanted.offsets.low, wanted.offsets.high) for one in ranges]
        if wanted.limits_append_time:
            ranges = _limit_to_append_times(wanted.append_times, queries, ranges)
        return [one for one in ranges if one.size]


class DanubePushingReader(DanubeReader):
    """A reader with filter pushdown, for sessions in which Spark supports it."""

    @message_first
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        # A column of a schema may have the name of a message column that was not chosen.
        own = [one for one in filters if pushdown.column_of(one) in self._options.columns]
        others = [one for one in filters if pushdown.column_of(one) not in self._options.columns]
        self._pushed, left = pushdown.push_filters(own, self._pushed)
        return [*left, *others]


def _resolve(queries: BrokerQueries, bounds: Bounds, view: View, now_us: int) -> Offsets:
    check_named_partitions(bounds, view)
    return resolve_bounds(bounds, view, now_us, queries.find_offsets(time_lookups(bounds, view, now_us)))


def _check_order(options: ReadOptions, begin: Offsets, end: Offsets) -> None:
    """Raise Invalid if a given start offset is after the given end offset. Times may be so: the range is then empty."""
    starts, ends = options.start, options.end
    if starts is None or ends is None:
        return
    for topic, partition, offset in end.each_partition():
        both = (starts.bound_of(topic, partition).kind, ends.bound_of(topic, partition).kind)
        first = begin.topics[topic].offsets[partition]
        if both == ("offset", "offset") and first > offset:
            raise Invalid(
                f"{topic}[{partition}] was to be read from offset {first} ({starts.option}) to {offset} "
                f"({ends.option}): the end is before the start"
            )


def _limit_to_append_times(
    span: pushdown.IntSpan, queries: BrokerQueries, ranges: list[OffsetRange]
) -> list[OffsetRange]:
    """Clip the ranges to the append times in `span`. An end of the span that rules nothing out needs no lookup."""
    if span.low >= span.high:
        return []
    asked = [[TimeLookup(one.topic, one.partition, time_us) for time_us in (span.low, span.high)] for one in ranges]
    limits = (pushdown.ANY_TIME.low, pushdown.ANY_TIME.high)
    answers = queries.find_offsets([one for pair in asked for one in pair if one.time_us not in limits])
    return [
        _clip(one, answers.get(first, one.start), answers.get(end, one.end))
        for one, (first, end) in zip(ranges, asked, strict=True)
    ]


def _clip(one: OffsetRange, low: int, high: int) -> OffsetRange:
    start = min(max(one.start, low), one.end)
    return one.part(start, max(start, min(one.end, high)))
