"""Delta tables. The driver's commit adds the files of a batch together with the transaction (query, batch).

`transaction_version` is asked on the handle that commits. So if another driver commits the same batch in between,
Delta's own conflict check refuses the second commit, which then finds the batch committed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from pydanube.model.errors import Refused, Unavailable
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.telemetry import get_logger

from .data_files import DataFile, FileTarget
from .landed import DELTA_KEY, LandingRecord, parse_record
from .options import TableOptions
from .stores import FileStore, local_path, refuse_foreign_files, sync_file
from .table_formats import Compacted, TableSize
from .table_schema import check_partition_by, check_partition_columns, check_spelling, compare_columns, plain_schema

log = get_logger(__name__)

COMMIT_ATTEMPTS: Final = 20
"""Conflicts with other writers of the table; each attempt reads the table again."""

WRITER_FEATURES: Final = frozenset(
    {"appendOnly", "invariants", "timestampNtz", "deletionVectors", "changeDataFeed", "domainMetadata", "v2Checkpoint",
     "vacuumProtocolCheck", "checkConstraints", "generatedColumns", "identityColumns", "columnMapping"}
)  # fmt: skip
"""Features of a table that files of plain rows may be added to. The last four only if no column uses them."""

_COLUMN_RULES: Final = ("delta.generationExpression", "delta.invariants", "delta.identity.start")
_clock: Final = SystemClock()


class DeltaFormat:
    """One Delta table."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        local = local_path(options.path)
        self.home = options.path.rstrip("/") if local is None else str(local)
        self._settings = dict(options.store) or None

    @property
    def store(self) -> FileStore:
        return FileStore(self.home, "delta", self.options.store)

    def exists(self) -> bool:
        with _delta_errors(self.home):
            return DeltaTable.is_deltatable(self.home, self._settings)

    def schema(self) -> pa.Schema:
        return _arrow_schema(self._load())

    # -- before a batch ------------------------------------------------------------------------------------------------

    def prepare(self, rows: pa.Schema) -> FileTarget:
        rows = plain_schema(rows)
        check_spelling(rows, self.home)
        table = self._load() if self.exists() else self._create(rows)
        partition_by = tuple(table.metadata().partition_columns)
        _refuse_special_tables(table, self.home)
        check_partition_by(self.options.partition_by, partition_by, self.home)
        fit = compare_columns(_arrow_schema(table), rows, self.home, self.options.merge_schema)
        missing = [one for one in partition_by if one not in rows.names]
        if missing:
            raise Refused(f"the table {self.home} is partitioned by {', '.join(missing)}, which the rows do not have")
        if fit.added:
            with _delta_errors(self.home):
                table.alter.add_columns([Field.from_arrow(one) for one in fit.added])
        return FileTarget(
            self.store, fit.written, partition_by, keep_partition_columns=False, compression=self.options.compression
        )

    def _create(self, rows: pa.Schema) -> DeltaTable:
        partition_by = list(self.options.partition_by or ())
        check_partition_columns(partition_by, rows)
        refuse_foreign_files(self.home)
        if (local := local_path(self.home)) is not None:
            local.mkdir(parents=True, exist_ok=True)
        with _delta_errors(self.home):
            DeltaTable.create(self.home, rows, mode="ignore", partition_by=partition_by, storage_options=self._settings)
        self._sync_log(self._load(), 0)
        return self._load()

    # -- commits -------------------------------------------------------------------------------------------------------

    def committed_batch(self, query: str) -> int | None:
        return self._load().transaction_version(query)

    def commit(self, files: Sequence[DataFile], record: LandingRecord | None) -> bool:
        now_ms = _clock.now_us() // 1_000
        properties = CommitProperties()
        if record is not None:
            properties = CommitProperties(
                custom_metadata={DELTA_KEY: replace(record, time_ms=now_ms).to_json()},
                app_transactions=[Transaction(record.query, record.batch_id)],
            )
        actions: list[AddAction | RemoveAction] = [_add_action(one, now_ms) for one in files]
        for _ in range(COMMIT_ATTEMPTS):
            table = self._load()
            if record is not None and _is_committed(table, record):
                return False
            try:
                with _delta_errors(self.home):
                    table.create_write_transaction(
                        actions,
                        "append",
                        table.schema(),
                        table.metadata().partition_columns,
                        commit_properties=properties,
                    )
            except CommitFailedError as error:
                log.warning("spark.table_commit_conflict", table=self.home, error=str(error))
                continue
            self._sync_log(table, table.version() + 1)
            return True
        raise Unavailable(f"{COMMIT_ATTEMPTS} attempts to commit to {self.home} met other writers: try again")

    def _sync_log(self, table: DeltaTable, first: int) -> None:
        """Force the log entries from version `first` on to the disk, if the table is on one.

        Spark's checkpoint would otherwise survive a loss of power that takes the commit with it.
        """
        if (local := local_path(self.home)) is not None:
            table.update_incremental()
            for version in range(first, table.version() + 1):
                if (entry := local / "_delta_log" / f"{version:020d}.json").exists():
                    sync_file(entry)

    # -- questions -----------------------------------------------------------------------------------------------------

    def records(self) -> list[LandingRecord]:
        found: dict[str, LandingRecord] = {}
        with _delta_errors(self.home):
            history = self._load().history()
        for commit in history:
            record = parse_record(commit.get(DELTA_KEY))
            if record is not None and record.query not in found:
                found[record.query] = record
        return list(found.values())

    def referenced(self) -> set[str]:
        table = self._load()
        with _delta_errors(self.home):
            removed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)
        active = {str(path) for path in pa.table(table.get_add_actions()).column("path").to_pylist()}
        return active | {str(path).removeprefix(f"{self.home}/") for path in removed}

    def size(self) -> TableSize:
        table = self._load()
        files = pa.table(table.get_add_actions())
        rows = sum(one or 0 for one in files.column("num_records").to_pylist())
        size = sum(files.column("size_bytes").to_pylist())
        return TableSize(rows, files.num_rows, size, str(table.version()))

    # -- maintenance ---------------------------------------------------------------------------------------------------

    def compact(self, target_bytes: int) -> Compacted:
        table = self._load()
        with _delta_errors(self.home):
            metrics = table.optimize.compact(target_size=target_bytes)
        added, removed = metrics["filesAdded"], metrics["filesRemoved"]
        self._sync_log(self._load(), table.version())
        return Compacted(
            metrics["numFilesRemoved"],
            metrics["numFilesAdded"],
            _total_bytes(removed),
            _total_bytes(added),
        )

    def expire(self, retain_s: float) -> int:
        hours = int(retain_s // 3600)
        with _delta_errors(self.home):
            return len(self._load().vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False))

    def _load(self) -> DeltaTable:
        with _delta_errors(self.home):
            return DeltaTable(self.home, storage_options=self._settings)


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema().to_arrow())


def _is_committed(table: DeltaTable, record: LandingRecord) -> bool:
    done = table.transaction_version(record.query)
    return done is not None and done >= record.batch_id


def _add_action(one: DataFile, now_ms: int) -> AddAction:
    # Delta's protocol has no empty string among partition values: it is read as null.
    values = {name: value or None for name, value in one.partition}
    return AddAction(one.path, one.size, values, now_ms, data_change=True, stats=one.statistics)


def _total_bytes(metrics: Any) -> int:
    found = json.loads(metrics) if isinstance(metrics, str) else metrics
    return int(found.get("totalSize", 0))


def _refuse_special_tables(table: DeltaTable, home: str) -> None:
    """Raise Refused for a table with rules that files of plain rows would break."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    reasons = [f"the feature {one}" for one in protocol.writer_features or () if one not in WRITER_FEATURES]
    reasons += [f"the constraint {one}" for one in configuration if one.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("column mapping")
    for column in table.schema().fields:
        reasons += [f"{rule} on {column.name}" for rule in _COLUMN_RULES if rule in (column.metadata or {})]
    if reasons:
        raise Refused(f"the table {home} has {', '.join(reasons)}, which this sink does not write")


@contextmanager
def _delta_errors(home: str) -> Iterator[None]:
    """Turn errors of deltalake into ours; conflicts of commits are left to the caller."""
    try:
        yield
    except CommitFailedError:
        raise
    except TableNotFoundError:
        raise Refused(f"there is no Delta table at {home}") from None
    except (DeltaError, OSError) as error:
        raise Refused(f"the Delta table {home}: {' '.join(str(error).split())}") from error
