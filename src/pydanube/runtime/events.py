"""Waits that end early, on a clock that is passed in: for an event, or for something that is decided meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .clock import Clock
from .tasks import Tasks


async def wait_at_most(event: asyncio.Event, seconds: float, clock: Clock) -> None:
    """Return when the event is set, at the latest after `seconds`. Cancelled: nothing is left behind."""
    async with Tasks() as tasks:
        waits = (tasks.spawn(event.wait(), "event"), tasks.spawn(clock.sleep(seconds), "time limit"))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


class Signal:
    """Tells those who wait that something has changed; each of them says what it waits for."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    def wake(self) -> None:
        """End the waits whose condition is true now."""
        for woken, condition in self._waiting.items():
            if not woken.done() and condition():
                woken.set_result(None)

    async def wait_for(self, condition: Callable[[], bool], seconds: float, clock: Clock) -> None:
        """Return if the condition is true, or as soon as `wake` finds it true, at the latest after `seconds`.
        Cancelled: nothing is left behind."""
        if condition():
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = condition
        try:
            async with Tasks() as tasks:
                limit = tasks.spawn(clock.sleep(seconds), "time limit")
                await asyncio.wait((woken, limit), return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._waiting[woken]
