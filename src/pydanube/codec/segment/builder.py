"""Builds a segment object from batches. The result is a list of pieces; no batch is copied.

```
 begin(topic 7, partition 0, ledger 31, epoch 4)  add(batch) add(batch) ...  end(producers)
 begin(topic 9, ...)                              add(batch) ...             end(producers)
 finish() -> [header, batch, zeros, batch, ..., footer, trailer], footer
```

Assertions check the caller: batches of a section have contiguous offsets, and their append times never decrease. The
result is checked by the same rules that readers use, so that nothing is stored that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from crc32c import crc32c

from pydanube.codec.batch.header import MAGIC, fields_struct
from pydanube.codec.batch.layout import HEADER_BYTES as BATCH_HEADER_BYTES
from pydanube.model.ledgers import ProducerEntry
from pydanube.model.limits import ALIGNMENT

from .footer import BLOCK_BYTES, FORMAT, SegmentFooter, SegmentSection, check_sections
from .layout import (
    FOOTER_BYTES_MAX,
    HEADER_BYTES,
    SECTIONS_MAX,
    TRAILER_BYTES,
    ByteBuffer,
    aligned,
    encode_header,
    encode_trailer,
    padding,
)

# fmt: off
_FIELDS: Final = fields_struct(
    "magic", "flags", "count", "span", "stored_length", "schema_version", "schema_id", "publish_time_min",
    "publish_time_max", "base_offset", "append_time",
)
# fmt: on
_FOOTER_ROOM: Final = 64
"""An upper bound for the parts of the footer other than the sections and the writer's name."""


class SegmentBuilder:
    """Builds one object, section by section. The batches must not change until the pieces are written."""

    def __init__(self, writer: str, created_at_us: int, *, block_bytes: int = BLOCK_BYTES) -> None:
        """`block_bytes` is the least distance between entries of the index."""
        self._block_bytes = block_bytes
        self._writer = writer
        self._created_at_us = created_at_us
        self._pieces: list[ByteBuffer] = [encode_header(created_at_us)]
        self._sections: list[SegmentSection] = []
        self._encoded: list[msgspec.Raw] = []
        self._open: _OpenSection | None = None
        self._place = HEADER_BYTES
        self._footer_bytes = len(writer.encode()) + _FOOTER_ROOM
        self._finished = False

    @property
    def size(self) -> int:
        """The size of the object so far. An open section is not yet counted in the footer."""
        return self._place if self._finished else self._place + self._footer_bytes + TRAILER_BYTES

    @property
    def sections(self) -> int:
        """The number of finished sections."""
        return len(self._sections)

    def begin(self, topic_id: int, partition: int, ledger_id: int, owner_epoch: int) -> None:
        """Begin a section with batches of this ledger of this partition."""
        assert self._open is None and not self._finished
        assert len(self._sections) < SECTIONS_MAX
        self._open = _OpenSection((topic_id, partition, ledger_id, owner_epoch), self._place, self._block_bytes)

    def add(self, batch: memoryview) -> None:
        """Add the next batch of the section. The caller has verified it, and it has its offset and append time."""
        section = self._open
        assert section is not None
        length = section.take(batch, self._place)
        self._pieces.append(batch)
        if length & (ALIGNMENT - 1):
            zeros = padding(length)
            section.crc = crc32c(zeros, section.crc)
            self._pieces.append(zeros)
        self._place += aligned(length)

    def end(self, producers: Sequence[ProducerEntry]) -> SegmentSection:
        """End the section and return it. `producers` is the producer table of the partition at this offset."""
        assert self._open is not None
        section = self._open.sealed(self._place, list(producers))
        encoded = msgspec.msgpack.encode(section)
        self._open = None
        self._sections.append(section)
        self._encoded.append(msgspec.Raw(encoded))
        self._footer_bytes += len(encoded)
        return section

    def finish(self) -> tuple[list[ByteBuffer], SegmentFooter]:
        """Return the object as a list of pieces, and its footer."""
        assert self._open is None and self._sections and not self._finished
        check_sections(self._sections, self._place, "segment being built")
        footer = msgspec.msgpack.encode([FORMAT, self._writer, self._created_at_us, self._encoded])
        assert len(footer) <= FOOTER_BYTES_MAX
        trailer = encode_trailer(self._place, footer, len(self._sections))
        self._pieces += [footer, padding(len(footer)), trailer]
        self._place += aligned(len(footer)) + TRAILER_BYTES
        self._finished = True
        return self._pieces, SegmentFooter(FORMAT, self._writer, self._created_at_us, self._sections)


class _OpenSection:
    """Collects what the footer will contain about the current section."""

    def __init__(self, ids: tuple[int, int, int, int], start: int, block_bytes: int) -> None:
        self.ids = ids
        self.start = start
        self._block_bytes = block_bytes
        self.crc = 0
        self._batches = self._messages = 0
        self._first_offset = self._next_offset = -1
        self._first_time = self._last_time = 0
        self._publish_time_min = self._publish_time_max = 0
        self._schemas: set[tuple[int, int]] = set()
        self._index: list[tuple[int, int, int]] = []

    def take(self, batch: memoryview, place: int) -> int:
        """Record a batch that begins at byte `place` of the object, and return its length."""
        # fmt: off
        (magic, flags, count, span, stored_length, schema_version, schema_id, earliest, latest, base_offset,
         append_time) = _FIELDS.unpack_from(batch)
        # fmt: on
        length = len(batch)
        assert magic == MAGIC and not flags and length == BATCH_HEADER_BYTES + stored_length
        if not self._batches:
            self._first_offset = self._next_offset = base_offset
            self._first_time = self._last_time = append_time
            self._publish_time_min, self._publish_time_max = earliest, latest
        assert base_offset == self._next_offset, "a section has no gaps"
        assert append_time >= self._last_time, "append times never go back"
        if not self._index or place - self._index[-1][2] >= self._block_bytes:
            self._index.append((base_offset, append_time, place))
        self._batches += 1
        self._messages += count
        self._next_offset = base_offset + span
        self._last_time = append_time
        self._publish_time_min = min(self._publish_time_min, earliest)
        self._publish_time_max = max(self._publish_time_max, latest)
        self._schemas.add((schema_id, schema_version))
        self.crc = crc32c(batch, self.crc)
        return length

    def sealed(self, end: int, producers: list[ProducerEntry]) -> SegmentSection:
        assert self._batches, "a section holds at least one batch"
        # fmt: off
        return SegmentSection(
            *self.ids, self._first_offset, self._next_offset, self.start, end, self._batches, self._messages,
            self._first_time, self._last_time, self._publish_time_min, self._publish_time_max, sorted(self._schemas),
            producers, self._index, self.crc,
        )
        # fmt: on
