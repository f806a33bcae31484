"""Python data sources that do no work: the baseline of every ratio.

The prepared source yields one record batch again and again, with the columns and the sizes that the danube source
yields, as a batch and as a stream. The counting sink takes what it gets by Arrow, and counts. Workers of Spark import
this file, so it stands alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pydanube.client.tables.arrow_rows import arrow_schema
from pydanube.spark.message_types import spark_schema

TASKS = 2
TIMESTAMP = pa.timestamp("us", tz="UTC")
MICROS = 1_700_000_000_000_000


@lru_cache(maxsize=4)
def record_batch(size: int, rows: int) -> pa.RecordBatch:
    """Rows of messages of `size` bytes: no keys, no attributes, one producer; as the benchmark's topics have them."""
    payloads = os.urandom(size * 500) * (rows // 500 + 1)
    bounds = (np.arange(rows + 1) * size).astype(np.int32)
    times = pa.Array.from_buffers(TIMESTAMP, rows, [None, pa.py_buffer(np.full(rows, MICROS, np.int64))])
    columns = {
        "topic": pa.repeat(pa.scalar(f"/default/messages-{size}"), rows),
        "partition": pa.array(np.zeros(rows, np.int32)),
        "offset": pa.array(np.arange(rows, dtype=np.int64)),
        "append_time": times,
        "publish_time": times,
        "key": pa.nulls(rows, pa.string()),
        "payload": pa.Array.from_buffers(
            pa.binary(), rows, [None, pa.py_buffer(bounds), pa.py_buffer(payloads[: rows * size])]
        ),
        "attributes": pa.array([[]] * rows, pa.map_(pa.string(), pa.string())),
        "producer": pa.repeat(pa.scalar("benchmark-0"), rows),
        "schema_id": pa.array(np.zeros(rows, np.int64)),
        "schema_version": pa.array(np.zeros(rows, np.int32)),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=arrow_schema())


def prepared_rows(size: int, count: int, at_once: int) -> Iterator[pa.RecordBatch]:
    whole = record_batch(size, at_once)
    for _ in range(count // at_once):
        yield whole
    if count % at_once:
        yield whole.slice(0, count % at_once)


@dataclass
class RowCount(InputPartition):
    """The number of rows of one task."""

    rows: int


class PreparedSource(DataSource):
    """Options: size of a message, rows in all, rows in a record batch, and, of a stream, rows in a micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "prepared"

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> PreparedReader:
        return PreparedReader(dict(self.options))

    def streamReader(self, schema: StructType) -> PreparedStream:  # noqa: N802  Spark's name
        return PreparedStream(dict(self.options))


class PreparedReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.size, self.rows, self.at_once = (int(options[name]) for name in ("size", "rows", "at_once"))

    def partitions(self) -> list[InputPartition]:
        return [RowCount(self.rows // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowCount)
        return prepared_rows(self.size, partition.rows, self.at_once)


class PreparedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        self.size, self.rows, self.at_once = (int(options[name]) for name in ("size", "rows", "at_once"))
        self.rows_per_trigger = int(options["rows_per_trigger"])

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.rows_per_trigger)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        most = self.rows if isinstance(limit, ReadAllAvailable) else self.rows_per_trigger
        return {"row": min(self.rows, start["row"] + most)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [RowCount((end["row"] - start["row"]) // TASKS) for _ in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowCount)
        return prepared_rows(self.size, partition.rows, self.at_once)

    def commit(self, end: dict[str, int]) -> None:
        pass


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class CountingSink(DataSource):
    """A sink that counts its rows."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingWriter:  # noqa: N802
        return CountingWriter()


class CountingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        assert all(isinstance(message, Counted) for message in messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass
