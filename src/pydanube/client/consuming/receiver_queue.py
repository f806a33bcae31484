"""Received batches that wait for the user, and the chunk of messages that is ready to be handed out.

```
 put() --> batches --> current batch --> chunk: up to CHUNK_MESSAGES messages, handed out by ready()
                              \\-- take_batch(): what is left of it, or the next one whole
```

Invariants
    a message is handed out once, in the order of its partition
    whoever waits is woken when a batch arrives, when the stream fails, and when it ends
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Final

from pydanube.model.errors import DanubeError

from .messages import Message, ReceivedBatch

CHUNK_MESSAGES: Final = 128
"""Messages made ready at a time."""

_NOTHING: Final[Iterator[Message]] = iter(())


class ReceiverQueue:
    """A queue of batches that can be taken message by message."""

    __slots__ = ("_batches", "_chunk", "_chunk_end", "_current", "_on_begun", "_waiting", "ended", "failure", "ready")

    def __init__(self, on_begun: Callable[[ReceivedBatch], None]) -> None:
        self.ready: Callable[[], Message] = _NOTHING.__next__
        """The next message of the chunk; raises StopIteration when it is used up."""
        self.failure: DanubeError | None = None
        self.ended = False
        """Nothing will be put any more."""
        self._on_begun = on_begun
        self._batches: deque[ReceivedBatch] = deque()
        self._current: ReceivedBatch | None = None
        self._chunk: Iterator[Message] = _NOTHING
        self._chunk_end = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def empty(self) -> bool:
        return not self._batches and self._current is None

    # -- filling -----------------------------------------------------------------------------------------------------

    def put(self, batch: ReceivedBatch) -> None:
        self._batches.append(batch)
        if self._waiting:
            self.wake()

    def discard(self, unwanted: Callable[[ReceivedBatch], bool]) -> list[ReceivedBatch]:
        """Forget batches that will come again; what was handed out stays handed out. Returns those not begun."""
        dropped = [batch for batch in self._batches if unwanted(batch)]
        if dropped:
            self._batches = deque(batch for batch in self._batches if not unwanted(batch))
        if self._current is not None and unwanted(self._current):
            self._drop_current()
        return dropped

    def fail(self, error: DanubeError) -> None:
        """From now on receiving raises this."""
        self.failure = self.failure or error
        self._batches.clear()
        self._drop_current()
        self.wake()

    def end(self) -> None:
        """What is here is all there will be."""
        self.ended = True
        self.wake()

    def close(self) -> None:
        self._batches.clear()
        self._drop_current()
        self.end()

    # -- taking ------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Make the next chunk ready. False when there is nothing."""
        current = self._current
        if current is None or self._chunk_end >= len(current):
            self._drop_current()
            if not self._batches:
                return False
            current = self._current = self._batches.popleft()
            self._on_begun(current)
        start = self._chunk_end
        end = min(start + CHUNK_MESSAGES, len(current))
        if current.acks is not None and current.acks.unsettled is not None:
            end = start + 1  # its ack timeout begins when the application gets it, not before
            current.acks.unsettled.taken((current.offset_at(start),))
        self._chunk_end = end
        self._chunk = iter(list(current.messages(start, end)))
        self.ready = self._chunk.__next__
        return True

    def take_batch(self) -> ReceivedBatch | None:
        """What is left of the current batch, or the next one."""
        batch = self._left_or_next()
        if batch is not None and batch.acks is not None and batch.acks.unsettled is not None:
            batch.acks.unsettled.taken(batch.offsets.tolist())
        return batch

    def take_portion(self) -> ReceivedBatch | None:
        """As much as can be handed over at once to whoever gives messages to the application one by one."""
        current = self._current
        if current is None and self._batches:
            current = self._batches[0]
        if current is None or current.acks is None or current.acks.unsettled is None:
            return self.take_batch()
        message = next(self._chunk, None)
        if message is None:
            if not self.advance():
                return None
            message = next(self._chunk)
        return message._delivery.part(message._place, message._place + 1)

    def rechunk(self) -> None:
        """What was made ready and not handed out goes back into its batch."""
        self._chunk_end -= length_hint(self._chunk)
        self._chunk = _NOTHING
        self.ready = _NOTHING.__next__

    def _left_or_next(self) -> ReceivedBatch | None:
        current = self._current
        if current is not None:
            place = self._chunk_end - length_hint(self._chunk)
            self._drop_current()
            if place < len(current):
                return current.part(place, len(current))
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._on_begun(batch)
        return batch

    def _drop_current(self) -> None:
        self._current = None
        self._chunk_end = 0
        self._chunk = _NOTHING
        self.ready = _NOTHING.__next__

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until something was put, failed or ended. Cancelled, nothing is lost."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            await woken
        finally:
            if woken.cancelled():
                self._waiting = deque(one for one in self._waiting if one is not woken)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)
