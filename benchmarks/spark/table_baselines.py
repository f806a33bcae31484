"""The baseline of landings: the same pattern, fed from prepared buffers. Workers of Spark import this file.

The source hands out counts of rows instead of ranges, and the sink's task takes a prepared record batch so often,
instead of reading messages. Everything after that is the sink's own: Parquet files, statistics, the commit.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from baselines import PreparedStream, RowCount, prepared_rows
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, DataSourceStreamWriter, InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from pydanube.spark import DanubeDeltaDataSource
from pydanube.spark.message_types import spark_schema
from pydanube.spark.tables.table_writer import TableStreamWriter, WrittenFiles, stream_writer

COUNTS = StructType([StructField(name, LongType()) for name in ("rows", "size", "at_once")])


class PreparedRanges(DataSource):
    """Hands out counts of rows; the options are those of the prepared source."""

    @classmethod
    def name(cls) -> str:
        return "prepared-ranges"

    def schema(self) -> StructType:
        return COUNTS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        return PreparedRangesStream(dict(self.options))


class PreparedRangesStream(PreparedStream):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowCount)
        values = {"rows": [partition.rows], "size": [self.size], "at_once": [self.at_once]}
        yield pa.RecordBatch.from_pydict(values, schema=pa.schema([(name, pa.int64()) for name in values]))


class PreparedDelta(DanubeDeltaDataSource):
    """The Delta sink, whose tasks take prepared rows."""

    @classmethod
    def name(cls) -> str:
        return "prepared-delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        made = stream_writer("delta", self.options, spark_schema(), overwrite)
        return PreparedDeltaWriter(made._options, made._target, made._checkpoint)


class PreparedDeltaWriter(TableStreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        return super().write(_prepared(iterator))


def _prepared(counts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in counts:
        for one in batch.to_pylist():
            yield from prepared_rows(one["size"], one["rows"], one["at_once"])
