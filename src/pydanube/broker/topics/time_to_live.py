"""The time to live of one partition's messages: which of them have expired and are not delivered any more.

The time to live begins when the message was appended, or at its delivery time if that is later. Batches that were
appended long enough ago are found by time; in them, messages with a later delivery time may still be kept. To find
those, each unacked batch is read once when it gets too old.

Invariants
    every batch in [scanned_from, scanned_to) was read, and is in `_kept` if any of its rows has not expired yet
    a batch in `_kept` is read again only when its first kept row has expired
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.codec.batch import Batch
from pydanube.codec.batch.header import offsets_of
from pydanube.core.dispatch.ranges import runs
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.runtime.clock import MICROSECONDS
from pydanube.storage.stream import append_time_at

READ_BYTES: Final = 2 * 1024 * 1024

RANGES_MAX: Final = ACKED_RANGES_MAX // 2
"""Delayed messages are kept between expired ones. At most this many ranges are acked at a time: a cursor with too many
ranges would stop delivery."""


class _Kept(NamedTuple):
    """The rows of an old batch that have not expired, as offset ranges; the first of them expires after `due_us`."""

    due_us: int
    ranges: list[tuple[int, int]]


class TimeToLive:
    """Expires the messages of one partition. What it has read is remembered until the time to live is changed."""

    def __init__(self, partition: StoredPartition) -> None:
        self._partition = partition
        self._ttl_s = 0
        self._scanned_from = self._scanned_to = 0
        self._kept: dict[int, _Kept] = {}

    async def expire(self, now_us: int) -> None:
        """Ack, and count, the expired messages of every subscription. Cancelled: nothing was acked."""
        partition, ttl_s = self._partition, self._partition.policies.ttl_s
        if not ttl_s or not partition.subscriptions:
            return
        cutoff = now_us - ttl_s * MICROSECONDS
        position = max(partition.settled_below(), partition.stream.start_offset)
        oldest_us = await append_time_at(partition.stream, position)
        if oldest_us is None or oldest_us >= cutoff:
            return
        end = await partition.stream.find_time(cutoff)
        if end <= position:
            return
        if ttl_s != self._ttl_s or position < self._scanned_from or position > self._scanned_to:
            self._ttl_s, self._scanned_from, self._scanned_to = ttl_s, position, position
            self._kept.clear()
        await self._scan(end, cutoff)
        self._scanned_from = position
        await self._recheck_kept(position, cutoff)
        kept = [one for base in sorted(self._kept) for one in self._kept[base].ranges]
        for subscription in list(partition.subscriptions.values()):
            first = subscription.cursor.position
            if max(first, partition.stream.start_offset) < position:
                continue  # moved back meanwhile: the next round reads what is there first
            if first < end:
                subscription.expire(_without(first, end, kept)[:RANGES_MAX])

    async def _scan(self, end: int, cutoff: int) -> None:
        """Read the batches that have become old enough since the last round."""
        while self._scanned_to < end:
            views = await self._partition.stream.read(self._scanned_to, READ_BYTES)
            if not views:
                self._scanned_to = end
            for view in views:
                base, stop = offsets_of(view)
                if base >= end:
                    self._scanned_to = end
                    break
                self._check_batch(view, base, cutoff)
                self._scanned_to = max(self._scanned_to, stop)

    async def _recheck_kept(self, position: int, cutoff: int) -> None:
        """Read kept batches again whose first kept row has expired, and forget those that every subscription has
        passed."""
        for base, kept in list(self._kept.items()):
            if kept.ranges[-1][1] <= position:
                del self._kept[base]
            elif kept.due_us < cutoff:
                views = await self._partition.stream.read(base, 0)
                del self._kept[base]
                for view in views:
                    self._check_batch(view, offsets_of(view)[0], cutoff)

    def _check_batch(self, view: memoryview, base: int, cutoff: int) -> None:
        batch = Batch.trust(view)
        if batch.header.deliver_at_max < cutoff or batch.deliver_at is None:
            return
        young = np.flatnonzero(batch.deliver_at >= cutoff)
        if len(young):
            self._kept[base] = _Kept(int(batch.deliver_at[young].min()), runs(young + base))


def _without(start: int, end: int, kept: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of [start, end) that are not in `kept`."""
    ranges: list[tuple[int, int]] = []
    for kept_start, kept_end in kept:
        if kept_start > start:
            ranges.append((start, min(kept_start, end)))
        start = max(start, kept_end)
        if start >= end:
            return ranges
    return [*ranges, (start, end)]
