"""THE DATA PIPELINE. Topics as Spark data frames, batch and stream, read and written exactly once.

Lives here      the data source, its options and columns, reading ranges, staged writing, sessions and their Java
May import      client, codec, formats, runtime, model; pyspark and pyarrow
Flows through   tasks wrap stored batches as Arrow; rows become staged batches, and one commit publishes them
Never           a decision of the broker; a socket that is pickled; a Python loop over rows

The extra `spark` installs what this package needs. Without it, using one of the names below raises an error that says
so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydanube.runtime.late_imports import late

if TYPE_CHECKING:
    from .datasource import DanubeDataSource
    from .session_builder import register, session
    from .tables.sources import DanubeDeltaDataSource, DanubeIcebergDataSource

__all__ = ["DanubeDataSource", "DanubeDeltaDataSource", "DanubeIcebergDataSource", "register", "session"]

_MODULES = {
    "DanubeDataSource": ".datasource",
    "DanubeDeltaDataSource": ".tables.sources",
    "DanubeIcebergDataSource": ".tables.sources",
    "register": ".session_builder",
    "session": ".session_builder",
}
_load = late(__name__, _MODULES)


def __getattr__(name: str) -> object:
    """Import a public name on first use: importing Spark takes a second, and not every module here needs it."""
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "pyarrow"}:
            raise
        needed = f"pydanube.spark needs {error.name}, which is not installed: pip install 'pydanube[spark]'"
        raise ModuleNotFoundError(needed, name=error.name) from error


def __dir__() -> list[str]:
    return __all__
