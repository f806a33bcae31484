"""Where a subscription of one partition is at work: its surroundings, and its consumers' seats."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pydanube.broker.partitions.state_ledger import NoState, StateLedger
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks
from pydanube.storage.stream import PartitionStream

from .consumer import Sink
from .counters import DeliveryCounters
from .dead_letters import DeadLetters


class AttachedConsumer(NamedTuple):
    """A member's sink, and what went there."""

    sink: Sink
    counts: DeliveryCounters


class SubscriptionContext(NamedTuple):
    """What a subscription needs of its partition and its broker."""

    topic: str
    partition: int
    stream: PartitionStream
    state: StateLedger | NoState
    tasks: Tasks
    clock: Clock
    epoch: Callable[[], int]
    dead_letters: DeadLetters
