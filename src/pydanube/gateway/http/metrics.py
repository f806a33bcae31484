"""/metrics, for Prometheus and whatever reads its formats (docs/metrics.md).

A scrape works in slices of a few milliseconds, so that publishes do not wait for it, however many topics there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pydanube.broker import Broker
from pydanube.core.access import Principal
from pydanube.model.errors import Unavailable
from pydanube.model.metrics import MetricFamily, MetricKind, Sample
from pydanube.model.settings.sections import MetricsSettings
from pydanube.runtime.clock import Clock
from pydanube.runtime.slices import Slices

from .prometheus_text import END_OF_OPENMETRICS, TextFormat, choose_format, format_family
from .requests import principal_of
from .topic_metrics import TopicSeries

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
            parts = await self._render(principal_of(request), text_format)
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
