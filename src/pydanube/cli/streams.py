"""The standard streams: terminals, pipes whose reader goes away, or closed before we came (``<&-``, ``>&-``, ``2>&-``).

How a command ends is decided by its work and by stdout. Whoever does not listen to stderr changes nothing.
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
    """None: a stream that is closed."""
    return stream is not None and stream.isatty()


def need_stdout() -> None:
    """For commands that exist to show something, and would go on for ever or lose it otherwise."""
    if sys.stdout is None:
        raise click.ClickException("stdout is closed: there is nowhere to write to")


def silence_stdout() -> None:
    """What is still buffered goes nowhere, quietly, also at interpreter exit."""
    if sys.stdout is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def forgive_stderr() -> None:
    """From now on nothing that is written to stderr fails: there is nobody to tell that nobody can be told.

    For the whole process, so that it holds for notes, progress, logs, what click says, and the flush at exit.
    """
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (for as long as the process)
        return
    binary = io.BufferedWriter(_Forgiving(sys.stderr.fileno(), "w", closefd=False))
    sys.stderr = io.TextIOWrapper(binary, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


class _Forgiving(io.FileIO):
    """Drops what cannot be written: the reader is gone, the terminal too, the disk is full."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes
