"""Spark sessions of commands: the JVM's own lines are kept off the terminal, and signals end a stream in order."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from pydanube.model.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pydanube.runtime.signals import StopSignals

POLL_SECONDS: Final = 0.2


@contextmanager
def quiet_session(app_name: str, master: str, log: str | None = None, **conf: object) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end. What the JVM and its workers print is appended to `log`, or dropped."""
    try:
        from pydanube.spark import session
    except ModuleNotFoundError as error:
        raise Refused(str(error)) from None
    handle = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        with _stderr_to(handle):
            spark = session(app_name, master, **conf)
    finally:
        os.close(handle)
    try:
        yield spark
    finally:
        spark.stop()


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


def wait_for(query: StreamingQuery, signals: StopSignals, progress: Callable[[], None]) -> None:
    """Wait until a streaming query has ended, by itself or after its batch because of a signal.

    A second signal ends it at once, and raises click.Abort. `progress` is called several times a second. Raises the
    query's error.
    """
    while query.isActive and not signals.stop.is_set():
        progress()
        signals.wait(POLL_SECONDS)
    if query.isActive:
        _end(query, signals)
    progress()
    if (error := query.exception()) is not None:
        raise error


def _end(query: StreamingQuery, signals: StopSignals) -> None:
    before = _last_batch(query)
    while query.isActive and query.status["isTriggerActive"] and _last_batch(query) == before:
        if signals.interrupt.is_set():
            query.stop()
            raise click.Abort
        signals.wait(POLL_SECONDS / 4)
    query.stop()


def _last_batch(query: StreamingQuery) -> int | None:
    last = query.lastProgress
    return None if last is None else int(last["batchId"])
