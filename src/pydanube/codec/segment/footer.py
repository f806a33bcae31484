"""The footer of a segment: which offsets of which partitions the object holds, and at which bytes.

It consists of MessagePack arrays, to which later releases can append fields. Times are microseconds since 1970.

```
footer     [format = 1, writer, created at, [section, ...]]
section    [topic id, partition, ledger id, owner epoch, first offset, end offset, start byte, end byte,
            batches, messages, min append time, max append time, min publish time, max publish time,
            [[schema id, schema version], ...], [producer, ...], [entry, ...], CRC32C of bytes start..end]
producer   [id, epoch, next sequence, last append time, [[sequence, offset, count], ...]]    as of the end offset
entry      [offset, append time, byte]       the first batch of a block; a block is about 256 KiB
```

Invariants of a footer that `decode_footer` returned
    sections are contiguous, from the header to the footer, and none is empty
    the index of a section begins with its first batch; offsets and bytes increase, times never decrease
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import Final, NamedTuple

import msgspec

from pydanube.codec.batch.header import OFFSET_MAX, TIME_MAX, TIME_MIN
from pydanube.codec.contents import Expected, decode_contents
from pydanube.model.errors import Corrupt
from pydanube.model.ledgers import ProducerEntry
from pydanube.model.limits import ALIGNMENT

from .layout import HEADER_BYTES, ByteBuffer, Trailer
from .split import BATCH_ROOM_MIN, split

FORMAT: Final = 1
BLOCK_BYTES: Final = 256 * 1024
"""A batch that begins this far from the start of the current block begins a new block."""

_offset_of: Final = itemgetter(0)
_time_of: Final = itemgetter(1)
_byte_of: Final = itemgetter(2)


class Block(NamedTuple):
    """Complete batches of one section: bytes [start, end) of the object, offsets [first_offset, end_offset)."""

    start: int
    end: int
    first_offset: int
    end_offset: int


class SegmentSection(msgspec.Struct, array_like=True, frozen=True):
    """A contiguous range of offsets of one partition, from one ledger."""

    topic_id: int
    partition: int
    ledger_id: int
    owner_epoch: int
    first_offset: int
    end_offset: int
    start: int
    end: int
    """Bytes [start, end) of the object, including the padding after the last batch."""
    batches: int
    messages: int
    append_time_min: int
    append_time_max: int
    publish_time_min: int
    publish_time_max: int
    schemas: list[tuple[int, int]]
    """Id and version of every schema in use, sorted; (0, 0) means no schema."""
    producers: list[ProducerEntry]
    """The producer table of the partition as of the end offset."""
    index: list[tuple[int, int, int]]
    """Offset, append time and first byte of the first batch of each block."""
    crc: int

    def block_at_time(self, time_us: int) -> tuple[int, int]:
        """Return the bytes [start, end) of the block where a search for the first batch appended at or after `time_us`
        begins.

        The batch is in that block or is the first one of the next. There is none if `append_time_max` is earlier.
        """
        return self._bytes(max(0, bisect_left(self.index, time_us, key=_time_of) - 1))

    def blocks(self, first_offset: int = 0, end_offset: int = OFFSET_MAX) -> list[Block]:
        """Return the blocks that hold offsets of [first_offset, end_offset), as far as the section has them, in
        order."""
        first_offset, end_offset = max(first_offset, self.first_offset), min(end_offset, self.end_offset)
        if first_offset >= end_offset:
            return []
        first = bisect_right(self.index, first_offset, key=_offset_of) - 1
        last = bisect_left(self.index, end_offset, key=_offset_of)
        return [Block(*self._bytes(number), *self._offsets(number)) for number in range(first, last)]

    def offsets_between(self, start_us: int, end_us: int) -> tuple[int, int]:
        """Return the smallest range [first, end) of offsets, by the index, with all batches appended in [start_us,
        end_us)."""
        if start_us > self.append_time_max or end_us <= self.append_time_min or start_us >= end_us:
            return self.first_offset, self.first_offset
        first = max(0, bisect_left(self.index, start_us, key=_time_of) - 1)
        end = bisect_left(self.index, end_us, key=_time_of)
        return self.index[first][0], self.index[end][0] if end < len(self.index) else self.end_offset

    def split(self, block: memoryview, start: int, name: str = "segment") -> list[memoryview]:
        """Split complete blocks, which were read from byte `start` of the object on, into batches.

        Raises Corrupt unless they are exactly the batches that the index describes; see the function `split`.
        """
        first = bisect_left(self.index, start, key=_byte_of)
        end = bisect_left(self.index, start + len(block), key=_byte_of)
        assert self.index[first][2] == start
        if first >= end or self._bytes(end - 1)[1] != start + len(block):
            raise Corrupt(f"{name}: read {len(block)} bytes at {start}, which is no whole number of blocks")
        return split(block, self.index[first][0], self._offsets(end - 1)[1], name, start)

    def _bytes(self, number: int) -> tuple[int, int]:
        following = number + 1
        return self.index[number][2], self.index[following][2] if following < len(self.index) else self.end

    def _offsets(self, number: int) -> tuple[int, int]:
        following = number + 1
        return self.index[number][0], self.index[following][0] if following < len(self.index) else self.end_offset


class SegmentFooter(msgspec.Struct, array_like=True, frozen=True):
    """The content of a segment object."""

    format: int
    writer: str
    created_at_us: int
    sections: list[SegmentSection]

    @property
    def start(self) -> int:
        """The byte of the object where the footer starts."""
        return self.sections[-1].end


def decode_footer(buffer: ByteBuffer, trailer: Trailer) -> SegmentFooter:
    """Decode the footer that `trailer` describes. Raises only Corrupt, with the name in the trailer."""
    name = trailer.name
    expected = Expected("footer", trailer.footer_length, trailer.footer_crc, FORMAT, name)
    footer = decode_contents(buffer, expected, SegmentFooter)
    if len(footer.sections) != trailer.sections:
        raise Corrupt(f"{name}: footer has {len(footer.sections)} sections and the trailer {trailer.sections}")
    check_sections(footer.sections, trailer.footer_start, name)
    return footer


def check_sections(sections: list[SegmentSection], footer_start: int, name: str) -> None:
    """Raise Corrupt unless the sections cover everything between header and footer, and each is consistent."""
    place = HEADER_BYTES
    for number, section in enumerate(sections):
        if section.start != place or section.end > footer_start:
            raise Corrupt(f"{name}: section {number} is at {section.start}..{section.end}, not behind {place}")
        for what, holds in _rules(section):
            if not holds:
                raise Corrupt(f"{name}: section {number} at {section.start}: its {what} contradict each other")
        _check_index(section, number, name)
        place = section.end
    if place != footer_start:
        raise Corrupt(f"{name}: sections end at {place} and the footer starts at {footer_start}")


def _rules(section: SegmentSection) -> list[tuple[str, bool]]:
    room = section.end - section.start
    numbers = (section.topic_id, section.partition, section.ledger_id, section.owner_epoch, section.crc)
    return [
        ("ids", min(numbers) >= 0 and section.crc < 2**32),
        ("offsets", 0 <= section.first_offset < section.end_offset <= OFFSET_MAX),
        ("bytes", room % ALIGNMENT == 0 and section.batches >= 1 and room >= section.batches * BATCH_ROOM_MIN),
        ("counts", section.batches <= section.messages <= section.end_offset - section.first_offset),
        ("append times", 0 <= section.append_time_min <= section.append_time_max <= TIME_MAX),
        ("publish times", TIME_MIN <= section.publish_time_min <= section.publish_time_max <= TIME_MAX),
        ("schemas", bool(section.schemas) and all(0 <= each < 2**63 for pair in section.schemas for each in pair)),
    ]


def _check_index(section: SegmentSection, number: int, name: str) -> None:
    """Raise Corrupt unless the index begins with the first batch and increases in every column."""
    wrong = Corrupt(f"{name}: section {number} at {section.start}: its index does not fit it")
    index = section.index
    if not index or index[0] != (section.first_offset, section.append_time_min, section.start):
        raise wrong
    if len(index) > section.batches or index[-1][1] > section.append_time_max:
        raise wrong
    offset, time, place = section.end_offset, section.append_time_max, section.end
    for entry in reversed(index):
        if entry[0] >= offset or entry[1] > time or entry[2] > place - BATCH_ROOM_MIN or entry[2] % ALIGNMENT:
            raise wrong
        offset, time, place = entry
