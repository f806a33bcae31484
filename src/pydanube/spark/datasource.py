"""``format("danube")``: the class that Spark looks up. It delegates to the readers and writers.

Spark pickles it and calls one method at a time, in separate processes that share nothing. So it holds only the options
and opens no connection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .message_types import chosen_columns, spark_schema
from .options import Mode, ReadOptions
from .python_workers import freeze_imports, message_first, use_python_of_driver

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class DanubeDataSource(DataSource):
    """Reads and writes topics as data frames, in batches and streams."""

    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        use_python_of_driver()  # Spark calls this when the source is registered, and then picks the Python of workers
        return "danube"

    @message_first
    def schema(self) -> StructType:
        options = ReadOptions.parse(self.options)
        rows = self._row_schema(options)
        if not options.descriptors:
            return rows
        from pydanube.spark.reading.descriptors import descriptor_schema

        return descriptor_schema(rows)

    def _row_schema(self, options: ReadOptions) -> StructType:
        if options.decode:
            from pydanube.spark.decoding.planning import typed_schema

            return typed_schema(options)
        return spark_schema(options.columns)

    @message_first
    def reader(self, schema: StructType) -> DataSourceReader:
        from pydanube.spark.reading.batch_reader import batch_reader

        return batch_reader(self._read_options("batch", schema))

    @message_first
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        from pydanube.spark.reading.descriptors import described_schema, is_descriptor
        from pydanube.spark.reading.stream_reader import DanubeStreamReader, DescribingStreamReader

        if is_descriptor(schema):
            rows = described_schema(schema)
            options = self._read_options("stream", rows)
            return DescribingStreamReader(options, {**self.options, **options.credentials.as_options()}, rows)
        return DanubeStreamReader(self._read_options("stream", schema))

    @message_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pydanube.spark.writing.staged_writer import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @message_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        from pydanube.spark.writing.staged_writer import stream_writer

        freeze_imports()  # Spark requests a writer for each micro-batch
        return stream_writer(self.options, schema, overwrite)

    def _read_options(self, mode: Mode, schema: StructType) -> ReadOptions:
        """Parse the options; a schema given by the user selects the columns, as the option `columns` does."""
        options = ReadOptions.parse(self.options, mode)
        if options.decode:
            from pydanube.spark.decoding.planning import plan_decoding

            return plan_decoding(options, schema)
        return replace(options, columns=chosen_columns(schema))
