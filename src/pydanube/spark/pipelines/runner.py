"""Runs a pipeline: one Spark session, one streaming query for each sink and each kind of dead letters.

All queries run side by side. The run ends when every query is done (`once`), when it is asked to stop, or when a query
has failed for good; then the others are stopped after their batch.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import SparkSession

from pydanube.model.errors import Refused
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.signals import Flag
from pydanube.spark.session_builder import register, session, start_detached_java

from .broker_checks import fix_versions
from .definition import LETTERS, Pipeline, Trigger
from .graph import Graph
from .loading import load, servers_of
from .parsing import parse_master
from .progress import BatchReport, PipelineStatus
from .queries import PipelineQuery

POLL_SECONDS: Final = 0.1
"""Between two looks at the queries."""

SETTINGS: Final = {
    "spark.sql.streaming.numRecentProgressUpdates": 1000,
    "spark.log.level": "FATAL",
}
"""Settings of Spark for pipelines: every batch is seen, and errors are reported here and not logged by Spark too."""

OnBatch = Callable[[PipelineStatus, str, BatchReport], None]
OnStatus = Callable[[PipelineStatus], None]
Pause = Callable[[float], object]

_clock: Final = SystemClock()


class StopFlag(Protocol):
    """Tells whether to stop: a threading.Event, or a flag of `pydanube.runtime.signals.StopSignals`."""

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a pipeline is run, beyond what its file says."""

    servers: str | None = None
    """Replaces what the file says."""
    master: str | None = None
    """Replaces what the file says."""
    once: bool = False
    """Process everything that is there, then end."""
    variables: Mapping[str, str] | None = None
    """The values of ``${NAME}`` in the file, before those of the environment."""
    spark: SparkSession | None = None
    """The session to use, which is left open; None: one is made by the file's settings, and closed."""


def run(
    pipeline: Pipeline | str | Path,
    options: RunOptions | None = None,
    *,
    once: bool | None = None,
    stop: StopFlag | None = None,
    interrupt: StopFlag | None = None,
    pause: Pause = time.sleep,  # noqa: TID251 - an Event's `wait` would hold a lock that a signal handler may want
    on_batch: OnBatch | None = None,
    on_status: OnStatus | None = None,
) -> PipelineStatus:
    """Check and run a pipeline, given as its file or as loaded by `load`; return how it stands at the end.

    Blocks until every query is done (`once`), or `stop` is set: queries then end after their batch. Once `interrupt` is
    set too, they end at once. `on_batch` is called for every completed batch, `on_status` several times a second, both
    in this thread. Between two looks at the queries and the flags `pause` is called with POLL_SECONDS. Raises Invalid
    for a file with problems, and Refused if a query failed for good.
    """
    options = options or RunOptions()
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)  # PySpark would log what is raised
    if not isinstance(pipeline, Pipeline):
        pipeline = load(pipeline, variables=options.variables, servers=options.servers, offline=False)
    once = options.once if once is None else once
    trigger = Trigger("available-now") if once else pipeline.trigger
    spark = options.spark or start_session(pipeline, options.master)
    try:
        register(spark)
        servers = options.servers or servers_of(pipeline)
        graph = Graph(spark, fix_versions(pipeline, servers), servers)
        running = _Run(pipeline, graph, trigger, stop or Flag(), interrupt or Flag(), pause)
        return running.run(on_batch or (lambda *_: None), on_status or (lambda _: None))
    finally:
        if options.spark is None:
            spark.stop()


def start_session(pipeline: Pipeline, master: str | None = None) -> SparkSession:
    """Start a Spark session by the settings of the pipeline; modules beside its file can be imported by its tasks."""
    before = os.environ.get("PYTHONPATH", "")
    if pipeline.directory not in before.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([pipeline.directory, *([before] if before else [])])
    name, master = f"danube pipeline {pipeline.name}", parse_master(master or pipeline.master)
    ours = {
        key: value for key, value in SETTINGS.items() if key.startswith("spark.sql.") or not master.startswith("sc:")
    }
    conf: dict[str, object] = {**ours, **pipeline.conf}
    start_detached_java(name, master, **conf)
    spark = session(name, master, **conf)
    _ship_modules(spark, pipeline, master)
    return spark


def _ship_modules(spark: SparkSession, pipeline: Pipeline, master: str) -> None:
    """Send the modules of functions that lie beside the file to executors on other machines."""
    if master.startswith("local"):
        return
    directory = Path(pipeline.directory)
    named = [one.function.text.partition(":")[0] for one in pipeline.transforms.values() if one.function is not None]
    for file in {directory / f"{name.replace('.', '/')}.py" for name in named}:
        if not file.is_file():
            continue
        if master.startswith("sc://"):
            spark.addArtifacts(str(file), pyfile=True)
        else:
            spark.sparkContext.addPyFile(str(file))


class _Run:
    """One run of a pipeline."""

    def __init__(
        self, pipeline: Pipeline, graph: Graph, trigger: Trigger, stop: StopFlag, interrupt: StopFlag, pause: Pause
    ) -> None:
        self._stop, self._interrupt, self._pause = stop, interrupt, pause
        self._status = PipelineStatus.of(pipeline)
        counted = counted_by(pipeline)
        self._queries = [
            PipelineQuery(status, graph, trigger, counted[name]) for name, status in self._status.queries.items()
        ]

    def run(self, on_batch: OnBatch, on_status: OnStatus) -> PipelineStatus:
        try:
            while not self._stop.is_set() and not self._failed() and not all(one.ended for one in self._queries):
                for query in self._queries:
                    query.poll(_clock.monotonic(), self._reporter(query, on_batch))
                on_status(self._status)
                self._pause(POLL_SECONDS)
            self._stop_all(on_batch, on_status)
        finally:
            for query in self._queries:
                query.stop_now()
        if (failed := self._failed()) is not None:
            raise Refused(f"{_named(failed.status.name)}: {failed.status.error}")
        return self._status

    def _failed(self) -> PipelineQuery | None:
        return next((one for one in self._queries if one.status.state == "failed"), None)

    def _stop_all(self, on_batch: OnBatch, on_status: OnStatus) -> None:
        waiting = list(self._queries)
        on_status(self._status)
        while waiting and not self._interrupt.is_set():
            waiting = [one for one in waiting if not one.stop_after_batch(self._reporter(one, on_batch))]
            on_status(self._status)
            if waiting:
                self._pause(POLL_SECONDS)

    def _reporter(self, query: PipelineQuery, on_batch: OnBatch) -> Callable[[BatchReport], None]:
        def report(found: BatchReport) -> None:
            self._status.add(query.status.name, found)
            on_batch(self._status, query.status.name, found)

        return report


def counted_by(pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """Return, for each query, the sources and transforms that it counts expectations of. Each is counted by one query.

    That is the query of its dead letters, or else the first sink that uses it.
    """
    counted: dict[str, set[str]] = {name: set() for name in pipeline.query_names()}
    by_letters = set(pipeline.letter_inputs())
    taken = set(by_letters)
    for name in by_letters:
        counted[f"{LETTERS}{name}"].add(name)
    for sink in pipeline.sinks.values():
        for name in pipeline.needed(sink.input):
            if name not in taken:
                taken.add(name)
                counted[sink.name].add(name)
    return {name: frozenset(names) for name, names in counted.items()}


def _named(query: str) -> str:
    if query.startswith(LETTERS):
        return f"the query of dead letters of {query.removeprefix(LETTERS)}"
    return f"sink {query}"
