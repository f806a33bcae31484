"""The Python processes that Spark starts for its tasks, for planning, and on the driver once for each micro-batch."""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from pyspark import SparkContext

from pydanube.model.errors import DanubeError

SPARKS_DEFAULT_PYTHON: Final = "python3"

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""The environment variable by which Spark leaves the traceback out of the error that it sends to the user."""

P = ParamSpec("P")
T = TypeVar("T")

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


def use_python_of_driver() -> None:
    """On a local master, let workers run the Python of this process, unless another one was chosen.

    Spark's default is `python3` of the PATH. In a virtual environment that is not activated that is another Python,
    which has no `pydanube`. On a cluster nothing is changed: executors may have their Python in another place.
    """
    context = SparkContext._active_spark_context
    if context is None or context.pythonExec != SPARKS_DEFAULT_PYTHON:
        return
    if str(context.master).startswith("local"):
        context.pythonExec = sys.executable


def message_first(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that Spark calls, so that the message of a DanubeError is the first line that users see.

    Spark shows the traceback of a Python error before its message. Our errors say what to do, so their traceback is
    left out; that of any other exception is kept. The setting ends with the process, which Spark ends after an error.
    """

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except DanubeError:
            hide_traceback()
            raise

    return wrapped


def hide_traceback() -> None:
    """Let Spark leave the traceback out of the error that is being raised. Does nothing in the user's own process."""
    if _main_module().startswith("pyspark."):
        os.environ[HIDE_TRACEBACK] = "1"


def end_if_cut_off() -> None:
    """End the process in which Spark runs the reader of a stream, if Spark has closed its socket.

    That is how Spark stops a query. Its runner would report the closed socket to the same socket, fail again, and print
    a traceback. Does nothing unless such an error is being raised, nor in the user's own process.
    """
    if isinstance(sys.exc_info()[1], EOFError | ConnectionError) and _main_module().startswith("pyspark."):
        os._exit(0)


def _is_forked_by_spark() -> bool:
    return _main_module() == "pyspark.daemon"


def _main_module() -> str:
    name: str = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", "")
    return name
