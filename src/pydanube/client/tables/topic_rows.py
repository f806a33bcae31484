"""The rows of a topic as one table, and the ways to hand it to other libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydanube.model.notebook import ROWS_SHOWN, html_table

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    import pyarrow as pa


class TopicRows:
    """The rows of a topic, as a table of Arrow. Made by `client.read`.

    It has the C stream interface of Arrow, so that `polars.DataFrame(rows)`, `pyarrow.table(rows)` and DuckDB take it
    as it is.
    """

    def __init__(self, topic: str, table: pa.Table, undecoded: int) -> None:
        self.topic = topic
        self.undecoded = undecoded
        """How many messages could not be decoded; `errors` says what happened to them."""
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        undecoded = f", {self.undecoded} not decoded" if self.undecoded else ""
        return f"<TopicRows {self.topic}: {len(self)} rows{undecoded}, columns {', '.join(self._table.column_names)}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first rows."""
        shown = self._table.slice(0, ROWS_SHOWN)
        more = f"{shown.num_rows} of {len(self)} rows" if shown.num_rows < len(self) else ""
        if self.undecoded:
            more = ", ".join(filter(None, (more, f"{self.undecoded} messages were not decoded")))
        return html_table(self.topic, shown.column_names, zip(*shown.to_pydict().values(), strict=True), more)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        return self._table

    def to_polars(self) -> polars.DataFrame:
        try:
            import polars
        except ModuleNotFoundError as error:
            raise _missing("to_polars", "polars", error) from error
        return polars.DataFrame(self)

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Return a data frame of pandas; `options` are those of `pyarrow.Table.to_pandas`."""
        try:
            return self._table.to_pandas(**options)
        except ModuleNotFoundError as error:
            raise _missing("to_pandas", "pandas", error) from error

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Return a relation of DuckDB, of the given connection or of a new database in memory."""
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise _missing("to_duckdb", "duckdb", error) from error
        return (connection or duckdb.connect()).from_arrow(self._table)


def _missing(method: str, package: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{method}() needs {package}: pip install {package}", name=error.name)
