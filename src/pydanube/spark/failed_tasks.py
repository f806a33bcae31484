"""Finds tasks of a running query whose error would come again.

Spark tries a task four times (`spark.task.maxFailures`), whatever its error is, and a query fails after the last try.
With a message that can never be decoded, each try does the work up to that message again. So whoever waits for a query
asks here, and stops it after the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from .errors import comes_again

FAILED_TASKS_MAX: Final = 10
"""Failed tasks of a stage that are looked at."""


def lasting_failure(query: StreamingQuery) -> str | None:
    """Return what a task of a running query failed with, if it would come again; None: there is nothing like that, or
    the query runs on a Spark Connect server, which does not tell of tasks."""
    context = SparkContext._active_spark_context
    if context is None or not query.isActive:
        return None
    return next(filter(comes_again, _task_errors(context, str(query.runId))), None)


def _task_errors(context: SparkContext, run: str) -> Iterator[str]:
    """Yield the errors of tasks in the stages that run now for a run of a query, whose id is in their description."""
    store: Any = context._jsc.sc().statusStore()
    java: Any = context._jvm
    failed = java.java.util.Collections.singletonList(java.org.apache.spark.status.api.v1.TaskStatus.FAILED)
    for stage in _each(store.activeStages()):
        if not stage.numFailedTasks() or run not in _text(stage.description()):
            continue
        place = stage.stageId(), stage.attemptId(), 0, FAILED_TASKS_MAX
        for task in _each(store.taskList(*place, java.scala.Option.empty(), False, failed)):
            yield _text(task.errorMessage())


def _text(option: Any) -> str:
    return str(option.get()) if option.isDefined() else ""


def _each(found: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    return map(found.apply, range(found.size()))
