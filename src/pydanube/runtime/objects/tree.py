"""Objects as files in a directory tree: the blocking half of the local store.

A put writes a temporary file in the same tree, syncs it, gives it its name atomically (with a hard link for a create,
else a rename), and syncs the directory and every parent whose own entry is not known to be synced. Only then it
returns. If the process is killed, there is the whole object or a temporary file, which the next opening removes.

    ROOT/
      ~lock                 flock: shared to link, exclusive to replace, to delete and to open; contains how often
                            empty directories were removed, which invalidates what is known about synced directories
      ~tmp/IDENTITY/        the temporary files of one opened store ...
      ~tmp/IDENTITY.lock    ... which holds this lock while its process lives
      segments/...          objects, by the names of `names.py`

An etag is `MODIFIED-SIZE-INODE`. The time of modification, in nanoseconds, is set by each put, with random last three
digits; a put that replaces an object sets a later time than the object had.

Invariants
    an object's name never refers to an incomplete file
    a put that has returned survives a power cut, if the disk keeps what was synced
    processes may share a directory: exactly one create succeeds, and `if_match` is checked under the lock
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from pydanube.model.errors import AlreadyExists, NotFound, Refused
from pydanube.runtime.clock import Clock
from pydanube.runtime.randomness import identity, seeded
from pydanube.runtime.telemetry import get_logger

from .file_names import Found, path_of, walk
from .object_store import Buffer, ObjectInfo

CHUNK_BYTES: Final = 1 << 20
"""How much of a large object is written at a time."""

BLOCK_BYTES: Final = 4096
"""Writes that bypass the page cache begin and end at multiples of this, in memory and in the file."""

PAGE_OBJECTS: Final = 500
"""How many objects are listed at a time."""

READ_BYTES_MAX: Final = 1 << 30
"""The most that is read in one call; Linux reads a little less than 2 GiB at most."""

log = get_logger(__name__)

_LOCK: Final = "~lock"
_TEMPORARY: Final = "~tmp"
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
_CREATE: Final = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
"""Objects hold the messages of everybody: no other user of the machine reads them."""

_OTHERS: Final = stat.S_IROTH | stat.S_IXOTH
"""Earlier releases let every user of the machine into the directories that they made."""


def _is_open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & _OTHERS)


class Tree:
    """One open directory. Every method blocks, and may be called by several threads at once."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.root = root
        self._clock = clock
        self._random = seeded()
        self._lock = str(root / _LOCK)
        self._temporary = root / _TEMPORARY / identity()
        self._alive = -1
        self._synced: set[Path] = set()
        self._removals = -1
        self._knowledge = threading.Lock()

    def open(self) -> None:
        """Create the directory if needed, and remove the temporary files of processes that have ended."""
        there = self.root
        while not there.exists():
            there = there.parent
        self.root.mkdir(_DIRECTORY_MODE, parents=True, exist_ok=True)
        if _is_open_to_others(self.root) and any(map(_is_open_to_others, self.root.iterdir())):
            advice = f"an earlier release made it so: chmod -R o-rwx {self.root}"
            log.warning("objects.readable_by_others", directory=str(self.root), advice=advice)
        self._temporary.parent.mkdir(_DIRECTORY_MODE, exist_ok=True)
        for directory in (self.root, *self.root.parents):
            _sync_directory(directory)
            if directory == there:
                break
        with self._locked(fcntl.LOCK_EX):
            for left in self._temporary.parent.glob("*.lock"):
                _remove_if_abandoned(left)
            alive = os.open(self._temporary.with_suffix(".lock"), _CREATE, _FILE_MODE)
            try:
                fcntl.flock(alive, fcntl.LOCK_EX)
                self._temporary.mkdir(_DIRECTORY_MODE, exist_ok=True)
            except BaseException:
                os.close(alive)
                raise
            self._alive = alive

    @property
    def is_open(self) -> bool:
        return self._alive >= 0

    def close(self) -> None:
        alive, self._alive = self._alive, -1
        if alive >= 0:
            with contextlib.suppress(OSError):
                self._temporary.rmdir()
                self._temporary.with_suffix(".lock").unlink()
            os.close(alive)

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, key: str, pieces: Sequence[Buffer], create: bool, if_match: str | None) -> ObjectInfo:
        path = self.root / path_of(key)
        temporary = self._temporary / identity()
        file = os.open(temporary, _CREATE | os.O_EXCL, _FILE_MODE)
        try:
            _write(file, pieces)
            modified = self._clock.now_us() * 1000 + self._random.randrange(1000)
            os.utime(file, ns=(modified, modified))
            os.fsync(file)
            if create:
                self._link(temporary, path, key)
            else:
                self._replace(file, temporary, path, key, if_match)
            return _info(key, os.fstat(file))
        finally:
            os.close(file)
            temporary.unlink(missing_ok=True)

    def _link(self, temporary: Path, path: Path, key: str) -> None:
        with self._locked(fcntl.LOCK_SH) as lock:
            removals = _removals(lock)
            self._make_directories(path.parent)
            try:
                os.link(temporary, path)
                won = True
            except FileExistsError:
                won = False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                raise Refused(f"the file system of {self.root} has no hard links, and creating needs them") from None
        self._sync(
            path.parent, removals
        )  # even if another put created it and has not synced yet: our caller may rely on the object
        if not won:
            raise AlreadyExists(f"object {key} exists already in {self.root}")

    def _replace(self, file: int, temporary: Path, path: Path, key: str, if_match: str | None) -> None:
        with self._locked(fcntl.LOCK_EX) as lock:
            removals = _removals(lock)
            found = path.stat() if path.exists() else None
            if if_match is not None and (found is None or _info(key, found).etag != if_match):
                raise Refused(f"object {key} in {self.root} is not the one with etag {if_match}")
            if found is not None and os.fstat(file).st_mtime_ns <= found.st_mtime_ns:
                later = found.st_mtime_ns + 1 + self._random.randrange(1000)
                os.utime(file, ns=(later, later))
                os.fsync(file)
            self._make_directories(path.parent)
            temporary.rename(path)
        self._sync(path.parent, removals)

    def _make_directories(self, directory: Path) -> None:
        """Create a directory, and its parents from the root on; only the own user can read them."""
        try:
            directory.mkdir(_DIRECTORY_MODE, exist_ok=True)
        except FileNotFoundError:
            below = directory.relative_to(self.root)
            for one in (*reversed(below.parents), below):
                (self.root / one).mkdir(_DIRECTORY_MODE, exist_ok=True)

    def _sync(self, directory: Path, removals: int) -> None:
        """Sync a directory, and the entry of each parent that is not known to be synced.

        When directories were removed since, nothing is known any more: one may have been created again.
        """
        with self._knowledge:
            if removals != self._removals:
                self._synced.clear()
                self._removals = removals
        synced = []
        try:
            _sync_directory(directory)
            while directory != self.root and directory not in self._synced:
                synced.append(directory)
                directory = directory.parent
                _sync_directory(directory)
        except FileNotFoundError:
            return  # the object was deleted again, and its directory with it
        with self._knowledge:
            if removals == self._removals:
                self._synced.update(synced)

    def delete(self, keys: Sequence[str]) -> None:
        touched: set[Path] = set()
        with self._locked(fcntl.LOCK_EX) as lock:
            for key in keys:
                path = self.root / path_of(key)
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    path.unlink()
                    touched.add(path.parent)
            kept = {self._prune(directory, lock) for directory in touched}
        for directory in kept:
            with contextlib.suppress(FileNotFoundError):
                _sync_directory(directory)

    def _prune(self, directory: Path, lock: int) -> Path:
        """Remove this directory and its parents while they are empty; return the first one that stays."""
        while directory != self.root:
            if directory.exists():
                if any(directory.iterdir()):
                    break
                os.pwrite(lock, (_removals(lock) + 1).to_bytes(8, "little"), 0)
                directory.rmdir()
            directory = directory.parent
        return directory

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[int]:
        lock = os.open(self._lock, _CREATE, _FILE_MODE)
        try:
            fcntl.flock(lock, how)
            yield lock
        finally:
            os.close(lock)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get(self, key: str, start: int, end: int | None) -> memoryview:
        try:
            file = os.open(self.root / path_of(key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(key) from None
        try:
            size = os.fstat(file).st_size
            return _read(file, start, size if end is None else min(end, size))
        finally:
            os.close(file)

    def head(self, key: str) -> ObjectInfo:
        try:
            return _info(key, (self.root / path_of(key)).stat())
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(key) from None

    def walk(self, prefix: str, after: str) -> Iterator[Found]:
        return walk(str(self.root), prefix, after)

    def _missing(self, key: str) -> NotFound:
        return NotFound(f"object {key} is not in {self.root}")


def next_page(found: Iterator[Found]) -> list[ObjectInfo]:
    return [_info(key, stat) for key, stat in islice(found, PAGE_OBJECTS)]


def _info(key: str, stat: os.stat_result) -> ObjectInfo:
    etag = f"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"
    return ObjectInfo(key, stat.st_size, etag, stat.st_mtime_ns // 1000)


def _read(file: int, start: int, end: int) -> memoryview:
    """Return the bytes [start, end) of a file, usually with one read and without a copy."""
    pieces: list[bytes] = []
    while start < end:
        data = os.pread(file, min(end - start, READ_BYTES_MAX), start)
        if not data:
            raise OSError(errno.EIO, "a file ends before its size")
        pieces.append(data)
        start += len(data)
    return memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _write(file: int, pieces: Sequence[Buffer]) -> None:
    """Write the pieces. Large objects bypass the page cache if the file system supports it: that takes a third of the
    processor time, and other writers of this disk, such as the log, wait for at most one chunk."""
    chunk = memoryview(mmap.mmap(-1, min(CHUNK_BYTES, _aligned(sum(map(len, pieces))))))
    is_large = len(chunk) == CHUNK_BYTES
    is_direct = is_large and _set_direct(file, True)
    for filled in _chunks(pieces, chunk):
        if is_direct and len(filled) % BLOCK_BYTES:
            is_direct = _set_direct(file, False)  # the last one
        while filled:
            try:
                filled = filled[os.write(file, filled) :]
            except OSError as error:
                if not is_direct or error.errno != errno.EINVAL:
                    raise
                is_direct = _set_direct(file, False)  # the file system accepts the flag and does not support it
        if is_large and not is_direct:
            os.fsync(file)


def _chunks(pieces: Sequence[Buffer], chunk: memoryview) -> Iterator[memoryview]:
    """Yield the bytes of all pieces, copied into `chunk`, which is used again for each part."""
    end = 0
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            taken = left[: len(chunk) - end]
            chunk[end : end + len(taken)] = taken
            end += len(taken)
            left = left[len(taken) :]
            if end == len(chunk):
                yield chunk
                end = 0
    if end:
        yield chunk[:end]


def _set_direct(file: int, wanted: bool) -> bool:
    """Switch bypassing of the page cache on or off; return whether it is on."""
    flag: int = getattr(os, "O_DIRECT", 0)  # only Linux has it
    flags = fcntl.fcntl(file, fcntl.F_GETFL) & ~flag
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | flag if wanted else flags)
    except OSError:  # not supported by this file system
        return False
    return wanted and bool(flag)


def _aligned(size: int) -> int:
    return max(BLOCK_BYTES, -(-size // BLOCK_BYTES) * BLOCK_BYTES)


def _removals(lock: int) -> int:
    return int.from_bytes(os.pread(lock, 8, 0), "little")


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _remove_if_abandoned(lock: Path) -> None:
    """Remove the temporary files that belong to this lock if no process holds it any more."""
    file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        directory = lock.with_suffix("")
        if directory.exists():
            for left in directory.iterdir():
                left.unlink()
            directory.rmdir()
        lock.unlink()
    finally:
        os.close(file)
