"""One streaming query of a pipeline: starts it, starts it again after a failure, and stops it after its batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from pydanube.model.errors import DanubeError
from pydanube.spark.errors import comes_again
from pydanube.spark.failed_tasks import lasting_failure

from .definition import Trigger
from .expectations import NOT_MET
from .graph import Graph, explain
from .progress import BatchReport, QueryStatus

RETRIES_MAX: Final = 3
"""How often a query is started again before the pipeline fails, without a completed batch in between."""
BACKOFF_SECONDS: Final = 1.0
"""Before the first retry; it grows by BACKOFF_FACTOR."""
BACKOFF_FACTOR: Final = 4.0

_WORKING: Final = frozenset({"Processing new data", "No new data but cleaning up state"})
"""What Spark says about a query while it runs a batch."""


class PipelineQuery:
    """Keeps one query of a pipeline running.

    A query that fails is started again, and repeats the batch that it had not completed; other queries do not notice.
    After RETRIES_MAX retries without a completed batch it has failed for good, and `status.error` says why. An
    expectation that is not met, what Spark refuses when the query is built, and what is invalid fail at once: they
    would fail again. Spark's own tries of the task that failed are not waited for.
    """

    def __init__(self, status: QueryStatus, graph: Graph, trigger: Trigger, counted: Collection[str]) -> None:
        self.status = status
        self._graph = graph
        self._trigger = trigger
        self._counted = counted
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._start_at = 0.0
        self._seen: tuple[str, int] = ("", -1)
        self._stop_at: int | None = None

    @property
    def ended(self) -> bool:
        return self.status.state in ("done", "stopped", "failed")

    # -- running -------------------------------------------------------------------------------------------------------

    def poll(self, now: float, report: Callable[[BatchReport], None]) -> None:
        """Start the query if it is time, report completed batches, and deal with its end. `now` is monotonic."""
        if self.ended:
            return
        if self._query is None:
            if now >= self._start_at:
                self._start(now)
            return
        query, active = self._query, self._query.isActive
        self._report_batches(report)
        if not active:
            self._ended(query, now)
        elif (error := lasting_failure(query)) is not None:
            self._query = None
            self._fail(_told(error))
            query.stop()

    def _start(self, now: float) -> None:
        try:
            writer = self._graph.writer(self.status.name, self._counted)
            match self._trigger.kind:
                case "available-now":
                    writer = writer.trigger(availableNow=True)
                case "interval":
                    writer = writer.trigger(processingTime=f"{round(self._trigger.seconds * 1000)} milliseconds")
                case _:
                    pass
            self._query = writer.start()
        except DanubeError as error:
            self._fail(error.message)
        except PySparkException as error:
            self._fail(f"{self._graph.pipeline.file}: {self.status.name}: {explain(error)}")
        else:
            self.status.state = "running"

    def _ended(self, query: StreamingQuery, now: float) -> None:
        self._query = None
        error = query.exception()
        if error is None:
            self.status.state = "done" if self._trigger.kind == "available-now" else "stopped"
            return
        said = _told(str(error))
        self._failures += 1
        if NOT_MET in said or comes_again(str(error)):
            self._fail(said)
        elif self._failures > RETRIES_MAX:
            self._fail(f"failed {self._failures} times: {said}")
        else:
            self.status.state = "restarting"
            self.status.restarts += 1
            self.status.error = said
            self._start_at = now + BACKOFF_SECONDS * BACKOFF_FACTOR ** (self._failures - 1)

    def _fail(self, why: str) -> None:
        self.status.state = "failed"
        self.status.error = why

    def _report_batches(self, report: Callable[[BatchReport], None]) -> None:
        """Report the batches that were completed since the last call."""
        assert self._query is not None
        last = self._query.lastProgress
        if last is None or self._is_known(_document(last)):
            return
        for one in self._query.recentProgress:
            document = _document(one)
            found = BatchReport.of(document)
            if found is None or self._is_known(document):
                continue
            self._seen = (str(document["runId"]), found.batch)
            self._failures = 0
            self.status.error = ""
            report(found)

    def _is_known(self, document: dict[str, Any]) -> bool:
        run, batch = self._seen
        return str(document["runId"]) == run and int(document["batchId"]) <= batch

    # -- stopping ------------------------------------------------------------------------------------------------------

    def stop_after_batch(self, report: Callable[[BatchReport], None]) -> bool:
        """Stop the query once it is between two batches; return whether it has ended.

        Is to be called until it returns true. A batch that begins after the first call is not waited for: it has not
        written anything, and is repeated at the next start.
        """
        if self.ended or self._query is None:
            self._mark_stopped()
            return True
        self._report_batches(report)
        if self._stop_at is None:
            self._stop_at = self._seen[1]
        working = self._query.isActive and self._query.status["message"] in _WORKING
        if working and self._seen[1] == self._stop_at:
            return False
        self.stop_now()
        return True

    def stop_now(self) -> None:
        """Stop the query, in the middle of a batch if need be: the batch is repeated at the next start."""
        if self._query is not None:
            query, self._query = self._query, None
            query.stop()
        self._mark_stopped()

    def _mark_stopped(self) -> None:
        if not self.ended:
            self.status.state = "stopped"


def _told(error: str) -> str:
    """Return the message of an error of Spark in one line."""
    if NOT_MET in error:
        return NOT_MET + error.partition(NOT_MET)[2].splitlines()[0].partition(" SQLSTATE:")[0]
    return explain(error)


def _document(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found
