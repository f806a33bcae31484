"""Files that are there whole or as they were before, which a command or a pipeline writes where its user says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(output: Path) -> Iterator[Path]:
    """Yield a path beside `output` that becomes it at the end; a failure leaves `output` as it was.

    A link stays one. What is no file, such as /dev/null or a named pipe, is not replaced but written to.
    """
    if output.exists() and not output.is_file():
        yield output
        return
    output = output.resolve()
    path = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield path
        path.replace(output)
    finally:
        path.unlink(missing_ok=True)
