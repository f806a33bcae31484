"""The rows of `danube sql` as a table, JSON lines, CSV or Parquet.

Bytes that are UTF-8 are written as text. Others are \\xNN in a table, and Base64 in JSON and CSV. Times are ISO 8601.
"""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from pydanube.cli.output import table, to_json
from pydanube.model.errors import Invalid
from pydanube.runtime.whole_file import replacing

if TYPE_CHECKING:
    import pyarrow

FORMATS: Final = ("table", "json", "csv", "parquet")


def write_rows(rows: pyarrow.Table, form: str, output: Path | None) -> None:
    """Write the rows to a file, or to stdout. Raises Invalid for columns that JSON or Parquet would have only once."""
    if form in ("json", "parquet"):
        _check_names(rows.column_names)
    if form == "parquet":
        import pyarrow.parquet

        assert output is not None
        with replacing(output) as path:
            pyarrow.parquet.write_table(rows, path, compression="zstd")
        return
    if output is None:
        _write_text(rows, form, None)
        return
    with replacing(output) as path, path.open("w", newline="") as file:
        _write_text(rows, form, file)


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"two columns are called {name!r}: give one of them another name, with AS")


def _write_text(rows: pyarrow.Table, form: str, file: TextIO | None) -> None:
    match form:
        case "json":
            for row in _each(rows):
                click.echo(
                    to_json(dict(zip(rows.column_names, map(_plain, row), strict=True)), compact=True), file=file
                )
        case "csv":
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(rows.column_names)
            for row in _each(rows):
                writer.writerow([_cell(one, "") for one in row])
                if text.tell() > 1 << 20:
                    _drain(text, file)
            _drain(text, file)
        case _:
            _write_table(rows, file)


def _drain(text: io.StringIO, file: TextIO | None) -> None:
    click.echo(text.getvalue(), nl=False, file=file)
    text.seek(0)
    text.truncate()


def _write_table(rows: pyarrow.Table, file: TextIO | None) -> None:
    import pyarrow as pa

    numbers = [
        one.name
        for one in rows.schema
        if pa.types.is_integer(one.type) or pa.types.is_floating(one.type) or pa.types.is_decimal(one.type)
    ]
    cells = [[_cell(one, "null") for one in row] for row in _each(rows)]
    table(rows.column_names, cells, right=numbers, file=file)


def _each(rows: pyarrow.Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows; two columns may have one name."""
    for batch in rows.to_batches(max_chunksize=10_000):
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pyarrow.Array) -> list[Any]:
    """Return the values of a column; maps are dicts, or lists of pairs if their keys cannot be those of a dict."""
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    except TypeError:
        values = column.to_pylist()
    return values


def _cell(value: Any, null: str) -> str:
    """Return a value as the text of a cell; what is nested is JSON."""
    match value:
        case None:
            return null
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.decode("utf-8", errors="backslashreplace") if null else str(_plain(value))
        case dict() | list():
            return to_json(_plain(value), compact=True)
        case datetime():
            return value.isoformat(timespec="microseconds" if value.microsecond % 1000 else "milliseconds")
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() and abs(value) < 2**63 else str(value)
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {key if isinstance(key, str) else _cell(key, ""): _plain(one) for key, one in value.items()}
        case list() if value and all(isinstance(one, tuple) for one in value):  # a map with keys that are records
            return {_cell(key, ""): _plain(one) for key, one in value}
        case list():
            return [_plain(one) for one in value]
    return value
