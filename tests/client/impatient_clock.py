"""Clocks for tests of what is tried until a timeout: no timeout passes because a machine is slow."""

from __future__ import annotations

import asyncio

from pydanube.runtime.clock import ManualClock


class ImpatientClock(ManualClock):
    """A clock on which every sleep ends at once, and which advances by it; it records their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.advance(seconds)


class StandingClock(ManualClock):
    """A clock on which sleeps last as on any other, while deadlines wait for `advance`."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
