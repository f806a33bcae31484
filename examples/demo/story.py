"""The state of the demo: what the Spark job reports while it runs, and what the summary needs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from audit import Check
from feed import Feed

Steps = list[tuple[float, int]]
"""Times and the number of messages at that time."""


@dataclass
class Watch:
    """What the Spark job has reported so far."""

    done: int = 0
    """Messages in the archive: the sum of the offsets that Spark has reached."""
    batches: dict[int, int] = field(default_factory=dict)
    """Rows by micro-batch of the archive; a repeated batch counts once."""
    steps: Steps = field(default_factory=list)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _computed: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, line: dict[str, object]) -> None:
        if "ready" in line:
            self._ready.set()
        elif line["query"] == "archive":
            self.batches[int(str(line["batch"]))] = int(str(line["rows"]))
            self.done = int(str(line["done"]))
            self.steps.append((time.time(), self.done))
        elif line["rows"]:
            self._computed.set()

    async def wait_until_working(self) -> None:
        """Wait until a job that was just started has computed sums."""
        self._ready.clear()
        self._computed.clear()
        await self._ready.wait()
        await self._computed.wait()


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
    checks: list[Check] = field(default_factory=list)

    @property
    def away(self) -> float:
        return self.killed[1] - self.killed[0]

    @property
    def good(self) -> bool:
        return bool(self.checks) and all(passed for _, passed in self.checks)
