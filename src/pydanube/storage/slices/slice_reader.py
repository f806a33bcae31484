"""Reads the slices of a sealed sequence, each once, for all partitions that need something of it.

Invariants
    a slice in [lowest, end) that is missing or damaged is Corrupt: it was acknowledged
    a read that fails is tried again by itself: a takeover may need hundreds of slices, and beginning anew for each
    failure would never end on a store that fails now and then
    memory keeps at most KEPT_BYTES_MAX of slices that were read, until `forget`; a slice that was dropped before is
    read again
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from pydanube.codec.slice import SliceRecord, decode_slice, slice_key
from pydanube.model.errors import NotFound, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.retry import RetryBackoff, until_done
from pydanube.runtime.tasks import mark_retrieved

from .sealing import missing_slice

READ_AT_ONCE: Final = 8
"""How many slices are fetched at the same time."""

TRIES: Final = 6
RETRY_S: Final = 0.1
RETRY_S_MAX: Final = 1.6
"""How often a read is tried, with the first and the longest pause in between. After the last try the takeover fails,
and its caller repeats it later."""

KEPT_BYTES_MAX: Final = 256 << 20
"""Slices that are kept for other partitions. A taker reads more only if its former owner could not upload for long."""


class SliceRange(NamedTuple):
    """The slices [lowest, end) of one incarnation."""

    incarnation: int
    lowest: int
    end: int


class SliceReader:
    """Reads slices, and keeps those that were read until `forget`."""

    def __init__(self, objects: ObjectStore, clock: Clock) -> None:
        self._objects = objects
        self._clock = clock
        self._reading: dict[tuple[int, int], asyncio.Task[dict[int, list[SliceRecord]]]] = {}
        """By incarnation and number: the records of a slice, by ledger."""
        self._room = asyncio.Semaphore(READ_AT_ONCE)
        self._kept: dict[tuple[int, int], int] = {}
        """The sizes of the slices that were read, the one that was read first before the others."""

    async def records(self, ranges: Sequence[SliceRange], ledger_ids: set[int]) -> dict[int, list[SliceRecord]]:
        """Return the records of these ledgers, in order, by ledger. Raises Corrupt and Unavailable."""
        found: dict[int, list[SliceRecord]] = {}
        wanted = [(one.incarnation, number) for one in ranges for number in range(one.lowest, one.end)]
        reading = [self._slice(*key) for key in wanted]
        if missing := [task for task in reading if not task.done()]:  # most were read for another partition
            await asyncio.wait(missing)
        for task in reading:
            by_ledger = task.result()
            for ledger_id in ledger_ids & by_ledger.keys():
                found.setdefault(ledger_id, []).extend(by_ledger[ledger_id])
        return found

    def forget(self) -> None:
        """Drop what was read; slices that are needed again are read again."""
        self._reading = {key: task for key, task in self._reading.items() if not task.done()}
        self._kept.clear()

    def _keep(self, key: tuple[int, int], size: int) -> None:
        """Count a slice that was read, and drop older ones where there are too many."""
        self._kept[key] = size
        left = sum(self._kept.values()) - KEPT_BYTES_MAX
        for old in list(self._kept):
            if left <= 0 or old == key:
                return
            left -= self._kept.pop(old)
            self._reading.pop(old, None)

    def _slice(self, incarnation: int, number: int) -> asyncio.Task[dict[int, list[SliceRecord]]]:
        """Return the task that reads a slice, or has read it. A waiting caller may be cancelled; the task goes on."""
        key = (incarnation, number)
        task = self._reading.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._reading[key] = asyncio.get_running_loop().create_task(self._read(incarnation, number))
            task.add_done_callback(mark_retrieved)
        return task

    async def _read(self, incarnation: int, number: int) -> dict[int, list[SliceRecord]]:
        async with self._room:
            try:
                data = await until_done(
                    partial(self._objects.get, slice_key(incarnation, number)),
                    RetryBackoff(RETRY_S, RETRY_S_MAX),
                    self._clock,
                    on=Unavailable,
                    tries=TRIES,
                )
            except NotFound:
                raise missing_slice(self._objects, incarnation, number) from None
        by_ledger: dict[int, list[SliceRecord]] = {}
        for record in decode_slice(data, incarnation, number):
            by_ledger.setdefault(record.ledger_id, []).append(record)
        self._keep((incarnation, number), len(data))
        return by_ledger
