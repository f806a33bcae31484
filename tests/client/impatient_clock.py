"""A clock for tests of what is tried again until a timeout: pauses take no time, and the timeout passes by them alone."""

from __future__ import annotations

from pydanube.runtime.clock import ManualClock


class ImpatientClock(ManualClock):
    """A clock on which every sleep ends at once; it records their lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.advance(seconds)
