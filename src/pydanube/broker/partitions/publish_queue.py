"""Publishes of one partition that cannot be appended yet: their topic's publish rate is used up, or the partition has
to open a ledger or reserve offsets first.

Invariants
    batches are appended in the order in which they were submitted
    an answer is given exactly once for every batch, by the partition or by `refuse`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from pydanube.broker.observe.metrics import BrokerMetrics
from pydanube.codec.batch import Batch
from pydanube.core.meters import Traffic
from pydanube.model.errors import DanubeError
from pydanube.model.messages import Published
from pydanube.runtime.clock import Clock
from pydanube.runtime.tasks import Tasks

from .rate_limits import Rate

RATE_CHECK_S: Final = 0.1
"""While publishes wait for a rate, the rate is read again at least this often, because it may have been changed."""


PublishDone = Callable[[Published | DanubeError], None]


class PublishTarget(Protocol):
    """The partition that the batches of a queue are appended to."""

    def can_append(self, batch: Batch) -> bool:
        """Return whether `append` may be called now; if not, `prepare` makes it possible."""

    def append(self, batch: Batch, done: PublishDone) -> None:
        """Append the batch; `done` is called with the outcome once the ack level is reached."""

    def check_writable(self) -> None:
        """Raise the reason if nothing can be appended now, and waiting does not help."""

    async def prepare(self, batch: Batch) -> None:
        """Open what is missing before `batch` can be appended. Raises DanubeError."""


class PublishQueue:
    """Appends the publishes of one partition in order, each as soon as its rate and the partition allow it."""

    def __init__(
        self, name: str, target: PublishTarget, traffic: Traffic, tasks: Tasks, clock: Clock, metrics: BrokerMetrics
    ) -> None:
        """`name` is the partition's, for the name of the task."""
        self._name = name
        self._target = target
        self._traffic = traffic
        self._tasks = tasks
        self._clock = clock
        self._metrics = metrics
        self._waiting: deque[tuple[Batch, PublishDone]] = deque()
        self._is_running = False
        self.rate: Rate | None = None
        """The publish rate of the topic; None without a limit."""

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, batch: Batch, done: PublishDone) -> None:
        """Append the batch now if that is possible, or let it wait. Never blocks."""
        is_early = self.rate is not None and self._rate_wait_s() > 0
        if is_early or self._waiting or not self._target.can_append(batch):
            # The batch may wait for long, and must not keep in memory the chunk that it arrived in.
            self._waiting.append((Batch.trust(memoryview(bytearray(batch.view))), done))
            if not self._is_running:
                self._is_running = True
                self._tasks.spawn(self._append_waiting(), f"partition preparing {self._name}")
        else:
            self._target.append(batch, done)

    def refuse(self, error: DanubeError, concerns: Callable[[int, int], bool] | None = None) -> None:
        """Answer waiting batches with `error`: all, or those for whose producer id and epoch `concerns` is true."""
        waiting, self._waiting = self._waiting, deque()
        for batch, done in waiting:
            if concerns is None or concerns(batch.header.producer_id, batch.header.producer_epoch):
                self._metrics.refuse(done, error)
            else:
                self._waiting.append((batch, done))

    def _rate_wait_s(self) -> float:
        return self.rate.wait_s(self._clock.monotonic()) if self.rate is not None else 0.0

    async def _append_waiting(self) -> None:
        """Append the waiting batches until none is left. Cancelled: the broker stops, and they get no answer."""
        target = self._target
        try:
            while self._waiting:
                target.check_writable()
                if (wait_s := self._rate_wait_s()) > 0:
                    await self._hold_back(wait_s)
                    continue
                first, _ = self._waiting[0]
                if not target.can_append(first):
                    await target.prepare(first)
                while self._waiting and self._rate_wait_s() <= 0 and target.can_append(self._waiting[0][0]):
                    target.append(*self._waiting.popleft())
        except DanubeError as error:
            self.refuse(error)
        finally:
            self._is_running = False

    async def _hold_back(self, wait_s: float) -> None:
        since = self._clock.monotonic()
        await self._clock.sleep(min(wait_s, RATE_CHECK_S))
        self._traffic.throttled_s += self._clock.monotonic() - since
