"""The disk interface of the log: files that are written by position and synced, and directories that are synced too.

`OsDisk` is the real disk; the one of `tests/simdisk.py` loses on command what was not synced. Errors are OSError with
their errno; the caller decides what an error means for its data.

What a disk must guarantee
    when `sync_data` has returned, everything written to that file before survives a power cut
    when `sync_directory` has returned, every create, rename and unlink in it before does too
    a rename replaces its target atomically; a page of 4 KiB is written as a whole or not at all
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

from pydanube.model.errors import Refused

ByteBuffer: TypeAlias = bytes | bytearray | memoryview

IOVECS_MAX: Final = 1024
"""The most buffers that Linux takes in one call (UIO_MAXIOV)."""


class Usage(NamedTuple):
    total_bytes: int
    free_bytes: int


class DiskFile(Protocol):
    """An open file. Positions are bytes from its start."""

    def size(self) -> int: ...

    def pread(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes; fewer only at the end of the file."""
        ...

    def pwritev(self, buffers: Sequence[ByteBuffer], position: int) -> int:
        """Write at most IOVECS_MAX buffers; return how many bytes were written. Fewer than given is a failure."""
        ...

    def sync_data(self) -> None: ...

    def close(self) -> None: ...


class DiskLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    def open(self, path: Path) -> DiskFile:
        """Open an existing file for reading and writing."""
        ...

    def create(self, path: Path, *, private: bool = False) -> DiskFile:
        """Create an empty file; FileExistsError if it exists. Only the owner of the process can read a `private`
        one."""
        ...

    def exists(self, path: Path) -> bool: ...

    def list(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; an empty list if there is no such directory."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def make_directory(self, path: Path) -> None:
        """Create the directory and its parents, if they do not exist."""
        ...

    def sync_directory(self, path: Path) -> None: ...

    def lock(self, path: Path) -> DiskLock:
        """Lock this file against other processes. Raises Refused, with the process that holds it."""
        ...

    def usage(self, directory: Path) -> Usage: ...


def write_all(file: DiskFile, buffers: Sequence[ByteBuffer], position: int) -> int:
    """Write all buffers, with as many calls as needed, and return the position after them. Raises OSError when fewer
    bytes were written."""
    for start in range(0, len(buffers), IOVECS_MAX):
        chunk = buffers[start : start + IOVECS_MAX]
        wanted = sum(map(len, chunk))
        written = file.pwritev(chunk, position)
        if written != wanted:
            # A second call reports the reason as an OSError; if it succeeds, the write still counts as failed.
            rest = b"".join(chunk)[written:]
            file.pwritev([rest[:1]], position + written)
            raise OSError(errno.EIO, f"short write: {written} of {wanted} bytes")
        position += wanted
    return position


def read_whole(disk: Disk, path: Path) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def replace_whole(disk: Disk, path: Path, content: ByteBuffer, *, private: bool = False) -> None:
    """Replace a small file atomically and durably: after a power cut there is the old one or the new one. `private`: as
    in `Disk.create`."""
    temporary = path.with_name(path.name + ".tmp")
    if disk.exists(temporary):
        disk.unlink(temporary)
    file = disk.create(temporary, private=private)
    try:
        write_all(file, [content], 0)
        file.sync_data()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)


class OsDisk:
    """The disk of this machine."""

    def open(self, path: Path) -> DiskFile:
        return _OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def create(self, path: Path, *, private: bool = False) -> DiskFile:
        return _OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o640))

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(path.name for path in directory.iterdir())
        except FileNotFoundError:
            return []

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(0o750)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> DiskLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise Refused(
                f"{path.parent} is in use by process {holder}: stop it, or choose another directory"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        return _OsLock(descriptor)

    def usage(self, directory: Path) -> Usage:
        stat = os.statvfs(directory)
        return Usage(stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize)


class _OsFile:
    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def pread(self, length: int, position: int) -> bytes:
        found = os.pread(self._descriptor, length, position)
        if len(found) == length:
            return found
        parts = []  # a short read: the end of the file, or more than the system reads at once
        while found:
            parts.append(found)
            length -= len(found)
            position += len(found)
            found = os.pread(self._descriptor, length, position)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[ByteBuffer], position: int) -> int:
        return os.pwritev(self._descriptor, buffers, position)

    def sync_data(self) -> None:
        _sync_data(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _sync_data(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone leaves the data in the drive's cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


class _OsLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock. The file stays: if it were removed, two processes could lock two files of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
