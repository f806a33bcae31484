"""Stages as their readers see them: indexes and sections, read from the object store, checked, and shared.

Many partitions read the same stage at about the same time: it is read whole while most of it is still wanted, and
after that in ranges.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from pydanube.codec import stage
from pydanube.codec.stage import StageIndex, StageSection
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.runtime.objects import ObjectStore

STAGES: Final = "stages/"
READS_AT_ONCE: Final = 16
"""Of indexes and sections."""

LOOKS_AT_ONCE: Final = 32
"""Whether stages are there. Their own, so that a commit does not wait behind what is being published."""

WHOLES_AT_ONCE: Final = 3
"""Each is as large as a frame may be. Partitions go through stages in the same order, so the next ones are enough."""

CACHED_BYTES: Final = 32 << 20
"""Of stages that are being published; the last one read stays, however large."""

CACHED_SECTIONS: Final = 100_000
"""Of indexes: some tens of megabytes."""

Value = TypeVar("Value")


def stages_of(number: int, batch_id: int | None = None) -> str:
    """Where the stages of a query, or of one of its batches, lie."""
    return f"{STAGES}{number:016x}/" if batch_id is None else f"{STAGES}{number:016x}/{batch_id:010d}/"


class _Cache(Generic[Value]):
    """What was read last, up to a size; whoever asks for what is being read waits for it."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._size = 0
        self._held: OrderedDict[str, tuple[Value, int]] = OrderedDict()
        self._coming: dict[str, asyncio.Event] = {}

    def get(self, key: str) -> Value | None:
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: str, value: Value, size: int) -> None:
        self.drop(key)
        self._held[key] = value, size
        self._size += size
        while self._size > self._size_max and len(self._held) > 1:
            self.drop(next(iter(self._held)))

    def drop(self, key: str) -> None:
        found = self._held.pop(key, None)
        self._size -= found[1] if found is not None else 0

    async def get_or_read(
        self, key: str, read: Callable[[str], Awaitable[Value]], size_of: Callable[[Value], int]
    ) -> Value:
        """Cancelled or failed: the next one who waits reads it himself."""
        while (found := self.get(key)) is None:
            if (coming := self._coming.get(key)) is not None:
                await coming.wait()
                continue
            self._coming[key] = asyncio.Event()
            try:
                found = await read(key)
                self.put(key, found, size_of(found))
                return found
            finally:
                self._coming.pop(key).set()
        return found


class StageReader:
    """Reads stages for everybody in one broker."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._slots = asyncio.Semaphore(READS_AT_ONCE)
        self._looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        self._whole_slots = asyncio.Semaphore(WHOLES_AT_ONCE)
        self._indexes: _Cache[StageIndex] = _Cache(CACHED_SECTIONS)
        self._wholes: _Cache[memoryview] = _Cache(CACHED_BYTES)
        self._taken: dict[str, int] = {}
        """How many sections of a stage were read since it came."""

    def learn(self, key: str, index: StageIndex) -> None:
        """A stage was just made."""
        self._indexes.put(key, index, len(index.sections))

    def forget(self, key: str) -> None:
        """Nobody will ask for it again."""
        self._indexes.drop(key)
        self._wholes.drop(key)
        self._taken.pop(key, None)

    async def look(self, key: str) -> None:
        """Whether a stage is there now, whatever was known of it: somebody may have deleted it. Raises NotFound."""
        async with self._looks:
            try:
                await self._objects.head(key)
            except NotFound:
                self.forget(key)
                raise

    async def index(self, key: str) -> StageIndex:
        """What a stage holds. Raises NotFound and Corrupt, naming it."""
        return await self._indexes.get_or_read(key, self._read_index, _sections_of)

    async def batches(self, key: str, section: StageSection) -> list[memoryview]:
        """The batches of one section, checked. They share memory with others: copy what is to be kept."""
        index = await self.index(key)
        taken = self._taken[key] = self._taken.get(key, 0) + 1
        if 2 * taken <= len(index.sections) + 1 or self._wholes.get(key) is not None:
            whole = await self._wholes.get_or_read(key, self._read_whole, len)
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


def is_lost(error: DanubeError) -> bool:
    """Whether trying again is no use, for all that is known."""
    return isinstance(error, NotFound | Corrupt)
