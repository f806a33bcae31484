"""A partition of a non-reliable topic: what is published goes to the consumers attached now, and nowhere else.

Nothing of it touches the disk: no ledger, no record, no metadata except the owner's epoch. A publish takes the steps
decide -> stamp -> deliver -> answer in one call. Nothing is stored, so offsets count from 0 at each start, under a
higher epoch, and producers are remembered for as long as the broker runs.

Invariants
    a publish is answered before the call returns, unless the publish rate holds it back
    a publish never waits for a consumer: what a consumer has no credit for is lost to it; its subscription counts it
    messages published while no consumer was attached are counted (`traffic.unheard`)
"""

from __future__ import annotations

from pydanube.codec.batch import Batch
from pydanube.core.append_times import AppendTimes
from pydanube.core.appends import Stored
from pydanube.core.sizes import Sizes
from pydanube.model.errors import DanubeError, NotFound, Refused, Unavailable
from pydanube.model.messages import Published
from pydanube.model.positions import Position
from pydanube.model.topics import PartitionDescription
from pydanube.storage.slices import SliceWriter
from pydanube.storage.stream import NoStream

from .partition import FetchResult, Partition, PartitionParts
from .publish_queue import PublishDone
from .state_ledger import NoState


class NonReliablePartition(Partition):
    """One partition of a non-reliable topic, owned by this broker."""

    is_stored = False
    is_logged = False

    def __init__(self, parts: PartitionParts) -> None:
        super().__init__(parts)
        self.stream = NoStream()
        self.sizes = Sizes(0)
        self.append_times = AppendTimes()
        self.state = NoState()
        self.set_policies(parts.policies)

    def can_append(self, batch: Batch) -> bool:
        return True

    def check_writable(self) -> None:
        """Do nothing: a partition of a non-reliable topic can always be published to, as it does not use the log."""

    async def prepare(self, batch: Batch) -> None:
        raise AssertionError("there is nothing to prepare")

    def append(self, batch: Batch, done: PublishDone) -> None:
        header, log = batch.header, self._log
        if not self._ownership.holds():
            self._metrics.refuse(done, self._ownership.refusal())
            return
        try:
            seen = log.find_duplicate(header)
        except DanubeError as error:
            self._metrics.refuse(done, error)
            return
        if seen is not None:
            assert isinstance(seen, Stored), "nothing is ever in flight"
            self._metrics.duplicates += 1
            done(Published(seen.base_offset, self.epoch, True))
            return
        append = log.append(header, self._clock.now_us())
        batch.stamp(append.base_offset, append.append_time, self.epoch)
        log.confirm(append)
        self.traffic.mark(append.append_time, header.count, header.batch_bytes)
        self._metrics.published(header.count, header.batch_bytes)
        if self._metrics.tracer is not None:
            self._metrics.tracer.published(self.name, batch.view)
        if self._publishes.rate is not None:
            self._publishes.rate.take(header.count, header.batch_bytes, self._clock.monotonic())
        self._broadcast(batch)
        done(Published(append.base_offset, self.epoch, False))

    def _broadcast(self, batch: Batch) -> None:
        heard = False
        for subscription in self.subscriptions.values():
            if subscription.consumers:
                heard = True
                subscription.broadcast(batch.view)
        if not heard:
            self.traffic.unheard += batch.count

    async def resolve(self, position: Position) -> int:
        raise Refused(
            f"{self.name} is not reliable: it stores nothing that could be read, found or gone back to; subscribe to "
            f"it, or create a reliable topic"
        )

    async def fetch(self, position: Position, bytes_max: int, wait_s: float) -> FetchResult:
        await self.resolve(position)
        raise AssertionError("no position can be resolved here")

    async def subscription_start(self, position: Position) -> int:
        if position.kind not in ("earliest", "latest"):
            await self.resolve(position)
        return 0

    def describe(self, owner: str) -> PartitionDescription:
        end = self._log.next_offset
        return PartitionDescription(self.index, owner, self.epoch, end, end, 0, 0)

    def log_failed(self, ledger_ids: set[int], error: DanubeError) -> None:
        """Do nothing: this partition has no ledgers."""

    def log_rotated(self, ledger_ids: set[int]) -> None:
        self.forget_idle_producers()

    async def close(self) -> None:
        self._end(Unavailable(f"{self.name} is closing: look its owner up again"))

    async def unload(self) -> None:
        self._end(self._unloaded())

    @property
    def unmovable(self) -> str:
        return ""

    async def hand_over(self, broker: str, *, unfinished: bool = False, slices: SliceWriter | None = None) -> None:
        await self._ownership.release_to(broker)

    def abandon(self, error: DanubeError) -> None:
        self._ownership.give_up(error)
        self._end(error)

    async def finish_abandoned(self) -> None:
        """Do nothing: this partition has nothing on its way to the log."""

    def delete(self) -> list[int]:
        self._end(NotFound(f"{self.name} was deleted with its topic"))
        return []
