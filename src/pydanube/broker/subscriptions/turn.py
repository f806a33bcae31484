"""How much is done before everybody else gets a turn: whoever has more to do goes on in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

BATCHES_MAX: Final = 64
MESSAGES_MAX: Final = 16_000
"""What one turn deals, of either: some milliseconds of work where every message is looked at by itself."""


class Turn:
    """One turn after the other of something that is never done twice at the same time."""

    __slots__ = ("_go_on", "_is_on", "_left", "_next")

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on
        self._is_on = False
        self._left = 0.0
        self._next: asyncio.Handle | None = None

    def begin(self) -> bool:
        """False while one is under way, or the next one is waited for: that one does it."""
        if self._is_on or self._next is not None:
            return False
        self._is_on, self._left = True, 1.0
        return True

    def worked(self, batches: int, messages: int, more: float = 0.0) -> None:
        """`more`: of a turn, for what is not counted in batches and messages."""
        self._left -= batches / BATCHES_MAX + messages / MESSAGES_MAX + more

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def end(self) -> None:
        self._is_on = False

    def another(self) -> None:
        """There is more to do, after what others have to do now."""
        self._next = asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._next = None
        self._go_on()
