"""Threads of one store's own, for libraries and system calls that block.

The libraries written in Rust are used through their blocking functions too. Their asynchronous ones hand results to the
event loop from threads that nobody can wait for, and now and then abort a process that ends soon afterwards
(PyO3/pyo3-async-runtimes issue 40): one in eight, of short ones, when we tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydanube.model.errors import Unavailable

T = TypeVar("T")


class Threads:
    """As many threads as a store may use at once; made when they are needed."""

    def __init__(self, count: int, url: str) -> None:
        self._url = url
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="objects")
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Cancelled: what has begun goes on to its end, unheard. Unavailable once closed."""
        self.check_open()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def check_open(self) -> None:
        if self._closed:
            raise Unavailable(f"the store {self._url} is closed")

    async def close(self) -> None:
        """Waits for what has begun; what has not is dropped. May be called again."""
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
