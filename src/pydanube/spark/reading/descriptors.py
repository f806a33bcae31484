"""Range descriptors: a stream whose rows say which offsets to read, so that the sink's task reads the messages itself.

With the internal option `descriptors`, the source plans its batches as always, but a task yields one small row that
describes its ranges. A sink that knows such rows (see `spark.tables`) reads the messages in the same task, with the
same code as the source. So payloads go from the log to the table without entering the JVM.

    danube_ranges string    {"options": {...}, "ranges": [...], "end": {...}}

`options` are those of the source, as text. `end` is the end of the batch, in the form of the checkpoint; one row of a
batch has it. The columns of the messages are in the metadata of the column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from functools import lru_cache
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StringType, StructField, StructType

from pydanube.client.history.coverage import SegmentInfo
from pydanube.model.gaps import NO_GAPS, Gaps

from .planning import DanubePartition, OffsetRange

COLUMN: Final = "danube_ranges"
ROWS_KEY: Final = "danube.rows"
"""The column's metadata: the schema of the rows that a descriptor stands for, as Spark's JSON."""
OPTION: Final = "descriptors"


class DescribedPartition(DanubePartition):
    """The ranges of one task, and, in one task of a batch, the end of the batch as JSON."""

    def __init__(self, partition: DanubePartition, batch_end: str) -> None:
        super().__init__(partition.ranges, partition.servers)
        self.batch_end = batch_end


def descriptor_schema(rows: StructType) -> StructType:
    return StructType([StructField(COLUMN, StringType(), True, {ROWS_KEY: rows.json()})])


def is_descriptor(schema: StructType) -> bool:
    return schema.fieldNames() == [COLUMN] and ROWS_KEY in (schema.fields[0].metadata or {})


def described_schema(schema: StructType) -> StructType:
    """Return the schema of the rows that descriptors stand for."""
    return StructType.fromJson(json.loads(schema.fields[0].metadata[ROWS_KEY]))


def describe(partition: DanubePartition, options: Mapping[str, str], rows: StructType) -> pa.RecordBatch:
    """Return the descriptor of one task."""
    document: dict[str, Any] = {
        "options": dict(options),
        "schema": rows.jsonValue(),
        "ranges": [_range_json(one) for one in partition.ranges],
        "servers": partition.servers,
    }
    if isinstance(partition, DescribedPartition) and partition.batch_end:
        document["end"] = partition.batch_end
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(document)])], names=[COLUMN])


class DescribedRows:
    """The rows of a sink's task: as they are, or read from the ranges that descriptors name."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.batch_end = ""
        """The end of the batch, once `rows` has been consumed in the task that knows it."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            if batch.schema.names != [COLUMN]:
                yield batch
                continue
            for text in batch.column(0).to_pylist():
                yield from self._read(json.loads(text))

    def _read(self, document: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        self.batch_end = document.get("end", self.batch_end)
        options = {name: value for name, value in document["options"].items() if name.lower() != OPTION}
        ranges = [_range_from_json(one) for one in document["ranges"]]
        reader = _reader(json.dumps(options, sort_keys=True), json.dumps(document["schema"]))
        return cast(Iterator[pa.RecordBatch], reader.read(DanubePartition(ranges, document.get("servers", ""))))


@lru_cache(maxsize=8)
def _reader(options: str, schema: str) -> DataSourceStreamReader:
    """Return the source's reader. It is kept, because a typed one asks the broker for definitions when it is made."""
    from pydanube.spark.datasource import DanubeDataSource

    return DanubeDataSource(json.loads(options)).streamReader(StructType.fromJson(json.loads(schema)))


def _range_json(one: OffsetRange) -> dict[str, Any]:
    document: dict[str, Any] = {
        "topic": one.topic,
        "id": one.topic_id,
        "partition": one.partition,
        "start": one.start,
        "end": one.end,
    }
    if one.segments:
        document["segments"] = [astuple(segment) for segment in one.segments]
        document["store"] = one.store
    if one.gaps:
        document["gaps"] = one.gaps.within(one.start, one.end)
    return document


def _range_from_json(document: Mapping[str, Any]) -> OffsetRange:
    return OffsetRange(
        document["topic"],
        document["id"],
        document["partition"],
        document["start"],
        document["end"],
        tuple(SegmentInfo(*one) for one in document.get("segments", ())),
        document.get("store", ""),
        Gaps((start, end) for start, end in document["gaps"]) if "gaps" in document else NO_GAPS,
    )
