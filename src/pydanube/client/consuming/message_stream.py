"""An async iterator over messages, or over batches of them: what consumers and readers have in common.

The way of one message through `async for` is the hot path: while messages are here it never suspends. Every now and
then it lets the loop run all the same, so that acks and credit leave and other tasks get their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from copy import copy
from math import inf
from typing import Final, TypeVar

from pydanube.client.lifecycle import Openable
from pydanube.client.settings import check_number
from pydanube.model.errors import DanubeError, Refused
from pydanube.runtime.clock import Clock

from .messages import Message, ReceivedBatch
from .receiver_queue import ReceiverQueue

T = TypeVar("T")

PAUSE_SECONDS: Final = 0.005
"""So long a loop over messages may keep the event loop to itself (looked at between chunks)."""


class MessageStream(Openable, AsyncIterator[Message]):
    """Subclasses bring the batches into `_queue`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._queue = ReceiverQueue(self._taken)
        self._pause_due = False
        self._monotonic = clock.monotonic
        self._ran_at = 0.0

    async def __anext__(self) -> Message:
        try:
            return self._queue.ready()
        except StopIteration:
            pass
        if self._over:
            raise StopAsyncIteration
        message = await self._next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message. Raises TimeoutError after `timeout` seconds. Cancelled, no message is lost.

        With 0 it only looks: the loop gets a turn, and what is here then is returned.
        """
        check_timeout(timeout)
        try:
            return self._queue.ready()
        except StopIteration:
            pass
        return await self._within(timeout, self._next, self._message_here)

    async def receive_batch(self, timeout: float | None = None) -> ReceivedBatch:
        """The next messages of one partition, as they come. Raises TimeoutError. Cancelled, nothing is lost."""
        check_timeout(timeout)
        if self._opened and not self._pause_due and self._queue.failure is None:
            batch = self._queue.take_batch()
            if batch is not None:
                return batch
        return await self._within(timeout, self._next_batch, self._queue.take_batch)

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """`async for batch in ...`: as receive_batch, until the end."""
        while (batch := await self._next_batch()) is not None:
            yield batch

    async def _within(
        self, timeout: float | None, wait: Callable[[], Awaitable[T | None]], look: Callable[[], T | None]
    ) -> T:
        """What `wait` brings before the deadline, if there is one."""
        found = await wait() if timeout is None else await self._before_deadline(timeout, wait, look)
        if found is None:
            raise self._over_error()
        return found

    async def _before_deadline(
        self, timeout: float, wait: Callable[[], Awaitable[T | None]], look: Callable[[], T | None]
    ) -> T | None:
        """What arrived together with the deadline is not late."""
        await self._ready_to_receive()
        try:
            async with asyncio.timeout(timeout):
                return await wait()
        except TimeoutError:
            await asyncio.sleep(0)  # what the loop has read from its sockets meanwhile is handed out in this turn
            self._check_readable()
            found = look()
            if found is None and not self._over:
                raise TimeoutError(f"no message within {timeout:g} s") from None
            return found

    async def _next(self) -> Message | None:
        """The slow path: the chunk is used up. None at the end."""
        await self._ready_to_receive()
        while True:
            self._check_readable()
            if self._pause_due or self._monotonic() - self._ran_at > PAUSE_SECONDS:
                await self._pause()
            message = self._message_here()  # another task may have been here meanwhile
            if message is not None or self._over:
                return message
            await self._queue.wait()
            self._ran_at = self._monotonic()

    def _message_here(self) -> Message | None:
        queue = self._queue
        while True:
            try:
                return queue.ready()
            except StopIteration:
                if not queue.advance():
                    return None

    async def _next_batch(self) -> ReceivedBatch | None:
        return await self._next_taken(self._queue.take_batch)

    async def _next_portion(self) -> ReceivedBatch | None:
        """For the blocking form: what it may hand out one by one from its own thread."""
        return await self._next_taken(self._queue.take_portion)

    async def _receive_portion(self, timeout: float | None) -> ReceivedBatch:
        return await self._within(timeout, self._next_portion, self._queue.take_portion)

    async def _next_taken(self, take: Callable[[], ReceivedBatch | None]) -> ReceivedBatch | None:
        await self._ready_to_receive()
        queue = self._queue
        while True:
            self._check_readable()
            if self._pause_due:
                await self._pause()
            batch = take()
            if batch is not None or self._over:
                return batch
            await queue.wait()

    async def _ready_to_receive(self) -> None:
        """Before anything is waited for, and before a deadline counts."""

    async def _pause(self) -> None:
        self._pause_due = False
        await asyncio.sleep(0)
        self._ran_at = self._monotonic()

    def _taken(self, batch: ReceivedBatch) -> None:
        """The user begins with this batch: make room for another."""

    @property
    def _over(self) -> bool:
        return self._closed or (self._queue.ended and self._queue.empty)

    def _over_error(self) -> DanubeError:
        return Refused(f"this {self._what} is closed" if self._closed else f"this {self._what} has reached its end")

    def _check_readable(self) -> None:
        if self._queue.failure is not None:
            raise copy(self._queue.failure)
        if not self._opened:
            self._check_open()


def check_timeout(timeout: float | None) -> None:
    if timeout is not None:
        check_number("timeout", timeout, 0, inf)
