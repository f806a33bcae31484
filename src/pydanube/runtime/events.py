"""Waits for an event for a limited time, on a clock that is passed in."""

from __future__ import annotations

import asyncio

from .clock import Clock
from .tasks import Tasks


async def wait_at_most(event: asyncio.Event, seconds: float, clock: Clock) -> None:
    """Return when the event is set, at the latest after `seconds`. Cancelled: nothing is left behind."""
    async with Tasks() as tasks:
        waits = (tasks.spawn(event.wait(), "event"), tasks.spawn(clock.sleep(seconds), "time limit"))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
