"""Acks of many scattered messages, settled together with those that come within a few milliseconds.

Each consumer of a key-shared subscription has every fourth message, say: one by one their acks are as many ranges as
there are messages, and together they mostly close up. Nobody is told earlier that they are durable than they are.
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

GATHER_S: Final = 0.005
"""Consumers that keep up ack what was dealt together within this; whoever awaits such an ack waits so much longer."""


class AckBatch:
    """What was acked and is not settled yet. Whoever does what acks go before calls `settle` first."""

    __slots__ = ("_acks", "_settle", "_told", "_turn")

    def __init__(self, settle: Callable[[RangeArray, Done | None], None]) -> None:
        self._settle = settle
        self._acks: list[RangeArray] = []
        self._told: list[Done] = []
        self._turn: asyncio.TimerHandle | None = None

    def add(self, ranges: RangeArray, done: Done | None) -> None:
        self._acks.append(ranges)
        if done is not None:
            self._told.append(done)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_later(GATHER_S, self.settle)

    def settle(self) -> None:
        """All of them, now."""
        if self._turn is None:
            return
        self._turn.cancel()
        self._turn = None
        acks, self._acks = self._acks, []
        told, self._told = self._told, []
        done = partial(_tell, told) if told else None
        self._settle(acks[0] if len(acks) == 1 else union(acks), done)


def _tell(told: list[Done], error: DanubeError | None) -> None:
    for done in told:
        done(error)


def acked_change(subscription_id: int, ranges: Sequence[tuple[int, int]]) -> CursorChange | PackedChange:
    """What the state ledger is told."""
    if isinstance(ranges, RangeArray):
        return PackedChange(subscription_id, ChangeKind.ACKED, packed(ranges.starts, ranges.ends))
    return CursorChange(subscription_id, ChangeKind.ACKED, list(ranges))


def too_many_gaps() -> Full:
    return Full(f"more than {ACKED_RANGES_REFUSED} gaps between acks: ack the oldest messages first")
