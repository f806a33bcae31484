"""Reads stages from the object store: indexes and sections, checked and cached.

Many partitions read the same stage at about the same time. So a stage is read whole while most of its sections are
still needed, and section by section after that.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from pydanube.codec import stage
from pydanube.codec.stage import StageIndex, StageSection
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.runtime.cache import LoadingCache
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks

STAGES: Final = "stages/"
READS_AT_ONCE: Final = 16
"""Concurrent reads of indexes and sections."""

CHECKS_AT_ONCE: Final = 32
"""Concurrent checks whether stages exist. A separate limit, so that commits do not wait for publishing."""

WHOLE_READS_AT_ONCE: Final = 3
"""Concurrent reads of whole stages, each up to the size of a frame. Partitions read stages in the same order, so a few
are enough."""

CACHED_BYTES: Final = 32 << 20
"""Size of the cache of whole stages; the last one that was read stays, whatever its size."""

CACHED_SECTIONS: Final = 100_000
"""Size of the cache of indexes, in sections: some tens of megabytes."""


def stages_of(number: int, batch_id: int | None = None) -> str:
    """Return the key prefix of the stages of a query, or of one of its batches."""
    return f"{STAGES}{number:016x}/" if batch_id is None else f"{STAGES}{number:016x}/{batch_id:010d}/"


class StageReader:
    """Reads stages, with caches that the whole broker shares."""

    def __init__(self, objects: ObjectStore, tasks: Tasks) -> None:
        self._objects = objects
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._check_slots = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._whole_slots = asyncio.Semaphore(WHOLE_READS_AT_ONCE)
        self._indexes: LoadingCache[str, StageIndex] = LoadingCache(tasks, CACHED_SECTIONS, _sections_of)
        self._whole_objects: LoadingCache[str, memoryview] = LoadingCache(tasks, CACHED_BYTES, len)
        self._sections_read: dict[str, int] = {}
        """How many sections of each stage were read."""

    def add_index(self, key: str, index: StageIndex) -> None:
        """Cache the index of a stage that was just stored."""
        self._indexes.put(key, index)

    def forget(self, key: str) -> None:
        """Drop the stage from the caches."""
        self._indexes.drop(key)
        self._whole_objects.drop(key)
        self._sections_read.pop(key, None)

    async def check_exists(self, key: str) -> None:
        """Raise NotFound if the stage is not in the store now, even if it is cached."""
        async with self._check_slots:
            try:
                await self._objects.head(key)
            except NotFound:
                self.forget(key)
                raise

    async def index(self, key: str) -> StageIndex:
        """Return the index of a stage. Raises NotFound or Corrupt, with its key in the message."""
        return await self._indexes.get(key, partial(self._read_index, key))

    async def batches(self, key: str, section: StageSection) -> list[memoryview]:
        """Return the checked batches of one section. They are views of shared memory: copy what must be kept."""
        index = await self.index(key)
        sections_read = self._sections_read[key] = self._sections_read.get(key, 0) + 1
        if 2 * sections_read <= len(index.sections) + 1 or key in self._whole_objects:
            whole = await self._whole_objects.get(key, partial(self._read_whole, key))
            return stage.split(whole[section.start : section.end], section, key)
        async with self._slots:
            found = await self._objects.get(key, section.start, section.end)
        return stage.split(found, section, key)

    async def _read_index(self, key: str) -> StageIndex:
        async with self._slots:
            head = await self._objects.get(key, 0, stage.FIRST_READ_BYTES)
            header = stage.read_stage_header(head, key)
            if header.index_end > len(head):
                head = await self._objects.get(key, 0, header.index_end)
        return stage.decode_index(head[stage.HEADER_BYTES : header.index_end], header)

    async def _read_whole(self, key: str) -> memoryview:
        async with self._whole_slots:
            return await self._objects.get(key)


def _sections_of(index: StageIndex) -> int:
    return len(index.sections)


def is_permanent(error: DanubeError) -> bool:
    """Return whether the error is probably permanent, so that frequent retries are useless."""
    return isinstance(error, NotFound | Corrupt)
