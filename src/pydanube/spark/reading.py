"""What a task does: read the ranges it was given, and drop the rows that nobody wants. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from .options import ReadOptions
from .planning import DanubePartition
from .pushdown import RowFilter


def row_filter(options: ReadOptions) -> RowFilter:
    """What the options ask of every row."""
    from .pushdown import key_condition

    return RowFilter((key_condition(options.key_filters),) if options.key_filters else ())


def read(partition: InputPartition, options: ReadOptions, wanted: RowFilter) -> Iterator[pa.RecordBatch]:
    """Record batches of exactly the columns of `options`, in order."""
    from .fetching import read as fetch

    if not isinstance(partition, DanubePartition):
        return  # Spark's own, where there is nothing to read
    if not wanted:
        yield from fetch(partition.ranges, options)
        return
    more = [name for name in wanted.columns if name not in options.columns]
    seen = replace(options, columns=(*options.columns, *more))
    for rows in fetch(partition.ranges, seen):
        left = wanted.of(rows)
        if left.num_rows:
            yield left.select(list(options.columns)) if more else left
