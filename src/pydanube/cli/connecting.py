"""Connects a command to a broker for the length of one coroutine, and handles signals that end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from .credential_options import chosen_credentials
from .tls_options import tls_options

if TYPE_CHECKING:
    from pydanube.client import Client

T = TypeVar("T")

REACH_SECONDS: Final = 3.0
"""How long connecting to an unreachable broker is tried, while a user waits."""
ANSWER_SECONDS: Final = 30.0
"""How long a reachable broker may take to answer: it may be busy, or have to open a thousand partitions."""
LEAVE_SECONDS: Final = 1.0
"""How long to wait for cancelled work."""


def with_client(url: str, work: Callable[[Client], Awaitable[T]], *, answer_seconds: float = ANSWER_SECONDS) -> T:
    """Connect to `url`, run `work` and return its result. Ctrl-C cancels the work and ends the command with 130; if
    there is a `Stop`, the second Ctrl-C does.

    Connecting to an unreachable broker fails after REACH_SECONDS; a reachable one has `answer_seconds` to answer.
    """
    from pydanube.client import connect

    chosen = {**chosen_credentials(), **tls_options()}

    async def connected() -> T:
        client = connect(url, timeout=answer_seconds, **chosen)
        client.reach_seconds = REACH_SECONDS
        async with client:
            return await work(client)

    try:
        return asyncio.run(connected())
    except asyncio.CancelledError:
        raise click.Abort from None


class Stop:
    """A flag that the first SIGINT, SIGTERM or SIGHUP sets, so that a loop can end in order; a second one (but
    SIGHUP) cancels."""

    def __init__(self) -> None:
        from pydanube.runtime.signals import on_hangup, on_stop_signals

        self._asked = asyncio.Event()
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        on_stop_signals(loop, self._on_signal)
        on_hangup(loop, self._asked.set)

    def _on_signal(self) -> None:
        if self._asked.is_set() and self._task is not None:
            self._task.cancel()
        self._asked.set()

    def ask(self) -> None:
        """Set the flag, as the first signal does."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    async def first(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T | None:
        """Return the result of `work`; None if the stop or the timeout came first, and the work was cancelled."""
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
