"""A collector of traces on the loopback address: receives OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TIMEOUT_S = 60.0


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.resources: list[dict[str, str]] = []
        self.spans: list[Any] = []
        self._changed = threading.Condition()

    def add(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for one in request.resource_spans:
                self.resources.append({item.key: item.value.string_value for item in one.resource.attributes})
                self.spans += [span for scope in one.scope_spans for span in scope.spans]
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[Any]:
        """Return all spans once at least `count` have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.spans) >= count, TIMEOUT_S), f"{len(self.spans)} spans came"
            return list(self.spans)


@contextmanager
def open_collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert self.headers["content-type"] == "application/x-protobuf"
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            collector.add(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}/v1/traces")
    thread = threading.Thread(target=server.serve_forever, name="trace collector")
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
