"""Reading a batch: what there is when the query is planned, between two bounds. Driver side, and what tasks run.

Spark makes the reader, asks it for partitions once, and sends a copy of it with each of them to a task. Connections are
made where they are used and never travel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pydanube.model.errors import Invalid, NotFound
from pydanube.runtime.clock import SystemClock
from pydanube.spark.options import ReadOptions

from . import pushdown
from .bounds import Bound, Bounds
from .broker_queries import BrokerQueries
from .data_loss import judge
from .direct_reads import located
from .fetching import read_task
from .offsets import Offsets, View
from .planning import BATCH_SPLIT_ROWS, OffsetRange, Question, between, check_named, placed, questions, tasks


def batch_reader(options: ReadOptions) -> DanubeReader:
    return DanubePushingReader(options) if pushdown.asked_for() else DanubeReader(options)


class DanubeReader(DataSourceReader):
    """Reads what lies between two bounds."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = pushdown.Pushed()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with BrokerQueries(options.servers, options.timeout_s) as cluster:
            ranges = located(self._ranges(cluster), options, cluster.blocking)
        return tasks(ranges, options.min_partitions, options.max_records or BATCH_SPLIT_ROWS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task(partition, self._options, self._pushed.rows)

    # -- what lies between ---------------------------------------------------------------------------------------------

    def _ranges(self, cluster: BrokerQueries) -> list[OffsetRange]:
        options = self._options
        topics = {*options.topics, *cluster.matching(options.patterns)}
        if not topics:
            raise NotFound(f"no topic matches {options.topic}")
        view = cluster.look(topics, set(topics) - set(options.topics))
        now_us = SystemClock().now_us()
        begin = _found(cluster, options.start or Bounds("startingOffsets", Bound("earliest")), view, now_us)
        end = _found(cluster, options.end or Bounds("endingOffsets", Bound("latest")), view, now_us)
        _check_order(options, begin, end)
        ranges, losses = between(begin, end, view)
        if losses:
            judge(losses, options.fail_on_data_loss, cluster.retention(one.topic for one in losses))
        return self._narrowed(cluster, ranges)

    def _narrowed(self, cluster: BrokerQueries, ranges: list[OffsetRange]) -> list[OffsetRange]:
        """What the filters leave of them."""
        wanted = self._pushed
        ranges = [one for one in ranges if wanted.admits(one.topic, one.partition)]
        ranges = [_cut(one, wanted.offsets.low, wanted.offsets.high) for one in ranges]
        if wanted.by_time:
            ranges = _appended_within(wanted.append_times, cluster, ranges)
        return [one for one in ranges if one.size]


class DanubePushingReader(DanubeReader):
    """The same, where Spark has filters to push down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        self._pushed, left = pushdown.pushed(filters, self._pushed)
        return left


def _found(cluster: BrokerQueries, bounds: Bounds, view: View, now_us: int) -> Offsets:
    check_named(bounds, view)
    return placed(bounds, view, now_us, cluster.answers(questions(bounds, view, now_us)))


def _check_order(options: ReadOptions, begin: Offsets, end: Offsets) -> None:
    """Offsets that somebody wrote down are not to contradict each other. Times may: then nothing lies between."""
    starts, ends = options.start, options.end
    if starts is None or ends is None:
        return
    for topic, partition, offset in end.places():
        both = (starts.of(topic, partition).kind, ends.of(topic, partition).kind)
        first = begin.topics[topic].offsets[partition]
        if both == ("offset", "offset") and first > offset:
            raise Invalid(
                f"{topic}[{partition}] was to be read from offset {first} ({starts.option}) to {offset} "
                f"({ends.option}): the end is before the start"
            )


def _appended_within(span: pushdown.OffsetSpan, cluster: BrokerQueries, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """What of them was appended in a span of time. An end of it that rules nothing out is not asked about."""
    if span.low >= span.high:
        return []
    asked = [[Question(one.topic, one.partition, time_us) for time_us in (span.low, span.high)] for one in ranges]
    limits = (pushdown.ANY_TIME.low, pushdown.ANY_TIME.high)
    answers = cluster.answers([one for pair in asked for one in pair if one.time_us not in limits])
    return [
        _cut(one, answers.get(first, one.start), answers.get(end, one.end))
        for one, (first, end) in zip(ranges, asked, strict=True)
    ]


def _cut(one: OffsetRange, low: int, high: int) -> OffsetRange:
    start = min(max(one.start, low), one.end)
    return one.part(start, max(start, min(one.end, high)))
