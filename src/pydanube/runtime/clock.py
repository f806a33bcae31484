"""Clocks: wall time, monotonic time, and sleeping.

Wall time is shown to people and stored in records; it may jump in both directions. Every duration and deadline uses
`monotonic`, which never goes back. Only the time of a lease, which others count too, uses `boot_time`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
import time
from functools import partial
from typing import Final, Protocol

MICROSECONDS: Final = 1_000_000
"""One second, in the unit of every stored time."""


class Clock(Protocol):
    """The source of time."""

    def now_us(self) -> int:
        """Return the wall time in microseconds since 1970, UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment in the past; this never goes back."""
        ...

    def boot_time(self) -> float:
        """Return seconds since some moment in the past; this never goes back, and also counts while the machine
        sleeps, which `monotonic` does not."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait until `monotonic` has advanced by `seconds`. When cancelled, nothing is left behind."""
        ...


def _boot_clock() -> int:
    """Return the id of the clock that goes on while the machine sleeps. On macOS that is CLOCK_MONOTONIC_RAW, which is
    mach_continuous_time; on Linux both clocks of that name stop, and CLOCK_BOOTTIME does not."""
    return time.CLOCK_MONOTONIC_RAW if sys.platform == "darwin" else time.CLOCK_BOOTTIME


processor_time: Final = time.thread_time
"""Returns the seconds that this thread has used of a processor: what others do on the machine does not count."""


class SystemClock:
    """The clock of this machine."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    monotonic = staticmethod(time.monotonic)
    boot_time = staticmethod(partial(time.clock_gettime, _boot_clock()))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests that stands still until `advance` is called. Used on the event loop only."""

    def __init__(self, now_us: int = 1_700_000_000_000_000, monotonic: float = 1_000.0) -> None:
        self._now_us = now_us
        self._monotonic = monotonic
        self._suspended = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._monotonic

    def boot_time(self) -> float:
        return self._monotonic + self._suspended

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._monotonic + seconds, next(self._tickets), woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Advance the time. Sleepers that are due are woken, the earliest first, and run when the caller next
        awaits."""
        assert seconds >= 0, "monotonic time never goes back"
        self._monotonic += seconds
        self._now_us += round(seconds * MICROSECONDS)
        while self._sleepers and self._sleepers[0][0] <= self._monotonic:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: wall time and `boot_time` advance, `monotonic` does not, and no sleeper is woken."""
        assert seconds >= 0, "time never goes back"
        self._suspended += seconds
        self._now_us += round(seconds * MICROSECONDS)

    def set_wall(self, now_us: int) -> None:
        """Set the wall clock, as an administrator or NTP would; deadlines do not move."""
        self._now_us = now_us

    @property
    def sleeping(self) -> int:
        """How many callers of `sleep` are waiting."""
        return sum(not woken.done() for _, _, woken in self._sleepers)
