"""An async iterator over messages, or over batches of them: what consumers and readers have in common.

The way of one message through `async for` is the hot path: while messages are here it never suspends. Every now and
then it lets the loop run all the same, so that acks and credit leave and other tasks get their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import copy
from typing import Final

from pydanube.model.errors import DanubeError, Refused
from pydanube.runtime.clock import Clock

from .inbox import Inbox
from .lifecycle import Openable
from .message import Message, ReceivedBatch

PAUSE_SECONDS: Final = 0.005
"""So long a loop over messages may keep the event loop to itself (looked at between chunks)."""


class Stream(Openable, AsyncIterator[Message]):
    """Subclasses bring the batches into `_queue`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._queue = Inbox(self._taken)
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
        """The next message. Raises TimeoutError after `timeout` seconds. Cancelled, no message is lost."""
        try:
            return self._queue.ready()
        except StopIteration:
            pass
        async with asyncio.timeout(timeout):
            message = await self._next()
        if message is None:
            raise self._over_error()
        return message

    async def receive_batch(self, timeout: float | None = None) -> ReceivedBatch:
        """The next messages of one partition, as they come. Raises TimeoutError. Cancelled, nothing is lost."""
        async with asyncio.timeout(timeout):
            batch = await self._next_batch()
        if batch is None:
            raise self._over_error()
        return batch

    async def batches(self) -> AsyncIterator[ReceivedBatch]:
        """`async for batch in ...`: as receive_batch, until the end."""
        while (batch := await self._next_batch()) is not None:
            yield batch

    async def _next(self) -> Message | None:
        """The slow path: the chunk is used up. None at the end."""
        queue = self._queue
        while True:
            self._check_readable()
            if self._pause_due or self._monotonic() - self._ran_at > PAUSE_SECONDS:
                await self._pause()
            try:
                return queue.ready()  # another task may have been here meanwhile
            except StopIteration:
                if not queue.advance():
                    if self._over:
                        return None
                    await queue.wait()
                    self._ran_at = self._monotonic()

    async def _next_batch(self) -> ReceivedBatch | None:
        queue = self._queue
        while True:
            self._check_readable()
            if self._pause_due:
                await self._pause()
            batch = queue.take_batch()
            if batch is not None or self._over:
                return batch
            await queue.wait()

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
