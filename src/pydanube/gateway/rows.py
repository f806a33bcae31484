"""What the broker delivers to listeners whose clients take single rows: those of gRPC and HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydanube.broker import Consumer
from pydanube.codec.batch import Batch
from pydanube.model.errors import DanubeError
from pydanube.model.limits import KIB
from pydanube.runtime.clock import Clock

WINDOW_MESSAGES: Final = 1_000
WINDOW_BYTES: Final = 512 * KIB
"""What one consumer is delivered before its client takes any; each partition may deliver a whole batch in any case."""

WAITED_S: Final = 0.5
"""For rows that were kept longer than this, ack timeouts are counted from when they are taken."""


class Delivery(NamedTuple):
    """Rows of a batch that are kept for a client."""

    partition: int
    batch: Batch
    rows: Sequence[int]
    redeliveries: Sequence[int]
    reasons: Sequence[str | None]
    generation: int
    """The seek generation in which they were delivered."""
    since: float
    """When they came, on the monotonic clock."""

    @property
    def size_bytes(self) -> int:
        return len(self.batch.view)

    def taken(self, rows: Sequence[int], consumer: Consumer, clock: Clock) -> None:
        """Note that the client takes these rows now."""
        if clock.monotonic() - self.since > WAITED_S:
            consumer.sent([(offset, offset + 1) for offset in map(self.batch.offset_at, rows)])


class RowSink(ABC):
    """Takes what the broker delivers to one consumer of one partition."""

    def __init__(self, clock: Clock, partition: int = 0) -> None:
        self._clock = clock
        self._partition = partition
        self._generation = 0

    @abstractmethod
    def keep(self, delivery: Delivery) -> None:
        """Keep the rows until the client takes them."""

    @abstractmethod
    def changed(self, ack_timeout_ms: int, generation: int) -> None:
        """See broker.Sink."""

    @abstractmethod
    def closed(self, error: DanubeError) -> None:
        """See broker.Sink."""

    def deliver(
        self,
        batch: memoryview,
        epoch: int,
        ranges: list[tuple[int, int]],
        redeliveries: Sequence[int],
        reasons: Sequence[str | None],
    ) -> None:
        opened = Batch.trust(batch)
        rows = [row for start, end in ranges for row in range(start, end)] if ranges else range(opened.count)
        self._keep(opened, rows, redeliveries, reasons)

    def deliver_whole(self, batches: Sequence[memoryview], epoch: int) -> None:
        for view in batches:
            batch = Batch.trust(view)
            self._keep(batch, range(batch.count), (), ())

    def _keep(
        self, batch: Batch, rows: Sequence[int], redeliveries: Sequence[int], reasons: Sequence[str | None]
    ) -> None:
        now = self._clock.monotonic()
        self.keep(Delivery(self._partition, batch, rows, redeliveries, reasons, self._generation, now))
