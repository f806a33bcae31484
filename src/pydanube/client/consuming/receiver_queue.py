"""The receiver queue: prefetched batches that wait for the user, and a chunk of messages prepared from the first one.

```
 put() --> batches --> current batch --> chunk: up to CHUNK_MESSAGES messages, returned one by one by ready()
                              \\-- take_batch(): the rest of the current batch, or the whole next one
```

Invariants
    each message is returned once, in the order of its partition
    every waiting receiver is woken when a batch arrives, when the stream fails, and when it ends
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any, Final, Generic

from pydanube.client.typed.value_reader import ValueReader
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import DanubeError

from .messages import Message, ReceivedBatch

CHUNK_MESSAGES: Final = 128
"""Messages prepared at a time."""

_NO_MESSAGES: Final[Iterator[Any]] = iter(())


class ReceiverQueue(Generic[ValueT]):
    """A queue of batches that can be taken message by message."""

    __slots__ = (
        "_batches",
        "_chunk",
        "_chunk_end",
        "_current",
        "_on_batch_begun",
        "_waiting",
        "ended",
        "failure",
        "ready",
    )

    def __init__(self, on_batch_begun: Callable[[ReceivedBatch[ValueT]], None]) -> None:
        self.ready: Callable[[], Message[ValueT]] = _NO_MESSAGES.__next__
        """Returns the next message of the chunk; raises StopIteration after the last one."""
        self.failure: DanubeError | None = None
        self.ended = False
        """No further batch will be put."""
        self._on_batch_begun = on_batch_begun
        self._batches: deque[ReceivedBatch[ValueT]] = deque()
        self._current: ReceivedBatch[ValueT] | None = None
        self._chunk: Iterator[Message[ValueT]] = _NO_MESSAGES
        self._chunk_end = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def empty(self) -> bool:
        return not self._batches and self._current is None

    # -- filling -----------------------------------------------------------------------------------------------------

    def put(self, batch: ReceivedBatch[ValueT]) -> None:
        self._batches.append(batch)
        if self._waiting:
            self.wake()

    def discard(self, unwanted: Callable[[ReceivedBatch[ValueT]], bool]) -> list[ReceivedBatch[ValueT]]:
        """Drop the `unwanted` batches, also the rest of the current one. Returns those the user had not begun with."""
        dropped = [batch for batch in self._batches if unwanted(batch)]
        if dropped:
            self._batches = deque(batch for batch in self._batches if not unwanted(batch))
        if self._current is not None and unwanted(self._current):
            self._drop_current()
        return dropped

    def fail(self, error: DanubeError) -> None:
        """Drop everything; receiving raises `error` from now on."""
        self.failure = self.failure or error
        self._batches.clear()
        self._drop_current()
        self.wake()

    def end(self) -> None:
        """End the stream after the batches that are in the queue."""
        self.ended = True
        self.wake()

    def close(self) -> None:
        self._batches.clear()
        self._drop_current()
        self.end()

    # -- taking ------------------------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """Prepare the next chunk. Returns False if the queue is empty."""
        current = self._current
        if current is None or self._chunk_end >= len(current):
            self._drop_current()
            if not self._batches:
                return False
            current = self._current = self._batches.popleft()
            self._on_batch_begun(current)
        start = self._chunk_end
        end = min(start + CHUNK_MESSAGES, len(current))
        if current.acks is not None and current.acks.timeouts is not None:
            end = start + 1  # one message: its ack timeout starts when the application receives it, not before
            current.acks.timeouts.start((current.offset_at(start),))
        self._chunk_end = end
        self._chunk = iter(list(current.messages(start, end)))
        self.ready = self._chunk.__next__
        return True

    def take_batch(self) -> ReceivedBatch[ValueT] | None:
        """Take the rest of the current batch, or the next batch; None if the queue is empty."""
        batch = self._take_rest_or_next()
        if batch is not None and batch.acks is not None and batch.acks.timeouts is not None:
            batch.acks.timeouts.start(batch.offsets.tolist())
        return batch

    def take_portion(self) -> ReceivedBatch[ValueT] | None:
        """Take a batch for the blocking client, which returns its messages one by one from another thread.

        With an ack timeout that batch has a single message, because the timeout starts here.
        """
        current = self._current
        if current is None and self._batches:
            current = self._batches[0]
        if current is None or current.acks is None or current.acks.timeouts is None:
            return self.take_batch()
        message = next(self._chunk, None)
        if message is None:
            if not self.advance():
                return None
            message = next(self._chunk)
        return message._delivery.part(message._index, message._index + 1)

    def restore_chunk(self) -> None:
        """Put the prepared messages that were not returned back into their batch."""
        self._chunk_end -= length_hint(self._chunk)
        self._chunk = _NO_MESSAGES
        self.ready = _NO_MESSAGES.__next__

    def _take_rest_or_next(self) -> ReceivedBatch[ValueT] | None:
        current = self._current
        if current is not None:
            start = self._chunk_end - length_hint(self._chunk)
            self._drop_current()
            if start < len(current):
                return current.part(start, len(current))
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._on_batch_begun(batch)
        return batch

    def _drop_current(self) -> None:
        self._current = None
        self._chunk_end = 0
        self._chunk = _NO_MESSAGES
        self.ready = _NO_MESSAGES.__next__

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait until a batch is put, or the stream fails or ends. Cancelled, nothing is lost."""
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


class DecodingQueue(ReceiverQueue[ValueT]):
    """The queue of a consumer or reader that has a schema: a batch waits until the one it was written with is known.

    ```
     put() --> undecoded: the first one's schema is being fetched --> batches, as in `ReceiverQueue`
    ```

    Batches keep their order. Those that wait here count as prefetched, so that the broker does not send more of them
    than it may.
    """

    __slots__ = ("_undecoded", "_values")

    def __init__(self, on_batch_begun: Callable[[ReceivedBatch[ValueT]], None], values: ValueReader[ValueT]) -> None:
        super().__init__(on_batch_begun)
        self._values = values
        self._undecoded: deque[ReceivedBatch[ValueT]] = deque()

    @property
    def empty(self) -> bool:
        return not self._undecoded and super().empty

    def put(self, batch: ReceivedBatch[ValueT]) -> None:
        if not self._undecoded and self._set_decoder(batch):
            super().put(batch)
            return
        self._undecoded.append(batch)
        if len(self._undecoded) == 1:
            self._fetch_schema(batch)

    def _set_decoder(self, batch: ReceivedBatch[ValueT]) -> bool:
        """Give the batch its decoding function. Returns False if its schema has to be fetched first."""
        decode = self._values.find_decoder((batch.schema_id, batch.schema_version))
        if decode is None:
            return False
        batch.use_decoder(decode)
        return True

    def _fetch_schema(self, batch: ReceivedBatch[ValueT]) -> None:
        self._values.when_known((batch.schema_id, batch.schema_version), self._schema_known)

    def _schema_known(self) -> None:
        """Put the batches whose schemas are known by now, up to the first whose schema is not."""
        while self._undecoded:
            batch = self._undecoded[0]
            if not self._set_decoder(batch):
                self._fetch_schema(batch)
                return
            super().put(self._undecoded.popleft())

    def discard(self, unwanted: Callable[[ReceivedBatch[ValueT]], bool]) -> list[ReceivedBatch[ValueT]]:
        dropped = super().discard(unwanted)
        dropped += [batch for batch in self._undecoded if unwanted(batch)]
        self._undecoded = deque(batch for batch in self._undecoded if not unwanted(batch))
        return dropped

    def fail(self, error: DanubeError) -> None:
        self._undecoded.clear()
        super().fail(error)

    def close(self) -> None:
        self._undecoded.clear()
        super().close()
