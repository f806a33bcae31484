"""An event loop in a background thread, and what runs an object's methods there for programs without a loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from pydanube.client.lifecycle import Openable
from pydanube.model.errors import Refused

P = ParamSpec("P")
T = TypeVar("T")
OpenableT = TypeVar("OpenableT", bound=Openable)

_END: Final = object()


class LoopThread:
    """An event loop in a thread of its own, from `start` to `stop`.

    A forked child inherits the loop and its sockets, but not the thread. They stay the parent's: the child is refused.
    """

    def __init__(self) -> None:
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._asking = threading.RLock()
        """What is asked for before the loop is stopped runs there before it stops. Signal handlers, and whatever the
        garbage collector ends, may ask for something in the midst of it."""

    def start(self) -> None:
        self._process = os.getpid()
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="pydanube-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Whatever runs there is cancelled. The thread is gone on return."""
        if self.elsewhere:
            return
        with self._asking:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait. An interrupted wait (Ctrl-C) cancels it."""
        try:
            self.running_loop()  # a forked child must not wait for a lock that nobody there gives back
            with self._asking:
                loop = self.running_loop()
                if threading.current_thread() is self._thread:
                    raise Refused("the thread that does this client's work cannot wait for it: call from another one")
                future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except (Refused, RuntimeError) as error:
            coroutine.close()
            raise _closed_meanwhile(error) from None
        try:
            return future.result()
        except CancelledError as error:
            if self._loop is loop:
                raise
            raise _closed_meanwhile(error) from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """What it yields there, one by one. Left early, it is closed."""
        try:
            while (item := self.call(_next(items))) is not _END:
                yield cast(T, item)
        finally:
            with suppress(Refused):  # closed with its client
                self.call(_closed(items))

    def soon(self, callback: Callable[[], None]) -> None:
        """Run it there, after whatever was asked for before."""
        self.running_loop()
        with self._asking:
            loop = self.running_loop()
            try:
                loop.call_soon_threadsafe(callback)
            except RuntimeError as error:
                raise _closed_meanwhile(error) from None

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    @property
    def elsewhere(self) -> bool:
        """It runs in the process that this one was forked from."""
        return self._process not in (0, os.getpid())

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Where things are run; raises Refused where nothing can be."""
        loop = self._loop
        if loop is None:
            raise Refused("this client is not open: use it inside its `with` block")
        if self.elsewhere:
            raise Refused("this client was opened in another process: after a fork, connect again in the child")
        return loop


def _closed_meanwhile(error: Exception) -> Refused:
    """What is to be said where the loop went away: by another thread, or by a signal handler in the midst of this."""
    return error if isinstance(error, Refused) else Refused("this client was closed meanwhile")


async def _next(items: AsyncGenerator[T, None]) -> T | object:
    return await anext(items, _END)


async def _closed(items: AsyncGenerator[T, None]) -> None:
    await items.aclose()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Until it is stopped. The loop ends where it ran: the caller's thread may be running a loop of its own."""
    try:
        loop.run_forever()
        loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """The async method as one that waits."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._hand_over()
        return self._thread.call(method(self._inner, *args, **kwargs))  # type: ignore[no-any-return]

    return run


class Blocking(Generic[OpenableT]):
    """What all of them have in common: opened and closed by `with`, or by `open` and `close`."""

    def __init__(self, inner: OpenableT, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def _hand_over(self) -> None:
        """Bring to the loop what was collected for it."""

    def open(self) -> Self:
        self._thread.call(self._inner.open())
        return self

    def close(self) -> None:
        """End in good order; see the async form."""
        if self._inner._has_ended or not self._inner._opened:
            return
        try:
            self._hand_over()
            self._thread.call(self._inner.close())
        except Refused as error:
            if type(error) is not Refused or self._thread.is_running:  # or another thread has just closed it
                raise

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise
