"""The embedded metadata store as bytes: the checksums of its rows, its state, and the records of its journal.

The journal is a snapshot of all rows followed by one record for each committed group of changes. A record is a header
of 36 bytes and a body in MessagePack; records follow each other without padding. Numbers are little-endian.

```
  0  4 magic "DMJR"     4  1 version = 1     5  1 kind     6  2 flags (none is known yet)
  8  8 commit           16  8 body length              24  4 CRC32C of the body
 28  4 CRC32C of the header before this one (the first record: 0)            32  4 CRC32C of bytes 0..32

 ROWS      [[entry, ...], [lease, ...]]                      some rows of the snapshot, in any order
 SNAPSHOT  state                                             the rows before it are all there were at this commit
 CHANGES   [state, [entry, ...], [key, ...], [lease, ...], [lease id, ...]]
                                                             written and deleted entries, granted and ended leases
 entry     [key, value, version, create revision, mod revision, lease]            key and value are binary
 lease     [id, time to live in ms]
 state     [store id, commit, revision, last lease, rows, digest, [[store id, revision], ...]]
```

A journal is ROWS records (none when the store is empty), one SNAPSHOT, and CHANGES whose commits follow each other
without a gap; then zeros up to the end of the file, which is extended ahead of its records. The database keeps the same
`state` and the same checksums of rows, so that the two can be compared.

The digest is the sum of the checksums of all rows, modulo 2**63. It does not depend on their order, so that a commit
updates it from the rows that it changes; a row that vanished, appeared or changed without a commit shows in it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt, Refused

MAGIC: Final = b"DMJR"
VERSION: Final = 1
DIGEST_MODULUS: Final = 2**63

_CHECKED: Final = struct.Struct("<4sBBHQQII")
"""The header without its checksum."""
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _CHECKED.size + _CRC.size
_ENTRY: Final = struct.Struct("<QQQQQ")
_LEASE: Final = struct.Struct("<QQ")

ByteBuffer: TypeAlias = bytes | bytearray | memoryview
Lease: TypeAlias = tuple[int, int]
"""Id and time to live in ms."""


class JournalRecordKind(IntEnum):
    """The kind of a record. A number is never reused with another meaning."""

    ROWS = 1
    SNAPSHOT = 2
    CHANGES = 3


class MetadataEntry(NamedTuple):
    """One key as it is stored."""

    key: bytes
    value: bytes
    version: int
    create_revision: int
    mod_revision: int
    lease: int


class StoreState(msgspec.Struct, array_like=True, frozen=True):
    """The state of a store after one commit."""

    store_id: str
    commit: int = 0
    """How many commits changed something. The revision does not count commits that only granted a lease."""
    revision: int = 0
    last_lease: int = 0
    """The highest lease id given out; ids are never reused."""
    rows: int = 0
    """The number of entries and leases."""
    digest: int = 0
    succeeds: tuple[tuple[str, int], ...] = ()


class Changes(msgspec.Struct, array_like=True, frozen=True):
    """What one commit changed, and the state after it."""

    state: StoreState
    written: list[MetadataEntry] = []
    deleted: list[bytes] = []
    granted: list[Lease] = []
    ended: list[int] = []


class SnapshotRows(msgspec.Struct, array_like=True, frozen=True):
    """Part of a snapshot."""

    entries: list[MetadataEntry] = []
    leases: list[Lease] = []


@dataclass(slots=True)
class Contents:
    """The whole content of a store."""

    state: StoreState
    entries: dict[bytes, MetadataEntry] = field(default_factory=dict)
    leases: dict[int, int] = field(default_factory=dict)

    def matches_digest(self) -> bool:
        """Return whether number and digest of the rows are those in the state."""
        total = sum(map(entry_checksum, self.entries.values())) + sum(map(lease_checksum, self.leases.items()))
        rows = len(self.entries) + len(self.leases)
        return (rows, total % DIGEST_MODULUS) == (self.state.rows, self.state.digest)


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of scanning a journal without damage."""

    state: StoreState
    """The state after the last commit."""
    snapshot_bytes: int
    size: int
    """The length of all records, without the zeros behind the last one."""
    last_checksum: int
    """The CRC of the last header, which the next record repeats."""


def entry_checksum(entry: MetadataEntry) -> int:
    """Return the checksum of one entry. It covers the length of the key, so that bytes cannot move from key to
    value."""
    key, value, version, create_revision, mod_revision, lease = entry
    numbers = _ENTRY.pack(version, create_revision, mod_revision, lease, len(key))
    return crc32c(value, crc32c(key, crc32c(numbers)))


def entry_checksum_v1(entry: MetadataEntry) -> int:
    """Return the checksum of an entry in a database of schema version 1."""
    key, value, version, create_revision, mod_revision, lease = entry
    numbers = struct.pack("<QQQQ", version, create_revision, mod_revision, lease)
    return crc32c(value, crc32c(key, crc32c(numbers)))


def lease_checksum(lease: Lease) -> int:
    return crc32c(_LEASE.pack(*lease))


def encode_state(state: StoreState) -> bytes:
    return msgspec.msgpack.encode(state)


def decode_state(body: ByteBuffer) -> StoreState:
    state: StoreState = _decode(body, StoreState, "state")
    return state


def encode_record(kind: JournalRecordKind, commit: int, body: ByteBuffer, previous: int) -> tuple[bytes, int]:
    """Return the header for this body, and the checksum that the next record will name as its `previous`."""
    checked = _CHECKED.pack(MAGIC, VERSION, kind, 0, commit, len(body), crc32c(body), previous)
    checksum = crc32c(checked)
    return checked + _CRC.pack(checksum), checksum


def encode_body(body: SnapshotRows | StoreState | Changes) -> bytes:
    return msgspec.msgpack.encode(body)


class _Record(NamedTuple):
    kind: JournalRecordKind
    commit: int
    body: memoryview
    end: int
    checksum: int


def _records(data: ByteBuffer) -> Iterator[_Record]:
    """Yield every record. Raises Corrupt at the first damaged record, Refused for a version of a later release."""
    view, at, previous = memoryview(data), 0, 0
    while at < len(view):
        start = at + HEADER_BYTES
        if view[at] == 0 and not bytes(view[at:]).strip(b"\0"):
            return
        if start > len(view):
            raise Corrupt(f"the record at byte {at} is cut short")
        magic, version, kind, flags, commit, length, body_crc, names = _CHECKED.unpack_from(view, at)
        checksum = crc32c(view[at : at + _CHECKED.size])
        if magic != MAGIC or checksum != _CRC.unpack_from(view, at + _CHECKED.size)[0]:
            raise Corrupt(f"there is no record at byte {at}")
        if version != VERSION or flags or kind not in tuple(JournalRecordKind):
            raise Refused(
                f"its record at byte {at} has version {version}, kind {kind} and flags {flags:#06x}, which this release"
                f" does not know: it was written by a newer release; run that one or a later one"
            )
        if names != previous:
            raise Corrupt(f"the record at byte {at} does not follow the one before it")
        if start + length > len(view):
            raise Corrupt(f"the record at byte {at} is cut short")
        body = view[start : start + length]
        if crc32c(body) != body_crc:
            raise Corrupt(f"the record at byte {at} does not match its checksum")
        at, previous = start + length, checksum
        yield _Record(JournalRecordKind(kind), commit, body, at, checksum)


def scan_journal(data: ByteBuffer) -> Scan:
    """Check the records of a journal without decoding its rows. Raises Corrupt (damage) or Refused (a later
    version)."""
    state: StoreState | None = None
    snapshot_bytes = 0
    record: _Record | None = None
    for record in _records(data):
        expected = (
            (JournalRecordKind.ROWS, JournalRecordKind.SNAPSHOT) if state is None else (JournalRecordKind.CHANGES,)
        )
        if record.kind not in expected or (state is not None and record.commit != state.commit + 1):
            raise Corrupt(f"the record that ends at byte {record.end} is out of place")
        if record.kind is JournalRecordKind.SNAPSHOT:
            state, snapshot_bytes = decode_state(record.body), record.end
        elif record.kind is JournalRecordKind.CHANGES:
            assert state is not None
            state = msgspec.structs.replace(state, commit=record.commit)
    if state is None or record is None:
        raise Corrupt("it holds no whole snapshot")
    if record.kind is JournalRecordKind.CHANGES:
        state = _decode(record.body, Changes, "record").state
    if state.commit != record.commit:
        raise Corrupt("its last record does not speak of its own commit")
    return Scan(state, snapshot_bytes, record.end, record.checksum)


def highest_commit(data: ByteBuffer) -> int:
    """Return the highest commit in any whole header of a damaged journal; 0 if there is none.

    A record is written after the database has committed, so a database with a lower commit has lost commits.
    """
    whole, highest, at = bytes(data), 0, -1
    while (at := whole.find(MAGIC, at + 1)) >= 0 and at + HEADER_BYTES <= len(whole):
        checked = whole[at : at + _CHECKED.size]
        if crc32c(checked) == _CRC.unpack_from(whole, at + _CHECKED.size)[0]:
            highest = max(highest, _CHECKED.unpack(checked)[4])
    return highest


def read_journal(data: ByteBuffer) -> Contents:
    """Return the content of a journal. Raises Corrupt if it is damaged or does not match its digest."""
    contents = Contents(scan_journal(data).state)
    for record in _records(data):
        if record.kind is JournalRecordKind.ROWS:
            rows = _decode(record.body, SnapshotRows, "record")
            contents.entries.update((entry.key, entry) for entry in rows.entries)
            contents.leases.update(rows.leases)
        elif record.kind is JournalRecordKind.CHANGES:
            _apply(contents, _decode(record.body, Changes, "record"))
    if not contents.matches_digest():
        raise Corrupt("its rows are not those that its last record speaks of")
    return contents


def _apply(contents: Contents, changes: Changes) -> None:
    contents.entries.update((entry.key, entry) for entry in changes.written)
    contents.leases.update(changes.granted)
    for key in changes.deleted:
        contents.entries.pop(key, None)
    for lease in changes.ended:
        contents.leases.pop(lease, None)


def paged(entries: Iterable[MetadataEntry], leases: list[Lease], page_bytes: int) -> Iterator[SnapshotRows]:
    """Yield the rows of a snapshot, about `page_bytes` at a time."""
    if leases:
        yield SnapshotRows([], leases)
    page: list[MetadataEntry] = []
    size = 0
    for entry in entries:
        page.append(entry)
        size += len(entry.key) + len(entry.value) + _ENTRY.size
        if size >= page_bytes:
            yield SnapshotRows(page)
            page, size = [], 0
    if page:
        yield SnapshotRows(page)


def _decode(body: ByteBuffer, kind: Any, what: str) -> Any:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a {what} cannot be read ({error})") from None
