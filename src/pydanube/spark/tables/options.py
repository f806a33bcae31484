"""The options of a table sink, parsed and checked in one place. A TableOptions is always valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, Literal

from pydanube.model.errors import Invalid
from pydanube.model.staging import BATCH_ID_MAX, check_query

Format = Literal["delta", "iceberg"]
FORMATS: Final[tuple[Format, ...]] = ("delta", "iceberg")

KNOWN: Final = ("path", "table", "partitionBy", "mergeSchema", "compression", "queryId", "batchId")
SPARKS_OWN: Final = ("checkpointLocation", "queryName")
CATALOG_PREFIX: Final = "catalog."
STORE_PREFIX: Final = "store."
COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Which table is written, and how. Picklable."""

    format: Format
    path: str = ""
    """Delta: the URL or directory of the table. Iceberg: the table's directory, or the warehouse if `table` is set."""
    table: str = ""
    """Iceberg: the name in the catalog, ``namespace.name``; empty: the last part of `path`."""
    catalog: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Iceberg: properties of the catalog; empty: a SQLite catalog beside the table's directory."""
    store: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the object store. They and `catalog` are excluded from repr: they include credentials."""
    partition_by: tuple[str, ...] | None = None
    """None: as the existing table, or not partitioned."""
    merge_schema: bool = False
    compression: str = "snappy"
    query_id: str = ""
    batch_id: int = -1
    """Identify a batch that may be written repeatedly and counts once; -1: no such identity."""

    @classmethod
    def parse(cls, format: Format, options: Mapping[str, str]) -> TableOptions:  # noqa: A002  Spark's word
        values, catalog, store = _sort_out(options)
        path, table = values.get("path", "").strip(), values.get("table", "").strip()
        _check_place(format, path, table, catalog)
        query, batch = values.get("queryId"), values.get("batchId")
        if (query is None) != (batch is None):
            raise Invalid("options queryId and batchId belong together: give both, or neither")
        return cls(
            format=format,
            path=path,
            table=table,
            catalog=tuple(sorted(catalog.items())),
            store=tuple(sorted(store.items())),
            partition_by=_names(values.get("partitionBy")),
            merge_schema=_flag("mergeSchema", values.get("mergeSchema", "false")),
            compression=_compression(values.get("compression", "snappy")),
            query_id="" if query is None else check_query("option queryId:", query),
            batch_id=-1 if batch is None else _batch_id(batch),
        )

    @property
    def name(self) -> str:
        """The table as the user named it, for messages."""
        if self.table:
            return f"{self.table} in {self.path}" if self.path else self.table
        return self.path


def _sort_out(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    spelling = {name.lower(): name for name in (*KNOWN, *SPARKS_OWN)}
    values: dict[str, str] = {}
    catalog: dict[str, str] = {}
    store: dict[str, str] = {}
    for name, value in options.items():
        lower = name.lower()
        if lower.startswith(CATALOG_PREFIX):
            catalog[lower.removeprefix(CATALOG_PREFIX)] = value
        elif lower.startswith(STORE_PREFIX):
            store[lower.removeprefix(STORE_PREFIX)] = value
        elif lower in spelling:
            values[spelling[lower]] = value
        else:
            near = get_close_matches(lower, spelling, 1, 0.6)
            known = f"known are {', '.join(KNOWN)}, catalog.* and store.*"
            hint = f"did you mean {spelling[near[0]]!r}?" if near else known
            raise Invalid(f"option {name!r} is unknown: {hint}")
    return values, catalog, store


def _check_place(format: Format, path: str, table: str, catalog: Mapping[str, str]) -> None:  # noqa: A002
    if format == "delta":
        if table or catalog:
            raise Invalid("options table and catalog.* are for danube-iceberg: a Delta table is named by its path")
        if not path:
            raise Invalid("option path is missing: name the directory or URL of the Delta table")
        return
    if catalog and not table:
        raise Invalid("option table is missing: name the table in the catalog, as namespace.name")
    if not catalog and not path:
        raise Invalid("option path is missing: name the directory of the Iceberg table, or a table and its catalog.*")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(one.strip() for one in text.split(",") if one.strip())
    for one in names:
        if names.count(one) > 1:
            raise Invalid(f"option partitionBy names {one!r} more than once")
    return names


def _flag(name: str, text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise Invalid(f"option {name} is {text!r}: use true or false")


def _compression(text: str) -> str:
    if text.strip().lower() not in COMPRESSIONS:
        raise Invalid(f"option compression is {text!r}: use {', '.join(COMPRESSIONS)}")
    return text.strip().lower()


def _batch_id(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= BATCH_ID_MAX:
        return int(text)
    raise Invalid(f"option batchId is {text!r}: use a whole number from 0 to {BATCH_ID_MAX}")
