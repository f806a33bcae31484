"""What a table format can do, and opening the one that the options name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from pydanube.model.errors import Refused

from .data_files import DataFile, FileTarget
from .landed import LandingRecord
from .options import TableOptions
from .stores import FileStore

EXTRA = "pip install 'pydanube[lakehouse]'"


@dataclass(frozen=True, slots=True)
class TableSize:
    """How large the current version of a table is."""

    rows: int
    files: int
    bytes: int
    version: str
    """The version of a Delta table, the snapshot id of an Iceberg table."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


class TableFormat(Protocol):
    """One table of one format. Used on the driver and by commands; every method reads the table's current state."""

    options: TableOptions

    @property
    def store(self) -> FileStore:
        """The directory of the data files."""
        ...

    @property
    def home(self) -> str:
        """The directory or URL of the table."""
        ...

    def exists(self) -> bool: ...

    def schema(self) -> pa.Schema: ...

    def prepare(self, rows: pa.Schema) -> FileTarget:
        """Create the table or check that `rows` fit it, add columns if the options say so, return how to write."""
        ...

    def committed_batch(self, query: str) -> int | None:
        """Return the last batch of a query that was committed; None if there was none."""
        ...

    def commit(self, files: Sequence[DataFile], record: LandingRecord | None) -> bool:
        """Add the files in one commit. Returns False, and adds nothing, if the record's batch was committed before."""
        ...

    def records(self) -> list[LandingRecord]:
        """Return the last record of every query that wrote here, newest first."""
        ...

    def referenced(self) -> set[str]:
        """Return the data files that any version of the table still needs, relative to `store`."""
        ...

    def size(self) -> TableSize: ...

    def compact(self, target_bytes: int) -> Compacted: ...

    def expire(self, retain_s: float) -> int:
        """Delete the files that only versions older than `retain_s` need; return how many."""
        ...


def open_table(options: TableOptions) -> TableFormat:
    """Return the table that the options name. Raises Refused if its library is not installed."""
    if options.format == "delta":
        need("deltalake")
        from .delta import DeltaFormat

        return DeltaFormat(options)
    need("pyiceberg")
    from .iceberg import IcebergFormat

    return IcebergFormat(options)


def need(library: str) -> Any:
    """Import a library of the extra `lakehouse`. Raises Refused, with what to install, if it is missing."""
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise Refused(f"tables need {library}, which is not installed: {EXTRA}") from None
