"""The second copy of the embedded metadata store: a snapshot and every commit since, in one file beside the database.

The bytes are drawn in `codec.metadata`. The database is the first copy and is committed first; a commit is answered
when its record in the journal is synced too.

Invariants
    a journal file holds every commit from its snapshot up to some commit, in order, and zeros behind them
    the file at `path` either holds every answered commit, or does not exist (`behind`)
    a new journal replaces the old one atomically, after it was synced
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pydanube.codec.metadata import (
    Changes,
    JournalRecordKind,
    Lease,
    MetadataEntry,
    Scan,
    StoreState,
    encode_body,
    encode_record,
    paged,
)
from pydanube.model.limits import MIB
from pydanube.runtime.disk import ByteBuffer, Disk, DiskFile, write_all

RENEW_BYTES_MIN: Final = 4 * MIB
RENEW_FACTOR: Final = 3
"""A journal this many times as large as its snapshot is written anew: a start reads it whole."""

EXTEND_BYTES: Final = 256 * 1024
"""How many zeros are written ahead. A sync that does not make the file longer is about twice as fast."""

PAGE_BYTES: Final = 256 * 1024
"""About the size of one ROWS record of a snapshot."""


def journal_path(database: Path) -> Path:
    """Return the path of the journal of a database: `metadata.journal` beside `metadata.db`."""
    if database.suffix == ".journal":
        return database.with_name(database.name + ".journal")
    return database.with_suffix(".journal")


class Journal:
    """The journal of one open store. Methods raise OSError when the disk does."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._file: DiskFile | None = None
        self._position = 0
        self._size = 0
        self._last_checksum = 0
        self._renew_at = RENEW_BYTES_MIN

    @property
    def behind(self) -> bool:
        """True while no journal holds all commits: it must be written anew before the next commit."""
        return self._file is None

    @property
    def grown(self) -> bool:
        """True when the journal should be written anew because of its size."""
        return self._position > self._renew_at

    def resume(self, scan: Scan) -> None:
        """Continue the existing file, which `scan` found to be whole."""
        self._use(self._disk.open(self.path), scan.size, scan.snapshot_bytes, scan.last_checksum)
        assert self._file is not None
        self._file.sync_data()  # a process that was killed may have written its last record and not synced it

    def append(self, changes: Changes) -> None:
        """Write and sync one commit. If that fails the file is removed, since it no longer holds every commit."""
        if self._file is None:
            raise OSError(f"{self.path} is behind the database")
        body = encode_body(changes)
        header, checksum = encode_record(JournalRecordKind.CHANGES, changes.state.commit, body, self._last_checksum)
        try:
            end = self._position + len(header) + len(body)
            zeros = b"" if end <= self._size else bytes(EXTEND_BYTES)
            self._size = max(self._size, write_all(self._file, [header, body, zeros], self._position))
            self._file.sync_data()
            self._position = end
        except BaseException:
            self.discard()
            raise
        self._last_checksum = checksum

    def renew(self, state: StoreState, entries: Iterable[MetadataEntry], leases: list[Lease]) -> None:
        """Write a new journal that begins with this snapshot, and put it in place of the old one.

        If that fails before the new one is in place, the old one is used as before, if there was one.
        """
        temporary = self.path.with_name(self.path.name + ".new")
        if self._disk.exists(temporary):
            self._disk.unlink(temporary)
        file = self._disk.create(temporary, private=True)
        try:
            position, checksum = self._write_snapshot(file, state, entries, leases)
            write_all(file, [bytes(EXTEND_BYTES)], position)
            file.sync_data()
            self._disk.rename(temporary, self.path)
        except BaseException:
            file.close()
            with contextlib.suppress(OSError):
                self._disk.unlink(temporary)
            if self._file is not None:
                self._renew_at = 2 * self._position
            raise
        self.close()
        self._use(file, position, position, checksum)
        try:
            self._disk.sync_directory(self.path.parent)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Close and remove the file: a journal that lacks commits must not be taken for a copy of the database."""
        self.close()
        with contextlib.suppress(OSError):
            self._disk.unlink(self.path)
            self._disk.sync_directory(self.path.parent)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _use(self, file: DiskFile, position: int, snapshot_bytes: int, checksum: int) -> None:
        self._file, self._position, self._size, self._last_checksum = file, position, file.size(), checksum
        self._renew_at = max(RENEW_BYTES_MIN, RENEW_FACTOR * snapshot_bytes)

    def _write_snapshot(
        self, file: DiskFile, state: StoreState, entries: Iterable[MetadataEntry], leases: list[Lease]
    ) -> tuple[int, int]:
        position = checksum = 0

        def write(kind: JournalRecordKind, body: ByteBuffer) -> None:
            nonlocal position, checksum
            header, checksum = encode_record(kind, state.commit, body, checksum)
            position = write_all(file, [header, body], position)

        for rows in paged(entries, leases, PAGE_BYTES):
            write(JournalRecordKind.ROWS, encode_body(rows))
        write(JournalRecordKind.SNAPSHOT, encode_body(state))
        return position, checksum
