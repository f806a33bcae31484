"""Noticing that a peer has fallen silent.

Intervals are counted, not measured: a loop that was blocked for a minute is one silent interval, not many, and its
connections live on if the peer answers then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

SILENT_INTERVALS_MAX: Final = 3
"""Intervals without a single byte, each opened by a question, before the peer is given up."""


class KeepAlive:
    """Asks when nothing was heard for an interval, and gives up after a few of them."""

    __slots__ = ("_ask", "_give_up", "_heard", "_heard_at", "_interval", "_loop", "_silent", "_timer")

    def __init__(
        self, interval: float, heard_at: Callable[[], float], ask: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self._interval = interval
        self._heard_at = heard_at
        self._ask = ask
        self._give_up = give_up
        self._heard = heard_at()
        self._silent = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(interval, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        heard = self._heard_at()
        if heard != self._heard:
            self._heard = heard
            self._silent = 0
        else:
            self._silent += 1
            if self._silent > SILENT_INTERVALS_MAX:
                self._give_up()
                return
            self._ask()
        self._timer = self._loop.call_later(self._interval, self._tick)
