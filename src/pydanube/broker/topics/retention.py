"""Retention of one partition: how long, and how much of, its acked messages are kept.

It applies to what every subscription has acked, and to everything if there is no subscription. There is a limit of time
and one of size; what exceeds either is dropped. Time is the append time, and by time only whole batches are dropped.
"""

from __future__ import annotations

from typing import Final

from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.stream import append_time_at

log = get_logger(__name__)

SLACK: Final = 1000
"""The start moves only by at least a thousandth of what is kept, so that it is not written in every round."""


class Retention:
    """Applies the retention policies to one partition."""

    def __init__(self, partition: StoredPartition) -> None:
        self._partition = partition
        self._oldest = (-1, 0)
        """The start offset that was read last, and the append time of the batch there."""

    async def apply(self, now_us: int) -> None:
        """Move the start of the partition, durably, to where the policies say. Cancelled: it has moved, or not."""
        partition = self._partition
        former = partition.stream.start_offset
        if partition.settled_below() <= former:
            return
        by_time = await self._start_by_time(now_us)
        settled = partition.settled_below()  # a subscription may have been moved back meanwhile
        start = min(settled, max(by_time, self._start_by_size(former, settled)))
        if start > former:
            await partition.trim(start)
            log.debug("partition.trimmed", partition=partition.name, start=start, former=former)

    async def _start_by_time(self, now_us: int) -> int:
        seconds = self._partition.policies.retention_s
        assert seconds is not None
        if seconds < 0:
            return 0
        cutoff = now_us - seconds * MICROSECONDS
        if await self._oldest_us() >= cutoff - seconds * MICROSECONDS // SLACK:
            return 0
        return await self._partition.stream.find_time(cutoff)

    async def _oldest_us(self) -> int:
        """Return when the oldest batch was appended. It is read once for every start offset."""
        stream = self._partition.stream
        start = stream.start_offset
        if self._oldest[0] != start:
            appended_us = await append_time_at(stream, start)
            if appended_us is None:
                return 0  # a gap holds no message, and may be dropped at any time
            self._oldest = (start, appended_us)
        return self._oldest[1]

    def _start_by_size(self, former: int, settled: int) -> int:
        limit, sizes = self._partition.policies.retention_bytes, self._partition.sizes
        assert limit is not None
        if limit < 0 or sizes.between(former, settled) <= limit + limit // SLACK:
            return 0
        return sizes.start_of_last(limit, settled)
