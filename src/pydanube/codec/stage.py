"""The stage format: one object with batches of any number of partitions, unchanged, that are not published yet.

```
 0         64                    section 1        section 2                     size
 +---------+---------------------+----------------+-----------------------------+
 | header  | index, zeros to 64  | batch, zeros to 64, batch, zeros to 64, ...  |
 +---------+---------------------+----------------+-----------------------------+

 header      0  4 magic "DSTG"   4  1 version = 1   5  1 zero   6  2 flags (none is known yet)
             8  8 created at (microseconds since 1970)         16  8 size of the object
            24  4 index length  28  4 CRC32C of the index      32  4 sections
            36 24 zero                                         60  4 CRC32C of bytes 0..60

 index       [format = 1, [[topic id, topic], ...], [section, ...]]         MessagePack arrays, which can grow
 section     [topic (its place in the list), partition, start byte, end byte, batches, messages]
```

All numbers are little-endian, and every batch starts on a multiple of 64. A stage is made from one frame, so its index
can be at the front: usually one read of a fixed size returns header and index. Batches have their own checksums.

Invariants of an index that `decode_index` returned
    sections are contiguous, from the end of the index to the end of the object, and none is empty
    no partition has two sections
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from pydanube.model.errors import Corrupt
from pydanube.model.limits import ALIGNMENT, FRAME_BYTES_MAX, MIB

from .batch.header import ByteBuffer, read_header
from .batch.layout import HEADER_BYTES as BATCH_HEADER_BYTES
from .contents import Expected, decode_contents
from .segment.split import BATCH_ROOM_MIN

MAGIC: Final = b"DSTG"
VERSION: Final = 1
FORMAT: Final = 1
FLAGS_KNOWN: Final = 0

HEADER_BYTES: Final = 64
FIRST_READ_BYTES: Final = 16 * 1024
"""Size of the first read: contains the header, and the index unless the stage has hundreds of partitions."""

INDEX_BYTES_MAX: Final = 4 * MIB
OBJECT_BYTES_MAX: Final = FRAME_BYTES_MAX + INDEX_BYTES_MAX + 2 * ALIGNMENT
"""The content of one frame after the largest index."""

_HEADER: Final = struct.Struct("<4sBBHqQIII24s")
_CRC: Final = struct.Struct("<I")
_ZEROS: Final = bytes(64)


assert _HEADER.size + _CRC.size == HEADER_BYTES == ALIGNMENT


class StageSection(msgspec.Struct, array_like=True, frozen=True):
    """The batches of one partition: bytes [start, end) of the object, including the padding after the last batch."""

    topic: int
    """Index into StageIndex.topics."""
    partition: int
    start: int
    end: int
    batches: int
    messages: int


class StageIndex(msgspec.Struct, array_like=True, frozen=True):
    """The topics and sections of a stage."""

    format: int
    topics: list[tuple[int, str]]
    """Id and name of each topic."""
    sections: list[StageSection]

    def topic_id(self, section: StageSection) -> int:
        return self.topics[section.topic][0]


@dataclass(frozen=True, slots=True)
class StageHeader:
    """The header of a stage, whose numbers were checked to be consistent."""

    index_length: int
    index_crc: int
    sections: int
    size: int
    created_at_us: int
    name: str = "stage"
    """The name of the object, for error messages."""

    @property
    def index_end(self) -> int:
        return HEADER_BYTES + self.index_length

    @property
    def batches_start(self) -> int:
        return aligned(self.index_end)


class StagePart(NamedTuple):
    """The checked batches of one partition that go into a stage. `topic` is an index into the list of topics."""

    topic: int
    partition: int
    batches: Sequence[ByteBuffer]
    messages: int


def padding(length: int) -> bytes:
    """Return zeros up to the next multiple of 64."""
    return _ZEROS[: -length % ALIGNMENT]


def aligned(length: int) -> int:
    """Return `length` rounded up to a multiple of 64."""
    return (length + ALIGNMENT - 1) & -ALIGNMENT


def encode(
    created_at_us: int, topics: Sequence[tuple[int, str]], parts: Sequence[StagePart]
) -> tuple[list[ByteBuffer], StageIndex]:
    """Return the object as a list of pieces, and its index. No batch is copied."""
    sizes = [sum(aligned(len(batch)) for batch in part.batches) for part in parts]
    index = _place(topics, parts, sizes)
    encoded = msgspec.msgpack.encode(index)
    first = index.sections[0].start
    size = first + sum(sizes)
    check_sections(index, StageHeader(len(encoded), 0, len(parts), size, created_at_us, "stage being made"))
    checked = _HEADER.pack(
        MAGIC, VERSION, 0, 0, created_at_us, size, len(encoded), crc32c(encoded), len(parts), _ZEROS[:24]
    )
    pieces: list[ByteBuffer] = [checked + _CRC.pack(crc32c(checked)) + encoded]
    pieces.append(_ZEROS[: first - len(pieces[0])])
    for part in parts:
        for batch in part.batches:
            pieces.append(batch)
            if zeros := padding(len(batch)):
                pieces.append(zeros)
    return pieces, index


def _place(topics: Sequence[tuple[int, str]], parts: Sequence[StagePart], sizes: Sequence[int]) -> StageIndex:
    """Return the index with the final byte positions of the sections.

    The positions depend on the length of the encoded index, and that on the positions, so this repeats until both
    agree. Larger numbers never take fewer bytes, so the start of the first section only rises, and the loop ends.
    """
    first = aligned(HEADER_BYTES + 1)
    while True:
        sections, place = [], first
        for part, size in zip(parts, sizes, strict=True):
            end = place + size
            sections.append(StageSection(part.topic, part.partition, place, end, len(part.batches), part.messages))
            place = end
        index = StageIndex(FORMAT, list(topics), sections)
        needed = aligned(HEADER_BYTES + len(msgspec.msgpack.encode(index)))
        if needed == first:
            return index
        first = needed


def read_stage_header(head: ByteBuffer, name: str = "stage") -> StageHeader:
    """Decode the header from the first bytes of an object; `head` may be longer. Raises only Corrupt."""
    if len(head) < HEADER_BYTES:
        raise Corrupt(f"{name}: header is cut short at {len(head)} bytes")
    magic, version, zero, flags, created_at_us, size, length, index_crc, sections, zeros = _HEADER.unpack_from(head)
    if magic != MAGIC:
        raise Corrupt(f"{name}: does not begin with {MAGIC!r} but with {magic!r}: it is no stage")
    if crc32c(memoryview(head)[: HEADER_BYTES - _CRC.size]) != _CRC.unpack_from(head, HEADER_BYTES - _CRC.size)[0]:
        raise Corrupt(f"{name}: header does not match its checksum")
    if version != VERSION:
        raise Corrupt(f"{name}: stage version {version} is unknown to this release, which reads version {VERSION}")
    if flags & ~FLAGS_KNOWN or zero or any(zeros):
        raise Corrupt(f"{name}: unused bytes of the header are in use, which this release does not know of")
    if not 1 <= length <= INDEX_BYTES_MAX or not aligned(HEADER_BYTES + length) < size <= OBJECT_BYTES_MAX:
        raise Corrupt(f"{name}: an index of {length} bytes in an object of {size} is impossible")
    return StageHeader(length, index_crc, sections, size, created_at_us, name)


def decode_index(buffer: ByteBuffer, header: StageHeader) -> StageIndex:
    """Decode the index that `header` describes. Raises only Corrupt, with the name in the header."""
    expected = Expected("index", header.index_length, header.index_crc, FORMAT, header.name)
    index = decode_contents(buffer, expected, StageIndex)
    check_sections(index, header)
    return index


def check_sections(index: StageIndex, header: StageHeader) -> None:
    """Raise Corrupt unless the sections cover everything after the index, each with a different partition."""
    place, name = header.batches_start, header.name
    seen: set[tuple[int, int]] = set()
    if len(index.sections) != header.sections or not index.sections:
        raise Corrupt(f"{name}: index has {len(index.sections)} sections and the header {header.sections}")
    if any(topic_id < 1 for topic_id, _ in index.topics):
        raise Corrupt(f"{name}: a topic has no id")
    for number, one in enumerate(index.sections):
        if one.start != place or one.end > header.size or one.end % ALIGNMENT:
            raise Corrupt(f"{name}: section {number} is at {one.start}..{one.end}, not behind {place}")
        if not 0 <= one.topic < len(index.topics) or one.partition < 0 or (one.topic, one.partition) in seen:
            raise Corrupt(f"{name}: section {number} is of a partition that is unknown, or had one already")
        if not 1 <= one.batches <= one.messages or one.end - one.start < one.batches * BATCH_ROOM_MIN:
            raise Corrupt(f"{name}: section {number} cannot hold {one.batches} batches of {one.messages} messages")
        seen.add((one.topic, one.partition))
        place = one.end
    if place != header.size:
        raise Corrupt(f"{name}: sections end at {place}, and the object at {header.size}")


def split(section: memoryview, about: StageSection, name: str = "stage") -> list[memoryview]:
    """Split the bytes of a section into its batches, in order, and check that they are unchanged.

    `about` describes the section. Raises only Corrupt.
    """
    batches: list[memoryview] = []
    at = messages = 0
    while at < len(section):
        place = f"{name}: batch at byte {about.start + at}"
        try:
            header = read_header(section[at:])
        except Corrupt as error:
            raise Corrupt(f"{place}: {error.message}") from None
        end = at + header.batch_bytes
        if end > len(section):
            raise Corrupt(f"{place}: batch of {header.batch_bytes} bytes is cut short at {len(section) - at}")
        if crc32c(section[at + BATCH_HEADER_BYTES : end]) != header.body_crc:
            raise Corrupt(f"{place}: batch body does not match its checksum")
        batches.append(section[at:end])
        messages += header.count
        at = aligned(end)
    if (len(section), len(batches), messages) != (about.end - about.start, about.batches, about.messages):
        raise Corrupt(
            f"{name}: bytes {about.start}..{about.end} hold {len(batches)} batches of {messages} messages, not "
            f"{about.batches} of {about.messages}"
        )
    return batches
