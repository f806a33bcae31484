"""The work of a task, on executors: read its ranges from the object store or the broker, as record batches.

```
 OffsetRange  [ 0 ............ 640,000 .............. 900,000 .... 1,000,000 )
                segment        segment                (in the log still)
                store ───────► store ───────────────► broker ──────────────►     one stream of pieces ──► record batches
```

Invariants
    every existing offset of a range is returned exactly once, in order, whether it comes from the store or the broker
    if the store fails in the middle of a range, the broker continues at the next offset
    offsets that are gone are reported (see `data_loss`), never skipped silently
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pydanube.client.history.coverage import split_by_storage
from pydanube.client.history.range_fetch import RangeFetch
from pydanube.client.history.reader import split_batches
from pydanube.client.tables.arrow_rows import RowForm, RowSlice, arrow_schema
from pydanube.model.errors import DanubeError, Invalid, NotFound
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions
from pydanube.spark.python_workers import hide_traceback

from . import direct_reads as direct
from .data_loss import LostRange, fail_or_log, lost_to_retention
from .planning import DanubePartition, OffsetRange
from .pushdown import RowFilter


def read_task(partition: InputPartition, options: ReadOptions, wanted: RowFilter) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task that pass the filter `wanted`, with exactly the columns of `options`."""
    if not isinstance(partition, DanubePartition):
        return  # Spark's own empty partition
    if partition.servers:
        connections.learn(options.servers, partition.servers)
    try:
        if options.typed is None:
            yield from _read_rows(partition, options, wanted)
        else:
            from pydanube.spark.decoding.typed_rows import decode_rows  # here, because it imports Arrow's functions

            raw_options = replace(options, columns=options.typed.raw_columns)
            yield from decode_rows(_read_rows(partition, raw_options, wanted), options)
    except DanubeError:
        hide_traceback()
        raise


def _read_rows(partition: DanubePartition, options: ReadOptions, wanted: RowFilter) -> Iterator[pa.RecordBatch]:
    if not wanted:
        yield from read_ranges(partition.ranges, options)
        return
    filter_columns = [name for name in wanted.columns if name not in options.columns]
    with_filter_columns = replace(options, columns=(*options.columns, *filter_columns))
    for rows in read_ranges(partition.ranges, with_filter_columns):
        kept = wanted.apply(rows)
        if kept.num_rows:
            yield kept.select(list(options.columns)) if filter_columns else kept


def read_ranges(ranges: Iterable[OffsetRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the ranges, one range after the other."""
    for one in ranges:
        yield from read_range(one, options)


def read_range(wanted: OffsetRange, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Return the rows of a range, in order, with the chosen columns; only those whose key matches the `keyFilter`."""
    columns = options.columns
    if not options.key_filters:
        return RowForm(arrow_schema(columns), wanted.topic, wanted.partition).batches(_row_slices(wanted, options))
    keyed = columns if "key" in columns else (*columns, "key")
    form = RowForm(arrow_schema(keyed), wanted.topic, wanted.partition)
    batches = (_filter_by_key(batch, options.key_filters) for batch in form.batches(_row_slices(wanted, options)))
    return (batch.select(list(columns)) for batch in batches if batch.num_rows)


def _filter_by_key(batch: pa.RecordBatch, globs: Sequence[str]) -> pa.RecordBatch:
    """Return the rows whose key matches one of the globs; a row without a key matches none."""
    import pyarrow.compute as pc  # here, because it takes long and few queries need it

    keys = batch.column(batch.schema.get_field_index("key"))
    found = pc.match_like(keys, _like_pattern(globs[0]))
    for glob in globs[1:]:
        found = pc.or_(found, pc.match_like(keys, _like_pattern(glob)))
    return batch.filter(found)


def _like_pattern(glob: str) -> str:
    """Return the glob as an SQL LIKE pattern, which Arrow matches in time linear in the key."""
    for plain, escaped in (("\\", "\\\\"), ("%", "\\%"), ("_", "\\_"), ("*", "%"), ("?", "_")):
        glob = glob.replace(plain, escaped)
    return glob


# -- sources -----------------------------------------------------------------------------------------------------------


def _row_slices(wanted: OffsetRange, options: ReadOptions) -> Iterator[RowSlice]:
    for start, end, segments in split_by_storage(wanted.segments, wanted.start, wanted.end):
        part = wanted.part(start, end)
        if not part.size:
            continue  # a gap between two segments
        yield from _read_from_store(part, options) if segments else _read_from_broker(part, options)


def _read_from_store(wanted: OffsetRange, options: ReadOptions) -> Iterator[RowSlice]:
    """Yield the rows of a range that segments hold. What cannot be read from the store is read from the broker."""
    store = direct.SegmentStore(options, wanted.store)
    next_offset = wanted.start
    if store.is_available:
        try:
            for rows in store.read_rows(wanted.segments, wanted.start, wanted.end):
                next_offset = rows.batch.offset_at(rows.end - 1) + 1
                yield rows
            return
        except NotFound as error:
            now = direct.locate_segments_again(wanted.part(next_offset, wanted.end), options)
            if now.segments != wanted.part(next_offset, wanted.end).segments:
                yield from _row_slices(now, options)  # ends: an object that is gone is never listed again
                return
            store.handle_failure(wanted, error)
        except DanubeError as error:
            store.handle_failure(wanted, error)
    yield from _read_from_broker(wanted.part(next_offset, wanted.end), options)


def _read_from_broker(wanted: OffsetRange, options: ReadOptions) -> Iterator[RowSlice]:
    span = RangeFetch(wanted.topic, wanted.partition, wanted.start, wanted.end, wanted.topic_id)
    next_offset, loss_reason = wanted.start, f"{wanted.topic}[{wanted.partition}] has no such offsets"
    try:
        with (
            connections.client(options.servers, options.timeout_s, options.credentials) as client,
            closing(client.fetches(span)) as answers,
        ):
            for answer in answers:
                lost = lost_to_retention(wanted.topic, wanted.partition, next_offset, wanted.end, answer.start_offset)
                fail_or_log([] if lost is None else [lost], options.fail_on_data_loss)
                next_offset = max(next_offset, answer.start_offset)
                for batch in split_batches(answer.body):
                    rows = RowSlice.between(batch, next_offset, wanted.end)
                    if rows.start < rows.end:
                        yield rows
                next_offset = max(next_offset, answer.next_offset)
                loss_reason = f"the partition ends at {answer.end_offset} now: its log came back shorter after a crash"
    except (NotFound, Invalid) as error:  # the topic is gone, or its log ends before the range begins
        loss_reason = error.message
    if next_offset < wanted.end:
        fail_or_log(
            [LostRange(wanted.topic, wanted.partition, next_offset, wanted.end, loss_reason)], options.fail_on_data_loss
        )
