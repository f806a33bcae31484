"""What `danube pipeline run` shows: the table on a terminal, and JSON lines."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from pydanube.cli.spark.pipeline_view import JsonLines, draw
from pydanube.spark.pipelines.progress import BatchReport, PipelineStatus, QueryStatus

REPORT = BatchReport(
    batch=41,
    time="2026-11-16T20:00:00.000Z",
    rows=12_500,
    rows_per_s=50_000.0,
    seconds=0.25,
    lag=7,
    position=8_500,
    late=2,
    failed={"orders": {"paid": 3}},
    checked={"orders": 12_500},
)


def status() -> PipelineStatus:
    queries = {
        "table": QueryStatus("table", "delta /data/orders", "running"),
        "topic": QueryStatus("topic", "danube /default/copy", "restarting", restarts=2, error="no broker answers"),
        "dead-letters.orders": QueryStatus("dead-letters.orders", "dead letters"),
    }
    failed, actions = {"orders": {"paid": 0}}, {"orders": {"paid": "dead-letter"}}
    found = PipelineStatus("cafe", queries, failed, actions)
    found.add("table", REPORT)
    return found


def test_the_table_shows_queries_and_expectations() -> None:
    text = io.StringIO()
    Console(file=text, width=110).print(draw(status()))
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert lines == [
        ["pipeline", "cafe"],
        ["query", "state", "rows", "rows/s", "lag", "batch", "batch", "s", "late", "to"],
        ["table", "running", "12.5k", "50.0k", "7", "41", "0.2", "2", "delta", "/data/orders"],
        ["topic", "restarting", "2", "0", "0", "no", "broker", "answers"],
        ["dead-letters.orders", "waiting", "0", "0", "dead", "letters"],
        [],
        ["expectation", "of", "action", "failed", "checked"],
        ["paid", "orders", "dead-letter", "3", "12.5k"],
    ]


def test_every_batch_and_every_restart_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    view, now = JsonLines("cafe"), status()
    view.batch(now, "table", REPORT)
    view.status(now)
    view.status(now)
    batch, restart = map(json.loads, capsys.readouterr().out.splitlines())
    assert batch == {
        "pipeline": "cafe",
        "event": "batch",
        "time": "2026-11-16T20:00:00.000Z",
        "query": "table",
        "batch": 41,
        "rows": 12_500,
        "rows_per_s": 50_000.0,
        "batch_ms": 250,
        "lag": 7,
        "position": 8_500,
        "late": 2,
        "failed": {"orders": {"paid": 3}},
    }
    assert restart == {
        "pipeline": "cafe",
        "event": "restart",
        "query": "topic",
        "restarts": 2,
        "error": "no broker answers",
    }
