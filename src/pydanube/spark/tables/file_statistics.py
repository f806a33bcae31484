"""Statistics of a Parquet file in the form of Delta's logs: number of rows, nulls, smallest and largest values.

Readers skip files by them, so a value that might be wrong is left out: of floats (NaN), of long text (its largest value
cannot be cut), of binary and nested columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

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
