"""What a task does: read the ranges it was given, and drop the rows that a filter rules out. Runs on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pydanube.spark.options import ReadOptions

from . import fetching
from .planning import DanubePartition
from .pushdown import RowFilter


def read(partition: InputPartition, options: ReadOptions, wanted: RowFilter) -> Iterator[pa.RecordBatch]:
    """Record batches of exactly the columns of `options`, in order."""
    if not isinstance(partition, DanubePartition):
        return  # Spark's own, where there is nothing to read
    if not wanted:
        yield from fetching.read(partition.ranges, options)
        return
    more = [name for name in wanted.columns if name not in options.columns]
    seen = replace(options, columns=(*options.columns, *more))
    for rows in fetching.read(partition.ranges, seen):
        left = wanted.of(rows)
        if left.num_rows:
            yield left.select(list(options.columns)) if more else left
