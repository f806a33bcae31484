"""Received batches, handed out message by message or whole: what consumers and readers have in common.

The way of one message through `async for` is the hot path: while messages are here it never suspends. Every now and
then it lets the loop run all the same, so that acks and credit leave and other tasks get their turn.

Invariants
    a message is handed out once, in the order of its partition
    whoever waits is woken when a batch arrives, when the stream fails, and when it ends
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from operator import length_hint
from typing import Final

from pydanube.model.errors import DanubeError, Refused
from pydanube.runtime.clock import Clock

from .lifecycle import Openable
from .message import Message, ReceivedBatch

CHUNK_MESSAGES: Final = 128
"""Messages made ready at a time."""

PAUSE_SECONDS: Final = 0.005
"""So long a loop over messages may keep the event loop to itself (looked at between chunks)."""

_NOTHING: Final[Iterator[Message]] = iter(())


class Stream(Openable, AsyncIterator[Message]):
    """An async iterator over messages; subclasses bring the batches."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._monotonic = clock.monotonic
        self._chunk: Iterator[Message] = _NOTHING
        self._ready: Callable[[], Message] = _NOTHING.__next__
        self._current: ReceivedBatch | None = None
        self._chunk_end = 0
        self._batches: deque[ReceivedBatch] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._failure: DanubeError | None = None
        self._ended = False
        self._ran_at = 0.0
        self._pause_due = False

    # -- handing out -------------------------------------------------------------------------------------------------

    async def __anext__(self) -> Message:
        try:
            return self._ready()
        except StopIteration:
            pass
        if self._over:
            raise StopAsyncIteration
        message = await self._next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises TimeoutError after `timeout` seconds. Cancelled, no message is lost."""
        try:
            return self._ready()
        except StopIteration:
            pass
        async with asyncio.timeout(timeout):
            message = await self._next()
        if message is None:
            raise self._over_error()
        return message

    async def receive_batch(self, timeout: float | None = None) -> ReceivedBatch:
        """The next messages of one partition, as they come. Raises TimeoutError. Cancelled, nothing is lost."""
        batch = self._next_batch_nowait()
        if batch is None:
            async with asyncio.timeout(timeout):
                batch = await self.next_batch()
        if batch is None:
            raise self._over_error()
        return batch

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """`async for batch in ...`: as receive_batch, until the end."""
        while True:
            batch = await self.next_batch()
            if batch is None:
                return
            yield batch

    async def _next(self) -> Message | None:
        """The slow path: the chunk is used up. None at the end."""
        while True:
            self._check_readable()
            if self._pause_due or self._monotonic() - self._ran_at > PAUSE_SECONDS:
                await self._pause()
            try:
                return self._ready()  # another task may have been here meanwhile
            except StopIteration:
                if not self._advance():
                    if self._over:
                        return None
                    await self._wait()

    async def next_batch(self) -> ReceivedBatch | None:
        """As receive_batch; None at the end."""
        while True:
            self._check_readable()
            if self._pause_due:
                await self._pause()
            batch = self._next_batch_nowait()
            if batch is not None or self._over:
                return batch
            await self._wait()

    def _next_batch_nowait(self) -> ReceivedBatch | None:
        if self._failure is not None or not self._opened:
            return None
        current = self._current
        if current is not None:
            place = self._chunk_end - length_hint(self._chunk)
            self._drop_current()
            if place < len(current):
                return current.part(place, len(current))
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._taken(batch)
        return batch

    def _advance(self) -> bool:
        """Make the next chunk ready."""
        current = self._current
        if current is None or self._chunk_end >= len(current):
            self._drop_current()
            if not self._batches:
                return False
            current = self._current = self._batches.popleft()
            self._taken(current)
        start = self._chunk_end
        self._chunk_end = end = min(start + CHUNK_MESSAGES, len(current))
        self._chunk = iter(list(current.messages(start, end)))
        self._ready = self._chunk.__next__
        return True

    def _drop_current(self) -> None:
        self._current = None
        self._chunk_end = 0
        self._chunk = _NOTHING
        self._ready = _NOTHING.__next__

    async def _pause(self) -> None:
        self._pause_due = False
        await asyncio.sleep(0)
        self._ran_at = self._monotonic()

    async def _wait(self) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            await woken
        finally:
            if not woken.done() or woken.cancelled():
                self._waiting = deque(one for one in self._waiting if one is not woken)
        self._ran_at = self._monotonic()

    # -- for subclasses ----------------------------------------------------------------------------------------------

    def _taken(self, batch: ReceivedBatch) -> None:
        """The user begins with this batch: make room for another."""

    def _put(self, batch: ReceivedBatch) -> None:
        self._batches.append(batch)
        if self._waiting:
            self._wake()

    def _discard(self, unwanted: Callable[[ReceivedBatch], bool]) -> None:
        """Forget batches that will come again; what was handed out stays handed out."""
        self._batches = deque(batch for batch in self._batches if not unwanted(batch))
        if self._current is not None and unwanted(self._current):
            self._drop_current()

    def _fail(self, error: DanubeError) -> None:
        """From now on receiving raises this."""
        self._failure = self._failure or error
        self._batches.clear()
        self._drop_current()
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for woken in waiting:
            if not woken.done():
                woken.set_result(None)

    @property
    def _over(self) -> bool:
        return self._closed or (self._ended and not self._batches and self._current is None)

    def _over_error(self) -> DanubeError:
        return Refused(f"this {self._what} is closed" if self._closed else f"this {self._what} has reached its end")

    def _check_readable(self) -> None:
        if self._failure is not None:
            raise copy(self._failure)
        if not self._opened:
            self._check_open()
