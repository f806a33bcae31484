"""The time to live of one partition's messages: which of them are too old to be delivered any more.

A message's time counts from when it was appended, or from when it was to be delivered if that is later. What was
appended long enough ago is found by time; among it, the rows whose delivery is still to come, or came lately, are kept.
To know those, each batch that grows too old unacked is looked at once.

Invariants
    every batch in [scanned_from, scanned_to) was looked at, and is in `_kept` if any of its rows is not too old yet
    a batch in `_kept` is looked at again only when its first kept row has become too old
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from pydanube.broker.partitions.partition import Partition
from pydanube.codec.batch import Batch
from pydanube.codec.batch.peek import offsets_of
from pydanube.core.dispatch.ranges import runs
from pydanube.model.limits import ACKED_RANGES_MAX
from pydanube.runtime.clock import MICROSECONDS
from pydanube.storage.stream import append_time_at

READ_BYTES: Final = 2 * 1024 * 1024

RANGES_MAX: Final = ACKED_RANGES_MAX // 2
"""Delayed messages leave gaps between those that expire; so many gaps that delivery would stop are not made."""


class _Kept(NamedTuple):
    """A batch that is old enough, but for these rows; the first of them is too old after `due_us`."""

    due_us: int
    ranges: list[tuple[int, int]]


class TimeToLive:
    """One partition's. It remembers what it has looked at, for as long as the time to live is not changed."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._ttl_s = 0
        self._scanned_from = self._scanned_to = 0
        self._kept: dict[int, _Kept] = {}

    async def expire(self, now_us: int) -> None:
        """Settle, and count, what is too old for every subscription. Cancelled: nothing was settled."""
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
        await self._look_again(position, cutoff)
        kept = [one for base in sorted(self._kept) for one in self._kept[base].ranges]
        for subscription in list(partition.subscriptions.values()):
            first = subscription.cursor.position
            if max(first, partition.stream.start_offset) < position:
                continue  # moved back meanwhile: its turn comes when what it went back to has been looked at
            if first < end:
                subscription.expire(_between(first, end, kept)[:RANGES_MAX])

    async def _scan(self, end: int, cutoff: int) -> None:
        """Look at the batches that have become old enough since."""
        while self._scanned_to < end:
            views = await self._partition.stream.read(self._scanned_to, READ_BYTES)
            if not views:
                self._scanned_to = end
            for view in views:
                base, stop = offsets_of(view)
                if base >= end:
                    self._scanned_to = end
                    break
                self._look(view, base, cutoff)
                self._scanned_to = max(self._scanned_to, stop)

    async def _look_again(self, position: int, cutoff: int) -> None:
        """At those whose first kept row has become too old; what every subscription is past is of no interest."""
        for base, kept in list(self._kept.items()):
            if kept.ranges[-1][1] <= position:
                del self._kept[base]
            elif kept.due_us < cutoff:
                views = await self._partition.stream.read(base, 0)
                del self._kept[base]
                for view in views:
                    self._look(view, offsets_of(view)[0], cutoff)

    def _look(self, view: memoryview, base: int, cutoff: int) -> None:
        batch = Batch.trust(view)
        if batch.header.deliver_at_max < cutoff or batch.deliver_at is None:
            return
        young = np.flatnonzero(batch.deliver_at >= cutoff)
        if len(young):
            self._kept[base] = _Kept(int(batch.deliver_at[young].min()), runs(young + base))


def _between(start: int, end: int, kept: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[start, end) without what is kept."""
    ranges: list[tuple[int, int]] = []
    for kept_start, kept_end in kept:
        if kept_start > start:
            ranges.append((start, min(kept_start, end)))
        start = max(start, kept_end)
        if start >= end:
            return ranges
    return [*ranges, (start, end)]
