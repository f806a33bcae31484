"""An event loop in a background thread, and what runs an object's methods there for programs without a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from pydanube.model.errors import Refused

from .lifecycle import Openable

P = ParamSpec("P")
T = TypeVar("T")
OpenableT = TypeVar("OpenableT", bound=Openable)


class LoopThread:
    """An event loop in a thread of its own, from `start` to `stop`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="pydanube-client", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Nothing may run there any more. The thread is gone on return."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there and wait. An interrupted wait (Ctrl-C) cancels it."""
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            coroutine.close()
            raise Refused("this client is not open: use it inside its `with` block")
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def soon(self, callback: Callable[[], None]) -> None:
        """Run it there, after whatever was asked for before."""
        loop = self._loop
        if loop is None:
            raise Refused("this client is not open: use it inside its `with` block")
        loop.call_soon_threadsafe(callback)


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
        if self._inner._closed:
            return
        self._hand_over()
        self._thread.call(self._inner.close())

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
