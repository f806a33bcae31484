"""What becomes of a batch that wants into a log: it is on its way, or it was there before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Append:
    """One batch on its way to the ack level. `waiters` are whoever wants to hear of it, a retry included."""

    base_offset: int
    end_offset: int
    append_time: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    end_sequence: int
    waiters: list[Callable[..., None]] = field(default_factory=list)
    tag: Any = None
    """The owner's own note (what it wrote, and where)."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A retry of what is in the log already."""

    base_offset: int
