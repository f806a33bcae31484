"""Exports spans with OpenTelemetry, over OTLP/HTTP, from a thread of its own. Needs the extra `otel`.

A span that cannot be exported is dropped and reported in the log; nothing ever waits for the collector, except the end
of the process, for a limited time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydanube.model.errors import Refused
from pydanube.model.trace_context import TraceContext

from .objects.store_address import Secrets
from .telemetry import get_logger

log = get_logger(__name__)

EXPORT_S: Final = 5.0
"""The timeout of one export."""
CLOSE_S: Final = 3.0
"""How long the last export may take."""
QUEUED_MAX: Final = 4_096
"""Spans that wait for their export; the oldest are dropped when there are more."""


class SpanExporter:
    """Spans of this process. They are made after the fact: with their begin and end."""

    def __init__(self, endpoint: str, resource: Mapping[str, str]) -> None:
        """`endpoint` is the URL of a collector, such as http://127.0.0.1:4318/v1/traces; `resource` describes this
        process. Raises Refused if the extra is not installed."""
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise Refused(
                f"tracing.endpoint is set, and traces need the extra `otel`, which is not installed ({error}): "
                f"pip install 'pydanube[otel]'"
            ) from None
        _redirect_log(_secrets_of(endpoint))
        self._trace = trace
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_S), max_queue_size=QUEUED_MAX
        )
        # Whether a span is sampled was decided by the program that published the message.
        provider = TracerProvider(resource=Resource.create(dict(resource)), shutdown_on_exit=False)
        provider.add_span_processor(self._processor)
        self._tracer = provider.get_tracer("pydanube")

    def export(
        self,
        name: str,
        kind: str,
        parent: TraceContext,
        links: Sequence[TraceContext],
        start_us: int,
        end_us: int,
        attributes: Mapping[str, str | int],
    ) -> None:
        """Export one span, soon. `kind` is "producer" or "consumer", seen from the broker."""
        trace = self._trace
        span = self._tracer.start_span(
            name,
            context=trace.set_span_in_context(trace.NonRecordingSpan(self._context_of(parent))),
            kind=trace.SpanKind.PRODUCER if kind == "producer" else trace.SpanKind.CONSUMER,
            attributes=dict(attributes),
            links=[trace.Link(self._context_of(one)) for one in links],
            start_time=start_us * 1_000,
        )
        span.end(end_us * 1_000)

    def _context_of(self, context: TraceContext) -> Any:
        trace = self._trace
        state = trace.TraceState.from_header([context.state]) if context.state else None
        return trace.SpanContext(context.trace_id, context.span_id, True, trace.TraceFlags(context.flags), state)

    async def close(self) -> None:
        """Export what waits, for a limited time. Cancelled: that goes on in its thread."""
        closing = threading.Thread(target=self._processor.shutdown, name="danube-spans-closing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)


class _ExporterLog(logging.Handler):
    """Passes what the exporter logs on to our log, without the secrets of its URL."""

    def __init__(self, secrets: Secrets) -> None:
        super().__init__(logging.WARNING)
        self.secrets = secrets

    def emit(self, record: logging.LogRecord) -> None:
        log.warning("tracing.problem", reason=self.secrets.scrub(record.getMessage())[:300])


def _secrets_of(url: str) -> Secrets:
    """Return what may be credentials in a URL: user, password and parameters."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return Secrets([url])  # it is no URL, and the exporter will say so
    values = (value for _, value in parse_qsl(parts.query))
    return Secrets(one for one in (parts.username, parts.password, parts.query, *values) if one)


def _redirect_log(secrets: Secrets) -> None:
    theirs = logging.getLogger("opentelemetry")
    for one in [one for one in theirs.handlers if isinstance(one, _ExporterLog)]:
        theirs.removeHandler(one)
    theirs.addHandler(_ExporterLog(secrets))
    theirs.propagate = False
