"""The options of a table sink, parsed and checked in one place. A TableOptions is always valid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pydanube.model.errors import Invalid
from pydanube.model.text import Choice, Flag, did_you_mean
from pydanube.spark.given_options import GivenOptions

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
        given = GivenOptions(options, (*KNOWN, *SPARKS_OWN), (CATALOG_PREFIX, STORE_PREFIX), _unknown)
        path, table = (given.text("path") or "").strip(), (given.text("table") or "").strip()
        catalog = given.prefixed(CATALOG_PREFIX)
        _check_place(format, path, table, has_catalog=bool(catalog))
        query_id, batch_id = given.batch()
        return cls(
            format=format,
            path=path,
            table=table,
            catalog=catalog,
            store=given.prefixed(STORE_PREFIX),
            partition_by=_names(given.text("partitionBy")),
            merge_schema=given.read("mergeSchema", Flag(), False),
            compression=given.read("compression", Choice(COMPRESSIONS), "snappy"),
            query_id=query_id,
            batch_id=batch_id,
        )

    @property
    def name(self) -> str:
        """The table as the user named it, for messages."""
        if self.table:
            return f"{self.table} in {self.path}" if self.path else self.table
        return self.path


def _unknown(name: str) -> str:
    hint = did_you_mean(name, KNOWN, otherwise=f"known are {', '.join(KNOWN)}, catalog.* and store.*")
    return f"option {name!r} is unknown: {hint}"


def _check_place(format: Format, path: str, table: str, *, has_catalog: bool) -> None:  # noqa: A002
    if format == "delta":
        if table or has_catalog:
            raise Invalid("options table and catalog.* are for danube-iceberg: a Delta table is named by its path")
        if not path:
            raise Invalid("option path is missing: name the directory or URL of the Delta table")
        return
    if has_catalog and not table:
        raise Invalid("option table is missing: name the table in the catalog, as namespace.name")
    if not has_catalog and not path:
        raise Invalid("option path is missing: name the directory of the Iceberg table, or a table and its catalog.*")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(one.strip() for one in text.split(",") if one.strip())
    for one in names:
        if names.count(one) > 1:
            raise Invalid(f"option partitionBy names {one!r} more than once")
    return names
