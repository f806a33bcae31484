"""The real disk, except that it can fail, or stop the process, at a chosen step."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from pydanube.runtime.disk import ByteBuffer, DiskFile, OsDisk


class Killed(BaseException):
    """The process has ended. This is no Exception, so that no code handles it."""


class FaultyDisk(OsDisk):
    """Every operation that changes something is a step. `before_step(number, what)` may raise."""

    def __init__(self) -> None:
        self.steps = 0
        self.full = False
        """True: writing and syncing fail."""
        self.before_step: Callable[[int, str], None] = lambda number, what: None
        self.pending: dict[Path, tuple[int, int]] = {}
        """For each file, without `.new` in its name, where what was not synced begins and ends."""

    def step(self, what: str) -> None:
        self.before_step(self.steps, what)
        self.steps += 1
        if self.full and what in ("create", "pwritev", "sync_data"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: Path) -> DiskFile:
        return _FaultyFile(self, super().open(path), path)

    def create(self, path: Path, *, private: bool = False) -> DiskFile:
        self.step("create")
        return _FaultyFile(self, super().create(path, private=private), path)

    def rename(self, source: Path, target: Path) -> None:
        self.step("rename")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.step("unlink")
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self.step("sync_directory")
        super().sync_directory(path)


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, file: DiskFile, path: Path) -> None:
        self._disk, self._file, self._path = disk, file, path.with_name(path.name.removesuffix(".new"))

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def pwritev(self, buffers: Sequence[ByteBuffer], position: int) -> int:
        self._disk.step("pwritev")
        written = self._file.pwritev(buffers, position)
        start, end = self._disk.pending.get(self._path, (position, position))
        self._disk.pending[self._path] = (min(start, position), max(end, position + written))
        return written

    def sync_data(self) -> None:
        self._disk.step("sync_data")
        self._file.sync_data()
        self._disk.pending.pop(self._path, None)

    def close(self) -> None:
        self._file.close()
