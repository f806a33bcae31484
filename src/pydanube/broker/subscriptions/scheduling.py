"""When a subscription's dispatch loop runs: how much it does before other tasks run, and when it wakes up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from pydanube.model.errors import Unavailable
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.tasks import Tasks

BATCHES_MAX: Final = 64
MESSAGES_MAX: Final = 16_000
"""What one turn dispatches at most, of either: some milliseconds of work if every message is processed by itself."""

SLEEP_S_MAX: Final = 30.0
"""A timer sleeps no longer than this at a time, because the wall clock may jump meanwhile."""


class WorkBudget:
    """Divides the work of a loop into turns, between which other tasks of the event loop run.

    Turns never overlap: `begin` refuses one while another is under way or scheduled.
    """

    __slots__ = ("_is_running", "_left", "_next_turn", "_run")

    def __init__(self, run: Callable[[], None]) -> None:
        """`run` is called for each turn that `continue_later` schedules."""
        self._run = run
        self._is_running = False
        self._left = 0.0
        self._next_turn: asyncio.Handle | None = None

    def begin(self) -> bool:
        """Begin a turn. Return False if one is under way or scheduled, which then does the work."""
        if self._is_running or self._next_turn is not None:
            return False
        self._is_running, self._left = True, 1.0
        return True

    def spend(self, batches: int, messages: int, extra: float = 0.0) -> None:
        """Count work that was done; `extra` is a fraction of a turn for work not measured in batches or messages."""
        self._left -= batches / BATCHES_MAX + messages / MESSAGES_MAX + extra

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def end(self) -> None:
        self._is_running = False

    def continue_later(self) -> None:
        """Schedule another turn after the callbacks that are waiting in the event loop now."""
        self._next_turn = asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._next_turn = None
        self._run()


class Timer:
    """Calls a function once, at the time that was set last or a little earlier: the function checks the clock."""

    __slots__ = ("_at_us", "_call", "_clock", "_name", "_tasks", "_waiting")

    def __init__(self, clock: Clock, tasks: Tasks, call: Callable[[], None], name: str) -> None:
        self._clock = clock
        self._tasks = tasks
        self._call = call
        self._name = name
        self._at_us = 0
        self._waiting: asyncio.Task[None] | None = None

    @property
    def is_set(self) -> bool:
        return self._waiting is not None

    def set(self, at_us: int | None) -> None:
        """Replace the time that was set before; None: do not call."""
        if self._waiting is not None:
            if at_us == self._at_us:
                return
            self._waiting.cancel()
            self._waiting = None
        if at_us is not None:
            self._at_us = at_us
            try:
                self._waiting = self._tasks.spawn(self._wait(at_us), self._name)
            except Unavailable:
                return  # the broker is shutting down

    async def _wait(self, at_us: int) -> None:
        await self._clock.sleep(min(SLEEP_S_MAX, max(0, at_us - self._clock.now_us()) / MICROSECONDS))
        self._waiting = None
        self._call()
