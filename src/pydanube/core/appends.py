"""The two answers to a batch that is to be appended to a log: it is in flight, or it was stored before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Append:
    """One batch that was given its offsets and has not reached the ack level yet."""

    base_offset: int
    end_offset: int
    append_time: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    end_sequence: int
    waiters: list[Callable[..., None]] = field(default_factory=list)
    """Called with the outcome: one for the first publish and one for each retry."""
    tag: Any = None
    """For the owner of the log: what it wrote, and where."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The batch is a retry of one that the log has already, at this offset."""

    base_offset: int
