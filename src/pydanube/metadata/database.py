"""The embedded store's tables: synchronous, one connection, one thread, no clock.

Everything between `begin` and `commit` shares one SQLite transaction and so one sync. Each request inside it reads
and checks before it writes, so a refused one leaves no trace in what the others commit.

Tables
    entry   key BLOB (UTF-8, so SQLite orders it by bytes), value, version, create_revision, mod_revision, lease,
            checksum (CRC32C over all of these: SQLite itself would not notice a flipped bit in a value)
    lease   id (never reused), ttl_ms
    number  name, value: `revision`

Events are not stored. Whoever watches an embedded store lives in the process that owns it and lists again after a
restart, so history in memory is enough, and every write is written once.

Invariants
    the file belongs to one process at a time (locking_mode=EXCLUSIVE), so what is cached here is what is stored
    after a failed commit `revision` is what the file says, whatever became of the commit
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from pydanube.model.errors import Corrupt, NotFound, Refused, Unavailable
from pydanube.runtime.randomness import identity

from .store import (
    Compare,
    Delete,
    Event,
    KeyValue,
    Put,
    StoreIdentity,
    Succession,
    TransactionResult,
    key_bytes,
    prefix_bytes,
)

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x44414E55  # "DANU"
_BUSY_SECONDS: Final = 1.0
_JOURNAL_BYTES_KEPT: Final = 16 * 1024 * 1024

_SCHEMA: Final = (
    """CREATE TABLE entry (
        key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, create_revision INTEGER NOT NULL,
        mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX entry_lease ON entry (lease) WHERE lease != 0",
    "CREATE TABLE lease (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL)",
    "CREATE TABLE number (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO number VALUES ('revision', 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)
_GET: Final = """SELECT key, value, version, create_revision, mod_revision, lease, checksum
    FROM entry WHERE key = ?"""
_SCAN: Final = """SELECT key, value, version, create_revision, mod_revision, lease, checksum
    FROM entry WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?"""
_PUT: Final = """INSERT OR REPLACE INTO entry (key, value, version, create_revision, mod_revision, lease, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
_NUMBERS: Final = struct.Struct("<QQQQ")


class Database:
    """The tables. Raises sqlite3.Error where SQLite does: see `translate`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_SECONDS)
        try:
            self._configure()
            self.revision = self._stored_revision()
        except BaseException:
            self._connection.close()
            raise
        _sync_directory(path.parent)
        self._committed = self.revision
        self._events: list[tuple[int, list[Event]]] = []

    def begin(self) -> None:
        self._connection.execute("BEGIN")  # the file is ours alone: a later write finds no other writer

    def commit(self) -> list[tuple[int, list[Event]]]:
        """Make everything since `begin` durable; return what changed, by revision."""
        if self.revision != self._committed:
            self._connection.execute("UPDATE number SET value = ? WHERE name = 'revision'", (self.revision,))
        self._connection.execute("COMMIT")
        self._committed = self.revision
        events, self._events = self._events, []
        return events

    def rollback(self) -> None:
        """After a failure: forget everything since `begin`, and ask the file where it stands."""
        self._events = []
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.revision = self._committed = self._stored_revision()

    def close(self) -> None:
        self._connection.close()

    def get(self, key: str) -> KeyValue | None:
        row = self._connection.execute(_GET, (key_bytes(key),)).fetchone()
        return None if row is None else self._entry(row)

    def scan(self, prefix: str, start_after: str, limit: int) -> list[KeyValue]:
        start, end = prefix_bytes(prefix), _after_prefix(prefix_bytes(prefix))
        rows = self._connection.execute(_SCAN, (start, prefix_bytes(start_after), end, limit))
        return [self._entry(row) for row in rows]

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        currents = {operation.key: self.get(operation.key) for operation in (*compares, *writes)}
        if not all(compare.holds(currents[compare.key]) for compare in compares):
            return TransactionResult(succeeded=False, revision=self.revision)
        for lease in {write.lease for write in writes if isinstance(write, Put) and write.lease}:
            self._require_lease(lease)
        revision = self.revision + 1
        events = []
        for write in writes:
            current = currents[write.key]
            if isinstance(write, Put):
                events.append(self._put(write, current, revision))
            elif current is not None:
                events.append(self._delete(write.key, revision))
        self._changed(revision, events)
        return TransactionResult(succeeded=True, revision=self.revision)

    def grant(self, ttl_ms: int) -> int:
        lease = self._connection.execute("INSERT INTO lease (ttl_ms) VALUES (?)", (ttl_ms,)).lastrowid
        assert lease is not None
        return lease

    def revoke(self, lease: int) -> None:
        self._require_lease(lease)
        rows = self._connection.execute("SELECT key FROM entry WHERE lease = ? ORDER BY key", (lease,)).fetchall()
        revision = self.revision + 1
        self._changed(revision, [self._delete(key.decode(), revision) for (key,) in rows])
        self._connection.execute("DELETE FROM lease WHERE id = ?", (lease,))

    def leases(self) -> list[tuple[int, int]]:
        """All leases and their ttl_ms."""
        return self._connection.execute("SELECT id, ttl_ms FROM lease ORDER BY id").fetchall()

    def identity(self) -> StoreIdentity:
        rows = self._connection.execute("SELECT store_id, revision FROM succession ORDER BY number").fetchall()
        return StoreIdentity(rows[0][0], tuple(Succession(*row) for row in rows[1:]))

    def record_succession(self, former: Succession) -> None:
        values = (former.store_id, former.revision)
        self._connection.execute("INSERT INTO succession (store_id, revision) VALUES (?, ?)", values)

    def _put(self, put: Put, current: KeyValue | None, revision: int) -> Event:
        version = 1 if current is None else current.version + 1
        create_revision = revision if current is None else current.create_revision
        entry = KeyValue(put.key, put.value, version, create_revision, revision, put.lease)
        key = key_bytes(put.key)
        checksum = _checksum(key, entry)
        self._connection.execute(_PUT, (key, put.value, version, create_revision, revision, put.lease, checksum))
        return Event(revision, put.key, entry)

    def _delete(self, key: str, revision: int) -> Event:
        self._connection.execute("DELETE FROM entry WHERE key = ?", (key_bytes(key),))
        return Event(revision, key, None)

    def _changed(self, revision: int, events: list[Event]) -> None:
        assert revision == self.revision + 1
        if events:
            self.revision = revision
            self._events.append((revision, events))

    def _require_lease(self, lease: int) -> None:
        if self._connection.execute("SELECT 1 FROM lease WHERE id = ?", (lease,)).fetchone() is None:
            raise NotFound(f"lease {lease} has ended, or never was")

    def _entry(self, row: tuple[Any, ...]) -> KeyValue:
        key, value, version, create_revision, mod_revision, lease, checksum = row
        try:
            entry = KeyValue(key.decode(), value, version, create_revision, mod_revision, lease)
            intact = _checksum(key, entry) == checksum
        except (AttributeError, TypeError, ValueError, struct.error):
            intact = False
        if not intact:
            raise Corrupt(f"metadata database {self._path}: the entry of key {key!r} is damaged: {_REMEDY}")
        return entry

    def _stored_revision(self) -> int:
        row = self._connection.execute("SELECT value FROM number WHERE name = 'revision'").fetchone()
        if row is None or not isinstance(row[0], int):
            raise Corrupt(f"metadata database {self._path} has lost its revision: {_REMEDY}")
        return row[0]

    def _configure(self) -> None:
        run = self._connection.execute
        run("PRAGMA locking_mode = EXCLUSIVE")
        fresh = self._is_fresh()
        if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise Unavailable(f"metadata database {self._path}: this file system cannot hold SQLite's write-ahead log")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA fullfsync = ON")
        run("PRAGMA checkpoint_fullfsync = ON")
        run(f"PRAGMA journal_size_limit = {_JOURNAL_BYTES_KEPT}")
        if fresh:
            run("BEGIN IMMEDIATE")
            for statement in _SCHEMA:
                run(statement)
            run("COMMIT")
        run("CREATE TABLE IF NOT EXISTS succession (number INTEGER PRIMARY KEY, store_id TEXT, revision INTEGER)")
        run(
            "INSERT INTO succession (store_id, revision) SELECT ?, 0 WHERE NOT EXISTS (SELECT 1 FROM succession)",
            (identity(),),
        )

    def _is_fresh(self) -> bool:
        """True for an empty file. Raises Refused, having written nothing, for what is not ours or is of a later day."""
        run = self._connection.execute
        tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application, version = run("PRAGMA application_id").fetchone()[0], run("PRAGMA user_version").fetchone()[0]
        if tables == 0 and application == 0 and version == 0:
            return True
        if application != APPLICATION_ID:
            raise Refused(f"{self._path} is a SQLite database of something else: choose another metadata.path")
        if version > SCHEMA_VERSION:
            raise Refused(
                f"metadata database {self._path} has schema version {version}, and this release knows versions"
                f" up to {SCHEMA_VERSION}: it was written by a newer release; run that one or a later one"
            )
        return False


_REMEDY: Final = "restore it from a backup, or start with an empty data directory"


def translate(error: sqlite3.Error, path: Path) -> Exception:
    """What SQLite's error means to a caller; an error that is our own mistake stays what it is."""
    code = getattr(error, "sqlite_errorcode", None)
    match None if code is None else code & 0xFF:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_SCHEMA:
            return Corrupt(f"metadata database {path} is damaged ({error}): {_REMEDY}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"metadata database {path} is in use by another process")
        case sqlite3.SQLITE_FULL:
            return Unavailable(f"metadata database {path} cannot grow ({error}): free some space")
        case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return Unavailable(
                f"metadata database {path} cannot be read or written: {error} ({error.sqlite_errorname})"
            )
        case sqlite3.SQLITE_NOMEM:
            return Unavailable(f"metadata database {path}: {error}")
        case _:
            return error


def _after_prefix(prefix: bytes) -> bytes:
    """The first byte string after all that begin with `prefix`. UTF-8 has no 0xFF, so the last byte can always grow."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


def _checksum(key: bytes, entry: KeyValue) -> int:
    numbers = _NUMBERS.pack(entry.version, entry.create_revision, entry.mod_revision, entry.lease)
    return crc32c(entry.value, crc32c(key, crc32c(numbers)))


def _sync_directory(directory: Path) -> None:
    """SQLite syncs the directory for its journals; the database's own entry is ours to keep."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
