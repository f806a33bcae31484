"""The standard streams: terminals, pipes whose reader goes away, full disks, or streams closed at the start (``<&-``).

The exit code of a command depends on its work and on stdout. A closed or broken stderr changes nothing.

Invariants
    what was printed on stdout is written whole, or the command ends with exit code 1 and one line on stderr, whether or
    not Python buffers stdout (PYTHONUNBUFFERED) and a pipe blocks (O_NONBLOCK)
    after the first failure nothing is written to stdout any more, so that no output has a hole in it
    a reader that goes away (``| head``) is no failure
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, TextIO, cast

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from pydanube.runtime.background_file import BackgroundFile

EXIT_SECONDS: Final = 1.0
"""How long the end of a server waits for a reader of each of its streams."""


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal; None: the stream is closed."""
    return stream is not None and stream.isatty()


def need_stdout() -> None:
    """Fail if stdout is closed, for commands that would otherwise run forever or lose messages."""
    if sys.stdout is None:
        raise click.ClickException("stdout is closed: there is nowhere to write to")


def open_streams() -> None:
    """Replace stdout and stderr, for the whole process, by streams that keep the promises of this module.

    This covers results, notes, progress, logs, the messages of click, and the flush at exit.
    """
    global _results
    if sys.stdout is not None:
        _results = _ResultFile(sys.stdout.fileno(), "w", closefd=False)
        sys.stdout = _over(_results, sys.stdout)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the process)
    else:
        sys.stderr = _over(_LenientFile(sys.stderr.fileno(), "w", closefd=False), sys.stderr, line_buffering=True)


def write_lines_at_once() -> None:
    """Write each line to stdout when it ends, also where stdout is no terminal: handlers print to it as to a log."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def write_in_background() -> None:
    """Let threads write to stdout and stderr from now on, so that a server goes on while they are not read."""
    from pydanube.runtime.background_file import BackgroundFile
    from pydanube.runtime.telemetry import get_logger

    log = get_logger(__name__)

    def failed(error: OSError) -> None:
        log.warning("stdout.failed", error=(error.strerror or str(error)).lower())

    if sys.stdout is not None:
        sys.stdout, _ = _in_background(sys.stdout, partial(BackgroundFile, failed=failed))
    write_logs_in_background()


def write_logs_in_background() -> Callable[[], None]:
    """Let a thread write to stderr from now on: a program that logs there goes on while it is not read.

    Return a function that waits for a moment until everything is written, as the exit of the interpreter does.
    """
    from pydanube.runtime.background_file import BackgroundFile
    from pydanube.runtime.telemetry import get_logger

    log = get_logger(__name__)

    def lost(lines: int) -> None:
        log.error("log.lines_lost", lines=lines, reason="nobody read stderr")

    sys.stderr, drain = _in_background(sys.stderr, partial(BackgroundFile, lost=lost))
    return drain


def _in_background(stream: TextIO, make: Callable[[int], BackgroundFile]) -> tuple[TextIO, Callable[[], None]]:
    """Return a stream that writes to the file of another one in a thread, and what waits for that; a stream without a
    file stays as it is."""
    try:
        file = make(stream.fileno())
    except io.UnsupportedOperation:
        return stream, lambda: None
    drain = partial(file.drain, EXIT_SECONDS)
    atexit.register(drain)
    return io.TextIOWrapper(cast(BinaryIO, file), stream.encoding, stream.errors, write_through=True), drain


def stdout_failed() -> bool:
    """Return whether something could not be written to stdout."""
    return _results is not None and _results.failure is not None


def finish_stdout() -> OSError | None:
    """Write what is still buffered for stdout; return why stdout did not take everything, or None if it did.

    The flush at the exit of the interpreter finds nothing that could fail.
    """
    failure = None
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError as error:
            failure = error
    if _results is not None:
        failure = _results.failure
        _results.discards = True
    return failure


def _over(file: io.FileIO, replaced: TextIO, line_buffering: bool | None = None) -> TextIO:
    """Return a buffered text stream over `file`, with the encoding of the stream that it replaces.

    Without a buffer between them, a text stream would lose what one write of the file leaves.
    """
    lines = bool(replaced.line_buffering) if line_buffering is None else line_buffering
    return io.TextIOWrapper(io.BufferedWriter(file), replaced.encoding, replaced.errors, line_buffering=lines)


class _WaitingFile(io.FileIO):
    """Waits for a pipe that is full, also if the pipe does not block."""

    def write(self, data: ReadableBuffer, /) -> int:
        while (count := super().write(data)) is None:  # as FileIO says EAGAIN
            ready = select.poll()
            ready.register(self.fileno(), select.POLLOUT)
            ready.poll()
        return count


class _ResultFile(_WaitingFile):
    """Keeps its first failure, and raises it again at every later write."""

    failure: OSError | None = None
    discards = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self.discards:
            return memoryview(data).nbytes
        if self.failure is not None:
            raise self.failure
        try:
            return super().write(data)
        except OSError as error:
            self.failure = error
            raise


class _LenientFile(_WaitingFile):
    """Drops what cannot be written because the reader or the terminal is gone, or the disk is full."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


_results: _ResultFile | None = None
"""The file of stdout; None: `open_streams` was not called, or stdout is closed."""
