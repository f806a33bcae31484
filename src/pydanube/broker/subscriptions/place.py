"""Where a subscription of one partition is at work: its surroundings, and its consumers' seats."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pydanube.broker.partitions.state_ledger import NoState, StateLedger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.storage.stream import Stream

from .consumer import Sink
from .counters import Counts
from .dead_letters import DeadLetters


class Seat(NamedTuple):
    """A member's sink, and what went there."""

    sink: Sink
    counts: Counts


class Place(NamedTuple):
    """What a subscription needs of its partition and its broker."""

    topic: str
    partition: int
    stream: Stream
    state: StateLedger | NoState
    tasks: Tasks
    clock: Clock
    epoch: Callable[[], int]
    dead_letters: DeadLetters
