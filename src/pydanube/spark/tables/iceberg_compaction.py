"""Rewrites the small files of an Iceberg table into larger ones, in one overwrite snapshot that changes no row.

Files that a landing adds meanwhile are not touched: the commit is made on the state that was read, and is refused if
another writer was first. The caller then starts anew; what was rewritten in vain is removed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import FileScanTask, Table

from pydanube.runtime.randomness import identity

from .columns import plain_schema
from .formats import Compacted
from .stores import FileStore

SMALL_SHARE: Final = 0.75
"""Files larger than this share of the target size are left as they are."""


def compact(table: Table, store: FileStore, target_bytes: int, compression: str) -> Compacted:
    """Rewrite groups of small files. Raises CommitFailedException if another writer was first."""
    from .iceberg import without_retries

    groups = list(_groups(table.scan().plan_files(), target_bytes))
    if not groups:
        return Compacted()
    written: list[str] = []
    try:
        added = [_rewrite(table, store, group, compression, written) for group in groups]
        without_retries(table)
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
            for task in (task for group in groups for task in group):
                overwrite.delete_data_file(task.file)
            for one in added:
                overwrite.append_data_file(one)
    except BaseException:
        delete_unreferenced(store, written)
        raise
    removed = [task.file for group in groups for task in group]
    return Compacted(len(removed), len(added), _bytes(removed), _bytes(added))


def delete_unreferenced(store: FileStore, paths: Iterable[str]) -> int:
    """Delete files that no snapshot needs; return how many there were."""
    count = 0
    for path in paths:
        with suppress(FileNotFoundError):
            store.delete(path)
            count += 1
    return count


def _groups(tasks: Iterable[FileScanTask], target_bytes: int) -> Iterable[list[FileScanTask]]:
    """Yield groups of at least two small files of one partition, of about the target size together."""
    by_partition: dict[Any, list[FileScanTask]] = defaultdict(list)
    for task in tasks:
        if task.file.file_size_in_bytes < target_bytes * SMALL_SHARE and not task.delete_files:
            by_partition[(task.file.spec_id, task.file.partition)].append(task)
    for small in by_partition.values():
        group: list[FileScanTask] = []
        size = 0
        for task in sorted(small, key=lambda one: one.file.file_path):
            if group and size + task.file.file_size_in_bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(task)
            size += task.file.file_size_in_bytes
        if len(group) > 1:
            yield group


def _rewrite(
    table: Table, store: FileStore, group: Sequence[FileScanTask], compression: str, written: list[str]
) -> IcebergFile:
    """Write the rows of the files into one, beside the first of them, and return it."""
    first = store.relative(group[0].file.file_path)
    directory = first.rpartition("/")[0]
    path = f"{directory}/compacted-{identity()}.parquet".lstrip("/")
    written.append(path)
    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    filesystem, base = store.open()
    schema = plain_schema(table.schema().as_arrow())
    with (
        filesystem.open_output_stream(base + path) as sink,
        pq.ParquetWriter(sink, schema, compression=compression, store_schema=False) as writer,
    ):
        for task in group:
            rows = scan.to_table([task])
            writer.write_table(pa.Table.from_arrays([_cast(rows, one) for one in schema], schema=schema))
    store.sync(path)
    return parquet_file_to_data_file(table.io, table.metadata, store.url(path))


def _cast(rows: pa.Table, column: pa.Field) -> pa.ChunkedArray:
    values = rows.column(column.name)
    return values if values.type == column.type else values.cast(column.type)


def _bytes(files: Iterable[IcebergFile]) -> int:
    return sum(one.file_size_in_bytes for one in files)
