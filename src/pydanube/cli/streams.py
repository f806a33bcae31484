"""The standard streams: terminals, pipes whose reader goes away, or streams closed at the start (``<&-``, ``>&-``).

The exit code of a command depends on its work and on stdout. A closed or broken stderr changes nothing.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal; None: the stream is closed."""
    return stream is not None and stream.isatty()


def need_stdout() -> None:
    """Fail if stdout is closed, for commands that would otherwise run forever or lose messages."""
    if sys.stdout is None:
        raise click.ClickException("stdout is closed: there is nowhere to write to")


def silence_stdout() -> None:
    """Discard what is still buffered for stdout, so that the flush at interpreter exit does not fail."""
    if sys.stdout is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def ignore_stderr_errors() -> None:
    """Make writes to stderr never fail, for the whole process.

    This covers notes, progress, logs, the messages of click, and the flush at exit.
    """
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the process)
        return
    binary = io.BufferedWriter(_LenientFile(sys.stderr.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(binary, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class _LenientFile(io.FileIO):
    """Drops what cannot be written because the reader or the terminal is gone, or the disk is full."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
