"""The phases of the demo: what is waited for and since when, and what is known about it when it takes too long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from processes import Process, Trouble
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pydanube import DanubeError

LINE_SECONDS = 10
"""Between two lines about what is waited for, where no terminal shows it moving."""
LOAD_MAX = 2.0
"""The load for each core above which a machine counts as too busy."""


class Phases:
    """Shows the phases that are running: moving on a terminal, as plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = SpinnerColumn(), TextColumn("{task.description:<22}"), BarColumn(), TextColumn("{task.fields[count]}")
        self._progress = Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)

    async def __aenter__(self) -> Phases:
        self._progress.start()
        self._lines = asyncio.create_task(self._print_lines())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._lines.cancel()
        self._progress.stop()

    def say(self, word: str, what: str) -> None:
        plain = word.partition("]")[2].partition("[")[0] or word
        self._console.print(f"  {word}{' ' * (10 - len(plain))}{what}", highlight=False)

    @asynccontextmanager
    async def phase(
        self, what: str, seconds_max: float, process: Process, total: int | None = None
    ) -> AsyncIterator[Callable[[int], None]]:
        """Show that `what` is waited for, and how far it is if the function that is yielded is told so.

        After `seconds_max`, and when a request to the broker fails, raises Trouble with what is known of `process`,
        whose answer is missing."""
        task = self._progress.add_task(what, total=total, count="")

        def told(done: int) -> None:
            self._progress.update(task, completed=done, count=f"{done:,} of {total:,}")

        limit = asyncio.timeout(seconds_max)
        try:
            async with limit:
                yield told
        except TimeoutError:
            if not limit.expired():
                raise
            raise Trouble(await report(f"not over after {seconds_max:.0f} s: {what}", process)) from None
        except DanubeError as error:
            raise Trouble(await report(f"failed: {what}: {error}", process)) from error
        finally:
            self._progress.remove_task(task)

    async def _print_lines(self) -> None:
        while not self._console.is_terminal:
            await asyncio.sleep(LINE_SECONDS)
            for task in self._progress.tasks:
                count = f", {task.fields['count']}" if task.fields["count"] else ""
                self.say("waiting", f"{task.description}{count}, {task.elapsed or 0:.0f} s")


async def report(what: str, process: Process) -> str:
    """Say what is known about a phase that went wrong, and let the process write its stacks to its log."""
    last_lines = process.last_lines()
    await process.dump_threads()
    return (
        f"{what}\n"
        f"did not answer: {process.name}, process {process.pid}; the last lines of its log:\n{last_lines}\n"
        f"the whole log: {process.log}\n"
        f"At its end is where each thread was; `kill -USR1 PID` writes that while a danube command runs.\n{load()}"
    )


def load() -> str:
    """Say how busy the machine is."""
    running, cores = os.getloadavg()[0], os.cpu_count() or 1
    said = f"The load of the last minute was {running:.1f} on {cores} cores: "
    if running > LOAD_MAX * cores:
        return said + "this machine is too busy for the demo."
    return said + "the machine is not too busy. Please report this, with the log."


def first_of(problem: BaseException) -> str:
    """Return the text of the first problem of concurrent tasks."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return escape(str(problem) or type(problem).__name__)
