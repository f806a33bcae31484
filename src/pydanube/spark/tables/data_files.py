"""Parquet files of a table: their names, writing them in a task, and their statistics.

    danube-<query>-<batch>-<task>-<random>-<number>.parquet

The name says which query and batch a file belongs to. So a file that is in no version of the table can be told from
one that still may be committed (see `orphans`). Two attempts of a task never write the same file.

Statistics have the form of Delta's logs: number of rows, nulls, smallest and largest values. Readers skip files by
them, so a value that might be wrong is left out: of floats (NaN), of long text (its largest value cannot be cut), of
binary and nested columns.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pydanube.model.limits import MIB
from pydanube.runtime.randomness import identity

from .stores import FileStore

GROUP_BYTES: Final = 64 * MIB
"""Rows are collected up to this many bytes before they become a row group."""
GROUP_ROWS: Final = 1 << 20
GROUP_BYTES_MIN: Final = 2 * MIB
FILE_BYTES: Final = 256 * MIB
"""A file that is larger is ended, and the next one begun."""
OPEN_FILES_MAX: Final = 64
"""Files that a task writes at the same time, one for each value of the partition columns."""

NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"

_NAME: Final = re.compile(r"danube-(?P<query>.+)-(?P<batch>\d{10,19})-\d{5,}-[0-9a-f]{32}-\d+\.parquet")


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The task that writes a file."""

    query: str
    batch_id: int
    task: int

    def file_prefix(self) -> str:
        return (
            f"danube-{quote(self.query, safe='').replace('%', '+')}-{self.batch_id:010d}-{self.task:05d}-{identity()}"
        )


def parse_name(path: str) -> tuple[str, int] | None:
    """Return the query and the batch id that a file name of ours has; None for any other file."""
    found = _NAME.fullmatch(path.rpartition("/")[2])
    return None if found is None else (unquote(found["query"].replace("+", "%")), int(found["batch"]))


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that a task wrote, and what the commit has to know about it."""

    path: str
    """Relative to the directory of data files."""
    size: int
    rows: int
    partition: tuple[tuple[str, str | None], ...]
    """The value of each partition column, as text; None: null."""
    statistics: str
    """As JSON, in the form of Delta's logs."""


@dataclass(frozen=True, slots=True)
class FileTarget:
    """Where and how tasks write. Picklable."""

    store: FileStore
    schema: pa.Schema
    """The columns, in their order and with the table's types."""
    partition_by: tuple[str, ...] = ()
    keep_partition_columns: bool = True
    """Whether the files have the partition columns too: in Iceberg they do, in Delta they do not."""
    compression: str = "snappy"

    @property
    def file_schema(self) -> pa.Schema:
        if self.keep_partition_columns:
            return self.schema
        return pa.schema([one for one in self.schema if one.name not in self.partition_by])


def write_rows(target: FileTarget, origin: FileOrigin, batches: Iterable[pa.RecordBatch]) -> tuple[DataFile, ...]:
    """Write all rows and return the files, which are synced. Files of an attempt that fails stay, uncommitted."""
    files = _TaskFiles(target, origin)
    for batch in batches:
        if batch.num_rows:
            files.add(conform(batch, target.schema))
    return files.finish()


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the columns of `schema`, in its order and types. They have all of these columns."""
    if rows.schema.equals(schema, check_metadata=False):
        return rows
    columns = [rows.column(one.name) for one in schema]
    cast = [
        one if one.type == column.type else one.cast(column.type) for one, column in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


class _TaskFiles:
    """The files of one task: one at a time for each value of the partition columns."""

    def __init__(self, target: FileTarget, origin: FileOrigin) -> None:
        self._target = target
        self._prefix = origin.file_prefix()
        self._filesystem, self._base = target.store.open()
        self._open: OrderedDict[tuple[str | None, ...], _OpenFile] = OrderedDict()
        self._done: list[DataFile] = []
        self._count = 0

    def add(self, rows: pa.RecordBatch) -> None:
        for values, part in split_by_partition(rows, self._target.partition_by):
            self._file_for(values).add(part, max(GROUP_BYTES // len(self._open), GROUP_BYTES_MIN))
            if self._open[values].size > FILE_BYTES:
                self._end(values)

    def finish(self) -> tuple[DataFile, ...]:
        for values in list(self._open):
            self._end(values)
        return tuple(self._done)

    def _file_for(self, values: tuple[str | None, ...]) -> _OpenFile:
        if values in self._open:
            self._open.move_to_end(values)
            return self._open[values]
        if len(self._open) >= OPEN_FILES_MAX:
            self._end(next(iter(self._open)))  # the one that was written to least recently
        directory = partition_directory(self._target.partition_by, values)
        path = f"{directory}{self._prefix}-{self._count}.parquet"
        self._count += 1
        if directory and self._target.store.local is not None:
            self._filesystem.create_dir(self._base + directory, recursive=True)
        self._open[values] = _OpenFile(self._filesystem, self._base, path, self._target)
        return self._open[values]

    def _end(self, values: tuple[str | None, ...]) -> None:
        partition = tuple(zip(self._target.partition_by, values, strict=True))
        self._done.append(self._open.pop(values).end(partition))


class _OpenFile:
    """A Parquet file that is being written. Rows are collected until they are worth a row group."""

    def __init__(self, filesystem: Any, base: str, path: str, target: FileTarget) -> None:
        self._path = path
        self._target = target
        self._schema = target.file_schema
        self._metadata: list[pq.FileMetaData] = []
        self._sink = filesystem.open_output_stream(base + path)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=target.compression,
            use_dictionary=_dictionary_columns(self._schema),
            write_statistics=_statistics_columns(self._schema),
            metadata_collector=self._metadata,
            store_schema=False,
        )
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = self._held_rows = 0

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def add(self, rows: pa.RecordBatch, group_bytes: int) -> None:
        own = rows if self._target.keep_partition_columns else rows.select(self._schema.names)
        self._held.append(own)
        self._held_bytes += own.nbytes
        self._held_rows += own.num_rows
        if self._held_bytes >= group_bytes or self._held_rows >= GROUP_ROWS:
            self._write_group()

    def end(self, partition: tuple[tuple[str, str | None], ...]) -> DataFile:
        self._write_group()
        self._writer.close()
        size = self.size
        self._sink.close()
        self._target.store.sync(self._path)
        metadata = self._metadata[0]
        return DataFile(self._path, size, metadata.num_rows, partition, statistics_json(metadata, self._schema))

    def _write_group(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema), row_group_size=self._held_rows)
            self._held, self._held_bytes, self._held_rows = [], 0, 0


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    """Return the columns whose values repeat; payloads are not worth the attempt."""
    return [one.name for one in schema if pa.types.is_string(one.type) or pa.types.is_integer(one.type)]


def _statistics_columns(schema: pa.Schema) -> list[str]:
    return [one.name for one in schema if not pa.types.is_nested(one.type) and not pa.types.is_binary(one.type)]


# -- partition columns -------------------------------------------------------------------------------------------------


def split_by_partition(
    rows: pa.RecordBatch, names: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the rows of each combination of values of the partition columns, in their order."""
    if not names:
        yield (), rows
        return
    encoded = [rows.column(name).dictionary_encode("encode") for name in names]
    codes = np.zeros(rows.num_rows, np.int64)
    for one in encoded:
        codes = codes * len(one.dictionary) + one.indices.to_numpy()
    present, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    for number, place in enumerate(first):
        values = tuple(partition_text(one.dictionary[one.indices[int(place)].as_py()].as_py()) for one in encoded)
        if len(present) == 1:
            yield values, rows
        else:
            yield values, rows.take(pa.array(np.flatnonzero(inverse == number)))


def partition_text(value: object) -> str | None:
    """Return the value of a partition column as the table formats write it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def partition_directory(names: Sequence[str], values: Sequence[str | None]) -> str:
    """Return ``region=eu/`` and the like; characters that are special in paths and URLs are replaced."""
    parts = (
        f"{_safe(name)}={NULL_DIRECTORY if value is None else _safe(value)}/"
        for name, value in zip(names, values, strict=True)
    )
    return "".join(parts)


def _safe(text: str) -> str:
    """Return the text for a directory name. It need not be reversible: the table's log has the value."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:80] or "_"


COLUMNS_MAX: Final = 32
"""As many columns get statistics, as in Delta's own writers."""
TEXT_CHARACTERS_MAX: Final = 32


def statistics_json(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    smallest: dict[str, object] = {}
    largest: dict[str, object] = {}
    nulls: dict[str, int] = {}
    leaves = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    for column in list(schema)[:COLUMNS_MAX]:
        if column.name not in leaves or pa.types.is_nested(column.type):
            continue
        chunks = [
            metadata.row_group(group).column(leaves[column.name]).statistics for group in range(metadata.num_row_groups)
        ]
        if not chunks or any(one is None or not one.has_null_count for one in chunks):
            continue
        nulls[column.name] = sum(one.null_count for one in chunks)
        if _has_bounds(column.type) and (bounds := _bounds(chunks)) is not None:
            smallest[column.name], largest[column.name] = bounds
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    )


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_string(kind) or types.is_date(kind) or types.is_timestamp(kind))


def _bounds(chunks: Iterable[Any]) -> tuple[object, object] | None:
    """Return the smallest and the largest value of all row groups; None if one is unknown."""
    found: list[tuple[Any, Any]] = []
    for one in chunks:
        if one.has_min_max:
            found.append((one.min, one.max))
        elif one.num_values:
            return None
    if not found:
        return None
    low, high = _value(min(one for one, _ in found)), _value(max(one for _, one in found))
    return None if low is None or high is None else (low, high)


def _value(value: object) -> object:
    """Return the value as JSON; None if it must be left out."""
    match value:
        case str():
            return value if len(value) <= TEXT_CHARACTERS_MAX else None
        case datetime():
            moment = value.replace(tzinfo=None) if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
            return f"{moment.isoformat(timespec='microseconds')}{'Z' if value.tzinfo is not None else ''}"
        case date():
            return value.isoformat()
        case int():
            return value
    return None
