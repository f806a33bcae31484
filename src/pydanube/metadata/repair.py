"""Opens the embedded store: checks both copies of the metadata, repairs one from the other, or refuses the start.

```
 database      journal                what counts
 --------      -------                -----------
 good          good, same commit      both
 good          good, older            the database; the journal is written anew (a crash between the two syncs)
 good          damaged or missing     the database; the journal is written anew
 good, older   good                   the journal; the database is built anew from it (SQLite lost commits)
 damaged       good                   the journal; the database is built anew from it
 missing       good                   the journal; the database is built anew from it
 damaged       damaged or missing     neither: Corrupt
 good          damaged, and names     neither: Corrupt (SQLite lost commits that the journal cannot give back)
               a later commit
 missing       missing                a new store
 schema 1      missing                the database, built anew with schema 2
```

Two good copies of different stores, or with different content for the same commit, are refused: two backups were
mixed. A journal whose last record is torn counts as damaged.

A database is never changed in place here. A new one is built beside it, synced, and renamed. A crash in between leaves
either the old files or a missing database beside a good journal, and the next start does the same again.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydanube.codec.metadata import Contents, Scan, StoreState, highest_commit, read_journal, scan_journal
from pydanube.metadata.database import (
    SCHEMA_VERSION,
    Damaged,
    Database,
    build,
    check_header,
    configure,
    connect,
    read_version_1,
    schema_version,
    translate,
    verify,
)
from pydanube.metadata.journal import Journal, journal_path
from pydanube.model.errors import Corrupt, DanubeError, Refused, Unavailable
from pydanube.runtime.disk import Disk, read_whole
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

DAMAGED_KEPT_MAX: Final = 3
"""How many damaged databases are kept beside the good one, for examination; the oldest is deleted."""

_DAMAGE_NAMES: Final = frozenset(
    {"SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS", "SQLITE_IOERR_DATA"}
)
"""Read errors: the bytes of this file are lost."""


@dataclass(slots=True)
class _Found:
    """What was found in the database. At most one of the last three is set; if none is, there is no database."""

    connection: sqlite3.Connection | None = None
    state: StoreState | None = None
    version_1: Contents | None = None
    damage: str = ""

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def open_database(path: Path, disk: Disk) -> Database:
    """Open or create the store at `path`; the journal lies beside it.

    Raises Corrupt (neither copy is whole), Refused (no pydanube database, of a newer release, or two copies of
    different stores), Unavailable (in use, unreadable, no space to repair) or OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    found = _examine(path)
    try:
        return _Opening(path, disk, found).run()
    except BaseException:
        found.close()
        raise


class _Opening:
    """Opens the store once its database was examined. `found.connection` holds the lock of a readable database."""

    def __init__(self, path: Path, disk: Disk, found: _Found) -> None:
        self._path = path
        self._disk = disk
        self._found = found
        self._journal = Journal(disk, journal_path(path))
        self._scan: Scan | None = None
        self._journal_damage = ""
        self._highest_commit = 0
        """The highest commit that a damaged journal still names."""
        self._examine_journal()

    def run(self) -> Database:
        found, scan = self._found, self._scan
        if found.version_1 is not None:
            return self._upgrade(found.version_1)
        if found.state is None:
            if scan is not None:
                return self._repair(found.damage or "it is missing")
            if found.damage or self._journal_damage:
                raise self._both_lost()
            return self._create()
        if found.state.commit < self._highest_commit:
            found.damage = f"it is at commit {found.state.commit}, and commit {self._highest_commit} was made"
            raise self._both_lost()
        if scan is None:
            return self._serve(found.state, "" if found.state.commit == 0 else self._journal_damage or "it was missing")
        self._refuse_different_stores(found.state, scan.state)
        if found.state.commit < scan.state.commit:
            return self._repair(
                f"it is at commit {found.state.commit} (revision {found.state.revision}), and commit"
                f" {scan.state.commit} (revision {scan.state.revision}) was answered"
            )
        if found.state.commit > scan.state.commit:
            return self._serve(found.state, f"it ends at commit {scan.state.commit} of {found.state.commit}")
        self._journal.resume(scan)
        return self._serve(found.state)

    def _examine_journal(self) -> None:
        """Read the whole journal, if there is one."""
        path = self._journal.path
        if not self._disk.exists(path):
            return
        data = read_whole(self._disk, path)
        try:
            self._scan = scan_journal(data)
        except Corrupt as damage:
            self._journal_damage, self._highest_commit = damage.message, highest_commit(data)
        except Refused as newer:
            raise Refused(f"metadata journal {path}: {newer.message}") from None

    def _serve(self, state: StoreState, journal_lost: str = "") -> Database:
        """Use the database that was found; write the journal anew unless it was resumed."""
        connection = self._found.connection
        assert connection is not None
        configure(connection, self._path)
        self._found.connection = None
        database = Database(self._path, connection, state, self._journal)
        try:
            if self._journal.behind:
                database.renew_journal()
            if journal_lost:
                log.warning("metadata.journal_rewritten", path=str(self._journal.path), reason=journal_lost)
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.close()
            raise
        return database

    def _create(self) -> Database:
        kept = self._put_in_place(Contents(StoreState(identity())))
        if kept is not None:
            log.warning("metadata.set_aside", path=str(self._path), reason="it held no tables", kept=str(kept))
        return self._open_anew()

    def _upgrade(self, contents: Contents) -> Database:
        if self._scan is not None or self._journal_damage:
            raise Refused(
                f"metadata database {self._path} is of an earlier release, and {self._journal.path} beside it is not: "
                f"put back the database that belongs to the journal, or remove the journal"
            )
        self._found.close()  # SQLite moves its write-ahead log into the database, and deletes it
        if _wal_path(self._path).exists():
            raise Unavailable(f"{_wal_path(self._path)} cannot be moved into the database: is the disk full?")
        self._put_in_place(contents)
        log.info("metadata.upgraded", path=str(self._path), schema=SCHEMA_VERSION, revision=contents.state.revision)
        return self._open_anew()

    def _repair(self, reason: str) -> Database:
        """Build the database anew from the journal, and keep the damaged one under another name."""
        self._found.close()
        try:
            contents = read_journal(read_whole(self._disk, self._journal.path))
        except Corrupt as damage:
            self._journal_damage = damage.message
            self._found.damage = reason
            raise self._both_lost() from None
        kept = self._put_in_place(contents)
        log.warning(
            "metadata.repaired",
            path=str(self._path),
            reason=reason,
            revision=contents.state.revision,
            kept=str(kept) if kept is not None else "",
        )
        return self._open_anew()

    def _open_anew(self) -> Database:
        """Open the database that was just put in place, with all checks."""
        self._found = found = _examine(self._path)
        if found.state is None:
            found.close()
            raise Corrupt(f"metadata database {self._path} was written anew and cannot be read back: {found.damage}")
        try:
            if self._scan is not None:
                self._journal.resume(self._scan)
            return self._serve(found.state)
        except BaseException:
            self._journal.close()
            found.close()
            raise

    def _put_in_place(self, contents: Contents) -> Path | None:
        """Build a database with this content and put it at `path`; return where the damaged one is kept, if any."""
        new = self._path.with_name(self._path.name + ".new")
        new.unlink(missing_ok=True)
        try:
            build(new, contents)
            file = self._disk.open(new)
            try:
                file.sync_data()
            finally:
                file.close()
            kept = None if self._found.version_1 is not None else self._set_aside()
            self._disk.rename(new, self._path)
            self._disk.sync_directory(self._path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        return kept

    def _set_aside(self) -> Path | None:
        """Rename the damaged database, but first SQLite's write-ahead log of it, which must not be applied to
        another."""
        wal, kept = _wal_path(self._path), None
        if self._disk.exists(wal) or (self._disk.exists(self._path) and self._path.stat().st_size):
            numbers = sorted(_kept_numbers(self._path))
            kept = _kept_path(self._path, numbers[-1] + 1 if numbers else 1)
            for number in numbers[: max(0, len(numbers) - DAMAGED_KEPT_MAX + 1)]:
                oldest = _kept_path(self._path, number)
                oldest.unlink(missing_ok=True)
                _wal_path(oldest).unlink(missing_ok=True)
            if self._disk.exists(wal):
                self._disk.rename(wal, _wal_path(kept))
                self._disk.sync_directory(self._path.parent)
            if self._disk.exists(self._path):
                self._disk.rename(self._path, kept)
        return kept

    def _refuse_different_stores(self, database: StoreState, journal: StoreState) -> None:
        if database.store_id != journal.store_id:
            raise Refused(
                f"metadata database {self._path} is of store {database.store_id}, and {self._journal.path} of store"
                f" {journal.store_id}: put back the journal that belongs to the database, or remove it if it does not"
                f" belong here"
            )
        if database.commit == journal.commit and database != journal:
            raise Corrupt(
                f"metadata database {self._path} and {self._journal.path} differ, and both are whole: they were copied"
                f" at different moments; {REMEDY}"
            )

    def _both_lost(self) -> DanubeError:
        """Return the error for the case that neither copy can be used."""
        database = self._found.damage or "it is missing"
        journal = self._journal_damage or "it is missing"
        if database == _OF_SOMETHING_ELSE and not self._journal_damage:
            return Refused(f"{self._path} is a SQLite database of something else: choose another metadata.path")
        return Corrupt(
            f"metadata database {self._path} is damaged ({database}), and its second copy {self._journal.path} cannot"
            f" be used either ({journal}): {REMEDY}"
        )


REMEDY: Final = (
    "put back a copy of both files of one moment, or rebuild the data directory from the object store with"
    " `danube storage restore`, or start with an empty data directory"
)
_OF_SOMETHING_ELSE: Final = "it is a SQLite database of something else"


def _examine(path: Path) -> _Found:
    """Read the whole database. Raises Refused or Unavailable for problems that are no damage."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        wal = _wal_path(path)
        return _Found(damage="it is empty beside its write-ahead log") if wal.exists() else _Found()
    found = _Found()
    try:
        check_header(path)
        connection = found.connection = connect(path)
        version = schema_version(connection, path)
        if version == 0:  # an earlier release was interrupted when it created the database
            found.close()
        elif version == 1:
            found.version_1 = read_version_1(connection, identity())
        else:
            found.state = verify(connection)
    except BaseException as error:
        damage = _damage(error)
        if damage is None:
            found.close()
            raise translate(error, path) if isinstance(error, sqlite3.Error) else error from None
        found.close()
        return _Found(damage=damage)
    return found


def _damage(error: BaseException) -> str | None:
    """Describe the damage that an error reports; return None if the error does not mean that the file is damaged."""
    if isinstance(
        error, Damaged | UnicodeDecodeError | OverflowError
    ):  # the latter two from Python's module for SQLite
        return str(error)
    if not isinstance(error, sqlite3.Error):
        return None
    name = getattr(error, "sqlite_errorname", "")
    is_damage = name in _DAMAGE_NAMES or not isinstance(translate(error, Path()), Unavailable)
    return f"{error} ({name or type(error).__name__})" if is_damage else None


def _wal_path(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def _kept_path(database: Path, number: int) -> Path:
    return database.with_name(f"{database.name}.damaged-{number}")


def _kept_numbers(database: Path) -> list[int]:
    start = f"{database.name}.damaged-"
    endings = [path.name.removeprefix(start) for path in database.parent.glob(f"{start}*")]
    return [int(ending) for ending in endings if ending.isdecimal()]
