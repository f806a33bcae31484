"""Pipelines from YAML files: a file is read and checked before Spark starts, then run.

```python
from pydanube.spark import pipelines

pipelines.run("orders.yaml", once=True)             # everything that is there; without `once`, until it is stopped
```

loading                 reads and checks a file: `check_file`, `load`
definition              what a file defines, as frozen dataclasses
yaml_nodes, places      YAML with the place of every value; problems and their places
parsing                 the keys of a file and their values
checks, sql_checks      references, cycles, paths, functions; SQL and its columns
"""
