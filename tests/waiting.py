"""Waits for what causes no event that a test could wait for, such as a count inside a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], object | Awaitable[object]], seconds: float = 60) -> None:
    """Wait until `condition`, which may be a coroutine function, returns something true."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await asyncio.sleep(0.002)
