"""Counters and timings of the broker as a whole, since it was started.

Those of one topic or subscription are kept by its partitions (`core.meters`, `subscriptions.counters`) and begin at 0
when the partition opens; these here never go back. All of them are counted per batch, delivery or ack frame, never per
message, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from pydanube.broker.observe.tracing import BatchTracer
from pydanube.core.histograms import AGE_US, LATENCY_US, Histogram
from pydanube.model.errors import DanubeError
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import MICROSECONDS

LOOP_CHECK_S: Final = 0.1
"""How often the delay of the event loop is measured."""


THROTTLED: Final = ("fetch", "publish", "requests")
"""The kinds of rates of quotas."""

QUOTA_REFUSED: Final = ("connections", "publish", "requests", "stored")
"""The kinds of limits of quotas past which something is refused."""


class ListenerMetrics:
    """What one listener counts."""

    __slots__ = ("accepted", "connections", "invalid", "refused")

    def __init__(self) -> None:
        self.connections = 0
        self.accepted = 0
        self.refused = 0
        """Connections, or calls on a gRPC listener, that were refused because a limit was reached."""
        self.invalid = 0
        """Connections that sent bytes which are not of the listener's protocol, or broke its rules."""


class BrokerMetrics:
    """Counters and timings. Times are microseconds."""

    def __init__(self) -> None:
        self.publish_time = {level: Histogram(LATENCY_US) for level in AckLevel}
        """From the moment when a batch is appended to the moment when it has reached the ack level of its topic."""
        self.dispatch_time = Histogram(AGE_US)
        """From the append of a message to its first delivery; of a delivery, the oldest batch counts."""
        self.loop_delay = Histogram(LATENCY_US)
        """How late the event loop was, ten times a second."""
        self.published_batches = 0
        self.published_messages = 0
        self.published_bytes = 0
        self.duplicates = 0
        """Batches that were published again after they had been stored, and were not stored again."""
        self.refused: Counter[str] = Counter()
        """Batches that were not stored, by the class of the error that their producers got."""
        self.schema_violations: Counter[str] = Counter()
        """Batches that did not fit the schema of their topic, by the validation policy: `enforce` refuses them."""
        self.taken_over = 0
        """Partitions that this broker took over from a lost broker, on request or by policy."""
        self.given_up_offsets = 0
        """The offsets that these takeovers gave up: the number of messages that are lost at most."""
        self.deliveries = 0
        self.delivered_messages = 0
        self.delivered_bytes = 0
        self.redelivered = 0
        self.acked = 0
        self.ended: Counter[str] = Counter()
        """Messages that a subscription ended without an ack: expired, evicted, dropped, dead_lettered."""
        self.throttled_s: dict[str, float] = dict.fromkeys(THROTTLED, 0.0)
        """How many seconds callers waited for the rates of their quotas, by the kind of the rate."""
        self.quota_refused: Counter[str] = Counter(dict.fromkeys(QUOTA_REFUSED, 0))
        """What was refused because a quota was used up, by the kind of its limit."""
        self.http_answers: Counter[str] = Counter()
        """Answers of the HTTP listener, by status."""
        self.audit_events: Counter[tuple[str, str]] = Counter()
        """Audit events by kind and outcome, lost ones too."""
        self.audit_lost = 0
        self.tracer: BatchTracer | None = None
        """Traces batches; None, the default: nothing is traced."""
        self.listeners: dict[str, ListenerMetrics] = {}

    def published(self, messages: int, size_bytes: int) -> None:
        self.published_batches += 1
        self.published_messages += messages
        self.published_bytes += size_bytes

    def refuse(self, done: Callable[[DanubeError], None], error: DanubeError) -> None:
        """Count a batch that is not stored, and answer its producer with `error`."""
        self.refused[type(error).__name__] += 1
        done(error)

    def delivered(self, messages: int, size_bytes: int, redelivered: int, age_us: int) -> None:
        """Count a delivery. `age_us` is the time since the append of its oldest batch; it counts if no message of the
        delivery is a redelivery."""
        self.deliveries += 1
        self.delivered_messages += messages
        self.delivered_bytes += size_bytes
        if redelivered:
            self.redelivered += redelivered
        else:
            self.dispatch_time.observe(age_us if age_us > 0 else 0)

    def listener(self, name: str) -> ListenerMetrics:
        """Return the counters of a listener, which writes to them."""
        return self.listeners.setdefault(name, ListenerMetrics())

    async def measure_loop_delay(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LOOP_CHECK_S
            await asyncio.sleep(LOOP_CHECK_S)
            self.loop_delay.observe(max(0, int((loop.time() - due) * MICROSECONDS)))
