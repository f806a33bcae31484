"""Progress on one line of stderr while a command works; the line is erased at the end."""

from __future__ import annotations

import sys
import time
from typing import Final, Self

from .output import number

REFRESH_SECONDS: Final = 0.1


class CountLine:
    """Shows a message count and rate. Call it with the count so far; it draws at most ten times a second."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._begin = self._shown = time.perf_counter()
        self._width = 0

    def __call__(self, count: int) -> None:
        now = time.perf_counter()
        if now - self._shown < REFRESH_SECONDS:
            return
        self._shown = now
        line = f"{self._verb} {count:,} messages, {number(count / (now - self._begin))}/s"
        self._write(line)

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            self._write("")
            sys.stderr.write("\r")


class Bar:
    """A progress bar over a known total. Draws only if stderr is a terminal."""

    def __init__(self, verb: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(file=sys.stderr)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(verb, total=None)

    def __call__(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=max(done, total))

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class BytesBar:
    """A progress bar in bytes, with the transfer rate. Draws only if stderr is a terminal."""

    def __init__(self, verb: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = Console(file=sys.stderr)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(verb, total=total)
        self._total = total

    def __call__(self, done: int, total: int | None = None) -> None:
        self._total = max(done, self._total if total is None else total)
        self._progress.update(self._task, completed=done, total=self._total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
