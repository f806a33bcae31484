"""/metrics, for Prometheus and whatever reads its formats (docs/metrics.md).

A scrape works in slices of a few milliseconds, so that publishes do not wait for it, however many topics there are.

The number of series of topics and subscriptions is limited: labels are names of topics and subscriptions only,
never of producers, consumers or partitions, and past `series_max` the rest is left out and counted.

A topic without an open partition has no series: what is not in memory is not known, and must not look like 0.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.core.access import Principal
from pydanube.model.errors import Unavailable
from pydanube.model.metrics import MetricFamily, MetricKind, Sample
from pydanube.model.settings.sections import MetricsSettings
from pydanube.model.statistics import SubscriptionSummary, TopicSummary
from pydanube.runtime.clock import Clock
from pydanube.runtime.long_work import Slices

from .prometheus_text import END_OF_OPENMETRICS, TextFormat, choose_format, family_head, format_family, format_labels
from .requests import caller_of

_SCRAPES_MAX: Final = 4
"""Scrapes at the same time: each holds its text, some megabytes with thousands of topics, until the client has read
it."""

_LEFT_OUT: Final = "Topics and subscriptions without series, because there would be more than metrics.series_max."


def routes(broker: Broker, settings: MetricsSettings, clock: Clock) -> list[Route]:
    scrapes = _Scrapes(broker, settings, clock)
    return [Route("/metrics", scrapes.answer)]


class _Scrapes:
    """Answers scrapes, a limited number at a time."""

    def __init__(self, broker: Broker, settings: MetricsSettings, clock: Clock) -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._running = 0

    async def answer(self, request: Request) -> Response:
        if self._running >= _SCRAPES_MAX:
            raise Unavailable(f"{_SCRAPES_MAX} scrapes are being answered, as many as there may be: try again")
        self._running += 1
        try:
            text_format = choose_format(request.headers.get("accept", ""))
            parts = await self._render(caller_of(request).principal, text_format)
        except BaseException:
            self._running -= 1
            raise
        length = str(sum(map(len, parts)))
        headers = {"content-length": length, "cache-control": "no-store", "content-type": text_format.value}
        return _Answer(self, parts, headers)

    def ended(self) -> None:
        self._running -= 1

    async def _render(self, principal: Principal, text_format: TextFormat) -> list[bytes]:
        """Return the text in parts, made in slices. Cancelled: nothing is held."""
        parts = [format_family(one, text_format).encode() for one in self._broker.metric_families(principal)]
        if self._settings.topics:
            parts += await self._render_topics(principal, text_format)
        if text_format is TextFormat.OPENMETRICS:
            parts.append(END_OF_OPENMETRICS.encode())
        return parts

    async def _render_topics(self, principal: Principal, text_format: TextFormat) -> list[bytes]:
        series = TopicSeries(self._settings.series_max)
        async for chunk in self._broker.statistics.all(principal):
            slices = Slices(self._clock)  # others ran just before, and run again when the next chunk is asked for
            for topic in chunk:
                series.add(topic)
                await slices.pause_if_spent()
        left_out = MetricFamily("danube_metrics_left_out", MetricKind.GAUGE, _LEFT_OUT, [Sample(series.left_out)])
        parts = [format_family(left_out, text_format).encode()]
        slices = Slices(self._clock)
        for text in series.texts(text_format):
            parts.append(text.encode())
            await slices.pause_if_spent()
        return parts


class _Answer(StreamingResponse):
    """Sends the parts, and reports when that has ended, also if the client is gone."""

    def __init__(self, scrapes: _Scrapes, parts: Sequence[bytes], headers: dict[str, str]) -> None:
        super().__init__(_iterate(parts), headers=headers)
        self._scrapes = scrapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._scrapes.ended()


async def _iterate(parts: Sequence[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


_LINES_AT_ONCE: Final = 2_000
"""So many lines are joined and sent at a time: more would hold the event loop for too long."""


class _Series(NamedTuple):
    name: str
    kind: MetricKind
    help: str
    value: Callable[..., float]


def _counter(name: str, about: str, field: str) -> _Series:
    return _Series(name, MetricKind.COUNTER, about, attrgetter(field))


def _gauge(name: str, about: str, field: str) -> _Series:
    return _Series(name, MetricKind.GAUGE, about, attrgetter(field))


TOPIC: Final = (
    _counter("danube_topic_messages_in_total", "Messages published since the topic was opened.", "published"),
    _counter("danube_topic_bytes_in_total", "Bytes published since the topic was opened.", "published_bytes"),
    _gauge("danube_topic_messages", "Messages that are stored.", "messages"),
    _gauge("danube_topic_stored_bytes", "Bytes in the log.", "stored_bytes"),
    _gauge("danube_topic_active_producers", "Connected producers.", "producers"),
    _gauge("danube_topic_active_subscriptions", "Subscriptions.", "subscription_count"),
    _Series(
        "danube_topic_active_consumers",
        MetricKind.GAUGE,
        "Attached consumers of all subscriptions.",
        lambda topic: sum([one.consumers for one in topic.subscriptions]),
    ),
    _counter("danube_topic_throttled_seconds_total", "Time that publishes waited for the publish rate.", "throttled_s"),
    _counter("danube_topic_schema_warnings_total", "Batches stored although they do not fit.", "schema_warnings"),
    _counter("danube_topic_unheard_messages_total", "Non-reliable messages that had no consumer.", "unheard"),
)

SUBSCRIPTION: Final = (
    _counter("danube_subscription_messages_out_total", "Messages delivered, redeliveries included.", "delivered"),
    _counter("danube_subscription_bytes_out_total", "Bytes delivered.", "delivered_bytes"),
    _counter("danube_subscription_redelivered_messages_total", "Messages delivered again.", "redelivered"),
    _counter("danube_subscription_acked_messages_total", "Messages acked.", "acked"),
    _gauge("danube_subscription_lag_messages", "Backlog: messages that are not acked.", "backlog"),
    _gauge("danube_subscription_lag_bytes", "Backlog in bytes, estimated.", "backlog_bytes"),
    _gauge("danube_subscription_lag_seconds", "Age of the oldest message that is not acked, estimated.", "backlog_s"),
    _gauge("danube_subscription_unacked_messages", "Messages delivered and not acked.", "unacked"),
    _gauge("danube_subscription_waiting_messages", "Failed messages that wait for their redelivery.", "waiting"),
    _gauge("danube_subscription_blocked_messages", "Messages that failed too often and block.", "blocked"),
    _gauge("danube_subscription_active_consumers", "Attached consumers.", "consumers"),
)

ENDED: Final = ("dead_lettered", "dropped", "evicted", "expired")
_ENDED_NAME: Final = "danube_subscription_ended_messages_total"
_ENDED_HELP: Final = "Messages that ended without an ack; only reasons that have happened."


class TopicSeries:
    """Collects the lines of topics, one topic after the other."""

    def __init__(self, series_max: int) -> None:
        self._series_max = series_max
        self._lines: dict[str, list[str]] = {one.name: [] for one in (*TOPIC, *SUBSCRIPTION)}
        self._ended: list[str] = []
        self.count = 0
        self.left_out = 0
        """Topics and subscriptions that have no series, because there would be too many."""

    def add(self, topic: TopicSummary) -> None:
        if not topic.open_partitions:
            return
        if self.count + len(TOPIC) > self._series_max:
            self.left_out += 1
            return
        labels = {"topic": topic.topic}
        self._add(TOPIC, format_labels(labels), topic)
        for one in topic.subscriptions:
            if self.count + len(SUBSCRIPTION) + len(ENDED) > self._series_max:
                self.left_out += 1
            else:
                self._add_subscription({**labels, "subscription": one.name}, one)

    def _add_subscription(self, labels: dict[str, str], one: SubscriptionSummary) -> None:
        self._add(SUBSCRIPTION, format_labels(labels), one)
        for reason in ENDED:
            if ended := getattr(one, reason):
                self._ended.append(f"{_ENDED_NAME}{format_labels({**labels, 'reason': reason})} {ended}\n")
                self.count += 1

    def _add(self, series: tuple[_Series, ...], labels: str, of: TopicSummary | SubscriptionSummary) -> None:
        lines = self._lines
        for name, _, _, value in series:
            lines[name].append(f"{name}{labels} {value(of)}\n")
        self.count += len(series)

    def texts(self, text_format: TextFormat) -> Iterator[str]:
        """Make the text in parts, each when it is asked for, so that a caller can pause between them."""
        for one in (*TOPIC, *SUBSCRIPTION):
            yield from self._family(one.name, one.kind, one.help, self._lines[one.name], text_format)
        yield from self._family(_ENDED_NAME, MetricKind.COUNTER, _ENDED_HELP, self._ended, text_format)

    def _family(
        self, name: str, kind: MetricKind, about: str, lines: list[str], text_format: TextFormat
    ) -> Iterator[str]:
        if lines:
            yield family_head(name, kind, about, text_format)
        for start in range(0, len(lines), _LINES_AT_ONCE):
            yield "".join(lines[start : start + _LINES_AT_ONCE])
