"""The manifest format: all metadata of a cluster in one object, from which a lost broker is restored.

Numbers are little-endian; times are microseconds since 1970.

```
 0         64
 +---------+------+------+-----+-----+
 | header  | page | page | ... | END |
 +---------+------+------+-----+-----+

 header     0  4 magic "DMAN"     4  1 version = 1     5  1 zero     6  2 flags     8  8 created at    16  8 number
           24 36 zero            60  4 CRC32C of bytes 0..60
 page       0  1 kind             1  3 zero            4  4 stored length           8  4 plain length
           12  4 CRC32C of bytes 0..12 and of the stored bytes        16  the stored bytes: zlib over MessagePack

 1 ABOUT    [format = 1, cluster, writer, store id, revision, etcd cluster, term, mark key, mark]
                                                                       the last four only where the store is an etcd
 2 KEYS     [[key, value], ...]                                        the metadata, sorted by key
 3 PLACES   [[topic id, partition, end offset, [cursor, ...], owner epoch, known at], ...]
                                                                       as the running brokers knew them
   cursor   [subscription id, position, [[start, end], ...]]           acked: all below the position, and these
 4 END      [pages before this one, keys, places]
```

A manifest is valid only if it is complete: every page is checked, and END contains the number of pages.

Invariants of a manifest that `ClusterManifest.open` returned
    every page can be read, none is missing, nothing follows END
    keys are strictly increasing
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final, Self, TypeAlias

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import CursorEntry
from pydanube.model.limits import MIB

MAGIC: Final = b"DMAN"
VERSION: Final = 1
FORMAT: Final = 1
HEADER_BYTES: Final = 64

PAGE_BYTES: Final = 1 * MIB
"""Approximate size at which a page is closed, before compression."""

PAGE_BYTES_MAX: Final = 16 * MIB
"""The most that a page may have, with a large last row: a metadata value, or all cursors of a partition."""

_HEADER: Final = struct.Struct("<4sBBHqQ36s")
_PAGE: Final = struct.Struct("<B3sII")
_CRC: Final = struct.Struct("<I")
_PAGE_HEAD_BYTES: Final = _PAGE.size + _CRC.size

ByteBuffer: TypeAlias = bytes | bytearray | memoryview
Pair: TypeAlias = tuple[str, bytes]

assert _HEADER.size + _CRC.size == HEADER_BYTES


class PageKind(IntEnum):
    ABOUT = 1
    KEYS = 2
    PLACES = 3
    END = 4


class ManifestAbout(msgspec.Struct, array_like=True, frozen=True):
    format: int
    cluster: str
    writer: str
    store_id: str = ""
    """Id of the metadata store that the manifest was made from; empty in manifests of earlier releases."""
    revision: int = 0
    """Revision of that store."""


class EtcdAbout(ManifestAbout, array_like=True, frozen=True):
    """What begins the manifest of a broker whose metadata is in an etcd."""

    etcd_cluster: str = ""
    """The id that the etcd gave itself."""
    etcd_term: int = 0
    mark_key: str = ""
    """The key of a broker's log, which only that broker writes."""
    mark: int = 0
    """The revision at which it was written last: an etcd that has an older version of it is an older copy."""


class PartitionPositions(msgspec.Struct, array_like=True, frozen=True):
    """The end offset of a partition, and the cursors of its subscriptions."""

    topic_id: int
    index: int
    end_offset: int
    cursors: list[CursorEntry]
    epoch: int = 0
    """The epoch of the owner that knew them; 0 in manifests of earlier releases."""
    known_at: int = 0
    """When the owner knew them, by its clock, in microseconds since 1970."""


class End(msgspec.Struct, array_like=True, frozen=True):
    pages: int
    keys: int
    places: int


class ManifestBuilder:
    """Builds a manifest page by page. It holds only compressed pages in memory."""

    def __init__(
        self,
        cluster: str,
        writer: str,
        number: int,
        created_at_us: int,
        store_id: str = "",
        revision: int = 0,
        etcd: tuple[str, int, str, int] | None = None,
    ) -> None:
        """`etcd`: its cluster id and term, a mark key and its revision; None: the metadata is in no etcd."""
        checked = _HEADER.pack(MAGIC, VERSION, 0, 0, created_at_us, number, bytes(36))
        self._pieces: list[bytes] = [checked + _CRC.pack(crc32c(checked))]
        self._keys = self._places = 0
        about = FORMAT, cluster, writer, store_id, revision
        self._add(PageKind.ABOUT, ManifestAbout(*about) if etcd is None else EtcdAbout(*about, *etcd))

    def add_keys(self, pairs: Sequence[Pair]) -> None:
        """Add a page of key-value pairs, ideally of about PAGE_BYTES. Keys continue after those of the last page."""
        if pairs:
            self._add(PageKind.KEYS, pairs)
            self._keys += len(pairs)

    def add_positions(self, places: Sequence[PartitionPositions]) -> None:
        if places:
            self._add(PageKind.PLACES, places)
            self._places += len(places)

    def finish(self) -> list[bytes]:
        """Return the object as a list of pieces."""
        self._add(PageKind.END, End(len(self._pieces) - 1, self._keys, self._places))
        return self._pieces

    def _add(self, kind: PageKind, content: Any) -> None:
        plain = msgspec.msgpack.encode(content)
        assert len(plain) <= PAGE_BYTES_MAX
        stored = zlib.compress(plain, 1)
        head = _PAGE.pack(kind, bytes(3), len(stored), len(plain))
        self._pieces.append(head + _CRC.pack(crc32c(stored, crc32c(head))) + stored)


class ClusterManifest:
    """A complete manifest. Its pages are decompressed on access."""

    def __init__(
        self,
        name: str,
        number: int,
        created_at_us: int,
        about: ManifestAbout,
        pages: list[tuple[PageKind, memoryview, int]],
    ) -> None:
        self.name = name
        self.number = number
        """Of two manifests of a cluster, the one with the higher number is newer."""
        self.created_at_us = created_at_us
        self.cluster = about.cluster
        self.writer = about.writer
        self.store_id = about.store_id
        self.revision = about.revision
        self._pages = pages
        self.keys = self.places = 0

    @classmethod
    def open(cls, data: ByteBuffer, name: str = "manifest") -> Self:
        """Open and check a manifest. Raises only Corrupt, if any part of it cannot be read."""
        number, created_at_us = _read_header(data, name)
        pages = list(_pages(memoryview(data), name))
        if len(pages) < 2 or pages[0][0] is not PageKind.ABOUT or pages[-1][0] is not PageKind.END:
            raise Corrupt(f"{name}: does not begin and end as a manifest does: it is cut short")
        about = _decode_page(pages[0], ManifestAbout, name)
        if about.format != FORMAT:
            raise Corrupt(f"{name}: has format {about.format}, and this release reads format {FORMAT}")
        manifest = cls(name, number, created_at_us, about, pages[1:-1])
        manifest._check(_decode_page(pages[-1], End, name), len(pages) - 1)
        return manifest

    def pairs(self) -> Iterator[list[Pair]]:
        """Yield the metadata page by page, sorted by key."""
        for page in self._pages:
            if page[0] is PageKind.KEYS:
                yield _decode_page(page, list[Pair], self.name)

    def all_positions(self) -> Iterator[PartitionPositions]:
        for page in self._pages:
            if page[0] is PageKind.PLACES:
                yield from _decode_page(page, list[PartitionPositions], self.name)

    def _check(self, end: End, pages: int) -> None:
        last = ""
        for pairs in self.pairs():
            for key, _ in pairs:
                if key <= last:
                    raise Corrupt(f"{self.name}: key {key!r} comes after {last!r}")
                last = key
            self.keys += len(pairs)
        self.places = sum(1 for _ in self.all_positions())
        if (end.pages, end.keys, end.places) != (pages, self.keys, self.places):
            raise Corrupt(f"{self.name}: has {pages} pages, {self.keys} keys and {self.places} places instead of {end}")


ABOUT_BYTES_MAX: Final = 4096
"""The header of a manifest and its first page, which says whose it is, have no more bytes than this."""


def read_about(data: ByteBuffer, name: str) -> EtcdAbout:
    """Return what the first ABOUT_BYTES_MAX bytes of a manifest say about it. Raises Corrupt."""
    _read_header(data, name)
    first = next(_pages(memoryview(data), name), None)
    if first is None or first[0] is not PageKind.ABOUT:
        raise Corrupt(f"{name}: does not begin as a manifest does")
    about: EtcdAbout = _decode_page(first, EtcdAbout, name)
    return about


def _read_header(data: ByteBuffer, name: str) -> tuple[int, int]:
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{name}: header is cut short at {len(data)} bytes")
    magic, version, zero, flags, created_at_us, number, zeros = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Corrupt(f"{name}: does not begin with {MAGIC!r} but with {magic!r}: it is no manifest")
    if crc32c(memoryview(data)[: _HEADER.size]) != _CRC.unpack_from(data, _HEADER.size)[0]:
        raise Corrupt(f"{name}: header does not match its checksum")
    if version != VERSION:
        raise Corrupt(f"{name}: manifest version {version} is unknown to this release, which reads version {VERSION}")
    if flags or zero or any(zeros):
        raise Corrupt(f"{name}: uses flags or bytes of the header that this release does not know of")
    return number, created_at_us


def _pages(data: memoryview, name: str) -> Iterator[tuple[PageKind, memoryview, int]]:
    """Yield every page after a check: its kind, its stored bytes and its decompressed length."""
    at = HEADER_BYTES
    while at < len(data):
        if at + _PAGE_HEAD_BYTES > len(data):
            raise Corrupt(f"{name}: page at byte {at} is cut short")
        kind, zeros, stored_length, plain_length = _PAGE.unpack_from(data, at)
        start, end = at + _PAGE_HEAD_BYTES, at + _PAGE_HEAD_BYTES + stored_length
        if end > len(data):
            raise Corrupt(f"{name}: page at byte {at} is cut short")
        stored = data[start:end]
        if crc32c(stored, crc32c(data[at : at + _PAGE.size])) != _CRC.unpack_from(data, at + _PAGE.size)[0]:
            raise Corrupt(f"{name}: page at byte {at} does not match its checksum")
        if plain_length > PAGE_BYTES_MAX or any(zeros):
            raise Corrupt(f"{name}: page at byte {at} is nothing that this release knows")
        try:
            yield PageKind(kind), stored, plain_length
        except ValueError:
            raise Corrupt(f"{name}: page at byte {at} is of kind {kind}, unknown to this release") from None
        at = end


def _decode_page(page: tuple[PageKind, memoryview, int], kind: Any, name: str) -> Any:
    what, stored, plain_length = page
    try:
        decompression = zlib.decompressobj()
        plain = decompression.decompress(stored, plain_length + 1)
        if len(plain) != plain_length or not decompression.eof or decompression.unused_data:
            raise Corrupt(f"{name}: a page of {what.name} does not unpack to its {plain_length} bytes")
        return msgspec.msgpack.decode(plain, type=kind)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"{name}: a page of {what.name} cannot be read ({error})") from None
