"""The state of a partition beside its messages, as it is stored in control entries: producers and cursors."""

from __future__ import annotations

from typing import NamedTuple


class ProducerEntry(NamedTuple):
    """The deduplication state of a producer. Each run (sequence, offset, count) maps consecutive sequences to
    offsets."""

    producer_id: int
    epoch: int
    next_sequence: int
    last_time: int
    runs: list[tuple[int, int, int]]


class CursorEntry(NamedTuple):
    """The acks of a subscription: everything below `position`, and the ranges [start, end) above it."""

    subscription_id: int
    position: int
    acked: list[tuple[int, int]]
