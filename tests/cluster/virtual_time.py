"""An event loop in which time costs nothing, nothing runs in threads, and single processes can be paused and killed.

Time advances to the next timer when nothing else is to be done. What a simulated process runs is marked by a context
variable: while it is paused its callbacks are held, and when it is killed they are dropped, as SIGSTOP and SIGKILL do.
The threads of the log and of the embedded metadata store are replaced by callbacks of the loop. So a run depends on its
seed alone, and on PYTHONHASHSEED.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import queue
import selectors
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import contextmanager
from contextvars import Context, ContextVar
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from pydanube.metadata import embedded
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store_thread import StoreWorker
from pydanube.storage.wal import log_writer

T = TypeVar("T")


class SimulatedProcess:
    """Whose callbacks can be held and dropped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_paused = False
        self.is_dead = False
        self._held: list[tuple[list[asyncio.Handle], Callable[..., Any], tuple[Any, ...], Context]] = []
        self._context = OUTSIDE.copy()
        self._context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something inside the process."""
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        held, self._held = self._held, []
        for cell, callback, args, context in held:
            if not cell[0].cancelled():
                asyncio.get_running_loop().call_soon(callback, *args, context=context)

    def kill(self) -> None:
        self.is_dead = True
        self._held.clear()

    def run(self, cell: list[asyncio.Handle], callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self.is_paused and not self.is_dead:
            self._held.append((cell, callback, args, contextvars.copy_context()))
        elif not self.is_dead:
            callback(*args)


_process: ContextVar[SimulatedProcess | None] = ContextVar("simulated_process", default=None)
OUTSIDE: Context = Context()
"""No process: the stores, and the driver."""


def outside(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run something that goes on whatever happens to the process that asked for it."""
    return asyncio.get_running_loop().create_task(work, context=OUTSIDE.copy())


class _TimeSelector(selectors.SelectSelector):
    """Sleeps in no time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everyone waits, and no timer is set: the simulation would never end")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See above."""

    def __init__(self) -> None:
        self._virtual = _TimeSelector()
        super().__init__(self._virtual)
        self._made: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)

    def _make_task(self, _loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a task that lives as long as the loop, also when its process is dead."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, **options)
        self._made.append(task)
        return task

    def abandon(self) -> None:
        """Drop every task, and let none of them complain."""
        for task in self._made:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.set_exception_handler(lambda *_: None)
        self._made.clear()

    def _asyncgen_finalizer_hook(self, _generator: Any) -> None:
        """Let generators of dead processes be."""

    def time(self) -> float:
        return self._virtual.now

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        context = context if context is not None else contextvars.copy_context()
        process = context.get(_process)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        cell: list[asyncio.Handle] = []
        cell.append(super().call_soon(process.run, cell, callback, args, context=context))
        return cell[0]

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context if context is not None else contextvars.copy_context()
        process = context.get(_process)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        cell: list[asyncio.Handle] = []
        timer = super().call_at(when, process.run, cell, callback, args, context=context)
        cell.append(timer)
        return timer

    def run_in_executor(self, _executor: Any, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """Run the work now: a thread would make the order of things a matter of luck."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class VirtualClock:
    """The clock of every simulated process."""

    def now_us(self) -> int:
        return 1_700_000_000_000_000 + round(self.monotonic() * 1_000_000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    boot_time = monotonic

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _LoopQueue(queue.SimpleQueue):  # type: ignore[type-arg]
    """A queue whose reader is a callback of the loop."""

    def __init__(self) -> None:
        self.pump: Callable[[], None] = lambda: None
        self.context: Context | None = None
        self._is_scheduled = False

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run, context=self.context)

    def _run(self) -> None:
        self._is_scheduled = False
        self.pump()


class _LogThread:
    """In place of the thread of the log: `target` is Committer.run."""

    def __init__(self, target: Any, name: str, daemon: bool) -> None:
        self._committer = target.__self__

    def start(self) -> None:
        committer = self._committer
        committer._offer_engine()
        committer._mail.pump = self._pump

    def _pump(self) -> None:
        committer = self._committer
        while committer._kept or not committer._mail.empty():
            if not committer._step():
                committer._is_ending = True
                committer._end()
                return
            committer._offer_engine()

    def join(self, timeout: float | None = None) -> None:
        self._pump()


class _NowPool:
    """In place of the pool of the log's readers."""

    def __init__(self, *_: object) -> None: ...

    def submit(self, work: Callable[..., T], *args: Any) -> ThreadFuture[T]:
        done: ThreadFuture[T] = ThreadFuture()
        done.set_result(work(*args))
        return done

    def shutdown(self, wait: bool = True) -> None: ...


class _StoreThread:
    """In place of the thread of the metadata store: `target` is EmbeddedStore._serve."""

    def __init__(self, target: Any, name: str, daemon: bool) -> None:
        self._store: EmbeddedStore = target.__self__

    def start(self) -> None:
        store = self._store
        self._worker = StoreWorker(store._path, store._disk)
        requests: Any = store._requests
        requests.context, requests.pump = OUTSIDE, self._pump

    def _pump(self) -> None:
        store = self._store
        while not store._requests.empty():
            group = store._take_group()
            if group is None:
                store._ended.set_result(self._worker.close())
                return
            store._finish_group(self._worker.execute(group))
            self._worker.maintain()

    def join(self, timeout: float | None = None) -> None: ...


@contextmanager
def no_threads() -> Iterator[None]:
    """Have logs and metadata stores that are opened inside run on the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_writer, "threading", SimpleNamespace(Thread=_LogThread))
        patch.setattr(log_writer, "SimpleQueue", _LoopQueue)
        patch.setattr(log_writer, "ThreadPoolExecutor", _NowPool)
        patch.setattr(embedded, "threading", SimpleNamespace(Thread=_StoreThread))
        patch.setattr(embedded, "queue", SimpleNamespace(SimpleQueue=_LoopQueue, Empty=queue.Empty))
        yield


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own, in virtual time. What it leaves behind ends where it is, as the processes
    did: nothing of it runs any more, also not what would clean up."""
    loop = VirtualLoop()
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # coroutines that would go on when they are closed
    gc.disable()  # closing what a dead process left would run its code in the middle of another's
    gc.freeze()  # what there is already needs no collection afterwards
    try:
        with no_threads():
            return loop.run_until_complete(work)
    finally:
        loop.abandon()
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that were never begun
            gc.collect()
            gc.unfreeze()
            gc.enable()
        sys.unraisablehook = hook


def memory_directory() -> Path | None:
    """Return a directory in memory for files that need no disk; None if this system has none."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() else None
