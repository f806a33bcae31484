"""A partition of a non-reliable topic: what is published goes to whoever listens now, and nowhere else.

Nothing of it touches the disk: no ledger, no record, no metadata but its owner's epoch. A publish walks
decide -> stamp -> deliver -> answer in one call. Nothing is stored, so offsets count from 0 at each start, under a
higher epoch, and producers are remembered for as long as the broker runs.

Invariants
    a publish is answered before the call returns, unless the publish rate holds it back
    nobody waits for a consumer: what it has no room for is lost to it, and counted by its subscription
    what nobody listened to is counted (`traffic.unheard`)
"""

from __future__ import annotations

from pydanube.codec.batch import Batch
from pydanube.core.appends import Stored
from pydanube.model.errors import DanubeError, Refused
from pydanube.model.positions import Position
from pydanube.model.topics import PartitionDescription

from .partition import FetchResult, Partition, PublishDone, Published


class NonReliablePartition(Partition):
    """One partition of a non-reliable topic, owned by this broker."""

    stored = False

    def _ready(self, batch: Batch) -> bool:
        return self._rate is None or self._rate.wait_s(self._clock.monotonic()) <= 0

    def _check_writable(self) -> None:
        """The disk may refuse what it likes."""

    def _append(self, batch: Batch, done: PublishDone) -> None:
        header, decide = batch.header, self._decide
        try:
            seen = decide.find_duplicate(header)
        except DanubeError as error:
            done(error)
            return
        if seen is not None:
            assert isinstance(seen, Stored), "nothing is ever on its way"
            done(Published(seen.base_offset, self.epoch, True))
            return
        append = decide.append(header, self._clock.now_us())
        batch.stamp(append.base_offset, append.append_time, self.epoch)
        decide.confirm(append)
        self.traffic.mark(append.append_time, header.count, header.batch_bytes)
        if self._rate is not None:
            self._rate.take(header.count, header.batch_bytes, self._clock.monotonic())
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
        raise AssertionError("nothing resolves here")

    async def subscription_start(self, position: Position) -> int:
        if position.kind not in ("earliest", "latest"):
            await self.resolve(position)
        return 0

    def describe(self, owner: str) -> PartitionDescription:
        end = self._decide.next_offset
        return PartitionDescription(self.index, owner, self.epoch, end, end, 0, 0)
