"""Traces of batches: a span for each publish and each delivery of a batch whose messages carry a trace context.

The producers decide what is traced: a message has the attribute `traceparent`, with the flag "sampled", or it is not
looked at further. One batch may carry messages of several traces: its span belongs to the first of them and is linked
to the others.

Invariants
    without a configured endpoint there is no tracer, and nothing here is called
    at most SPANS_PER_S spans are made in a second, and of a batch only its first rows are looked at
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from pydanube.codec.batch import Batch, Codec
from pydanube.model.trace_context import TRACEPARENT, TRACESTATE, TraceContext
from pydanube.runtime.clock import Clock

SPANS_PER_S: Final = 500
ROWS_MAX: Final = 100
LINKS_MAX: Final = 16
BATCHES_MAX: Final = 16
"""Batches of one delivery that get a span."""

UNPACKED_BYTES_MAX: Final = 1 << 20
"""A compressed batch that is larger has no span: to read its attributes would take too long."""


class SpanSink(Protocol):
    def export(
        self,
        name: str,
        kind: str,
        parent: TraceContext,
        links: Sequence[TraceContext],
        start_us: int,
        end_us: int,
        attributes: Mapping[str, str | int],
    ) -> None: ...


class BatchTracer:
    """Makes the spans. All calls are made on the event loop."""

    def __init__(self, sink: SpanSink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self._second = 0
        self._spans_left = 0
        self.left_out = 0
        """Spans that were not made, because there were too many in their second."""

    def published(self, topic: str, view: memoryview) -> None:
        """Trace a batch that has just reached its ack level. Its span begins with its append."""
        batch = Batch.trust(view)
        self._export("publish", "producer", topic, batch, contexts_of(batch), {})

    def delivered(self, topic: str, subscription: str, consumer: str, views: Iterable[memoryview]) -> None:
        """Trace whole batches that are delivered. The span of each begins with its append."""
        named: dict[str, str | int] = {
            "messaging.destination.subscription.name": subscription,
            "messaging.client.id": consumer,
        }
        for view, _ in zip(views, range(BATCHES_MAX), strict=False):
            batch = Batch.trust(view)
            self._export("deliver", "consumer", topic, batch, contexts_of(batch), named)

    def delivered_rows(
        self, topic: str, subscription: str, consumer: str, view: memoryview, ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Trace rows of a batch that are delivered; without `ranges` all of them."""
        named: dict[str, str | int] = {
            "messaging.destination.subscription.name": subscription,
            "messaging.client.id": consumer,
        }
        batch = Batch.trust(view)
        self._export("deliver", "consumer", topic, batch, contexts_of(batch, ranges), named)

    def _export(
        self,
        operation: str,
        kind: str,
        topic: str,
        batch: Batch,
        contexts: Sequence[TraceContext],
        more: Mapping[str, str | int],
    ) -> None:
        if not contexts or not self._take():
            return
        header, parent = batch.header, contexts[0]
        attributes = {
            "messaging.system": "danube",
            "messaging.operation.name": operation,
            "messaging.destination.name": topic,
            "messaging.batch.message_count": header.count,
            "messaging.message.envelope.size": header.batch_bytes,
            "messaging.danube.message.offset": header.base_offset,
            **more,
        }
        start_us = header.append_time
        end_us = max(start_us, self._clock.now_us())
        self._sink.export(f"{operation} {topic}", kind, parent, contexts[1:], start_us, end_us, attributes)

    def _take(self) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._spans_left = second, SPANS_PER_S
        self._spans_left -= 1
        if self._spans_left < 0:
            self.left_out += 1
        return self._spans_left >= 0


def contexts_of(batch: Batch, ranges: Sequence[tuple[int, int]] = ()) -> list[TraceContext]:
    """Return the sampled trace contexts of the first rows, each once. With `ranges`, rows outside of them do not
    count."""
    if batch.header.codec is not Codec.NONE and batch.header.plain_length > UNPACKED_BYTES_MAX:
        return []
    rows = batch.first_attributes(ROWS_MAX)
    if ranges:
        rows = [one for start, end in ranges for one in rows[start:end]]
    found: dict[TraceContext, None] = {}
    for text, state in dict.fromkeys((one[TRACEPARENT], one.get(TRACESTATE, "")) for one in rows if TRACEPARENT in one):
        context = TraceContext.parse(text, state)
        if context is not None and context.is_sampled and len(found) <= LINKS_MAX:
            found[context] = None
    return list(found)
