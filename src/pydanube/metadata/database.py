"""The SQLite tables of the embedded store: synchronous, one connection, one thread, no clock.

Everything between `begin` and `commit` is one SQLite transaction, so one sync, and one record of the journal. Each
request in it reads and checks before it writes, so a refused request does not affect what the others commit.

Tables
    entry   key BLOB (UTF-8, so SQLite orders it by bytes), value, version, create_revision, mod_revision, lease,
            checksum (CRC32C over all of these: SQLite itself would not notice a flipped bit in a value)
    lease   id (never reused), ttl_ms, checksum
    state   one row: `codec.metadata.StoreState` in MessagePack, and its checksum

The state holds the number of rows and the sum of their checksums, updated in the transaction that changes the rows.
`verify` compares them: a lost or changed row is noticed although no query would return it.

Events are not stored. A watcher of an embedded store runs in the process that owns the store and lists again after a
restart, so a history in memory is enough.

Invariants
    the file belongs to one process at a time (locking_mode=EXCLUSIVE), so cached values equal the stored ones
    after a failed commit `state` is what the file says, whether the commit happened or not
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from pydanube.codec.metadata import (
    DIGEST_MODULUS,
    Changes,
    Contents,
    Lease,
    MetadataEntry,
    StoreState,
    decode_state,
    encode_state,
    entry_checksum,
    entry_checksum_v1,
    lease_checksum,
)
from pydanube.model.errors import Corrupt, NotFound, Refused, Unavailable
from pydanube.model.limits import METADATA_PAGE_BYTES_MAX

from .journal import Journal
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

SCHEMA_VERSION: Final = 2
APPLICATION_ID: Final = 0x44414E55  # "DANU"
_BUSY_SECONDS: Final = 1.0
_WAL_BYTES_KEPT: Final = 16 * 1024 * 1024

_SCHEMA: Final = {
    "entry": """CREATE TABLE entry (
        key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, create_revision INTEGER NOT NULL,
        mod_revision INTEGER NOT NULL, lease INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "entry_lease": "CREATE INDEX entry_lease ON entry (lease) WHERE lease != 0",
    "lease": """CREATE TABLE lease (
        id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL, checksum INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "state": """CREATE TABLE state (
        id INTEGER PRIMARY KEY, body BLOB NOT NULL, checksum INTEGER NOT NULL
    ) WITHOUT ROWID""",
}
_ALL: Final = """SELECT key, value, version, create_revision, mod_revision, lease, checksum
    FROM entry ORDER BY key"""
_GET: Final = """SELECT key, value, version, create_revision, mod_revision, lease, checksum
    FROM entry WHERE key = ?"""
_OF_LEASE: Final = """SELECT key, value, version, create_revision, mod_revision, lease, checksum
    FROM entry WHERE lease = ? ORDER BY key"""
_SCAN: Final = """SELECT key, value, version, create_revision, mod_revision, lease, checksum
    FROM entry WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?"""
_PUT: Final = """INSERT OR REPLACE INTO entry (key, value, version, create_revision, mod_revision, lease, checksum)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""
_ROW_ERRORS: Final = (AttributeError, TypeError, ValueError, OverflowError, struct.error)
"""Exceptions of the checksum functions when the values of a damaged row have another type or range."""


class Damaged(Exception):
    """This copy of the metadata is damaged. The message says what was found."""


class _Stored(NamedTuple):
    """An entry whose checksum was right."""

    entry: MetadataEntry
    checksum: int

    def key_value(self) -> KeyValue:
        key, value, version, create_revision, mod_revision, lease = self.entry
        return KeyValue(key.decode(), value, version, create_revision, mod_revision, lease)


class Database:
    """Reads and writes the tables. Created by `recovery.open_database`. Raises sqlite3.Error (see `translate`)."""

    def __init__(self, path: Path, connection: sqlite3.Connection, state: StoreState, journal: Journal) -> None:
        self._path = path
        self._connection = connection
        self._journal = journal
        self._state = state
        self._revision = state.revision
        self._last_lease = state.last_lease
        self._rows = state.rows
        self._digest = state.digest
        self._succeeds = state.succeeds
        self._is_probe = False
        self._entries_changed: dict[bytes, MetadataEntry | None] = {}
        self._leases_changed: dict[int, int | None] = {}
        self._events: list[tuple[int, list[Event]]] = []

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def commits(self) -> int:
        """How many commits changed something. Unlike the revision, this counts commits that only granted a lease."""
        return self._state.commit

    @property
    def journal_behind(self) -> bool:
        return self._journal.behind

    @property
    def journal_grown(self) -> bool:
        return self._journal.grown

    def begin(self) -> None:
        self._connection.execute("BEGIN")  # no other process uses the file, so a later write finds no other writer

    def commit(self) -> list[tuple[int, list[Event]]]:
        """Make everything since `begin` durable in both copies; return what changed, by revision.

        Raises OSError when the journal could not be written; the database has committed then.
        """
        state = self._next_state()
        if state == self._state:
            self._connection.execute("COMMIT")
            return []
        body = encode_state(state)
        self._connection.execute("UPDATE state SET body = ?, checksum = ? WHERE id = 1", (body, crc32c(body)))
        self._connection.execute("COMMIT")
        self._state = state
        changes = self._take_changes()
        events, self._events = self._events, []
        self._journal.append(changes)
        return events

    def rollback(self) -> None:
        """After a failure: drop everything since `begin`, and read the state from the file."""
        self._events = []
        self._take_changes()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        try:
            state = stored_state(self._connection)
        except Damaged as damaged:
            raise Corrupt(f"metadata database {self._path} is damaged: {damaged}: {_RESTART}") from None
        if state.commit > self._state.commit and not self._journal.behind:
            self._journal.discard()  # a commit that was reported as failed has happened, and the journal lacks it
        self._state, self._succeeds = state, state.succeeds
        self._revision, self._last_lease = state.revision, state.last_lease
        self._rows, self._digest = state.rows, state.digest

    def renew_journal(self) -> None:
        """Write the journal anew. If that raises OSError, a good journal stays in use."""
        try:
            self._journal.renew(self._state, self._all_entries(), self._all_leases())
        except Damaged as damaged:
            raise Corrupt(f"metadata database {self._path} is damaged: {damaged}: {_RESTART}") from None

    def close(self) -> None:
        self._journal.close()
        self._connection.close()

    def get(self, key: str) -> KeyValue | None:
        stored = self._get(key_bytes(key))
        return None if stored is None else stored.key_value()

    def scan(self, prefix: str, start_after: str, limit: int) -> list[KeyValue]:
        start, end = prefix_bytes(prefix), _after_prefix(prefix_bytes(prefix))
        after = prefix_bytes(start_after)
        # SQLite looks up one of the two lower bounds only: without this, each page would be searched from the first.
        rows = self._connection.execute(_SCAN, (max(start, after), after, end, limit))
        page: list[KeyValue] = []
        page_bytes = 0
        for row in rows:
            entry = self._checked(row).key_value()
            page.append(entry)
            page_bytes += len(entry.key) + len(entry.value)  # as `entry_bytes` counts, without a call for each row
            if page_bytes >= METADATA_PAGE_BYTES_MAX:
                break
        rows.close()
        return page

    def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TransactionResult:
        stored = {operation.key: self._get(key_bytes(operation.key)) for operation in (*compares, *writes)}
        currents = {key: None if one is None else one.key_value() for key, one in stored.items()}
        if not all(compare.holds(currents[compare.key]) for compare in compares):
            return TransactionResult(succeeded=False, revision=self.revision)
        for lease in {write.lease for write in writes if isinstance(write, Put) and write.lease}:
            self._require_lease(lease)
        revision = self.revision + 1
        events = []
        for write in writes:
            current = stored[write.key]
            if isinstance(write, Put):
                events.append(self._put(write, current, revision))
            elif current is not None:
                events.append(self._delete(current, revision))
        self._note_events(revision, events)
        return TransactionResult(succeeded=True, revision=self.revision)

    def grant(self, ttl_ms: int) -> int:
        lease = (self._last_lease + 1, ttl_ms)
        checksum = lease_checksum(lease)
        self._connection.execute("INSERT INTO lease (id, ttl_ms, checksum) VALUES (?, ?, ?)", (*lease, checksum))
        self._last_lease = lease[0]
        self._add_to_digest(1, checksum)
        self._leases_changed[lease[0]] = ttl_ms
        return lease[0]

    def revoke(self, lease: int) -> None:
        ttl_ms = self._require_lease(lease)
        rows = self._connection.execute(_OF_LEASE, (lease,))
        found = [self._checked(row) for row in rows.fetchall()]
        revision = self.revision + 1
        self._note_events(revision, [self._delete(one, revision) for one in found])
        self._connection.execute("DELETE FROM lease WHERE id = ?", (lease,))
        self._add_to_digest(-1, -lease_checksum((lease, ttl_ms)))
        self._leases_changed[lease] = None

    def leases(self) -> list[Lease]:
        """Return all leases with their ttl_ms."""
        return self._all_leases()

    def identity(self) -> StoreIdentity:
        return StoreIdentity(self._state.store_id, tuple(Succession(*former) for former in self._succeeds))

    def record_succession(self, former: Succession) -> None:
        self._succeeds = (*self._succeeds, (former.store_id, former.revision))

    def probe(self) -> None:
        """Make the next commit write something although nothing changed, to see whether writing works again."""
        self._is_probe = True

    def _put(self, put: Put, current: _Stored | None, revision: int) -> Event:
        version = 1 if current is None else current.entry.version + 1
        create_revision = revision if current is None else current.entry.create_revision
        entry = MetadataEntry(key_bytes(put.key), put.value, version, create_revision, revision, put.lease)
        checksum = entry_checksum(entry)
        self._connection.execute(_PUT, (*entry, checksum))
        self._add_to_digest(0 if current else 1, checksum - (current.checksum if current else 0))
        self._entries_changed[entry.key] = entry
        return Event(revision, put.key, KeyValue(put.key, put.value, version, create_revision, revision, put.lease))

    def _delete(self, current: _Stored, revision: int) -> Event:
        key = current.entry.key
        self._connection.execute("DELETE FROM entry WHERE key = ?", (key,))
        self._add_to_digest(-1, -current.checksum)
        self._entries_changed[key] = None
        return Event(revision, key.decode(), None)

    def _note_events(self, revision: int, events: list[Event]) -> None:
        assert revision == self.revision + 1
        if events:
            self._revision = revision
            self._events.append((revision, events))

    def _add_to_digest(self, rows: int, checksums: int) -> None:
        self._rows += rows
        self._digest = (self._digest + checksums) % DIGEST_MODULUS

    def _next_state(self) -> StoreState:
        """Return the state after this commit; the same as before if nothing changed."""
        before = self._state
        is_changed = self._entries_changed or self._leases_changed or self._succeeds != before.succeeds
        if not is_changed and not self._is_probe:
            return before
        return StoreState(
            before.store_id,
            before.commit + 1,
            self._revision,
            self._last_lease,
            self._rows,
            self._digest,
            self._succeeds,
        )

    def _take_changes(self) -> Changes:
        entries, self._entries_changed = self._entries_changed, {}
        leases, self._leases_changed = self._leases_changed, {}
        self._is_probe = False
        return Changes(
            self._state,
            [entry for entry in entries.values() if entry is not None],
            [key for key, entry in entries.items() if entry is None],
            [(lease, ttl_ms) for lease, ttl_ms in leases.items() if ttl_ms is not None],
            [lease for lease, ttl_ms in leases.items() if ttl_ms is None],
        )

    def _require_lease(self, lease: int) -> int:
        row = self._connection.execute("SELECT ttl_ms FROM lease WHERE id = ?", (lease,)).fetchone()
        if row is None:
            raise NotFound(f"lease {lease} has ended, or never was")
        return int(row[0])

    def _get(self, key: bytes) -> _Stored | None:
        row = self._connection.execute(_GET, (key,)).fetchone()
        return None if row is None else self._checked(row)

    def _checked(self, row: tuple[Any, ...]) -> _Stored:
        try:
            entry = MetadataEntry._make(row[:6])
            if entry_checksum(entry) == row[6]:
                return _Stored(entry, row[6])
        except _ROW_ERRORS:
            pass
        raise Corrupt(f"metadata database {self._path}: the entry of key {row[0]!r} is damaged: {_RESTART}")

    def _all_entries(self) -> Iterator[MetadataEntry]:
        """Yield all entries; raises Damaged, at the latest after the last one, if some are damaged or missing."""
        return checked_entries(self._connection, self._state)

    def _all_leases(self) -> list[Lease]:
        return self._connection.execute("SELECT id, ttl_ms FROM lease ORDER BY id").fetchall()


def check_header(path: Path) -> None:
    """Raise Damaged if the format versions in the file header are unknown: SQLite would open the file read-only or not
    at all.

    They are 1 or, with a write-ahead log, 2. SQLite checks everything else itself.
    """
    with path.open("rb") as file:
        header = file.read(20)
    if header.startswith(b"SQLite format 3\0") and header[18:] not in (b"\1\1", b"\2\2"):
        raise Damaged(f"its header has format versions {header[18:].hex()}")


def connect(path: Path) -> sqlite3.Connection:
    """Open the file. Nothing is read or written yet; the first read takes the exclusive lock."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY_SECONDS)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    return connection


def configure(connection: sqlite3.Connection, path: Path) -> None:
    """Make every commit durable when it returns."""
    run = connection.execute
    if run("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise Unavailable(f"metadata database {path}: this file system cannot hold SQLite's write-ahead log")
    run("PRAGMA synchronous = FULL")
    run("PRAGMA fullfsync = ON")
    run("PRAGMA checkpoint_fullfsync = ON")
    run(f"PRAGMA journal_size_limit = {_WAL_BYTES_KEPT}")


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version, 0 for an empty database. Raises Refused for a database of a newer release, Damaged for
    one without pydanube's application id."""
    run = connection.execute
    tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application, version = run("PRAGMA application_id").fetchone()[0], run("PRAGMA user_version").fetchone()[0]
    if tables == 0 and application == 0 and version == 0:
        return 0
    if application != APPLICATION_ID:
        raise Damaged("it is a SQLite database of something else")
    if version > SCHEMA_VERSION:
        raise Refused(
            f"metadata database {path} has schema version {version}, and this release knows versions"
            f" up to {SCHEMA_VERSION}: it was written by a newer release; run that one or a later one"
        )
    if version < 1:
        raise Damaged(f"it has schema version {version}")
    return int(version)


def verify(connection: sqlite3.Connection) -> StoreState:
    """Check a database of schema version 2: its schema, its pages and every row. Raises Damaged or sqlite3.Error."""
    run = connection.execute
    schema = run("SELECT name, sql FROM sqlite_master").fetchall()
    if dict(schema) != _SCHEMA or len(schema) != len(_SCHEMA):
        raise Damaged("its schema is not the one that was written")
    _check_pages(connection)
    state = stored_state(connection)
    for _ in checked_entries(connection, state):
        pass
    return state


def _check_pages(connection: sqlite3.Connection) -> None:
    problems = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
    if problems != ["ok"]:
        raise Damaged("; ".join(map(str, problems)).replace("\n", " "))


def stored_state(connection: sqlite3.Connection) -> StoreState:
    """Return the state in the file. Raises Damaged if it does not match its checksum."""
    rows = connection.execute("SELECT id, body, checksum FROM state").fetchall()
    try:
        if len(rows) == 1 and rows[0][0] == 1 and crc32c(rows[0][1]) == rows[0][2]:
            return decode_state(rows[0][1])
    except (*_ROW_ERRORS, Corrupt):
        pass
    raise Damaged("its state row is damaged or missing")


def checked_entries(connection: sqlite3.Connection, state: StoreState) -> Iterator[MetadataEntry]:
    """Yield all entries in order. Raises Damaged when a row of entries or leases does not match its checksum and, at
    the end, when the rows are not exactly those that `state` counts."""
    count = digest = 0
    last = b""
    for row in connection.execute(_ALL):
        try:
            entry, checksum = MetadataEntry._make(row[:6]), row[6]
            intact = entry_checksum(entry) == checksum and entry.key > last
        except _ROW_ERRORS:
            intact = False
        if not intact:
            raise Damaged(f"the entry of key {row[0]!r} is damaged or out of order")
        count, digest, last = count + 1, digest + checksum, entry.key
        yield entry
    for lease, ttl_ms, checksum in connection.execute("SELECT id, ttl_ms, checksum FROM lease"):
        try:
            intact = lease_checksum((lease, ttl_ms)) == checksum
        except _ROW_ERRORS:
            intact = False
        if not intact:
            raise Damaged(f"lease {lease!r} is damaged")
        count, digest = count + 1, digest + checksum
    if (count, digest % DIGEST_MODULUS) != (state.rows, state.digest):
        raise Damaged(f"it has {count} rows that are not the {state.rows} that were written")


def read_version_1(connection: sqlite3.Connection, store_id: str) -> Contents:
    """Check a database of schema version 1 and return its content, as that of a new store with the id `store_id`."""
    run = connection.execute
    _check_pages(connection)
    revision = run("SELECT value FROM number WHERE name = 'revision'").fetchone()
    if revision is None or not isinstance(revision[0], int):
        raise Damaged("it has lost its revision")
    entries: dict[bytes, MetadataEntry] = {}
    for row in run(_ALL):
        try:
            entry = MetadataEntry._make(row[:6])
            intact = entry_checksum_v1(entry) == row[6]
        except _ROW_ERRORS:
            intact = False
        if not intact:
            raise Damaged(f"the entry of key {row[0]!r} is damaged")
        entries[entry.key] = entry
    leases = dict(run("SELECT id, ttl_ms FROM lease").fetchall())
    given_out = run("SELECT seq FROM sqlite_sequence WHERE name = 'lease'").fetchone()
    last_lease = max(0 if given_out is None else given_out[0], *leases, 0)
    digest = sum(map(entry_checksum, entries.values())) + sum(map(lease_checksum, leases.items()))
    rows = len(entries) + len(leases)
    state = StoreState(store_id, 0, revision[0], last_lease, rows, digest % DIGEST_MODULUS)
    return Contents(state, entries, leases)


def build(path: Path, contents: Contents) -> None:
    """Write a database with exactly these contents into a new file that only its owner can read. The caller syncs
    it."""
    path.touch(mode=0o600, exist_ok=False)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        run = connection.execute
        run("PRAGMA journal_mode = OFF")  # an unfinished file is thrown away
        run("PRAGMA synchronous = OFF")
        run("BEGIN IMMEDIATE")
        for statement in _SCHEMA.values():
            run(statement)
        run(f"PRAGMA application_id = {APPLICATION_ID}")
        run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        entries = sorted(contents.entries.values())
        connection.executemany(_PUT, ((*entry, entry_checksum(entry)) for entry in entries))
        leases = sorted(contents.leases.items())
        connection.executemany("INSERT INTO lease VALUES (?, ?, ?)", ((*one, lease_checksum(one)) for one in leases))
        body = encode_state(contents.state)
        run("INSERT INTO state VALUES (1, ?, ?)", (body, crc32c(body)))
        run("COMMIT")
    finally:
        connection.close()


_RESTART: Final = "start the broker again, which repairs it from metadata.journal beside it"


def translate(error: sqlite3.Error, path: Path) -> Exception:
    """Return the DanubeError for an error of SQLite; return `error` itself if it can only be a bug."""
    code = getattr(error, "sqlite_errorcode", None)
    match None if code is None else code & 0xFF:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_ERROR | sqlite3.SQLITE_SCHEMA:
            return Corrupt(f"metadata database {path} is damaged ({error}): {_RESTART}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"metadata database {path} is in use by another process: stop that broker first")
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
    """Return the first byte string after all that begin with `prefix`. UTF-8 has no 0xFF, so the last byte can grow."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"
