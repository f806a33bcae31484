"""Iceberg tables. One transaction adds the files of a batch and records (query, batch) in a property of the table.

The property, not a snapshot's summary, answers whether a batch was committed: snapshots expire, properties stay. A
commit that meets another writer's is not repeated by pyiceberg but here, after the property was read again: so two
drivers of one query never both add a batch.

`compact` rewrites small files into larger ones, in one overwrite snapshot that changes no row. Files that a landing
adds meanwhile are not touched: the commit is made on the state that was read, and is refused if another writer was
first. Then it starts anew; what was rewritten in vain is removed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, parquet_file_to_data_file
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, Table
from pyiceberg.transforms import IdentityTransform

from pydanube.model.errors import DanubeError, Invalid, Refused, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger

from .data_files import DataFile, FileTarget
from .landed import ICEBERG_PREFIX, LandingRecord, parse_record
from .options import TableOptions
from .stores import FileStore, local_path, refuse_foreign_files, sync_file
from .table_formats import Compacted, TableSize
from .table_schema import check_partition_by, check_partition_columns, compare_columns, plain_schema

log = get_logger(__name__)

COMMIT_ATTEMPTS: Final = 20
CATALOG_FILE: Final = "catalog.db"
DEFAULT_NAMESPACE: Final = "default"
RETRIES: Final = "commit.retry.num-retries"

_clock: Final = SystemClock()

# Binary and nested columns have no statistics here, on purpose; pyiceberg would say so for each file.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(
    lambda record: not record.getMessage().startswith("PyArrow statistics missing")
)


class IcebergFormat:
    """One Iceberg table."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self._location: str | None = None
        """Where a table that is created here goes; None: the catalog decides."""
        self._catalog_properties, self.identifier = self._place()
        self._opened: Catalog | None = None

    def _place(self) -> tuple[dict[str, str], str]:
        options = self.options
        identifier = (
            options.table if "." in options.table or not options.table else f"{DEFAULT_NAMESPACE}.{options.table}"
        )
        properties = {**dict(options.store), **dict(options.catalog)}
        if options.catalog:
            if options.path:
                properties.setdefault("warehouse", options.path)
            return properties, identifier
        local = local_path(options.path)
        if local is None:
            raise Invalid(
                f"option path is {options.path}: an Iceberg table in an object store needs a catalog (catalog.type, "
                "catalog.uri ...) and the option table"
            )
        warehouse = local
        if not identifier:
            warehouse, identifier = local.parent, f"{DEFAULT_NAMESPACE}.{local.name}"
            self._location = local.as_uri()
        catalog = {"type": "sql", "uri": f"sqlite:///{warehouse / CATALOG_FILE}?timeout=60"}
        return {**catalog, "warehouse": warehouse.as_uri(), **properties}, identifier

    @property
    def catalog(self) -> Catalog:
        if self._opened is None:
            uri = self._catalog_properties.get("uri", "")
            if uri.startswith("sqlite:////"):
                Path(uri.removeprefix("sqlite:///").partition("?")[0]).parent.mkdir(parents=True, exist_ok=True)
            self._opened = load_catalog("danube", **self._catalog_properties)
        return self._opened

    @property
    def home(self) -> str:
        if self._location is not None:
            return str(local_path(self._location))
        location = self._load().location() if self.exists() else self.options.name
        local = local_path(location) if location.startswith("file:") else None
        return location if local is None else str(local)

    @property
    def store(self) -> FileStore:
        return self._store_of(self._load())

    def _store_of(self, table: Table) -> FileStore:
        settings = tuple(sorted((name, value) for name, value in table.io.properties.items() if isinstance(value, str)))
        return FileStore(f"{table.location().rstrip('/')}/data", "iceberg", settings)

    def exists(self) -> bool:
        uri = self._catalog_properties.get("uri", "")
        if uri.startswith("sqlite:////") and not Path(uri.removeprefix("sqlite:///").partition("?")[0]).exists():
            return False  # asking would create the catalog
        with _iceberg_errors(self.options.name):
            return self.catalog.table_exists(self.identifier)

    def schema(self) -> pa.Schema:
        return self._load().schema().as_arrow()

    # -- before a batch ------------------------------------------------------------------------------------------------

    def prepare(self, rows: pa.Schema) -> FileTarget:
        rows = _without_small_integers(plain_schema(rows))
        table = self._load() if self.exists() else self._create(rows)
        partition_by = self._partition_columns(table)
        check_partition_by(self.options.partition_by, partition_by, self.options.name)
        fit = compare_columns(table.schema().as_arrow(), rows, self.options.name, self.options.merge_schema)
        missing = [one for one in partition_by if one not in rows.names]
        if missing:
            raise Refused(
                f"the table {self.options.name} is partitioned by {', '.join(missing)}, which rows do not have"
            )
        if fit.added:
            with _iceberg_errors(self.options.name), table.update_schema() as update:
                update.union_by_name(pa.schema(fit.added))
        store = self._store_of(table)
        if (local := store.local) is not None:
            local.mkdir(parents=True, exist_ok=True)
        return FileTarget(store, fit.written, partition_by, compression=self.options.compression)

    def _create(self, rows: pa.Schema) -> Table:
        partition_by = list(self.options.partition_by or ())
        check_partition_columns(partition_by, rows)
        if self._location is not None:
            refuse_foreign_files(str(local_path(self._location)))
        with _iceberg_errors(self.options.name):
            namespace = self.identifier.rpartition(".")[0]
            with suppress(NamespaceAlreadyExistsError):
                self.catalog.create_namespace(namespace)
            # Another driver may create it in between: then it is checked as any existing table is.
            with (
                suppress(TableAlreadyExistsError, CommitFailedException),
                self.catalog.create_table_transaction(self.identifier, rows, self._location) as creating,
                creating.update_spec() as spec,
            ):
                for name in partition_by:
                    spec.add_identity(name)
            return self.catalog.load_table(self.identifier)

    def _partition_columns(self, table: Table) -> tuple[str, ...]:
        spec: PartitionSpec = table.spec()
        for one in spec.fields:
            if not isinstance(one.transform, IdentityTransform):
                raise Refused(
                    f"the table {self.options.name} is partitioned by {one.transform} of "
                    f"{table.schema().find_column_name(one.source_id)}, which this sink does not write"
                )
        return tuple(str(table.schema().find_column_name(one.source_id)) for one in spec.fields)

    # -- commits -------------------------------------------------------------------------------------------------------

    def committed_batch(self, query: str) -> int | None:
        return _committed(self._load(), query)

    def commit(self, files: Sequence[DataFile], record: LandingRecord | None) -> bool:
        for _ in range(COMMIT_ATTEMPTS):
            table = self._load()
            if record is not None:
                done = _committed(table, record.query)
                if done is not None and done >= record.batch_id:
                    return False
            if self._try_commit(table, files, record):
                self._sync_metadata(table)
                return True
        raise Unavailable(f"{COMMIT_ATTEMPTS} attempts to commit to {self.options.name} met other writers: try again")

    def _try_commit(self, table: Table, files: Sequence[DataFile], record: LandingRecord | None) -> bool:
        """Commit on the state that `table` has; returns False if another writer was first."""
        store = self._store_of(table)
        summary: dict[str, str] = {}
        without_retries(table)
        try:
            with _iceberg_errors(self.options.name), table.transaction() as transaction:
                if record is not None:
                    summary = {"danube.query": record.query, "danube.batch": str(record.batch_id)}
                    text = replace(record, time_ms=_clock.now_us() // 1_000).to_json()
                    transaction.set_properties({f"{ICEBERG_PREFIX}{record.query}": text})
                # A batch's files have names of their own, so they are not searched for among all files of the table.
                paths = [store.url(one.path) for one in files]
                transaction.add_files(paths, snapshot_properties=summary, check_duplicate_files=False)
        except CommitFailedException as error:
            log.warning("spark.table_commit_conflict", table=self.options.name, error=str(error))
            return False
        return True

    def _sync_metadata(self, table: Table) -> None:
        """Force the metadata of the current snapshot to the disk, if the table is on one."""
        snapshot = table.current_snapshot()
        names = [table.metadata_location]
        if snapshot is not None:
            names.append(snapshot.manifest_list)
            mine = (one for one in snapshot.manifests(table.io) if one.added_snapshot_id == snapshot.snapshot_id)
            names += [one.manifest_path for one in mine]
        for name in names:
            if (local := local_path(name)) is not None and local.exists():
                sync_file(local)

    # -- questions -----------------------------------------------------------------------------------------------------

    def records(self) -> list[LandingRecord]:
        properties = self._load().properties
        found = [parse_record(value) for name, value in properties.items() if name.startswith(ICEBERG_PREFIX)]
        return sorted((one for one in found if one is not None), key=lambda one: -one.time_ms)

    def referenced(self) -> set[str]:
        table = self._load()
        base = f"{self._store_of(table).root}/"
        paths = table.inspect.all_data_files().column("file_path").to_pylist()
        return {str(path).removeprefix(base) for path in paths}

    def size(self) -> TableSize:
        table = self._load()
        snapshot = table.current_snapshot()
        if snapshot is None:
            return TableSize(0, 0, 0, "none")
        files = table.inspect.data_files()
        rows, size = sum(files.column("record_count").to_pylist()), sum(files.column("file_size_in_bytes").to_pylist())
        return TableSize(rows, files.num_rows, size, str(snapshot.snapshot_id))

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def compact(self, target_bytes: int) -> Compacted:
        for _ in range(COMMIT_ATTEMPTS):
            table = self._load()
            try:
                with _iceberg_errors(self.options.name):
                    return compact(table, self._store_of(table), target_bytes, self.options.compression)
            except (CommitFailedException, ValidationException) as error:
                log.warning("spark.table_commit_conflict", table=self.options.name, error=str(error))
        raise Unavailable(f"{COMMIT_ATTEMPTS} attempts to compact {self.options.name} met other writers: try again")

    def expire(self, retain_s: float) -> int:
        table = self._load()
        before = self.referenced()
        limit = datetime.fromtimestamp((_clock.now_us() / 1e6) - retain_s, UTC)
        with _iceberg_errors(self.options.name):
            table.maintenance.expire_snapshots().older_than(limit).commit()
        return delete_unreferenced(self.store, before - self.referenced())

    def _load(self) -> Table:
        with _iceberg_errors(self.options.name):
            return self.catalog.load_table(self.identifier)


def without_retries(table: Table) -> None:
    """Let a commit of this handle fail at once if another writer was first. The stored properties do not change."""
    table.metadata.properties[RETRIES] = "0"


def _committed(table: Table, query: str) -> int | None:
    record = parse_record(table.properties.get(f"{ICEBERG_PREFIX}{query}"))
    return None if record is None else record.batch_id


def _without_small_integers(rows: pa.Schema) -> pa.Schema:
    """Return the schema with int for tinyint and smallint, which Iceberg does not have."""
    small = (pa.int8(), pa.int16())
    return pa.schema([pa.field(one.name, pa.int32()) if one.type in small else one for one in rows])


@contextmanager
def _iceberg_errors(name: str) -> Iterator[None]:
    """Turn errors of pyiceberg and its catalogs into ours; conflicts of commits are left to the caller."""
    try:
        yield
    except (CommitFailedException, ValidationException, DanubeError):
        raise
    except NoSuchTableError:
        raise Refused(f"there is no Iceberg table {name}") from None
    except Exception as error:  # each catalog has errors of its own
        raise Refused(f"the Iceberg table {name}: {' '.join(str(error).split())}") from error


SMALL_SHARE: Final = 0.75
"""Files larger than this share of the target size are left as they are."""


def compact(table: Table, store: FileStore, target_bytes: int, compression: str) -> Compacted:
    """Rewrite groups of small files. Raises CommitFailedException if another writer was first."""
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
