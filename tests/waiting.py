"""Waits for what causes no event that a test could wait for, such as a count inside a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

HANG_S = 300.0
"""Only a hang takes as long, however busy the machine is."""

TURNS = 100
"""So many turns of the event loop are looked at before the wait pauses between them."""


async def until(condition: Callable[[], object], seconds: float = HANG_S) -> None:
    """Wait until `condition`, which may be a coroutine function, returns something true."""
    async with asyncio.timeout(seconds):
        for turn in count():
            found = condition()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0 if turn < TURNS else 0.002)
