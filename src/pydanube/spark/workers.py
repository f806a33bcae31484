"""The Python processes that Spark forks for its tasks, and on the driver once for each micro-batch."""

from __future__ import annotations

import gc
import sys

_frozen_modules = 0
"""The number of imported modules at the last freeze."""


def freeze_imports() -> None:
    """Exclude imported modules from the garbage collection that Spark runs in its workers after each task.

    That collection takes 10 to 30 ms, longer than a small task. The call does nothing in processes that Spark did not
    fork, or if no module was imported since the last call, so it is cheap to call after every piece of work.
    """
    global _frozen_modules
    if len(sys.modules) != _frozen_modules and _is_forked_by_spark():
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def _is_forked_by_spark() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(main, "name", "") == "pyspark.daemon"
