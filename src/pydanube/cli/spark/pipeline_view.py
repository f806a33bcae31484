"""What `danube pipeline run` shows: a live table on a terminal, or a JSON document for each batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pydanube.cli.output import emit_json, note, printable
from pydanube.cli.topics.top_view import short

if TYPE_CHECKING:
    from pydanube.spark.pipelines.definition import Pipeline
    from pydanube.spark.pipelines.progress import BatchReport, PipelineStatus, QueryStatus

STYLES = {"running": "green", "restarting": "yellow", "failed": "bold red", "waiting": "dim"}


class PipelineView(Protocol):
    """Shows how a running pipeline stands."""

    def batch(self, status: PipelineStatus, query: str, report: BatchReport) -> None: ...

    def status(self, status: PipelineStatus) -> None: ...

    def end(self) -> None: ...


class _Restarts:
    """Notes on stderr that a query failed and is started again."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def new(self, status: PipelineStatus) -> list[QueryStatus]:
        found = [one for one in status.queries.values() if one.restarts > self._known.get(one.name, 0)]
        self._known |= {one.name: one.restarts for one in found}
        return found


class JsonLines:
    """Prints a JSON document on one line of stdout for each batch, and for each start after a failure."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._restarts = _Restarts()

    def batch(self, status: PipelineStatus, query: str, report: BatchReport) -> None:
        self._print(
            {
                "event": "batch",
                "time": report.time,
                "query": query,
                "batch": report.batch,
                "rows": report.rows,
                "rows_per_s": round(report.rows_per_s, 1),
                "batch_ms": round(report.seconds * 1000),
                "lag": report.lag,
                "position": report.position,
                "late": report.late,
                "failed": {name: dict(counts) for name, counts in report.failed.items()},
            }
        )

    def status(self, status: PipelineStatus) -> None:
        for query in self._restarts.new(status):
            self._print({"event": "restart", "query": query.name, "restarts": query.restarts, "error": query.error})

    def end(self) -> None:
        return

    def _print(self, event: dict[str, Any]) -> None:
        emit_json({"pipeline": self._pipeline, **event}, compact=True)
        sys.stdout.flush()


class LiveTable:
    """A table on the terminal that is drawn anew while the pipeline runs; the last one stays."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._restarts = _Restarts()

    def batch(self, status: PipelineStatus, query: str, report: BatchReport) -> None:
        return

    def status(self, status: PipelineStatus) -> None:
        for query in self._restarts.new(status):
            note(f"{query.name} failed and is started again: {printable(query.error)}")
        self._live.update(draw(status), refresh=True)

    def end(self) -> None:
        self._live.stop()


@contextmanager
def json_view(pipeline: Pipeline) -> Iterator[PipelineView]:
    yield JsonLines(pipeline.name)


@contextmanager
def live_view(pipeline: Pipeline) -> Iterator[PipelineView]:
    console = Console(file=sys.stdout, highlight=False)
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield LiveTable(live)


def draw(status: PipelineStatus) -> Group:
    """Return the tables of queries and expectations."""
    queries = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    queries.add_column("query", no_wrap=True)
    queries.add_column("state", no_wrap=True)
    for title in ("rows", "rows/s", "lag", "batch", "batch s", "late"):
        queries.add_column(title, justify="right", no_wrap=True)
    queries.add_column("to", overflow="ellipsis", no_wrap=True)
    for one in status.queries.values():
        queries.add_row(*_cells(one))
    parts: list[RenderableType] = [Text(f"pipeline {status.pipeline}", style="bold"), queries]
    failed = [(of, rule, count) for of, counts in status.failed.items() for rule, count in counts.items()]
    if failed:
        parts += [Text(), _expectations(status, failed)]
    return Group(*parts)


def _cells(one: QueryStatus) -> list[Text]:
    last = one.last
    figures = ["", "", "", ""]
    if last is not None:
        figures = [short(last.rows_per_s), short(last.lag), str(last.batch), f"{last.seconds:.1f}"]
    state = Text(f"{one.state} {one.restarts}" if one.state == "restarting" else one.state, STYLES.get(one.state, ""))
    told = one.error if one.state in ("restarting", "failed") else one.target
    return [
        Text(one.name),
        state,
        *(Text(cell) for cell in (short(one.rows), *figures, short(one.late), printable(told))),
    ]


def _expectations(status: PipelineStatus, failed: list[tuple[str, str, int]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold underline")
    for title in ("expectation", "of", "action"):
        table.add_column(title, no_wrap=True)
    table.add_column("failed", justify="right")
    table.add_column("checked", justify="right")
    for of, rule, count in failed:
        style = "yellow" if count else ""
        cells = rule, of, status.actions[of][rule], short(count), short(status.checked.get(of, 0))
        table.add_row(*(Text(cell) for cell in cells), style=style)
    return table
