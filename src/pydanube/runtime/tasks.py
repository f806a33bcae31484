"""Background tasks with an owner.

Coroutines that run concurrently while the caller waits for all of them use `run_together`; what is told by a callback
is awaited with `outcome_of`. Any other task outside a
TaskGroup belongs to a `Tasks`: it is not lost to the garbage collector, its failure is noticed when it happens, and it
does not run on after `close`.

Invariants
    every task spawned here is finished when `close` has returned
    an exception of a task is passed to `on_crash` once, on the loop, soon after it happened; cancellation is no crash
    without an `on_crash`, the exception is logged at once and raised by `close`
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, TypeVar

from pydanube.model.errors import DanubeError, Unavailable

from .closing import Closing
from .telemetry import get_logger

log = get_logger(__name__)

T = TypeVar("T")
OnCrash = Callable[["asyncio.Task[Any]", BaseException], None]

CANCEL_AGAIN_SECONDS: Final = 5.0
"""A task that swallowed its cancellation (asyncio.wait_for of Python 3.11 can) is cancelled again after this long."""


async def run_together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the coroutines concurrently and return their results in order. The first failure cancels the others and is
    raised unchanged; a coroutine that is cancelled from elsewhere does not cancel the others. Each cancellation of the
    caller cancels all that still run.

    If a cancellation and a failure happen together, the cancellation is raised. A TaskGroup before Python 3.13 raises
    only the failure then, and a caller that retries after failures would never notice that it was cancelled.
    """
    loop = asyncio.get_running_loop()
    running = [loop.create_task(one) for one in list(coroutines)]
    failed: asyncio.Task[T] | None = None
    cancelled = False
    while left := [task for task in running if not task.done()]:
        if failed is None and not cancelled and (failed := _failed(running)) is not None:
            _cancel(left)
        try:
            is_ending = cancelled or failed is not None
            await asyncio.wait(left, return_when=asyncio.ALL_COMPLETED if is_ending else asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            cancelled = True
            _cancel(left)
    last = _failed(running)
    if cancelled:
        raise asyncio.CancelledError
    if failed is not None or (failed := last) is not None:
        failed.result()
    return [task.result() for task in running]


def outcome_of(start: Callable[[Callable[[T | DanubeError], None]], object]) -> asyncio.Future[T]:
    """Call `start` with a callback, and return a future with what the callback is called with. An error is raised where
    the future is awaited. If the future was cancelled, the outcome is dropped, also an error."""
    waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    waiting.add_done_callback(mark_retrieved)
    start(partial(complete, waiting))
    return waiting


def complete(waiting: asyncio.Future[T], outcome: T | DanubeError) -> None:
    """Give a future its result or its error, unless it is done: cancelled, with the task that waited for it."""
    if waiting.done():
        return
    if isinstance(outcome, DanubeError):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)


def mark_retrieved(done: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log it if nobody awaits it."""
    if not done.cancelled():
        done.exception()


def ignore(*_: object) -> None:
    """Do nothing: a callback for who does not want to know."""


def _failed(tasks: Iterable[asyncio.Task[T]]) -> asyncio.Task[T] | None:
    """Return one failed task, if any. Marks all exceptions as retrieved, so that asyncio does not log them."""
    failed = [task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
    return failed[0] if failed else None


def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


class Tasks(Closing):
    """The background tasks of one owner."""

    def __init__(self, on_crash: OnCrash | None = None) -> None:
        self._on_crash = self._keep_crash if on_crash is None else on_crash
        self._running: set[asyncio.Task[Any]] = set()
        self._crashes: list[BaseException] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run `coro` as a task until it returns or `close` cancels it. Raises Unavailable after `close`."""
        if self._closed:
            coro.close()
            raise Unavailable(f"cannot start {name!r}: its owner has been closed")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._running.add(task)
        task.add_done_callback(self._finished)
        return task

    async def drain(self, seconds: float) -> int:
        """Wait until every task has ended, also those that begin meanwhile, at most for so many seconds. Returns how
        many still run."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running:
                    await asyncio.wait(self._running)
        return len(self._running)

    async def close(self) -> None:
        """Cancel every task and wait until all have finished; without an `on_crash`, raise the exceptions of tasks.

        May be called again. When cancelled, the tasks are asked to stop and still owned: call `close` again to wait for
        them. The cleanup of a task is awaited, and cancelled too if it takes longer than CANCEL_AGAIN_SECONDS. Must not
        be called by a task of this owner.
        """
        self._closed = True
        assert asyncio.current_task() not in self._running, "a task cannot wait for its own end"
        while self._running:
            for task in self._running:
                task.cancel()
            _, lingering = await asyncio.wait(self._running, timeout=CANCEL_AGAIN_SECONDS)
            if lingering:
                log.warning("tasks.lingered", tasks=sorted(task.get_name() for task in lingering))
        crashes, self._crashes = self._crashes, []
        if len(crashes) == 1:
            raise crashes[0]
        if crashes:
            raise BaseExceptionGroup("several tasks crashed", crashes)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        crash = task.exception()
        if crash is not None:
            self._on_crash(task, crash)

    def _keep_crash(self, task: asyncio.Task[Any], crash: BaseException) -> None:
        log.error("task.crashed", task=task.get_name(), exc_info=crash)
        self._crashes.append(crash)
