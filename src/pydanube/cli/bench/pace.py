"""Sending on schedule: message k is due at begin + k / rate, whatever happened to the ones before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


async def paced(rate: float, count: int, *, step: int = 1) -> AsyncIterator[int]:
    """Yield 0, step, 2 * step .. below `count` when each is due. Late ones follow at once; the schedule stays."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for index in range(0, count, step):
        delay = begin + index / rate - loop.time()
        if delay > 0:
            await asyncio.sleep(delay)
        yield index
