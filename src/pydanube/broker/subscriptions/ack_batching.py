"""Batching of acks: scattered acks that arrive within a few milliseconds are processed together.

Where each of four consumers of a key-shared subscription has every fourth message, say, the acks of one consumer are as
many ranges as messages. The acks of all four together are mostly one range. Batching does not change when a caller is
told that its ack is durable: that is after it was synced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from pydanube.broker.partitions.state_ledger import Done
from pydanube.codec.state import ChangeKind, CursorChange, PackedChange, packed
from pydanube.core.dispatch.ranges import RangeArray, union
from pydanube.model.errors import DanubeError, Full
from pydanube.model.limits import ACKED_RANGES_REFUSED

BATCH_S: Final = 0.005
"""Consumers that keep up ack messages of the same batch within this time. An ack that is awaited takes this much
longer."""


class AckBatch:
    """Acks that were received and are not processed yet. Whatever must happen after them calls `flush` first."""

    __slots__ = ("_acks", "_done", "_process", "_timer")

    def __init__(self, process: Callable[[RangeArray, Done | None], None]) -> None:
        """`process` is called with the ranges of all acks of a batch, and calls `Done` when they are durable."""
        self._process = process
        self._acks: list[RangeArray] = []
        self._done: list[Done] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ranges: RangeArray, done: Done | None) -> None:
        self._acks.append(ranges)
        if done is not None:
            self._done.append(done)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BATCH_S, self.flush)

    def flush(self) -> None:
        """Process all waiting acks now."""
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer = None
        acks, self._acks = self._acks, []
        callbacks, self._done = self._done, []
        done = partial(_call_all, callbacks) if callbacks else None
        self._process(acks[0] if len(acks) == 1 else union(acks), done)


def _call_all(callbacks: list[Done], error: DanubeError | None) -> None:
    for done in callbacks:
        done(error)


def acked_change(subscription_id: int, ranges: Sequence[tuple[int, int]]) -> CursorChange | PackedChange:
    """Return the record of these acks for the state ledger."""
    if isinstance(ranges, RangeArray):
        return PackedChange(subscription_id, ChangeKind.ACKED, packed(ranges.starts, ranges.ends))
    return CursorChange(subscription_id, ChangeKind.ACKED, list(ranges))


def too_many_gaps() -> Full:
    return Full(f"more than {ACKED_RANGES_REFUSED} gaps between acks: ack the oldest messages first")
