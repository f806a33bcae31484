"""``format("danube-delta")`` and ``format("danube-iceberg")``: the classes that Spark looks up. They only write."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pydanube.model.errors import Invalid
from pydanube.spark.python_workers import freeze_imports, message_first, use_python_of_driver

from .options import Format

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class _TableSink(DataSource):
    options: MutableMapping[str, str]
    table_format: ClassVar[Format]

    @classmethod
    def name(cls) -> str:
        use_python_of_driver()
        return f"danube-{cls.table_format}"

    @message_first
    def schema(self) -> StructType:
        raise Invalid(self._only_writes())

    @message_first
    def reader(self, schema: StructType) -> DataSourceReader:
        raise Invalid(self._only_writes())

    @message_first
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        raise Invalid(self._only_writes())

    @message_first
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .table_writer import batch_writer

        return batch_writer(self.table_format, self.options, schema, overwrite)

    @message_first
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        from .table_writer import stream_writer

        freeze_imports()  # Spark requests a writer for each micro-batch
        return stream_writer(self.table_format, self.options, schema, overwrite)

    def _only_writes(self) -> str:
        library = "deltalake" if self.table_format == "delta" else "pyiceberg"
        return f"danube-{self.table_format} only writes: read the table with {library}, or with Spark's own format"


class DanubeDeltaDataSource(_TableSink):
    """Writes data frames and landings to Delta tables."""

    table_format = "delta"


class DanubeIcebergDataSource(_TableSink):
    """Writes data frames and landings to Iceberg tables."""

    table_format = "iceberg"
