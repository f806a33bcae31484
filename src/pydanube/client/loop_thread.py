"""An event loop in a background thread, for programs that do not have one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from pydanube.model.errors import Refused

T = TypeVar("T")


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
