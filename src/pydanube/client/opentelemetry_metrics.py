"""The counters of all clients of a process as OpenTelemetry metrics, in a program that uses OpenTelemetry.

Nothing is imported for it: a program that has not imported `opentelemetry.metrics` before it opens a client gets none.
The numbers of clients to the same URL are added up, and those of closed clients stay in the sums.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, Final

from .connection.observing import ClientMetrics

MODULE: Final = "opentelemetry.metrics"
PREFIX: Final = "danube.client."

_GAUGES: Final = {"partitions"}
_BYTES: Final = {"bytes_published", "bytes_received"}

_open: list[tuple[str, ClientMetrics]] = []
_closed: dict[str, ClientMetrics] = {}
_is_registered = False


def client_opened(url: str, metrics: ClientMetrics) -> None:
    """Include the counters of a client in what is exported."""
    global _is_registered
    api = sys.modules.get(MODULE)
    if api is None:
        return
    _open.append((url, metrics))
    if not _is_registered:
        _is_registered = True
        _register(api)


def client_closed(metrics: ClientMetrics) -> None:
    """Keep the numbers of a client that ended."""
    for entry in _open:
        if entry[1] is metrics:
            _open.remove(entry)
            _closed.setdefault(entry[0], ClientMetrics()).add(metrics)
            return


def _register(api: Any) -> None:
    meter = api.get_meter("pydanube")
    for one in fields(ClientMetrics):
        create = meter.create_observable_gauge if one.name in _GAUGES else meter.create_observable_counter
        create(PREFIX + one.name, callbacks=[_observer(api, one.name)], unit="By" if one.name in _BYTES else "1")


def _observer(api: Any, name: str) -> Callable[[object], Iterable[Any]]:
    def observe(_: object) -> Iterable[Any]:
        totals = {url: getattr(metrics, name) for url, metrics in list(_closed.items())}
        for url, metrics in _open:
            totals[url] = totals.get(url, 0) + getattr(metrics, name)
        return [api.Observation(total, {"danube.url": url}) for url, total in totals.items()]

    return observe
