"""A directory as a store on a bad day: it is slow, away, hangs, or loses the answer to what it did. By an entry point.

FLAKY_SEED in the environment makes the day; each process goes on with it from its own number of the start.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pydanube.model.errors import Unavailable
from pydanube.runtime.objects import Buffer, ObjectInfo
from pydanube.runtime.objects.local import LocalStore


class FlakyStore(LocalStore):
    chance: random.Random

    async def _day(self) -> None:
        luck = self.chance.random()
        if luck < 0.15:
            raise Unavailable("no route to the store")
        if luck < 0.3:
            await asyncio.sleep(self.chance.expovariate(10))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        await self._day()
        info = await super().put(key, data, create=create, if_match=if_match)
        if self.chance.random() < 0.1:
            raise Unavailable("the answer was lost")
        return info

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        await self._day()
        return await super().get(key, start, end)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._day()
        await super().delete(keys)


async def open_flaky(url: str, _settings: Mapping[str, str]) -> FlakyStore:
    store = await FlakyStore.open(Path(urlsplit(url).path))
    store.chance = random.Random(f"{os.environ.get('FLAKY_SEED', '0')} {os.environ.get('FLAKY_START', '0')}")
    return store
