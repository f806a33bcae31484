"""A partition that this broker owns, as the rest of the broker uses it.

`StoredPartition` keeps what is published, in the log or in memory; `NonReliablePartition` keeps nothing and delivers to
the consumers that are attached. They share this interface, and what they have in common: identity, policies, producers,
subscriptions, and the queue of publishes that have to wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.broker.partitions.publish_checks import PublishIntake
from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.codec.batch import Batch
from pydanube.core.append_times import AppendTimes
from pydanube.core.log import PartitionLog
from pydanube.core.meters import Traffic
from pydanube.core.producer_table import ProducerTable
from pydanube.core.sizes import Sizes
from pydanube.model.errors import DanubeError, NotOwner, Unavailable
from pydanube.model.policies import Policies
from pydanube.model.positions import Position
from pydanube.model.topics import PartitionDescription
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import Tasks
from pydanube.storage.slices import SliceWriter
from pydanube.storage.stream import PartitionStream

from .ownership import Ownership
from .publish_queue import PublishDone, PublishQueue
from .rate_limits import Rate, dispatch_rate, publish_rate
from .state_ledger import NoState, StateLedger


class FetchResult(NamedTuple):
    """Batches as stored. The first may begin below the offset that was asked for."""

    batches: list[memoryview]
    next_offset: int
    start_offset: int
    end_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class PartitionParts:
    """What a partition of either kind is made of."""

    name: str
    index: int
    ownership: Ownership
    log: PartitionLog
    policies: Policies
    """The effective policies of the topic."""
    tasks: Tasks
    clock: Clock
    metrics: BrokerMetrics


class Partition(ABC):
    """One partition of one topic, owned by this broker. Everything happens on the event loop, one event at a time."""

    is_stored: bool
    """Whether what is published is kept, in the log or in memory."""
    is_logged: bool
    """Whether what is published goes to the log."""
    stream: PartitionStream
    sizes: Sizes
    append_times: AppendTimes
    state: StateLedger | NoState

    def __init__(self, parts: PartitionParts) -> None:
        self.name = parts.name
        self.index = parts.index
        self.subscriptions: dict[str, LiveSubscription] = {}
        self.producers = 0
        """How many producers are live."""
        self.traffic = Traffic()
        self.closed: DanubeError | None = None
        """Why the partition is not served here any more; None while it is."""
        self.policies = Policies()
        self.intake: PublishIntake | None = None
        """Checks published payloads before they come here; None: nothing is checked, and nothing waits for that."""
        self.ownership = self._ownership = parts.ownership
        self._log = parts.log
        self._tasks = parts.tasks
        self._clock = parts.clock
        self._metrics = parts.metrics
        self._publishes = PublishQueue(parts.name, self, self.traffic, parts.tasks, parts.clock, parts.metrics)

    @property
    def epoch(self) -> int:
        return self._ownership.epoch

    def check_held(self) -> None:
        """Raise what callers are told while this broker may not own the partition any more."""
        if not self._ownership.holds():
            raise self._ownership.refusal()

    @property
    def ledger_ids(self) -> list[int]:
        """The ledgers that hold the partition, and its state."""
        return []

    def set_policies(self, policies: Policies) -> None:
        """Apply the topic's effective policies from now on."""
        former, self.policies = self.policies, policies
        if publish_rate(former) != publish_rate(policies):
            self._publishes.rate = Rate.of(*publish_rate(policies), self._clock.monotonic())
        if dispatch_rate(former) != dispatch_rate(policies):
            for subscription in self.subscriptions.values():
                subscription.set_dispatch_rate(*dispatch_rate(policies))

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, batch: Batch, done: PublishDone) -> None:
        """Take one batch; `done` is called with the outcome once the ack level is reached. Never blocks."""
        if self.closed is not None:
            self._metrics.refuse(done, self.closed)
        else:
            self._publishes.submit(batch, done)

    @abstractmethod
    def can_append(self, batch: Batch) -> bool:
        """See PublishTarget."""

    @abstractmethod
    def append(self, batch: Batch, done: PublishDone) -> None:
        """See PublishTarget."""

    @abstractmethod
    def check_writable(self) -> None:
        """See PublishTarget."""

    @abstractmethod
    async def prepare(self, batch: Batch) -> None:
        """See PublishTarget."""

    def refuse_fenced(self, is_fenced: Callable[[int, int], bool], error: DanubeError) -> None:
        """Refuse the waiting batches of fenced producers; `is_fenced` is asked by producer id and epoch."""
        if self.intake is not None:
            self.intake.refuse(error, is_fenced)
        self._publishes.refuse(error, is_fenced)

    @property
    def is_held_back(self) -> bool:
        """Return whether publishes wait for the publish rate."""
        return self._publishes.rate is not None and len(self._publishes) > 0

    @property
    def idle(self) -> bool:
        """Return whether no publish waits or is on its way to the log."""
        return not len(self._publishes) and not self._log.in_flight and not self.intake

    @property
    def remembered(self) -> ProducerTable:
        """The producers whose sequence numbers are remembered, for deduplication."""
        return self._log.producers

    def forget_idle_producers(self) -> None:
        """Forget producers that have been silent for longer than the policy `deduplication_s`."""
        self._log.producers.forget_idle(self._remembered_since())

    def _remembered_since(self) -> int:
        assert self.policies.deduplication_s is not None
        return self._clock.now_us() - self.policies.deduplication_s * MICROSECONDS

    # -- reading -------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def resolve(self, position: Position) -> int:
        """Return the offset of a position. One past the end is refused; one below the start becomes the start."""

    @property
    def first_position(self) -> int:
        """The lowest offset that a subscription may be moved to."""
        return self.stream.start_offset

    @abstractmethod
    async def subscription_start(self, position: Position) -> int:
        """Return the offset at which a subscription that asks for `position` begins, or to which it is moved."""

    @abstractmethod
    async def fetch(self, position: Position, bytes_max: int, wait_s: float) -> FetchResult:
        """Return batches from `position` on; none when nothing came within `wait_s`. Cancelled: nothing is held."""

    @abstractmethod
    def describe(self, owner: str) -> PartitionDescription: ...

    # -- events of the log ---------------------------------------------------------------------------------------------

    @abstractmethod
    def log_failed(self, ledger_ids: set[int], error: DanubeError) -> None:
        """Fail the appends of these ledgers, which the log abandoned, with `error`; the next publish opens a new
        ledger."""

    @abstractmethod
    def log_rotated(self, ledger_ids: set[int]) -> None:
        """Take note that the log closed a file in which these ledgers have records."""

    # -- ending --------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse, retryably, the publishes that the publish rate holds back."""
        if self._publishes.rate is not None:
            self._publishes.refuse(Unavailable(f"{self.name} is closing: send it again"))

    @abstractmethod
    async def close(self) -> None:
        """End cleanly: the log finishes the appends in flight. Cancelled: reserved offsets may stay as a gap."""

    @abstractmethod
    async def unload(self) -> None:
        """End so that this broker can open the partition again: every publish is answered, and what consumers acked is
        written, before this returns. Raises DanubeError if the log or the metadata fails; the partition then continues
        as after a crash."""

    is_in_log = False
    """Whether what is not uploaded is in the log of this broker only: it has to be put elsewhere before another broker
    can go on with the partition."""

    @property
    @abstractmethod
    def unmovable(self) -> str:
        """Why no other broker can go on with the partition now without a loss, and what helps; empty if one can, or
        could if what `is_in_log` were elsewhere."""

    def stop_for(self, broker: str) -> None:
        """Stop serving, because `broker` is to take the partition: the first step of `hand_over`, which is taken in the
        moment in which `unmovable` is empty. The error names no address: the next owner does not know yet that the
        partition is its."""
        self._end(NotOwner(f"{self.name} moves to broker {broker!r}: look its owner up again"))

    @abstractmethod
    async def hand_over(self, broker: str, *, unfinished: bool = False, slices: SliceWriter | None = None) -> None:
        """End as `unload` does, after `stop_for`, so that `broker` takes the partition at once: the end and "no owner"
        are one transaction. `unfinished`: what is on its way to slices is not waited for, because they were ended.
        `slices`: where a partition goes that `is_in_log`. Raises DanubeError if the log, the object store or the
        metadata fails; the partition then continues as after a crash, wherever its record says."""

    def _unloaded(self) -> NotOwner:
        """Return the error that makes clients open the partition again."""
        return NotOwner(f"{self.name} was unloaded: open it again")

    @abstractmethod
    def abandon(self, error: DanubeError) -> None:
        """End at once and write nothing, because this broker does not own the partition any more, or its session is
        over. Callers that wait for an answer get `error`, also where the log may have stored what was published."""

    @abstractmethod
    async def finish_abandoned(self) -> None:
        """Wait until the log has written what was on its way to it when the partition was abandoned: only then may
        this broker open it again."""

    @abstractmethod
    def delete(self) -> list[int]:
        """End because the topic was deleted, and return the ledgers that are no longer needed."""

    def _end(self, error: DanubeError) -> None:
        """Stop serving: refuse waiting publishes and close the subscriptions with `error`."""
        self.closed = error
        if self.intake is not None:
            self.intake.refuse(error)
        self._publishes.refuse(error)
        for subscription in self.subscriptions.values():
            subscription.close(error)
