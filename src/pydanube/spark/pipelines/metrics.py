"""The figures of a running pipeline as Prometheus text: in a file that is replaced as a whole, or on a port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pydanube.runtime.whole_file import replacing

from .progress import PipelineStatus, QueryStatus

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HOST: Final = "127.0.0.1"


def render(status: PipelineStatus) -> str:
    """Return the figures in Prometheus' text format."""
    return "\n".join(_lines(status)) + "\n"


def _lines(status: PipelineStatus) -> Iterator[str]:
    queries = status.queries.values()
    for name, kind, meaning, value in _FIGURES:
        yield f"# HELP danube_pipeline_{name} {meaning}"
        yield f"# TYPE danube_pipeline_{name} {kind}"
        for query in queries:
            labels = _labels(pipeline=status.pipeline, query=query.name)
            yield f"danube_pipeline_{name}{labels} {value(query):.15g}"
    yield "# HELP danube_pipeline_expectation_failed_total Rows that did not meet an expectation."
    yield "# TYPE danube_pipeline_expectation_failed_total counter"
    for of, counts in status.failed.items():
        for rule, count in counts.items():
            action = status.actions[of][rule]
            labels = _labels(pipeline=status.pipeline, input=of, expectation=rule, action=action)
            yield f"danube_pipeline_expectation_failed_total{labels} {count}"
    yield "# HELP danube_pipeline_checked_rows_total Rows whose expectations were checked."
    yield "# TYPE danube_pipeline_checked_rows_total counter"
    for of, count in status.checked.items():
        yield f"danube_pipeline_checked_rows_total{_labels(pipeline=status.pipeline, input=of)} {count}"


_FIGURES: Final[tuple[tuple[str, str, str, Callable[[QueryStatus], float]], ...]] = (
    ("up", "gauge", "1 while the query runs.", lambda one: float(one.state == "running")),
    ("rows_total", "counter", "Messages read in completed batches.", lambda one: float(one.rows)),
    ("batches_total", "counter", "Completed micro-batches.", lambda one: float(one.batches)),
    ("late_rows_total", "counter", "Rows dropped because they were behind the watermark.", lambda one: float(one.late)),
    ("restarts_total", "counter", "Starts after a failure.", lambda one: float(one.restarts)),
    ("lag_messages", "gauge", "Messages behind the end of the last batch.", lambda one: _last(one, "lag")),
    ("rows_per_second", "gauge", "Rate of the last batch.", lambda one: _last(one, "rows_per_s")),
    ("batch_seconds", "gauge", "Duration of the last batch.", lambda one: _last(one, "seconds")),
)


def _last(query: QueryStatus, figure: str) -> float:
    return float(getattr(query.last, figure)) if query.last is not None else 0.0


def _labels(**labels: str) -> str:
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def write_file(status: PipelineStatus, path: Path) -> None:
    """Replace the file at once, so that a reader never sees a part of it."""
    with replacing(path) as beside:
        beside.write_text(render(status), encoding="utf-8")


class MetricsServer:
    """Serves the newest figures at ``http://127.0.0.1:PORT/metrics``, in a `with` block."""

    def __init__(self, port: int) -> None:
        self._text = ""
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path.partition("?")[0] in ("/", "/metrics")
                body = served._text.encode() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer((HOST, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="pipeline-metrics", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def show(self, status: PipelineStatus) -> None:
        self._text = render(status)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
