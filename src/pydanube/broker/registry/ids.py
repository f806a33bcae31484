"""Ids of topics, subscriptions, producers and ledgers: numbers that rise, from counters in the metadata store."""

from __future__ import annotations

import asyncio
from typing import Final

from pydanube.metadata.id_counters import last_id, take_ids
from pydanube.metadata.store import MetadataStore

LEDGER_COUNTER: Final = "ledger"


class IdBlocks:
    """Gives out the ids of one counter.

    Ids are reserved in the store a block at a time. What is left of a block when the broker stops is never used.
    """

    def __init__(self, store: MetadataStore, counter: str, block: int) -> None:
        self._store = store
        self._counter = counter
        self._block = block
        self._left: list[int] = []
        self._last = 0
        self._fetching = asyncio.Lock()  # a thousand calls at once reserve one block, not a thousand
        self._waiting = 0
        """How many calls wait for a block."""

    async def take(self) -> int:
        """Return the next id. Cancelled: a block of ids may stay unused, which does no harm."""
        self._waiting += 1
        try:
            while not self._left:
                async with self._fetching:
                    if not self._left:
                        count = max(self._block, self._waiting)
                        self._left = list(reversed(await take_ids(self._store, self._counter, count)))
        finally:
            self._waiting -= 1
        number = self._left.pop()
        self._last = max(self._last, number)
        return number

    async def load(self) -> None:
        """Read the last id that any broker has reserved."""
        self._last = max(self._last, await last_id(self._store, self._counter))

    async def was_given(self, number: int) -> bool:
        """Return whether this id may have been given out, by this broker or another one. The store is asked about
        numbers that are higher than what is known."""
        if self._left and self._left[-1] <= number <= self._left[0]:
            return False  # reserved for this broker, and not given yet
        if number > self._last:
            await self.load()
        return 0 < number <= self._last
