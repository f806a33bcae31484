"""Receives the requests of calls, and limits the memory of those that have arrived in part.

gRPC takes at most a window (64 KiB) of a request that nobody has asked for yet, and all of one that is being received.
So only a few requests are received at the same time; the other calls wait for their turn. A request that is all there,
as nearly every one is, is received at once. One that is slow gives its turn to the next call after a moment, as long as
there are few slow ones; while calls wait, requests that take too long are refused. When there are many slow ones, the
newest call is next: the oldest may be as slow, and each of them would keep the others waiting for REQUEST_S_MAX.

Memory is bounded by (AT_ONCE_MAX + SLOW_MAX) requests of the largest size, which is 252 MiB for messages of 10 MiB, and
a window for each other call. What gRPC had of requests that never became complete lies free in pieces; after some of
them it is given back to the system, so that others do not take new memory beside it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import grpc.aio

from pydanube.model.errors import Full, Invalid
from pydanube.runtime.clock import Clock
from pydanube.runtime.process import return_free_memory

AT_ONCE_MAX: Final = 16
SLOW_MAX: Final = 5

SLOW_S: Final = 0.25
"""A request that takes longer than this is slow."""

REQUEST_S_MAX: Final = 10.0
"""A request that takes longer than this is refused as soon as other calls wait for their turn."""

DROPPED_MAX: Final = 4
"""After this many requests that were never complete, free memory is given back: up to 48 MiB."""

RETURN_INTERVAL_S: Final = 1.0
"""How often free memory is given back at most."""

_CHECK_S: Final = 0.1
_LATE_S: Final = 0.1
"""A check that comes this much too late shows that the event loop was busy and received nothing meanwhile."""

Task = asyncio.Task[Any]


class RequestIntake:
    """The requests that are being received, of all calls of the listeners that share this."""

    def __init__(self, clock: Clock, return_memory: Callable[[], None] = return_free_memory) -> None:
        """`return_memory` gives free memory back to the system; it is called in a thread."""
        self._clock = clock
        self._return_memory = return_memory
        self._dropped = 0
        """Requests that were never complete, since memory was given back."""
        self._returned_at = clock.monotonic()
        self._turns = 0
        self._arriving: dict[Task, float] = {}
        self._slow: dict[Task, float] = {}
        """Both have the time when receiving began, by the task of the call, the oldest first."""
        self._refused: set[Task] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._check_due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, context: Any) -> bytes:
        """Return the request of a call, serialized.

        Raises Invalid if the client sends none, and Full if it is refused because it takes too long. Cancelled: the
        call is over.
        """
        if self._turns < AT_ONCE_MAX:
            self._turns += 1
        else:
            await self._wait()
        task = asyncio.current_task()
        assert task is not None
        self._arriving[task] = self._clock.monotonic()
        data: Any = grpc.aio.EOF
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if task not in self._refused:
                raise
            task.uncancel()
            raise Full(f"the request did not arrive within {REQUEST_S_MAX:.0f} seconds, and others wait") from None
        finally:
            if data is grpc.aio.EOF:
                self._dropped += 1
                self._arm()
            self._end(task)
        if data is grpc.aio.EOF:
            raise Invalid("the call has no request")
        received: bytes = data
        return received

    async def _wait(self) -> None:
        """Wait for a turn; on return the caller has one."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._arm()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_turn()
            raise

    def _give_turn(self) -> None:
        """Give a turn that has ended to the call that waits for the longest time, or to the newest if many are slow."""
        are_many_slow = len(self._slow) >= SLOW_MAX
        while self._waiting:
            turn = self._waiting.pop() if are_many_slow else self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._turns -= 1

    def _end(self, task: Task) -> None:
        self._refused.discard(task)
        if self._arriving.pop(task, None) is not None:
            self._give_turn()
        else:
            self._slow.pop(task, None)

    def _arm(self) -> None:
        if self._timer is None:
            self._check_due = self._clock.monotonic() + _CHECK_S
            self._timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check)

    def _check(self) -> None:
        """Let slow requests give their turns to calls that wait, and refuse those that take too long."""
        self._timer = None
        now = self._clock.monotonic()
        if self._dropped >= DROPPED_MAX:
            self._return(now)
        if not self._waiting:
            return
        if now - self._check_due <= _LATE_S:
            for requests in (self._slow, self._arriving):
                for task, began in list(requests.items()):
                    if now - began > REQUEST_S_MAX:
                        self._refuse(task)
            for task, began in list(self._arriving.items()):
                if now - began > SLOW_S and len(self._slow) < SLOW_MAX:
                    del self._arriving[task]
                    self._slow[task] = began
                    self._give_turn()
        self._arm()

    def _return(self, now: float) -> None:
        """Give free memory back to the system, unless that was done a moment ago: then later."""
        if now - self._returned_at > RETURN_INTERVAL_S:
            self._returned_at, self._dropped = now, 0
            asyncio.get_running_loop().run_in_executor(None, self._return_memory)
        else:
            self._arm()

    def _refuse(self, task: Task) -> None:
        if task not in self._refused:
            self._refused.add(task)
            task.cancel()
