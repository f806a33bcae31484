"""The opening and closing that clients, producers, consumers, readers and stagers have in common.

```python
async with client.producer(topic) as producer: ...      # closed when the block is left, also by an exception

producer = await client.producer(topic)                 # or by hand
try: ...
finally: await producer.close()
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any, Final, Self

from pydanube.model.errors import DanubeError, Refused
from pydanube.runtime.telemetry import get_logger

from .settings import check_number

log = get_logger(__name__)

CANCELLED_SECONDS: Final = 5.0
"""When the block is left by cancellation, unfinished work gets this long to complete, then it is dropped."""

HOW_TO_OPEN: Final = "use `with` or open() in the blocking client, `async with` or await in the other"
"""For error messages, which both clients raise."""


def check_timeout(timeout: float | None) -> None:
    """Check the timeout of `close`; raises Invalid."""
    if timeout is not None:
        check_number("timeout", timeout, 0, 1e6)


class Openable:
    """Opened once and closed once. Closing it again waits until the first close has ended."""

    _what = "client"

    def __init__(self) -> None:
        self._opened = False
        self._closed = False
        self._ended = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._describe()}>"

    def _describe(self) -> str:
        """Return what the repr says: what it is for, and its state."""
        return self._state

    @property
    def _state(self) -> str:
        if self._closed:
            return "closed"
        return "open" if self._opened else "not open"

    async def open(self) -> Self:
        """Open it and return it. Raises the error with which the broker refuses; cancelled or failed, it is closed."""
        if self._opened:
            raise Refused(f"this {self._what} was opened before: make a new one")
        if self._closed:
            raise Refused(f"this {self._what} is closed: make a new one")
        self._opened = True
        try:
            await self._begin()
            self._check_open()
        except BaseException as error:
            await self._abandon_open(error)
            raise
        return self

    async def _abandon_open(self, error: BaseException) -> None:
        """Release everything after `open` failed; raises Refused if `close` was called meanwhile."""
        was_closed, self._closed = self._closed, True
        await self._release()
        if was_closed and isinstance(error, DanubeError):  # the error is a consequence of closing
            raise Refused(f"this {self._what} was closed while it was being opened") from error

    async def close(self, timeout: float | None = None) -> None:
        """Complete what is under way and release everything. Closing it again waits until the first close has ended.

        timeout     seconds to wait for queued messages to be stored and for acks to be confirmed; 0 does not wait.
                    None: as long as their own timeouts allow while a broker answers, and 5 seconds when none does

        Raises Unavailable, or the error of the messages, if something was not completed; it is closed all the same.
        Cancelled, unfinished work is dropped and nothing is left behind.
        """
        check_timeout(timeout)
        if self._closed:
            await self._ended.wait()
            return
        self._closed = True
        try:
            if self._opened:
                await self._finish(timeout)
        finally:
            await self._release()

    @property
    def _has_ended(self) -> bool:
        """Whether it is closed and none of its tasks runs any more."""
        return self._ended.is_set()

    async def _release(self) -> None:
        try:
            if self._opened:
                await self._end()
        finally:
            self._ended.set()

    async def _begin(self) -> None:
        """Acquire what it needs."""

    async def _finish(self, timeout: float | None) -> None:
        """Complete what is under way; may raise. `timeout` as in `close`."""

    async def _end(self) -> None:
        """Release everything, without waiting for the network for more than a moment."""

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(f"this {self._what} is closed")
        if not self._opened:
            raise Refused(f"this {self._what} is not open yet: {HOW_TO_OPEN}")

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(CANCELLED_SECONDS if isinstance(error, asyncio.CancelledError) else None):
                await self.close()
        except Exception as failure:
            if error is None:
                raise
            # the exception from inside the block matters more
            log.warning("client.close_failed", closed=self._what, error=str(failure))

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()
