"""Log files kept open for reading. A file that is being read is never released.

Any thread may read; the log thread calls `take_out` before it releases files.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from pydanube.runtime.disk import Disk, DiskFile

from .log_files import log_path


class Released(Exception):
    """The file was released: nothing in it is needed any more."""


class _OpenFile:
    __slots__ = ("handle", "readers")

    def __init__(self, handle: DiskFile) -> None:
        self.handle = handle
        self.readers = 0


class Handles:
    """Keeps at most `open_max` files open, beside those that are being read."""

    def __init__(self, disk: Disk, directory: Path, open_max: int) -> None:
        self._disk = disk
        self._directory = directory
        self._open_max = open_max
        self._lock = Lock()
        self._held: OrderedDict[int, _OpenFile] = OrderedDict()
        self._gone_below = 0

    @contextlib.contextmanager
    def reading(self, generation: int) -> Iterator[DiskFile]:
        """Open the file for reading, and keep it until the context ends. Raises Released."""
        with self._lock:
            if generation < self._gone_below:
                raise Released
            held = self._held.get(generation)
            if held is None:
                held = self._held[generation] = _OpenFile(self._disk.open(log_path(self._directory, generation)))
            self._held.move_to_end(generation)
            held.readers += 1
        try:
            yield held.handle
        finally:
            with self._lock:
                held.readers -= 1
                self._close_idle()

    def _close_idle(self) -> None:
        surplus = len(self._held) - self._open_max
        for generation in [known for known, held in self._held.items() if not held.readers][: max(0, surplus)]:
            self._held.pop(generation).handle.close()

    def is_released(self, generation: int) -> bool:
        return generation < self._gone_below

    def take_out(self, generation: int) -> bool:
        """Refuse reads of this file and of older ones from now on. Return False, without effect, while it is read."""
        with self._lock:
            held = self._held.get(generation)
            if held is not None:
                if held.readers:
                    return False
                self._held.pop(generation).handle.close()
            self._gone_below = max(self._gone_below, generation + 1)
            return True

    def close(self) -> None:
        with self._lock:
            for held in self._held.values():
                held.handle.close()
            self._held.clear()
