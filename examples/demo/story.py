"""What is known of the story: what the Spark job tells while it works, and what the summary needs in the end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from audit import Check
from feed import Feed

Steps = list[tuple[float, int]]
"""When how many messages were through."""


@dataclass
class Watch:
    """What the Spark job has told so far."""

    done: int = 0
    """Messages that are in the archive: the sum of the offsets that Spark has reached."""
    batches: dict[int, int] = field(default_factory=dict)
    """Rows of each of the archive's micro-batches; one that Spark repeats counts once."""
    steps: Steps = field(default_factory=list)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _added_up: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, line: dict[str, object]) -> None:
        if "ready" in line:
            self._ready.set()
        elif line["query"] == "archive":
            self.batches[int(str(line["batch"]))] = int(str(line["rows"]))
            self.done = int(str(line["done"]))
            self.steps.append((time.time(), self.done))
        elif line["rows"]:
            self._added_up.set()

    async def again(self) -> None:
        """Wait until a job that was just started has added something up."""
        self._ready.clear()
        self._added_up.clear()
        await self._ready.wait()
        await self._added_up.wait()


@dataclass
class Story:
    """All of it, for the summary."""

    feed: Feed
    watch: Watch = field(default_factory=Watch)
    published: Steps = field(default_factory=list)
    seconds: float = 0.0
    killed: tuple[float, float] = (0.0, 0.0)
    """When the job was killed, and when it worked again."""
    behind: int = 0
    """Messages that waited for it."""
    checks: list[Check] = field(default_factory=list)

    @property
    def away(self) -> float:
        return self.killed[1] - self.killed[0]

    @property
    def good(self) -> bool:
        return bool(self.checks) and all(passed for _, passed in self.checks)
