"""Everything the client hands out is opened and closed the same way.

```python
async with client.producer(topic) as producer: ...      # closed when the block is left, whatever happens in it

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

CANCELLED_SECONDS: Final = 5.0
"""Who cancels wants to go: finishing what is under way gets this long, then it is dropped."""


class Openable:
    """Opened once, closed once; whoever closes it again waits for its end."""

    _what = "client"

    def __init__(self) -> None:
        self._opened = False
        self._closed = False
        self._ended = asyncio.Event()

    async def open(self) -> Self:
        """Begin. Raises what the broker refuses it with; cancelled or failed, it is closed again."""
        if self._opened:
            raise Refused(f"this {self._what} was opened before: make a new one")
        if self._closed:
            raise Refused(f"this {self._what} is closed: make a new one")
        self._opened = True
        try:
            await self._begin()
            self._check_open()
        except BaseException as error:
            await self._gave_up(error)
            raise
        return self

    async def _gave_up(self, error: BaseException) -> None:
        """Raises what is to be said instead."""
        was_closed, self._closed = self._closed, True
        await self._released()
        if was_closed and isinstance(error, DanubeError):  # whatever it says comes of that
            raise Refused(f"this {self._what} was closed while it was being opened") from error

    async def close(self) -> None:
        """End in good order. Cancelled, what was not finished is dropped and nothing is left behind. Whoever closes it
        again waits until it has ended."""
        if self._closed:
            await self._ended.wait()
            return
        self._closed = True
        try:
            if self._opened:
                await self._finish()
        finally:
            await self._released()

    @property
    def _has_ended(self) -> bool:
        """It is closed, and nothing of it runs any more."""
        return self._ended.is_set()

    async def _released(self) -> None:
        try:
            if self._opened:
                await self._end()
        finally:
            self._ended.set()

    async def _begin(self) -> None:
        """Acquire."""

    async def _finish(self) -> None:
        """Complete what is under way; may raise."""

    async def _end(self) -> None:
        """Release everything; does not wait for the network any longer than a moment."""

    def _check_open(self) -> None:
        if self._closed:
            raise Refused(f"this {self._what} is closed")
        if not self._opened:
            raise Refused(f"this {self._what} is not open yet: use `async with`, or await it")

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(CANCELLED_SECONDS if isinstance(error, asyncio.CancelledError) else None):
                await self.close()
        except Exception:
            if error is None:  # what went wrong inside the block is the more interesting news
                raise

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()
