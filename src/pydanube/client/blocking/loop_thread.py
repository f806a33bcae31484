"""An event loop in a background thread, and the wrappers that run the methods of async objects on it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import update_wrapper, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from pydanube.client.lifecycle import Openable
from pydanube.model.errors import Refused
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
OpenableT = TypeVar("OpenableT", bound=Openable)
MethodT = TypeVar("MethodT", bound=Callable[..., object])

_END: Final = object()


class LoopThread:
    """An event loop that runs in its own thread from `start` to `stop`.

    A forked child inherits the loop and its sockets, but not the thread. They belong to the parent: calls in the child
    raise Refused.
    """

    def __init__(self) -> None:
        self._process = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.RLock()
        """Held while work is passed to the loop or the loop is stopped, so that work passed earlier runs before it
        stops. Reentrant, because signal handlers and finalizers may call in between."""

    def start(self) -> None:
        self._process = os.getpid()
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(loop,), name="pydanube-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Cancel every task on the loop and end the thread, which has ended on return."""
        if self.elsewhere:
            return
        with self._lock:
            loop, thread = self._loop, self._thread
            if loop is None or thread is None:
                return
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the loop, wait and return its result. An interrupted wait (Ctrl-C) cancels it."""
        try:
            self.running_loop()  # a forked child must not wait for a lock that is never released there
            with self._lock:
                loop = self.running_loop()
                if threading.current_thread() is self._thread:
                    raise Refused("the thread that does this client's work cannot wait for it: call from another one")
                future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except (Refused, RuntimeError) as error:
            coroutine.close()
            raise _closed_error(error) from None
        try:
            return future.result()
        except CancelledError as error:
            if self._loop is loop:
                raise
            raise _closed_error(error) from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Run the generator on the loop and yield its items. It is closed when the caller stops early."""
        try:
            while (item := self.call(_next(items))) is not _END:
                yield cast(T, item)
        finally:
            with suppress(Refused):  # the client was closed, and the generator with it
                self.call(_close_generator(items))

    def soon(self, callback: Callable[[], None]) -> None:
        """Run the callback on the loop, after everything that was passed to it before."""
        self.running_loop()
        with self._lock:
            loop = self.running_loop()
            try:
                loop.call_soon_threadsafe(callback)
            except RuntimeError as error:
                raise _closed_error(error) from None

    @property
    def is_running(self) -> bool:
        return self._loop is not None

    @property
    def elsewhere(self) -> bool:
        """Whether the thread runs in the process that this one was forked from."""
        return self._process not in (0, os.getpid())

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop; raises Refused if it does not run in this process."""
        loop = self._loop
        if loop is None:
            if self._process:
                raise Refused("this client is closed")
            raise Refused("this client is not open yet: use `with`, or call open()")
        if self.elsewhere:
            raise Refused("this client was opened in another process: after a fork, connect again in the child")
        return loop


def _closed_error(error: Exception) -> Refused:
    """Return the error for a loop that another thread or a signal handler stopped during a call."""
    return error if isinstance(error, Refused) else Refused("this client was closed meanwhile")


async def _next(items: AsyncGenerator[T, None]) -> T | object:
    return await anext(items, _END)


async def _close_generator(items: AsyncGenerator[T, None]) -> None:
    await items.aclose()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, and close it here: the caller's thread may run another loop."""
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all(asyncio.all_tasks(loop)))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Turn an async method into one that runs on the loop thread and waits for the result."""

    @wraps(method)
    def run(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self._hand_over()
        return self._thread.call(method(self._inner, *args, **kwargs))  # type: ignore[no-any-return]

    return run


def stands_for(method: Callable[..., object]) -> Callable[[MethodT], MethodT]:
    """Give a blocking method, which is written out for its types, the name, signature and docstring of the async one.

    Type checkers see the method as it is written.
    """

    def decorate(written: MethodT) -> MethodT:
        update_wrapper(written, method)
        return written

    return decorate


class Blocking(Generic[OpenableT]):
    """The base of all blocking wrappers: opened and closed by `with`, or by `open` and `close`."""

    def __init__(self, inner: OpenableT, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._inner._describe()}>"

    def _hand_over(self) -> None:
        """Pass collected sends or acks to the loop."""

    def open(self) -> Self:
        self._thread.call(self._inner.open())
        return self

    def close(self, timeout: float | None = None) -> None:
        """Complete what is under way and release everything; see the async `close`."""
        if self._inner._has_ended or not self._inner._opened:
            return
        try:
            self._hand_over()
            self._thread.call(self._inner.close(timeout))
        except Refused as error:
            if type(error) is not Refused or self._thread.is_running:  # otherwise another thread has just closed it
                raise

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            log.warning("client.close_failed", closed=self._inner._what, error=str(failure))
