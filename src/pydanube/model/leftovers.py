"""What is given up with a broker that does not come back, and what it still has when it does."""

from __future__ import annotations

from dataclasses import dataclass

ORIGINAL_TOPIC = "x-original-topic"
ORIGINAL_PARTITION = "x-original-partition"
ORIGINAL_OFFSET = "x-original-offset"
"""Attributes of messages that were salvaged: where they were before."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets [start, end) of a partition that a takeover gives up at most: what its broker has not uploaded. Most of
    them may never have been given to a message."""

    partition: int
    start: int
    end: int
    broker: str = ""
    """The broker whose log holds them; empty if its name is not known."""

    @property
    def is_empty(self) -> bool:
        return self.start >= self.end


@dataclass(frozen=True, slots=True)
class Leftover:
    """Messages of one partition that its former broker still has, after another one took the partition over."""

    topic: str
    partition: int
    broker: str
    log: str
    start_offset: int
    end_offset: int
    """The offsets that the broker really has; while it is away, those that were given up."""
    bytes: int = 0
    taken_at: int = 0
    """When the partition was taken over, in microseconds since 1970."""
    state: str = "ok"
    """"ok", or why the broker cannot be asked."""


@dataclass(frozen=True, slots=True)
class Salvage:
    """What became of the leftovers that one broker has of one partition."""

    topic: str
    partition: int
    broker: str
    published: int = 0
    """How many messages were published."""
    failure: str = ""
    """Why some were not; empty: all of them are, now or by an earlier call."""


@dataclass(frozen=True, slots=True)
class SalvageStep:
    """One step of publishing leftovers to another topic."""

    published: int
    """How many messages of this step were published."""
    is_last: bool
    dropped: bool = False
    """Whether the leftovers are dropped now."""
