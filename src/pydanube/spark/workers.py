"""The Python processes that Spark forks for its tasks, and for what it does on the driver once in each micro-batch."""

from __future__ import annotations

import gc
import sys

_is_settled = False


def settle() -> None:
    """Keep what was imported out of the collection of garbage that Spark makes in its workers after each thing they do.

    That takes 10 to 30 ms, where a small task takes less. Once in a process, and in those of Spark only: call it when
    everything that is needed has been imported.
    """
    global _is_settled
    if not _is_settled and _is_forked_by_spark():
        _is_settled = True
        gc.collect()
        gc.freeze()


def _is_forked_by_spark() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(main, "name", "") == "pyspark.daemon"
