"""What a partition remembers beside its messages: producers and cursors, as plain values for control entries."""

from __future__ import annotations

from typing import NamedTuple


class ProducerEntry(NamedTuple):
    """What a log remembers of a producer. Each run (sequence, offset, count) maps consecutive sequences to offsets."""

    producer_id: int
    epoch: int
    next_sequence: int
    last_time: int
    runs: list[tuple[int, int, int]]


class CursorEntry(NamedTuple):
    """Everything below `position` is acked, and the ranges [start, end) above it."""

    subscription_id: int
    position: int
    acked: list[tuple[int, int]]
