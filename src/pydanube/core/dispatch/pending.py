"""What keeps each message that a subscription has not settled: for somebody who looks, not for whoever delivers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydanube.model.pending import PendingMessage, PendingState

from .failures import FailureState
from .ranges import Range
from .window import DeliveryWindow

_FAILED: Final[dict[FailureState, PendingState]] = {
    FailureState.WAITING: "waiting",
    FailureState.BLOCKED: "blocked",
    FailureState.DYING: "dying",
}


def pending(window: DeliveryWindow, ranges: Sequence[Range]) -> list[PendingMessage]:
    """These offsets, none of which is settled. What was not read yet is ready, whatever its producer asked for."""
    read = [(start, min(end, window.next_read)) for start, end in ranges if start < window.next_read]
    holders: dict[int, str] = {}
    for member in window.members:
        for start, end in window.held_by(member, read):
            holders.update(dict.fromkeys(range(start, end), member.consumer))
    return [_pending(window, offset, holders.get(offset)) for start, end in ranges for offset in range(start, end)]


def _pending(window: DeliveryWindow, offset: int, holder: str | None) -> PendingMessage:
    failure = window.failures.at(offset)
    count, reason = (failure.count, failure.reason) if failure is not None else (0, "")
    if holder is not None:
        return PendingMessage(offset, "unacked", count, reason, consumer=holder)
    if failure is not None and failure.state is not FailureState.OUT:
        until_us = failure.due_us if failure.state is FailureState.WAITING else 0
        return PendingMessage(offset, _FAILED[failure.state], count, reason, until_us)
    return PendingMessage(offset, window.where(offset), count, reason)
