"""The state of the demo: what the pipeline reports while it runs, and what the summary needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from audit import Check, Results
from feed import Feed

QUERIES = ("table", "totals", "dead-letters.orders")
Steps = list[tuple[float, int]]
"""Times and the number of messages at that time."""


@dataclass
class Watch:
    """What `danube pipeline run --json` has reported so far."""

    positions: dict[str, int] = field(default_factory=dict.fromkeys(QUERIES, 0).copy)
    """How many messages each query has processed."""
    batches: dict[tuple[str, int], int] = field(default_factory=dict)
    """Rows by query and micro-batch; a repeated batch counts once."""
    steps: dict[str, Steps] = field(default_factory=lambda: {query: [] for query in QUERIES})
    _working: set[tuple[int, str]] = field(default_factory=set)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> int:
        """How many messages have been processed by all queries."""
        return min(self.positions.values())

    def receive(self, pid: int, line: dict[str, Any]) -> None:
        """Take note of a line of the process `pid`."""
        if line["event"] != "batch":
            return
        query, position = line["query"], line["position"]
        self.batches[query, line["batch"]] = line["rows"]
        self.positions[query] = position
        self.steps[query].append((time.time(), position))
        self._working.add((pid, query))
        self._news.set()

    async def wait_until_working(self, pid: int) -> None:
        """Wait until every query of the process `pid` has completed a batch."""
        await self._until(lambda: all((pid, query) in self._working for query in QUERIES))

    async def wait_until_done(self, count: int) -> None:
        """Wait until every query has processed so many messages."""
        await self._until(lambda: self.done >= count)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()


@dataclass
class Story:
    """Everything that the summary needs."""

    feed: Feed
    watch: Watch = field(default_factory=Watch)
    published: Steps = field(default_factory=list)
    seconds: float = 0.0
    killed: tuple[float, float] = (0.0, 0.0)
    """When the job was killed, and when it worked again."""
    behind: int = 0
    """Messages that were published while the job was away."""
    results: Results | None = None
    checks: list[Check] = field(default_factory=list)

    @property
    def away(self) -> float:
        return self.killed[1] - self.killed[0]

    @property
    def good(self) -> bool:
        return bool(self.checks) and not any(check.problem for check in self.checks)
