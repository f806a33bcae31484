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

from typing import TYPE_CHECKING

from pydanube.runtime.late_imports import late

if TYPE_CHECKING:
    from .loading import check_file, load
    from .runner import RunOptions, run

__all__ = ["RunOptions", "check_file", "load", "run"]

_MODULES = {"check_file": ".loading", "load": ".loading", "RunOptions": ".runner", "run": ".runner"}
"""The module of each name that is exported here: checking a file needs no Spark, whose import takes a second."""

__getattr__ = late(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
