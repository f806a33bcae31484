"""What is closed when its `async with` block is left."""

from __future__ import annotations

from typing import Self


class Closing:
    """The base of what has a coroutine `close` and is used in `async with`."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
