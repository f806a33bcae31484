"""Readers that have seen everything, waiting for what comes next."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Arrivals:
    """Those who wait at the end of one partition."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self, wait_s: float) -> None:
        """Until something came, or `wait_s` have passed. Cancelled: nothing is held."""
        arrived = asyncio.get_running_loop().create_future()
        self._waiting.append(arrived)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await arrived
        finally:
            if arrived in self._waiting:
                self._waiting.remove(arrived)

    def tell(self) -> None:
        """Something came: everybody looks again."""
        waiting, self._waiting = self._waiting, []
        for arrived in waiting:
            if not arrived.done():
                arrived.set_result(None)
