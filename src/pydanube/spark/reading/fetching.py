"""What a task does: read its ranges, from the object store or from the broker, as record batches.

```
 OffsetRange  [ 0 ............ 640,000 .............. 900,000 .... 1,000,000 )
                segment        segment                (in the log still)
                store ───────► store ───────────────► broker ──────────────►     one stream of pieces ──► record batches
```

Invariants
    every offset of a range that is there is given exactly once, in order, whatever it was read from
    where the store fails in the middle, the broker goes on at the next offset that was not given
    what is gone is reported (see `loss`), never passed over
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from pydanube.client.history.range_fetch import RangeFetch
from pydanube.client.history.reader import split_batches
from pydanube.codec.batch import Batch
from pydanube.model.errors import DanubeError, Invalid, NotFound
from pydanube.spark import connections
from pydanube.spark.options import ReadOptions
from pydanube.spark.schema import arrow_schema

from . import direct_reads as direct
from .arrow_rows import RowForm, RowSlice
from .data_loss import Lost, judge, trimmed
from .planning import DanubePartition, OffsetRange
from .pushdown import RowFilter


def read_task(partition: InputPartition, options: ReadOptions, wanted: RowFilter) -> Iterator[pa.RecordBatch]:
    """Record batches of exactly the columns of `options`, in order."""
    if not isinstance(partition, DanubePartition):
        return  # Spark's own, where there is nothing to read
    if not wanted:
        yield from read_ranges(partition.ranges, options)
        return
    more = [name for name in wanted.columns if name not in options.columns]
    seen = replace(options, columns=(*options.columns, *more))
    for rows in read_ranges(partition.ranges, seen):
        left = wanted.of(rows)
        if left.num_rows:
            yield left.select(list(options.columns)) if more else left


def read_ranges(ranges: Iterable[OffsetRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """All rows of some ranges, one range after the other."""
    for one in ranges:
        yield from read_range(one, options)


def read_range(wanted: OffsetRange, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The rows of a range, in order, in the columns that were chosen; only those whose keys the `keyFilter` admits."""
    columns = options.columns
    if not options.key_filters:
        return RowForm(arrow_schema(columns), wanted.topic, wanted.partition).batches(_pieces(wanted, options))
    keyed = columns if "key" in columns else (*columns, "key")
    form = RowForm(arrow_schema(keyed), wanted.topic, wanted.partition)
    batches = (_admitted(batch, options.key_filters) for batch in form.batches(_pieces(wanted, options)))
    return (batch.select(list(columns)) for batch in batches if batch.num_rows)


def _admitted(batch: pa.RecordBatch, globs: Sequence[str]) -> pa.RecordBatch:
    """The rows whose key matches one of the globs; a row without a key matches none."""
    keys = batch.column(batch.schema.get_field_index("key"))
    found = pc.match_like(keys, _like(globs[0]))
    for glob in globs[1:]:
        found = pc.or_(found, pc.match_like(keys, _like(glob)))
    return batch.filter(found)


def _like(glob: str) -> str:
    """The same pattern in the words of SQL, which Arrow matches in time that only grows with the key."""
    for plain, escaped in (("\\", "\\\\"), ("%", "\\%"), ("_", "\\_"), ("*", "%"), ("?", "_")):
        glob = glob.replace(plain, escaped)
    return glob


# -- pieces ------------------------------------------------------------------------------------------------------------


def _pieces(wanted: OffsetRange, options: ReadOptions) -> Iterator[RowSlice]:
    for start, end, segments in direct.stretches(wanted):
        part = wanted.part(start, end)
        if not part.size:
            continue  # a gap between two segments
        yield from _from_store(part, options) if segments else _from_broker(part, options)


def _from_store(wanted: OffsetRange, options: ReadOptions) -> Iterator[RowSlice]:
    """A range that lies in segments. What cannot be had there is read from the broker."""
    store = direct.SegmentStore(options, wanted.store)
    place = wanted.start
    if store.is_open_to_us:
        try:
            for piece in store.pieces(wanted.segments, wanted.start, wanted.end):
                place = piece.batch.offset_at(piece.end - 1) + 1
                yield piece
            return
        except NotFound as error:
            now = direct.located_again(wanted.part(place, wanted.end), options)
            if now.segments != wanted.part(place, wanted.end).segments:
                yield from _pieces(now, options)  # an object that is gone cannot be named twice: this comes to an end
                return
            store.failed(wanted, error)
        except DanubeError as error:
            store.failed(wanted, error)
    yield from _from_broker(wanted.part(place, wanted.end), options)


def _from_broker(wanted: OffsetRange, options: ReadOptions) -> Iterator[RowSlice]:
    span = RangeFetch(wanted.topic, wanted.partition, wanted.start, wanted.end, wanted.topic_id)
    place, behind = wanted.start, f"{wanted.topic}[{wanted.partition}] has no such offsets"
    try:
        with connections.client(options.servers, options.timeout_s) as client, closing(client.fetches(span)) as answers:
            for answer in answers:
                lost = trimmed(wanted.topic, wanted.partition, place, wanted.end, answer.start_offset)
                judge([] if lost is None else [lost], options.fail_on_data_loss)
                for batch in split_batches(answer.body):
                    start, end = _rows_between(batch, place, wanted.end)
                    if start < end:
                        yield RowSlice(batch, start, end)
                place = max(place, answer.next_offset)
                behind = f"the partition ends at {answer.end_offset} now: its log came back shorter after a crash"
    except (NotFound, Invalid) as error:  # the topic is gone, or its log ends before the range begins
        behind = error.message
    if place < wanted.end:
        judge([Lost(wanted.topic, wanted.partition, place, wanted.end, behind)], options.fail_on_data_loss)


def _rows_between(batch: Batch, first_offset: int, end_offset: int) -> tuple[int, int]:
    """The rows [start, end) of a batch that have these offsets."""
    if first_offset <= batch.base_offset and batch.end_offset <= end_offset:
        return 0, batch.count
    offsets = batch.offsets
    return int(offsets.searchsorted(first_offset)), int(offsets.searchsorted(end_offset))
