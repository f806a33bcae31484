"""The threads of one store, for libraries and system calls that block.

The libraries written in Rust are used through their blocking functions too. Their asynchronous functions return results
to the event loop from threads that cannot be joined, and sometimes abort a process that ends soon afterwards
(PyO3/pyo3-async-runtimes issue 40): one in eight short processes, when we tried.

A hanging call to a store cannot be ended from outside. It must not prevent the process from ending, so the threads are
daemons, unlike those of an executor, and closing waits for them for at most CLOSE_S.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

from pydanube.model.errors import Unavailable
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

T = TypeVar("T")

CLOSE_S: Final = 5.0


class _Call(NamedTuple):
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Threads:
    """Up to `count` threads, started when they are needed."""

    def __init__(self, count: int, url: str) -> None:
        self._count = count
        self._url = url
        self._waiting: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._calls = 0
        """How many calls have no answer yet."""
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Call `work` in a thread. When cancelled, work that has begun continues, and its result is dropped. Raises
        Unavailable once closed."""
        self.check_open()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls += 1
        self._waiting.put(_Call(work, loop, answer))
        if self._calls > len(self._threads) and len(self._threads) < self._count:
            thread = Thread(target=self._serve, name=f"objects-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return await answer

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the store {self._url} is closed")

    async def close(self) -> None:
        """Drop calls that have not begun, and wait up to CLOSE_S for the others. May be called again."""
        self._closed = True
        with suppress(Empty):
            while True:
                call = self._waiting.get_nowait()
                if call is not None and not call.answer.done():
                    call.answer.set_exception(Unavailable(f"the store {self._url} is closed"))
        for _ in self._threads:
            self._waiting.put(None)
        if left := await asyncio.to_thread(self._join_threads):
            log.warning("store.left_hanging", store=self._url, calls=left)

    def _join_threads(self) -> int:
        """Wait for the threads; return how many did not end in time."""
        deadline = monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (call := self._waiting.get()) is not None:
            settle: Callable[[], Any] = call.answer.cancel
            if not call.answer.done():
                try:
                    settle = partial(call.answer.set_result, call.work())
                except BaseException as error:
                    settle = partial(call.answer.set_exception, error)
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                call.loop.call_soon_threadsafe(self._answer, call.answer, settle)
            del call, settle  # free what the call refers to before waiting for the next one

    def _answer(self, answer: asyncio.Future[Any], settle: Callable[[], Any]) -> None:
        self._calls -= 1
        if not answer.done():
            settle()
