"""Pipelines from YAML files: a file is read and checked before Spark starts, then run.

```python
from pydanube.spark import pipelines

pipelines.run("orders.yaml", once=True)             # everything that is there; without `once`, until it is stopped
```

loading                 reads and checks a file: `check_file`, `load`
definition              what a file defines, as frozen dataclasses
yaml_nodes, file_places YAML with the place of every value; problems and their places
parsing                 the keys of a file and their values
checks, sql_checks      references, cycles, paths, functions; SQL and its columns
broker_checks           topics and schemas, asked from the broker
runner                  runs a pipeline: `run`, `RunOptions`
graph, expectations     the data frames of a query; which rows are kept, counted, or become dead letters
queries                 one streaming query: started, started again, stopped after its batch
progress, metrics       figures of a running pipeline; the same as Prometheus text
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .loading import check_file, load
    from .runner import RunOptions, run

__all__ = ["RunOptions", "check_file", "load", "run"]

_HOMES = {"check_file": ".loading", "load": ".loading", "RunOptions": ".runner", "run": ".runner"}


def __getattr__(name: str) -> object:
    """Import a public name on first use: checking a file needs no Spark, whose import takes a second."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
