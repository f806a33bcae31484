"""A simulation of the slices of one incarnation: an owner that puts them, takers that seal, a store that loses answers.

Everything is decided by a seed: which puts fail, which ones succeed without an answer, how long each takes, when the
owner is paused, and when a taker seals. Afterwards every record that was acked must be in the slices that count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Self

from crc32c import crc32c

from pydanube.codec.slice import SliceRecord, slice_key
from pydanube.codec.wal import RecordKind
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.settings.sections import SliceSettings
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.objects.object_store import Buffer, Capabilities, ObjectInfo
from pydanube.runtime.tasks import Tasks
from pydanube.storage.slices import SliceReader, SliceWriter, seal
from pydanube.storage.slices.slice_reader import SliceRange

LEDGER = 7
INCARNATION = 3
LIMITS = SliceSettings(in_flight_max=3, interval_ms=0, slice_bytes=200, waiting_bytes_max=1 << 20)


class InstantClock(SystemClock):
    """Sleeps take a few turns of the loop, whatever their length."""

    async def sleep(self, seconds: float) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


class FaultyStore:
    """A store in memory. Its puts take some turns of the loop; some fail before and some after they are made."""

    def __init__(self, random: Random, failing: float) -> None:
        self._inner = MemoryStore()
        self._random = random
        self.failing = failing

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def _pass_time(self) -> None:
        for _ in range(self._random.randrange(8)):
            await asyncio.sleep(0)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        await self._pass_time()
        if self._random.random() < self.failing:
            raise Unavailable("the request was lost")
        info = await self._inner.put(key, data, create=create, if_match=if_match)
        await self._pass_time()
        if self._random.random() < self.failing:
            raise Unavailable("the answer was lost")
        return info

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        await self._pass_time()
        return await self._inner.get(key, start, end)

    async def head(self, key: str) -> ObjectInfo:
        return await self._inner.head(key)

    async def list(self, prefix: str = "", after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self._inner.list(prefix, after):
            await self._pass_time()
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        await self._inner.delete(keys)

    async def close(self) -> None:
        await self._inner.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass
class Outcome:
    acked: list[int] = field(default_factory=list)
    """Entries whose slice counts, in the order of the callbacks."""
    refused: list[int] = field(default_factory=list)
    acked_after_seal: list[int] = field(default_factory=list)
    """Entries that were acked after a taker had read what counts, and were not among that."""
    found: list[int] = field(default_factory=list)
    """Entries that the taker found."""
    ends: list[int] = field(default_factory=list)
    """What each seal returned."""


def record(entry: int, size: int) -> SliceRecord:
    body = entry.to_bytes(8, "big") * max(1, size // 8)
    return SliceRecord(RecordKind.STATE_DELTA, LEDGER, entry, 1, body, crc32c(body))


async def run(seed: int) -> Outcome:
    """Run one history, and return what became of it."""
    random = Random(seed)
    store = FaultyStore(random, random.choice([0.0, 0.1, 0.3]))
    clock, tasks, outcome = InstantClock(), Tasks(), Outcome()
    writer = SliceWriter(store, INCARNATION, LIMITS, clock, tasks)
    deleted_below, read = 0, False

    def answered(entry: int, error: DanubeError | None) -> None:
        (outcome.acked if error is None else outcome.refused).append(entry)
        if error is None and read and entry not in outcome.found:
            outcome.acked_after_seal.append(entry)

    async def publish() -> None:
        for entry in range(random.randrange(5, 40)):
            try:
                writer.append(record(entry, random.choice([8, 80, 300])), partial(answered, entry))
            except DanubeError:
                return
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)

    publishing = asyncio.get_running_loop().create_task(publish())
    for _ in range(random.randrange(150)):
        await asyncio.sleep(0)
    if random.random() < 0.5 and writer.counted_end > 1:  # what is in the catalog already is deleted
        deleted_below = random.randrange(writer.counted_end)
        await store.delete([slice_key(INCARNATION, number) for number in range(deleted_below)])
    outcome.ends = list(
        await asyncio.gather(*(_seal(store, deleted_below, by) for by in range(1, random.randrange(2, 4))))
    )
    reader = SliceReader(store, clock)
    found = await reader.records([SliceRange(INCARNATION, deleted_below, outcome.ends[0])], {LEDGER})
    outcome.found = [one.entry_id for one in found.get(LEDGER, [])]
    if deleted_below:  # the entries of deleted slices are known from elsewhere
        first = min(outcome.found, default=0)
        outcome.found = [*range(first), *outcome.found]
    read = True
    store.failing = 0.0
    await publishing
    for _ in range(400):
        await asyncio.sleep(0)
    await tasks.close()
    return outcome


async def _seal(store: FaultyStore, lowest: int, by: int) -> int:
    while True:
        try:
            return await seal(store, INCARNATION, lowest, by)
        except Unavailable:
            await asyncio.sleep(0)


def judge(outcome: Outcome) -> list[str]:
    """Return what is wrong with a history; nothing if all is well."""
    wrong = []
    if lost := [one for one in outcome.acked if one not in outcome.found]:
        wrong.append(f"acked and not found: {lost}")
    if outcome.acked_after_seal:
        wrong.append(f"acked by the old owner after the seal: {outcome.acked_after_seal}")
    if outcome.acked != sorted(outcome.acked):
        wrong.append(f"acked out of order: {outcome.acked}")
    if outcome.found != list(range(len(outcome.found))):
        wrong.append(f"what counts has a gap or a repetition: {outcome.found}")
    if len(set(outcome.ends)) > 1:
        wrong.append(f"takers disagree about the end: {outcome.ends}")
    return wrong
