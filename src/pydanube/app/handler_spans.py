"""Spans of OpenTelemetry around handlers: each continues the trace in which its message was published.

Nothing is imported for it: a program that does not use OpenTelemetry pays for one lookup in a dictionary. Messages
without a trace context have no span, as on the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from pydanube.client.consuming.messages import Message, ReceivedBatch
from pydanube.client.producing.trace_context import LOADED, OPENTELEMETRY
from pydanube.model.trace_context import TRACEPARENT, TRACESTATE, TraceContext

LINKS_MAX: Final = 16
ROWS_MAX: Final = 100
"""Messages of a batch that are looked at for the traces that its span is linked to."""

_NO_SPAN: Final = nullcontext()


def handler_span(received: Message[Any] | ReceivedBatch[Any], subscription: str) -> AbstractContextManager[object]:
    """Return a context manager in which the span of a handler is the current one; one that does nothing if the message
    has no trace context or the program has no OpenTelemetry. The span of a batch belongs to the first trace in it and
    is linked to the others. An exception that leaves the block is recorded in the span."""
    trace = LOADED.get(OPENTELEMETRY)
    if trace is None:
        return _NO_SPAN
    contexts = _contexts(received)
    if not contexts:
        return _NO_SPAN
    first, *others = (_remote(trace, one) for one in contexts)
    span: AbstractContextManager[object] = trace.get_tracer("pydanube").start_as_current_span(
        f"process {received.topic}",
        context=trace.set_span_in_context(trace.NonRecordingSpan(first)),
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(one) for one in others],
        attributes={
            "messaging.system": "danube",
            "messaging.operation.name": "process",
            "messaging.destination.name": received.topic,
            "messaging.destination.subscription.name": subscription,
            "messaging.destination.partition.id": str(received.partition),
        },
    )
    return span


def _contexts(received: Message[Any] | ReceivedBatch[Any]) -> list[TraceContext]:
    if isinstance(received, Message):
        found = _context(received.attributes)
        return [] if found is None else [found]
    rows = received.attributes[:ROWS_MAX]
    known = [one for one in map(_context, rows) if one is not None]
    return list(dict.fromkeys(known))[: LINKS_MAX + 1]


def _context(attributes: Mapping[str, str] | None) -> TraceContext | None:
    traceparent = attributes.get(TRACEPARENT) if attributes else None
    return None if traceparent is None else TraceContext.parse(traceparent, (attributes or {}).get(TRACESTATE, ""))


def _remote(trace: Any, context: TraceContext) -> Any:
    return trace.SpanContext(
        context.trace_id,
        context.span_id,
        is_remote=True,
        trace_flags=trace.TraceFlags(context.flags),
        trace_state=trace.TraceState.from_header([context.state]) if context.state else trace.TraceState(),
    )
