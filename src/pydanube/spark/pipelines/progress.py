"""How a running pipeline stands: rows, batches, lag, and how many rows did not meet each expectation.

Figures are those of micro-batches that Spark has completed since this process started. A batch that failed and is
repeated counts once, when it is completed; after a restart of the process they begin at 0, as counters do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydanube.model.positions import datetime_from_micros

from .definition import CHECKED, OBSERVED, UNDECODABLE, Pipeline

State = Literal["waiting", "running", "restarting", "done", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One completed micro-batch of a query."""

    batch: int
    time: str
    rows: int
    rows_per_s: float
    seconds: float
    lag: int
    """Messages in the topics behind the end of this batch, when it was planned."""
    position: int
    """Messages of the topics before the end of this batch: the sum of the offsets that it reached."""
    late: int
    """Rows that were dropped because they were behind the watermark."""
    failed: Mapping[str, Mapping[str, int]]
    """Rows that did not meet an expectation, by source or transform and by expectation."""
    checked: Mapping[str, int]

    @classmethod
    def of(cls, progress: Mapping[str, Any]) -> BatchReport | None:
        """Parse Spark's progress; None if it reports no batch, but that there was nothing to do."""
        durations: Mapping[str, float] = progress.get("durationMs") or {}
        if "addBatch" not in durations:
            return None
        seconds = max(durations.get("triggerExecution", 0), 1) / 1000
        rows = int(progress.get("numInputRows") or 0)
        observed = {
            name.removeprefix(OBSERVED): _plain(metrics)
            for name, metrics in (progress.get("observedMetrics") or {}).items()
            if name.startswith(OBSERVED)
        }
        operators = progress.get("stateOperators") or []
        return cls(
            batch=int(progress["batchId"]),
            time=str(progress.get("timestamp", "")),
            rows=rows,
            rows_per_s=rows / seconds,
            seconds=seconds,
            lag=sum(_lag(source) for source in progress.get("sources") or []),
            position=sum(sum(_offsets(source.get("endOffset")).values()) for source in progress.get("sources") or []),
            late=sum(int(one.get("numRowsDroppedByWatermark") or 0) for one in operators),
            failed={
                name: {rule: count for rule, count in counts.items() if rule != CHECKED}
                for name, counts in observed.items()
            },
            checked={name: counts.get(CHECKED, 0) for name, counts in observed.items()},
        )


def _plain(metrics: Any) -> dict[str, int]:
    """Return observed metrics as a dict; Spark gives a mapping, or a list of values in the order of its schema."""
    return {str(name): int(value or 0) for name, value in dict(metrics).items()}


def _lag(source: Mapping[str, Any]) -> int:
    end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    return sum(max(0, latest[place] - end.get(place, 0)) for place in latest)


def _offsets(value: Any) -> dict[tuple[str, int], int]:
    """Return the offset of each partition from the source's JSON; empty if it is not ours or nothing was read."""
    try:
        document = json.loads(value) if isinstance(value, str) else value
        topics = document["topics"].items()
        return {(topic, number): int(one) for topic, at in topics for number, one in enumerate(at["offsets"])}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


@dataclass(slots=True)
class QueryStatus:
    """How one query of a pipeline stands."""

    name: str
    target: str
    """Where the rows go, in words."""
    state: State = "waiting"
    batches: int = 0
    rows: int = 0
    late: int = 0
    restarts: int = 0
    last: BatchReport | None = None
    error: str = ""

    def add(self, report: BatchReport) -> None:
        self.batches += 1
        self.rows += report.rows
        self.late += report.late
        self.last = report


@dataclass(slots=True)
class PipelineStatus:
    """How a pipeline stands: its queries, and its expectations."""

    pipeline: str
    queries: dict[str, QueryStatus]
    failed: dict[str, dict[str, int]]
    """Rows that did not meet an expectation, by source or transform and by expectation."""
    actions: dict[str, dict[str, str]]
    checked: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline) -> PipelineStatus:
        queries = {name: QueryStatus(name, target_of(pipeline, name)) for name in pipeline.query_names()}
        named = [*pipeline.sources, *pipeline.transforms]
        actions = {name: actions_of(pipeline, name) for name in named}
        actions = {name: rules for name, rules in actions.items() if rules}
        return cls(pipeline.name, queries, {name: dict.fromkeys(rules, 0) for name, rules in actions.items()}, actions)

    def add(self, query: str, report: BatchReport) -> None:
        self.queries[query].add(report)
        for name, counts in report.failed.items():
            for rule, count in counts.items():
                self.failed[name][rule] += count
        for name, count in report.checked.items():
            self.checked[name] = self.checked.get(name, 0) + count


def actions_of(pipeline: Pipeline, name: str) -> dict[str, str]:
    """Return the action of each expectation of a source or transform, by its name."""

    source = pipeline.sources.get(name)
    found = {UNDECODABLE: "dead-letter"} if source and source.on_decode_error == "dead-letter" else {}
    return {**found, **{one.name: one.action for one in pipeline.expectations.get(name, ())}}


def target_of(pipeline: Pipeline, query: str) -> str:
    """Return where the rows of a query go, such as "delta tables/orders"."""
    sink = pipeline.sinks.get(query)
    if sink is None:
        return "dead letters"
    place = sink.options.get("path") or sink.options.get("topic") or sink.options.get("table") or ""
    return f"{sink.format} {place}".strip()


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The last batch that a query has completed."""

    query: str
    batch: int | None
    """None: no batch was completed."""
    time: datetime | None
    known: bool = True
    """False: the checkpoint is not on this machine."""

    def __str__(self) -> str:
        if not self.known:
            return "checkpoint is elsewhere"
        return "new" if self.batch is None else f"batch {self.batch}"


def read_states(pipeline: Pipeline) -> list[CheckpointState]:
    """Return the state of every query of the pipeline."""
    root = _local(pipeline.checkpoint)
    if root is None:
        return [CheckpointState(name, None, None, known=False) for name in pipeline.query_names()]
    return [_read(name, root / name / "commits") for name in pipeline.query_names()]


def _local(path: str) -> Path | None:
    if path.startswith("file:"):
        return Path(unquote(urlsplit(path).path))
    return None if "://" in path else Path(path)


def _read(query: str, commits: Path) -> CheckpointState:
    """Spark writes a file for each completed batch, named by its number, and keeps the last hundred."""
    try:
        numbers = [int(path.name) for path in commits.iterdir() if path.name.isdecimal()]
        if not numbers:
            return CheckpointState(query, None, None)
        written = (commits / str(max(numbers))).stat().st_mtime_ns // 1000
    except FileNotFoundError:
        return CheckpointState(query, None, None)
    return CheckpointState(query, max(numbers), datetime_from_micros(written))
