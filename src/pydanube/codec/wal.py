"""The write-ahead log as bytes: records, the first record of every file, and the manifest.

A record is a header of 64 bytes, a body, and zeros up to the next multiple of 64. Numbers are little-endian.

```
  0  4 magic "DREC"     4  1 version = 1     5  1 kind       6  2 flags (none is known yet)
  8  8 generation of the file              16  8 position of this record in the whole log
 24  8 ledger id                           32  8 entry id (SEAL: the last entry that counts, -1 for none)
 40  8 durable: everything below this position was synced when the record was written
 48  4 owner epoch     52  4 body length   56  4 CRC32C of the body     60  4 CRC32C of bytes 0..60
```

The body of a DATA record is one stamped batch. Its CRC field repeats the CRC of the batch's own body from the batch
header, where two more checksums protect the header itself. In every other record the CRC covers the whole body.

The manifest is two lines of text: a JSON object and its CRC32C in hexadecimal.

```
{"format":1,"oldest":1,"newest":7,"cluster":"...","node":"...","incarnation":"..."}
9ab3c04f
```
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt, Refused
from pydanube.model.limits import ALIGNMENT, RECORD_BODY_BYTES_MAX

from .batch.header import HEADER_CRC_START, STAMP_CRC_START, STAMP_START, blank_header, fields_struct
from .batch.header import ByteBuffer as ByteBuffer
from .batch.layout import HEADER_BYTES

MAGIC: Final = b"DREC"
VERSION: Final = 1
FORMAT: Final = 1
"""The format version of the manifest, and so of the whole directory."""

RECORD_HEADER_BYTES: Final = 64
CHECKED: Final = struct.Struct("<4sBBHqqqqqIII")
"""The header without its checksum."""

CHECKSUM: Final = struct.Struct("<I")
GENERATION: Final = struct.Struct("<q")
GENERATION_AT: Final = 8
HEADER: Final = struct.Struct(CHECKED.format + "I")
BATCH_HEADER_BYTES: Final = HEADER_BYTES
BATCH: Final = fields_struct("span", "body_crc", "header_crc")
"""Of a batch: span, CRC of its body, CRC of the producer's part of its header."""

PEEK: Final = fields_struct("span", "base_offset", "append_time")
"""Of a batch that was verified before: span, base offset, append time."""

HEADERS_BYTES: Final = RECORD_HEADER_BYTES + BATCH_HEADER_BYTES
HEADERS: Final = struct.Struct(
    HEADER.format
    + fields_struct("span", "body_crc", "base_offset", "append_time", end=BATCH_HEADER_BYTES).format.removeprefix("<")
)
"""A record header and the batch header after it: the fields of the record, then span, CRC of the batch's body, base
offset, append time."""

assert HEADERS.size == HEADERS_BYTES
assert HEADER.size == RECORD_HEADER_BYTES == ALIGNMENT


class RecordKind(IntEnum):
    """The kind of a record. A number is never reused with another meaning."""

    FILE = 1
    """The first record of every file: to which node the log belongs, and where in the log the file begins."""
    DATA = 2
    """One batch."""
    LEDGER_START = 3
    """The control entry that begins a data ledger."""
    STATE_DELTA = 4
    STATE_SNAPSHOT = 5
    SEAL = 6
    """Entries of the ledger after the entry named here do not count. A seal takes no entry id of its own."""


KINDS_KNOWN: Final = frozenset(int(kind) for kind in RecordKind)
FLAGS_KNOWN: Final = 0


class RecordHeader(NamedTuple):
    """A header whose checksum matched and whose version, kind and flags are known."""

    kind: int
    flags: int
    generation: int
    position: int
    ledger_id: int
    entry_id: int
    durable: int
    owner_epoch: int
    body_length: int
    body_crc: int


class NodeIdentity(msgspec.Struct, frozen=True):
    """The node that a data directory belongs to. The incarnation is random and made with the directory, so that two
    directories are never confused."""

    cluster: str
    node: str
    incarnation: str


class MetadataStamp(NamedTuple):
    """The metadata that the log depends on: this store, at this revision or a later one."""

    store_id: str
    revision: int


class FileBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a FILE record, in MessagePack."""

    cluster: str
    node: str
    incarnation: str
    base: int
    """The log position at which this file begins; records of the file before it from there on do not count."""
    store_id: str = ""
    """The metadata store when the file was created; empty in files of earlier releases, which wrote neither this nor
    the revision."""
    revision: int = 0

    @property
    def metadata(self) -> MetadataStamp | None:
        return MetadataStamp(self.store_id, self.revision) if self.store_id else None

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity(self.cluster, self.node, self.incarnation)


class LogManifest(msgspec.Struct, frozen=True):
    """Which files make up the log: every generation in [oldest, newest]. None when newest < oldest."""

    format: int
    oldest: int
    newest: int
    cluster: str
    node: str
    incarnation: str

    @property
    def identity(self) -> NodeIdentity:
        return NodeIdentity(self.cluster, self.node, self.incarnation)


def record_bytes(body_length: int) -> int:
    """Return how many bytes a record with a body of this length takes in the log."""
    return (body_length + RECORD_HEADER_BYTES + ALIGNMENT - 1) & -ALIGNMENT


def encode_header(
    kind: int,
    generation: int,
    position: int,
    ledger_id: int,
    entry_id: int,
    durable: int,
    owner_epoch: int,
    body_length: int,
    body_crc: int,
) -> bytes:
    checked = CHECKED.pack(
        MAGIC, VERSION, kind, 0, generation, position, ledger_id, entry_id, durable, owner_epoch, body_length, body_crc
    )
    return checked + CHECKSUM.pack(crc32c(checked))


def encode_record(
    kind: int, generation: int, position: int, ledger_id: int, entry_id: int, durable: int, body: ByteBuffer = b""
) -> bytes:
    """Return a whole record whose body is not a batch."""
    crc = crc32c(body)
    header = encode_header(kind, generation, position, ledger_id, entry_id, durable, 0, len(body), crc)
    return header + bytes(body) + bytes(-len(body) % ALIGNMENT)


def decode_header(buffer: ByteBuffer, at: int = 0, expected: tuple[int, int] | None = None) -> RecordHeader | None:
    """Return the record header at `at`, or None if there is none. With `expected`, a header of another generation and
    position is none either.

    Raises Refused for a version, kind or flag of a later release: the checksum matches, so it is no damage.
    """
    if len(buffer) - at < RECORD_HEADER_BYTES:
        return None
    fields = HEADER.unpack_from(buffer, at)
    if fields[0] != MAGIC or crc32c(memoryview(buffer)[at : at + CHECKED.size]) != fields[12]:
        return None
    if expected is not None and fields[4:6] != expected:
        return None
    if fields[1] != VERSION:
        raise Refused(f"record version {fields[1]} is unknown to this release, which reads version {VERSION}")
    header = RecordHeader(*fields[2:12])
    if header.kind not in KINDS_KNOWN:
        raise Refused(f"record kind {header.kind} is unknown to this release")
    if header.flags & ~FLAGS_KNOWN:
        raise Refused(f"record flags {header.flags:#06x} are unknown to this release")
    return header if header.body_length <= RECORD_BODY_BYTES_MAX else None


def _whole_headers() -> bytes:
    """Return some record header followed by some stamped batch header, with correct checksums."""
    return encode_header(RecordKind.DATA, 0, 0, 0, 0, 0, 0, 0, 0) + blank_header()


RECORD_HEADER_RESIDUE: Final = crc32c(_whole_headers()[:RECORD_HEADER_BYTES])
HEADERS_RESIDUE: Final = crc32c(_whole_headers())
"""The CRC of bytes that end with their own CRC is a constant. So one CRC over a record header, or over a record header
and the batch header behind it, verifies all checksums in them at once, and finds what each of them would find."""


def batch_is_intact(body: memoryview, body_crc: int) -> bool:
    """Return whether all three checksums of a stored batch match, and the record header has the same CRC of the
    body."""
    if len(body) < BATCH_HEADER_BYTES:
        return False
    _, own_crc, header_crc = BATCH.unpack_from(body)
    stamp_crc = CHECKSUM.unpack_from(body, STAMP_CRC_START)[0]
    return bool(
        own_crc == body_crc
        and crc32c(body[:HEADER_CRC_START]) == header_crc
        and crc32c(body[STAMP_START:STAMP_CRC_START]) == stamp_crc
        and crc32c(body[BATCH_HEADER_BYTES:]) == body_crc
    )


def body_is_intact(kind: int, body: memoryview, body_crc: int) -> bool:
    if kind == RecordKind.DATA:
        return batch_is_intact(body, body_crc)
    return bool(crc32c(body) == body_crc)


def encode_file_body(identity: NodeIdentity, base: int, metadata: MetadataStamp | None = None) -> bytes:
    body = FileBody(identity.cluster, identity.node, identity.incarnation, base, *(metadata or ()))
    return msgspec.msgpack.encode(body)


def decode_file_body(body: ByteBuffer) -> FileBody:
    try:
        return msgspec.msgpack.decode(body, type=FileBody)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the first record cannot be read: {error}") from None


def encode_manifest(identity: NodeIdentity, oldest: int, newest: int) -> bytes:
    manifest = LogManifest(FORMAT, oldest, newest, identity.cluster, identity.node, identity.incarnation)
    return with_checksum(msgspec.json.encode(manifest))


def decode_manifest(text: bytes) -> LogManifest:
    line = checked_line(text)
    try:
        written_format = msgspec.json.decode(line, type=dict[str, object]).get("format")
        if written_format != FORMAT:
            raise Refused(f"log format {written_format} is unknown to this release, which reads format {FORMAT}")
        return msgspec.json.decode(line, type=LogManifest)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"cannot be read: {error}") from None


def with_checksum(line: bytes) -> bytes:
    """Return the line of text and, on a second line, its CRC32C."""
    return b"%b\n%08x\n" % (line, crc32c(line))


def checked_line(text: bytes) -> bytes:
    """Return the line that was given to `with_checksum`. Raises Corrupt if the checksum does not match."""
    line, _, checksum = text.partition(b"\n")
    if checksum != b"%08x\n" % crc32c(line):
        raise Corrupt("does not match its checksum")
    return line
