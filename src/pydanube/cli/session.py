"""How a command talks to a broker: connected for the length of one coroutine, and told to stop by Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from pydanube.client import Client

T = TypeVar("T")

REACH_SECONDS: Final = 3.0
"""How long a broker that cannot be reached is tried; a person is waiting."""
ANSWER_SECONDS: Final = 30.0
"""How long a broker that was reached may take for an answer: it may be busy, or open a thousand partitions for it."""
LEAVE_SECONDS: Final = 1.0
"""How long work that was cancelled is waited for."""
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def with_client(url: str, work: Callable[[Client], Awaitable[T]], *, answer_seconds: float = ANSWER_SECONDS) -> T:
    """Connect, do the work, close; its result. Ctrl-C cancels it and leaves with 130; where there is a `Stop`, the
    second one does.

    A broker that cannot be reached is given up after REACH_SECONDS; one that is there has `answer_seconds` to answer.
    """
    from pydanube.client import connect

    async def connected() -> T:
        async with connect(url, timeout=REACH_SECONDS):
            pass  # it greets
        async with connect(url, timeout=answer_seconds) as client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except asyncio.CancelledError:
        raise click.Abort from None


class Stop:
    """Raised as a flag by the first SIGINT or SIGTERM, so that a loop ends in order; the second one cancels."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        if self._asked.is_set() and self._task is not None:
            self._task.cancel()
        self._asked.set()

    def ask(self) -> None:
        """As the first signal does."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    async def first(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T | None:
        """The work's result, or None when the stop or the timeout came first; the work is then cancelled."""
        loop = asyncio.get_running_loop()
        doing, asked = loop.create_task(work), loop.create_task(self._asked.wait())
        try:
            await asyncio.wait({doing, asked}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            return None
        finally:
            for task in (doing, asked):
                task.cancel()
            await asyncio.wait({doing, asked}, timeout=LEAVE_SECONDS)
