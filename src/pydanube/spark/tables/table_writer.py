"""Exactly-once writes to a table: tasks write Parquet files that no reader sees, and the driver's commit adds them.

```
 task 0   rows   -> Parquet -> names, statistics  \
 task 1   ranges -> rows -> Parquet -> names ...   >  commit(query, batch, files)   one version of the table
 task 2   (dies, and is tried again: other names) /
```

Rows are those of the data frame. If the frame is a stream of range descriptors (see `reading.descriptors`), the task
reads the messages of its ranges itself, and they never enter the JVM.

An abort deletes nothing, because Spark also calls it after a commit whose response was lost; see `orphans`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pydanube.model.errors import Invalid, Refused
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger
from pydanube.spark.python_workers import message_first
from pydanube.spark.reading import descriptors
from pydanube.spark.reading.offsets import Offsets

from .data_files import DataFile, FileOrigin, FileTarget, write_rows
from .landed import LandingRecord
from .options import Format, TableOptions
from .table_formats import open_table

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenFiles(WriterCommitMessage):
    """The message of a task to the driver: the files that it wrote."""

    query: str
    batch_id: int
    files: tuple[DataFile, ...] = ()
    landed: str = ""
    """The end of the batch, as JSON; set by one task of a landing."""


def batch_writer(format: Format, options: Mapping[str, str], schema: StructType, overwrite: bool) -> TableWriter:  # noqa: A002
    parsed, target = _prepare(format, options, schema, overwrite)
    return TableWriter(parsed, target, parsed.query_id or identity(), max(0, parsed.batch_id))


def stream_writer(
    format: Format,  # noqa: A002
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
) -> TableStreamWriter:
    if any(name.lower() == "queryid" for name in options):
        raise Invalid("options queryId and batchId are for batches: a stream has its own, in its checkpoint")
    parsed, target = _prepare(format, options, schema, overwrite)
    return TableStreamWriter(parsed, target, dict(options).get("checkpointlocation", ""))


def _prepare(
    format: Format,  # noqa: A002
    options: Mapping[str, str],
    schema: StructType,
    overwrite: bool,
) -> tuple[TableOptions, FileTarget]:
    """Check the options and the columns on the driver, and create the table if it does not exist."""
    parsed = TableOptions.parse(format, options)
    if overwrite:
        raise Invalid(
            "a table is never overwritten by this sink: use mode('append'), and for a stream outputMode('append'), or "
            "foreachBatch with a batch write in it, which takes rows of any output mode"
        )
    rows = descriptors.described_schema(schema) if descriptors.is_descriptor(schema) else schema
    return parsed, open_table(parsed).prepare(to_arrow_schema(rows, timezone="UTC"))


class TableWriter(DataSourceArrowWriter):
    """Writes all rows of a job or none. With the options queryId and batchId, a job that runs again writes nothing."""

    def __init__(self, options: TableOptions, target: FileTarget, query: str, batch_id: int) -> None:
        self._options = options
        self._target = target
        self._query = query
        self._batch_id = batch_id

    @message_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        return _write(self._target, self._query, self._batch_id, iterator)

    @message_first
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, self._batch_id, identified=bool(self._options.query_id))


class TableStreamWriter(DataSourceStreamArrowWriter):
    """Writes all rows of every micro-batch exactly once."""

    def __init__(self, options: TableOptions, target: FileTarget, checkpoint: str) -> None:
        self._options = options
        self._target = target
        self._checkpoint = checkpoint

    @message_first
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        context = _context()
        names = ("sql.streaming.queryId", "streaming.sql.batchId")
        query, batch_id = (context.getLocalProperty(name) for name in names)
        if query is None or batch_id is None:
            raise Refused(f"Spark does not tell its tasks {', '.join(names)}: is this a streaming query?")
        return _write(self._target, query, int(batch_id), iterator)

    @message_first
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  Spark's name
        _commit(self._options, messages, batchId, identified=True, checkpoint=self._checkpoint)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark writes in tasks"
    return context


def _write(target: FileTarget, query: str, batch_id: int, batches: Iterator[pa.RecordBatch]) -> WrittenFiles:
    """In a task, write the rows, or those that the descriptors name."""
    origin = FileOrigin(query, batch_id, _context().partitionId())
    reading = descriptors.DescribedRows(batches)
    files = write_rows(target, origin, reading.rows())
    return WrittenFiles(query, batch_id, files, reading.batch_end)


def _commit(
    options: TableOptions,
    messages: list[WriterCommitMessage | None],
    batch_id: int,
    *,
    identified: bool,
    checkpoint: str = "",
) -> None:
    """On the driver, add the files of all tasks to the table. `identified`: a repeated batch counts once."""
    shares = [share for share in messages if isinstance(share, WrittenFiles)]
    files = [file for share in shares for file in share.files]
    if not files:
        return  # no rows, nothing to commit
    query = shares[0].query
    assert all((share.query, share.batch_id) == (query, batch_id) for share in shares)
    ends = [share.landed for share in shares if share.landed]
    offsets = Offsets.from_text(ends[0]) if ends else None
    record = LandingRecord(query, batch_id, offsets=offsets, checkpoint=checkpoint) if identified else None
    if not open_table(options).commit(files, record):
        # Expected after a crash; otherwise the user reused a batch id, and these rows are not written.
        log.warning("spark.batch_repeated", query=query, batch_id=batch_id, written="nothing: it was committed before")
