"""A simulated disk in memory that loses un-synced data on command, and fails on command.

Programs see the cached state: every write, create, rename and unlink at once. The platter is a second state: what has
reached the disk. `power_cut` continues with the platter, after a random subset of the pending changes has reached it:
each un-synced 4 KiB page with any of the contents it had since the last sync, the length of the file, each create,
rename and unlink. `crash` ends the process only: the cached state stays.

Every operation that changes something is a step. `cut_at` raises PowerCut in a chosen step and in everything that the
process tries afterwards, so that a test can cut the power at each step of an operation in turn.

A `sync_data` that fails does what Linux does: some of the pages reached the platter, none is dirty any more, and the
next sync has nothing to write and succeeds.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import RLock
from typing import Final, Literal, NamedTuple, TypeAlias

from pydanube.model.errors import Refused
from pydanube.runtime.disk import ByteBuffer, DiskFile, DiskLock, Usage

PAGE_BYTES: Final = 4096
_PLENTY: Final = 1 << 50

Operation: TypeAlias = Literal["create", "pwritev", "sync_data", "rename", "unlink", "sync_directory"]


class PowerCut(BaseException):
    """The machine is off. Not an Exception: no program handles this."""


class _Inode:
    """One file: what programs see, what the platter holds, and the pages and lengths in between."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.platter: dict[int, bytes] = {}
        self.platter_size = 0
        self.pages: dict[int, list[bytes]] = {}
        """The contents that each dirty page had since the last sync, oldest first."""
        self.sizes: list[int] = []

    def write(self, content: bytes, position: int) -> None:
        end = position + len(content)
        if end > len(self.cached):
            self.cached.extend(bytes(end - len(self.cached)))
            self.sizes.append(end)
        self.cached[position:end] = content
        for page in range(position // PAGE_BYTES, -(-end // PAGE_BYTES)):
            now = bytes(self.cached[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
            self.pages.setdefault(page, []).append(now)

    def sync(self) -> None:
        for page, contents in self.pages.items():
            self.platter[page] = contents[-1]
        self.pages.clear()
        if self.sizes:
            self.platter_size = self.sizes[-1]
            self.sizes.clear()

    def fail_sync(self, random: Random) -> None:
        """Write a random subset of the pages to the platter; mark all of them as clean."""
        for page, contents in self.pages.items():
            if random.random() < 0.5:
                self.platter[page] = contents[-1]
        self.pages.clear()
        if self.sizes and random.random() < 0.5:
            self.platter_size = self.sizes[-1]
            self.sizes.clear()

    def lose(self, keep: Callable[[], bool], random: Random) -> None:
        """Continue with the platter, after the pending changes for which `keep` returns True have reached it."""
        for page, contents in self.pages.items():
            if keep():
                self.platter[page] = random.choice(contents)
        if self.sizes and keep():
            self.platter_size = random.choice(self.sizes)
        self.pages.clear()
        self.sizes.clear()
        self.cached = bytearray(self.platter_size)
        for page, content in list(self.platter.items()):
            room = self.platter_size - page * PAGE_BYTES
            if room <= 0:
                del self.platter[page]
                continue
            content = self.platter[page] = content[:room]
            self.cached[page * PAGE_BYTES : page * PAGE_BYTES + len(content)] = content


class _Change(NamedTuple):
    """A pending change of a directory: the name `removed` is removed from the file, the name `added` is added."""

    directory: Path
    removed: Path | None
    added: Path | None
    inode: _Inode


class _Fault(NamedTuple):
    at: int
    """Which call of the operation fails, counted from the start of the disk."""
    error: int | None
    """None: a short write."""


class SimDisk:
    """One machine's disk. `capacity_bytes` bounds what all files together may hold."""

    def __init__(self, random: Random, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.steps = 0
        self.cut_at: int | None = None
        """The step at which the power is cut; None: never."""
        self._cut_before: tuple[Operation, int] | None = None
        self._random = random
        self._names: dict[Path, _Inode] = {}
        self._platter_names: dict[Path, _Inode] = {}
        self._changes: list[_Change] = []
        self._directories: set[Path] = {Path("/")}
        self._locks: set[Path] = set()
        self._life = 0
        self._is_off = False
        self._calls: dict[str, int] = {}
        self._faults: dict[str, list[_Fault]] = {}
        self._lock = RLock()

    # -- faults ----------------------------------------------------------------------------------------------------

    def power_cut(self) -> None:
        """Lose a random part of everything that is not synced, and start the machine again, without its processes."""
        chance = self._random.choice((0.0, 0.1, 0.5, 0.9, 1.0))

        def keep() -> bool:
            return self._random.random() < chance

        for change in self._changes:
            if keep():
                _apply(change, self._platter_names)
        self._changes.clear()
        self._names = dict(self._platter_names)
        for inode in set(self._names.values()):
            inode.lose(keep, self._random)
        self.crash()

    def crash(self) -> None:
        """End the process: its handles and locks are gone, the page cache stays."""
        self._life += 1
        self._locks.clear()
        self._is_off = False
        self.cut_at = self._cut_before = None

    def cut_before(self, operation: Operation, after: int = 0) -> None:
        """Cut the power at a call of this operation, after `after` more calls that succeed."""
        self._cut_before = operation, self._calls.get(operation, 0) + after + 1

    def fail(self, operation: Operation, error: int | None = errno.EIO, after: int = 0, times: int = 1) -> None:
        """Let `times` calls of an operation fail, after `after` more that succeed. `error` None means a short write."""
        first = self._calls.get(operation, 0) + after + 1
        self._faults.setdefault(operation, []).extend(_Fault(first + number, error) for number in range(times))

    def heal(self) -> None:
        """Remove all faults that have not happened yet."""
        self._faults.clear()

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.cached) for inode in self._names.values())

    def damage(self, path: Path, position: int, mask: int = 1) -> None:
        """Flip bits of one byte, in the cache and on the platter."""
        inode = self._names[path]
        inode.cached[position] ^= mask
        page = position // PAGE_BYTES
        inode.platter[page] = bytes(inode.cached[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])

    def cut_file(self, path: Path, length: int) -> None:
        """Shorten the file, in the cache and on the platter."""
        inode = self._names[path]
        inode.sync()
        inode.platter_size = length
        inode.lose(lambda: True, self._random)

    # -- Disk ------------------------------------------------------------------------------------------------------

    def open(self, path: Path) -> DiskFile:
        self._check_power()
        with self._lock:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return _SimFile(self, self._names[path])

    def create(self, path: Path, *, private: bool = False) -> DiskFile:
        with self._lock:
            self._step("create")
            if path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            self._require_directory(path)
            inode = self._names[path] = _Inode()
            self._changes.append(_Change(path.parent, None, path, inode))
            return _SimFile(self, inode)

    def exists(self, path: Path) -> bool:
        self._check_power()
        return path in self._names or path in self._directories

    def list(self, directory: Path) -> list[str]:
        self._check_power()
        with self._lock:
            found = [path.name for path in (*self._names, *self._directories) if path.parent == directory]
            return sorted(set(found) - {""})

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._step("rename")
            assert source.parent == target.parent, "a rename between directories has two of them to sync"
            inode = self._names.pop(source)
            self._names[target] = inode
            self._changes.append(_Change(source.parent, source, target, inode))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._step("unlink")
            inode = self._names.pop(path, None)
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._changes.append(_Change(path.parent, path, None, inode))

    def make_directory(self, path: Path) -> None:
        self._check_power()
        self._directories.update((path, *path.parents))

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._step("sync_directory")
            for change in self._changes:
                if change.directory == path:
                    _apply(change, self._platter_names)
            self._changes = [change for change in self._changes if change.directory != path]

    def lock(self, path: Path) -> DiskLock:
        self._check_power()
        if path in self._locks:
            raise Refused(f"{path.parent} is in use by process 1: stop it, or take another directory")
        self._locks.add(path)
        return _SimLock(self._locks, path)

    def usage(self, directory: Path) -> Usage:
        total = self.capacity_bytes if self.capacity_bytes is not None else _PLENTY
        return Usage(total, max(0, total - self.used_bytes))

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _check_power(self) -> None:
        if self._is_off:
            raise PowerCut

    def _require_directory(self, path: Path) -> None:
        if path.parent not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))

    def _step(self, operation: Operation) -> bool:
        """Count a step; cut the power or raise the fault that is due. Return True if the write is to be short."""
        self._check_power()
        self.steps += 1
        call = self._calls[operation] = self._calls.get(operation, 0) + 1
        if (self.cut_at is not None and self.steps >= self.cut_at) or self._cut_before == (operation, call):
            self._is_off = True
            raise PowerCut
        for fault in self._faults.get(operation, ()):
            if fault.at == call:
                if fault.error is None:
                    return True
                raise OSError(fault.error, os.strerror(fault.error))
        return False

    def _free_bytes(self) -> int:
        return _PLENTY if self.capacity_bytes is None else self.capacity_bytes - self.used_bytes


def _apply(change: _Change, names: dict[Path, _Inode]) -> None:
    if change.removed is not None and names.get(change.removed) is change.inode:
        del names[change.removed]
    if change.added is not None:
        names[change.added] = change.inode


class _SimFile:
    def __init__(self, disk: SimDisk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._life = disk._life

    def _check(self) -> None:
        self._disk._check_power()
        if self._life != self._disk._life:
            raise PowerCut  # a handle of a process that has ended

    def size(self) -> int:
        self._check()
        return len(self._inode.cached)

    def pread(self, length: int, position: int) -> bytes:
        self._check()
        return bytes(self._inode.cached[position : position + length])

    def pwritev(self, buffers: Sequence[ByteBuffer], position: int) -> int:
        with self._disk._lock:
            self._check()
            content = b"".join(buffers)
            if self._disk._step("pwritev"):
                content = content[: self._disk._random.randrange(len(content))] if content else content
            growth = max(0, position + len(content) - len(self._inode.cached))
            lacking = growth - self._disk._free_bytes()
            if lacking > 0:
                content = content[: max(0, len(content) - lacking)]
                if not content:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._inode.write(content, position)
            return len(content)

    def sync_data(self) -> None:
        with self._disk._lock:
            self._check()
            try:
                self._disk._step("sync_data")
            except OSError:
                self._inode.fail_sync(self._disk._random)
                raise
            self._inode.sync()

    def close(self) -> None:
        """Do nothing: a handle holds no resources."""


class _SimLock:
    def __init__(self, locks: set[Path], path: Path) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)
