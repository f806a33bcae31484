"""The data directory: it is used by one process at a time, and only by the broker that it belongs to.

```
LOCK         held by the running process, with its number in it
IDENTITY     a JSON object and, on the second line, its CRC32C in hexadecimal:
             {"format":1,"cluster":"danube","node":"broker-1","incarnation":"5f0c...","parts":["wal"]}
wal/ ...     the parts, each of which may be on a disk of its own
```

A part is named in IDENTITY once it exists. From then on it must be there at every start: a part that is missing means
that a disk was emptied, replaced or not mounted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import msgspec

from pydanube.codec.wal import NodeIdentity, checked_line, with_checksum
from pydanube.model.errors import Corrupt, Refused
from pydanube.runtime.disk import Disk, DiskLock, read_whole, replace_whole
from pydanube.runtime.randomness import identity as new_identity

FORMAT: Final = 1
"""The format of the whole directory. A release opens every format up to its own."""

IDENTITY: Final = "IDENTITY"
LOCK: Final = "LOCK"
_IGNORED: Final = frozenset({LOCK, "lost+found", IDENTITY + ".tmp"})


class _IdentityFile(msgspec.Struct, frozen=True):
    format: int
    cluster: str
    node: str
    incarnation: str
    parts: list[str]


class DataDirectory:
    """An open, locked data directory."""

    def __init__(self, disk: Disk, path: Path, lock: DiskLock, written: _IdentityFile, is_new: bool) -> None:
        self.path = path
        self.identity = NodeIdentity(written.cluster, written.node, written.incarnation)
        self.is_new = is_new
        """Whether this start created it."""
        self._disk = disk
        self._lock = lock
        self._written = written

    @classmethod
    def open(
        cls,
        disk: Disk,
        path: Path,
        *,
        cluster: str | None = "danube",
        node: str = "broker-1",
        expected: NodeIdentity | None = None,
        incarnation: Callable[[], str] = new_identity,
    ) -> Self:
        """Lock the directory and check which broker it belongs to; create it if it is empty.

        `expected`: the identity under which the metadata already knows this node; then an empty directory is refused.
        `cluster` None: accept any cluster; a new directory begins a cluster of its own.
        """
        disk.make_directory(path)
        lock = disk.lock(path / LOCK)
        try:
            written = _read(disk, path)
            is_new = written is None
            if written is None:
                if expected is not None:
                    raise Refused(
                        f"{path} is empty, but node {expected.node!r} of cluster {expected.cluster!r} had data in it: "
                        "mount the right disk, or put back a copy"
                    )
                started = incarnation()
                written = _IdentityFile(FORMAT, cluster or f"danube-{started[:12]}", node, started, [])
                _write(disk, path, written)
            wanted = expected or NodeIdentity(cluster or written.cluster, node, written.incarnation)
            _refuse_foreign(path, written, wanted)
            return cls(disk, path, lock, written, is_new)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def peek(cls, disk: Disk, path: Path) -> tuple[NodeIdentity, frozenset[str]] | None:
        """Return the node and the parts of a directory, without locking it; None if it is empty or not there.
        Raises as `open` does for a directory that is no data directory, or a damaged one."""
        written = _read(disk, path) if disk.exists(path) else None
        if written is None:
            return None
        return NodeIdentity(written.cluster, written.node, written.incarnation), frozenset(written.parts)

    @classmethod
    def begin(cls, disk: Disk, path: Path, *, cluster: str, node: str, beside: frozenset[str] = frozenset()) -> Self:
        """Lock an empty directory that the caller fills. It becomes a data directory with its first part; before that,
        no broker starts on it. Raises Refused unless it is empty, apart from the names in `beside`."""
        disk.make_directory(path)
        lock = disk.lock(path / LOCK)
        try:
            others = [name for name in disk.list(path) if name not in _IGNORED | beside]
            if others or disk.exists(path / IDENTITY):
                raise Refused(f"{path} is not empty: it holds {[*others, IDENTITY][0]!r}; choose an empty directory")
            return cls(disk, path, lock, _IdentityFile(FORMAT, cluster, node, new_identity(), []), True)
        except BaseException:
            lock.release()
            raise

    def knows(self, part: str) -> bool:
        """Return whether this part existed before, and so must be there."""
        return part in self._written.parts

    def add_part(self, part: str) -> None:
        """Record durably that this part exists."""
        if not self.knows(part):
            written = self._written
            self._written = msgspec.structs.replace(written, parts=[*written.parts, part])
            _write(self._disk, self.path, self._written)

    def close(self) -> None:
        self._lock.release()


def _read(disk: Disk, path: Path) -> _IdentityFile | None:
    file = path / IDENTITY
    if not disk.exists(file):
        others = [name for name in disk.list(path) if name not in _IGNORED]
        if others:
            raise Refused(
                f"{path} holds {others[0]!r} and no {IDENTITY} file, so it is not a data directory, or a damaged one: "
                f"choose an empty directory, or put back a copy of {IDENTITY}"
            )
        return None
    try:
        line = checked_line(read_whole(disk, file))
        written_format = msgspec.json.decode(line, type=dict[str, object]).get("format")
        if not isinstance(written_format, int) or written_format > FORMAT:
            raise Refused(
                f"{path} has data format {written_format}, and this release reads up to format {FORMAT}: "
                "start the release that wrote it, or a later one"
            )
        return msgspec.json.decode(line, type=_IdentityFile)
    except (Corrupt, msgspec.MsgspecError) as error:
        raise Corrupt(f"{file} cannot be read ({error}): put back a copy of it") from None


def _write(disk: Disk, path: Path, written: _IdentityFile) -> None:
    replace_whole(disk, path / IDENTITY, with_checksum(msgspec.json.encode(written)))


def _refuse_foreign(path: Path, written: _IdentityFile, wanted: NodeIdentity) -> None:
    for what in ("cluster", "node", "incarnation"):
        found, asked = getattr(written, what), getattr(wanted, what)
        if found != asked:
            raise Refused(
                f"{path} belongs to {what} {found!r}, not to {asked!r}: mount the right disk, or take another directory"
            )
