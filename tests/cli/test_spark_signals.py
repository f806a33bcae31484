"""How commands that follow a stream of Spark end: after the batch at the first signal, at once at the second."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import click
import pytest

from pydanube.cli.spark import table_landing
from pydanube.runtime.signals import StopSignals


class Query:
    """A query in a batch that never ends, or between two of them; each look at its status brings a second signal."""

    lastProgress = None  # noqa: N815

    def __init__(self, in_batch: bool) -> None:
        self.isActive = True
        self._in_batch = in_batch

    @property
    def status(self) -> dict[str, bool]:
        if self._in_batch:
            signal.raise_signal(signal.SIGTERM)
        return {"isTriggerActive": self._in_batch}

    def stop(self) -> None:
        self.isActive = False

    def exception(self) -> None:
        return None


@pytest.fixture(autouse=True)
def poll_of_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a signal ends a wait before the time limit of the test."""
    monkeypatch.setattr(table_landing, "POLL_SECONDS", 3600)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_between_two_batches_stops_the_query_at_once(number: signal.Signals) -> None:
    query: Any = Query(in_batch=False)
    with StopSignals() as signals:
        table_landing.wait_for(query, signals, lambda: signal.raise_signal(number) if query.isActive else None)
    assert not query.isActive


def test_the_second_signal_ends_a_batch() -> None:
    query: Any = Query(in_batch=True)
    told = SimpleNamespace(times=0)

    def progress() -> None:
        told.times += 1
        signal.raise_signal(signal.SIGINT)

    with StopSignals() as signals, pytest.raises(click.Abort):
        table_landing.wait_for(query, signals, progress)
    assert not query.isActive
    assert told.times == 1
