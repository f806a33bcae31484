"""An async iterator over messages or batches: the common base of consumers and readers.

One step of `async for` is the hot path: while messages are in the queue it does not suspend, except from time to time,
so that the event loop can send acks and credit and run other tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from math import inf
from typing import Final, Generic, TypeVar

from pydanube.client.lifecycle import Openable
from pydanube.client.settings import check_number
from pydanube.client.typed.value_reader import ValueReader
from pydanube.client.typed.value_type import ValueT
from pydanube.model.errors import DanubeError, Refused
from pydanube.runtime.clock import Clock

from .messages import Message, ReceivedBatch
from .receiver_queue import DecodingQueue, ReceiverQueue

T = TypeVar("T")

PAUSE_SECONDS: Final = 0.005
"""How long a loop over messages may run before it lets the event loop run (checked between chunks)."""


class MessageStream(Openable, AsyncIterator[Message[ValueT]], Generic[ValueT]):
    """Returns the messages of `_queue`; subclasses put the batches into it."""

    def __init__(self, clock: Clock, values: ValueReader[ValueT] | None = None) -> None:
        """`values` decodes the messages; None: their values are their payloads."""
        super().__init__()
        self._values = values
        self._queue: ReceiverQueue[ValueT] = (
            ReceiverQueue(self._batch_begun) if values is None else DecodingQueue(self._batch_begun, values)
        )
        self._pause_due = False
        self._monotonic = clock.monotonic
        self._paused_at = 0.0
        """When the event loop could run last."""

    async def __anext__(self) -> Message[ValueT]:
        try:
            return self._queue.ready()
        except StopIteration:
            pass
        if self._at_end:
            raise StopAsyncIteration
        message = await self._next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> Message[ValueT]:
        """Return the next message. Raises TimeoutError after `timeout` seconds. Cancelled, no message is lost.

        A timeout of 0 does not wait: the event loop runs once, and a message that is in the queue then is returned.
        """
        check_timeout(timeout)
        try:
            return self._queue.ready()
        except StopIteration:
            pass
        return await self._within(timeout, self._next, self._take_message)

    async def receive_batch(self, timeout: float | None = None) -> ReceivedBatch[ValueT]:
        """Return the next batch: messages of one partition, as they were delivered.

        Raises TimeoutError after `timeout` seconds. Cancelled, no message is lost.
        """
        check_timeout(timeout)
        if self._opened and not self._pause_due and self._queue.failure is None:
            batch = self._queue.take_batch()
            if batch is not None:
                return batch
        return await self._within(timeout, self._next_batch, self._queue.take_batch)

    async def batches(self) -> AsyncIterator[ReceivedBatch[ValueT]]:
        """Iterate over batches, as `receive_batch` returns them, until the end of the stream."""
        while (batch := await self._next_batch()) is not None:
            yield batch

    async def _within(
        self, timeout: float | None, wait: Callable[[], Awaitable[T | None]], take: Callable[[], T | None]
    ) -> T:
        """Return the result of `wait`, or raise TimeoutError; `take` returns what is in the queue without waiting."""
        found = await wait() if timeout is None else await self._before_deadline(timeout, wait, take)
        if found is None:
            raise self._end_error()
        return found

    async def _before_deadline(
        self, timeout: float, wait: Callable[[], Awaitable[T | None]], take: Callable[[], T | None]
    ) -> T | None:
        await self._ready_to_receive()
        try:
            async with asyncio.timeout(timeout):
                return await wait()
        except TimeoutError:
            await asyncio.sleep(0)  # what arrived together with the deadline is not late: let the loop deliver it
            self._check_readable()
            found = take()
            if found is None and not self._at_end:
                raise TimeoutError(f"no message within {timeout:g} s") from None
            return found

    async def _next(self) -> Message[ValueT] | None:
        """Return the next message when the chunk is used up, or None at the end of the stream."""
        await self._ready_to_receive()
        while True:
            self._check_readable()
            if self._pause_due or self._monotonic() - self._paused_at > PAUSE_SECONDS:
                await self._pause()
            message = self._take_message()  # another task may have taken messages during the pause
            if message is not None or self._at_end:
                return message
            await self._queue.wait()
            self._paused_at = self._monotonic()

    def _take_message(self) -> Message[ValueT] | None:
        queue = self._queue
        while True:
            try:
                return queue.ready()
            except StopIteration:
                if not queue.advance():
                    return None

    async def _next_batch(self) -> ReceivedBatch[ValueT] | None:
        return await self._next_taken(self._queue.take_batch)

    async def _next_portion(self) -> ReceivedBatch[ValueT] | None:
        """Return the next batch whose messages the blocking client returns one by one; None at the end."""
        return await self._next_taken(self._queue.take_portion)

    async def _receive_portion(self, timeout: float | None) -> ReceivedBatch[ValueT]:
        return await self._within(timeout, self._next_portion, self._queue.take_portion)

    async def _next_taken(self, take: Callable[[], ReceivedBatch[ValueT] | None]) -> ReceivedBatch[ValueT] | None:
        await self._ready_to_receive()
        queue = self._queue
        while True:
            self._check_readable()
            if self._pause_due:
                await self._pause()
            batch = take()
            if batch is not None or self._at_end:
                return batch
            await queue.wait()

    async def _ready_to_receive(self) -> None:
        """Called before a receive waits and before its timeout counts; subclasses may open themselves here."""

    async def _pause(self) -> None:
        self._pause_due = False
        await asyncio.sleep(0)
        self._paused_at = self._monotonic()

    def _batch_begun(self, batch: ReceivedBatch[ValueT]) -> None:
        """Called when the user begins with a batch, so that another can be prefetched."""

    @property
    def _at_end(self) -> bool:
        return self._closed or (self._queue.ended and self._queue.empty)

    def _end_error(self) -> DanubeError:
        return Refused(f"this {self._what} is closed" if self._closed else f"this {self._what} has reached its end")

    def _check_readable(self) -> None:
        if self._queue.failure is not None:
            raise copy(self._queue.failure)
        if not self._opened:
            self._check_open()


def check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_number("timeout", timeout, 0, inf)
