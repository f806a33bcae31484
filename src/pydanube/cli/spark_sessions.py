"""Spark sessions of commands: the JVM's own lines go to a file, and signals end a stream after its batch."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from pydanube.model.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS: Final = 0.2


@contextmanager
def quiet_session(app_name: str, master: str, **conf: object) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. What the JVM and its workers print goes to a file that a failure names."""
    try:
        from pydanube.spark import session
    except ModuleNotFoundError as error:
        raise Refused(str(error)) from None
    handle, log = tempfile.mkstemp(prefix="danube-spark-", suffix=".log")
    try:
        with _stderr_to(handle):
            spark = session(app_name, master, **conf)
    finally:
        os.close(handle)
    try:
        yield spark
    finally:
        spark.stop()
    Path(log).unlink(missing_ok=True)


@contextmanager
def _stderr_to(handle: int) -> Iterator[None]:
    """Redirect what processes started in the block write to stderr; this process gets its stderr back."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(handle, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class StopAfterBatch:
    """Ends a stream after its current batch at the first SIGINT, SIGTERM or SIGHUP; a second one ends it at once."""

    def __init__(self) -> None:
        from pydanube.runtime.signals import on_hangup, on_stop_signals

        self._asked = 0
        on_stop_signals(self, self._ask)
        on_hangup(self, self._ask)

    def add_signal_handler(self, sig: int, callback: Callable[[], object]) -> None:
        signal.signal(sig, lambda _number, _frame: callback())

    def _ask(self) -> None:
        self._asked += 1

    @property
    def asked(self) -> bool:
        return self._asked > 0

    def wait(self, query: StreamingQuery, progress: Callable[[], None]) -> None:
        """Wait until the query ends, by itself or because it was asked to. `progress` is called several times a
        second. Raises the query's error."""
        while not query.awaitTermination(POLL_SECONDS):  # type: ignore[arg-type]  # it takes fractions
            progress()
            if self._asked:
                self._end(query)
                break
        progress()
        if (error := query.exception()) is not None:
            raise error

    def _end(self, query: StreamingQuery) -> None:
        before = _last_batch(query)
        while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == before:
            if self._asked > 1:
                query.stop()
                raise click.Abort
            query.awaitTermination(POLL_SECONDS / 4)  # type: ignore[arg-type]
        query.stop()


def _last_batch(query: StreamingQuery) -> int | None:
    last = query.lastProgress
    return None if last is None else int(last["batchId"])
