"""Reads segments from object storage: finds the segment, reads a range of its bytes, checks every batch.

```
 offset --> catalog: segment --> footer (cached): byte range --> range read (cached, read ahead) --> verified batches
```

Objects are read in ranges of one or two megabytes, never whole. Ranges and footers stay in a cache of bounded size that
all partitions share. Sequential readers get the next ranges by read-ahead. However many read at different places, what
is being loaded takes no more than the cache besides it, and a small part of a range is copied, so that it does not keep
the whole range in memory.

Invariants
    the ranges that are being loaded have no more bytes than the cache may have, or are one
    a batch is returned only after its checksums, its structure and its offsets were checked
    a damaged or missing object raises an error that names it; no offsets are skipped
    two concurrent readers of one range cause one read
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from pydanube.codec.batch import read_header
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.segment import SegmentFooter, SegmentSection, decode_footer, read_trailer
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.model.ledgers import ProducerEntry
from pydanube.runtime.cache import Cache, LoadingCache
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.waits import Signal
from pydanube.storage.segments.catalog import Catalog, CatalogSegment, is_lost_between
from pydanube.storage.stream import StoredRange

READ_RANGE_BYTES: Final = 2 * 1024 * 1024
"""Bytes per read; a larger batch is read whole. Smaller reads would need more thread switches."""

AHEAD: Final = 2
"""How many ranges are read ahead."""

AHEAD_FROM_BYTES: Final = 200 * 1024
"""A smaller request is a lookup, for which nothing is read ahead."""

FOOTERS_MAX: Final = 256


class ReadRange(NamedTuple):
    """Neighbouring batches of a section: bytes [start, end) of the object, offsets from `first_offset` on."""

    first_offset: int
    start: int
    end: int


class _LoadingBytes:
    """Limits what is loaded at the same time; more waits, in order."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._turn = asyncio.Lock()
        """Held by the first that waits."""
        self._freed = Signal()

    @asynccontextmanager
    async def taken(self, size_bytes: int) -> AsyncIterator[None]:
        """Count this much while the block runs. Cancelled while it waits: nothing is counted."""
        async with self._turn:
            while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                await self._freed.wait()
            self._used_bytes += size_bytes
        try:
            yield
        finally:
            self._used_bytes -= size_bytes
            self._freed.wake()


class Footer(NamedTuple):
    """The cached part of an object's footer: all but the producer tables, which can be large."""

    sections: list[SegmentSection]
    read_ranges: list[list[ReadRange]]
    """For each section."""


class SegmentReader:
    """Reads the segments of all partitions, with one cache for the whole broker."""

    def __init__(self, objects: ObjectStore, catalog: Catalog, tasks: Tasks, cache_bytes: int) -> None:
        self.objects = objects
        self.catalog = catalog
        self._tasks = tasks
        self._footers: LoadingCache[str, Footer] = LoadingCache(tasks, FOOTERS_MAX)
        self._blocks: LoadingCache[tuple[str, int], list[memoryview]] = LoadingCache(
            tasks, cache_bytes, lambda views: sum(map(len, views))
        )
        self._loading_bytes = _LoadingBytes(cache_bytes)
        self._loading_max = max(1, cache_bytes // READ_RANGE_BYTES // 2)
        """Limits read-ahead, so that it does not evict what was read ahead for other readers."""
        self._followed: Cache[tuple[str, int], bool] = Cache(FOOTERS_MAX)
        """Sections after which the next segment was already read ahead."""

    @property
    def caches(self) -> dict[str, LoadingCache[Any, Any]]:
        """The caches by name, for metrics."""
        return {"footers": self._footers, "objects": self._blocks}

    async def read(self, segment: CatalogSegment, offset: int, bytes_max: int) -> list[memoryview]:
        """Return batches of a segment, up to about `bytes_max`, from the first one that ends after `offset`."""
        read_ranges = await self._read_ranges(segment)
        place = max(0, bisect_right(read_ranges, offset, key=lambda one: one.first_offset) - 1)
        if bytes_max > AHEAD_FROM_BYTES:
            self._read_ahead(segment, read_ranges, place)
        views: list[memoryview] = []
        while place < len(read_ranges) and (bytes_max > 0 or not views):
            block = await self._block(segment, read_ranges[place])
            found: list[memoryview] = []
            for view in block:
                if ((views or found) and bytes_max <= 0) or offsets_of(view)[1] <= offset:
                    continue
                found.append(view)
                bytes_max -= len(view)
            views += _copied_if_few(found, block)
            place += 1
        return views

    async def find_time(self, topic_id: int, index: int, time_us: int, start: int, end: int) -> int | None:
        """Return the offset of the first batch within [start, end) that was appended at or after `time_us`, or None."""
        segment = await self.catalog.find_time(topic_id, index, time_us, start, end)
        if segment is None:
            return None
        section = await self._section(segment)
        first, _ = section.block_at_time(time_us)
        for read_range in await self._read_ranges(segment):
            if read_range.end <= first:
                continue
            for view in await self._block(segment, read_range):
                header = read_header(view)
                if header.append_time >= time_us:
                    return max(start, header.base_offset)
        return max(start, segment.end_offset)

    async def producers(self, segment: CatalogSegment) -> list[ProducerEntry]:
        """Return the producer table of the partition as of the end of the segment."""
        return (await self._read_footer(segment)).sections[segment.record.section].producers

    # -- objects -------------------------------------------------------------------------------------------------------

    async def _section(self, segment: CatalogSegment) -> SegmentSection:
        footer = await self._footer(segment)
        check_section(footer.sections, segment)
        return footer.sections[segment.record.section]

    async def _read_ranges(self, segment: CatalogSegment) -> list[ReadRange]:
        footer = await self._footer(segment)
        check_section(footer.sections, segment)
        return footer.read_ranges[segment.record.section]

    async def _footer(self, segment: CatalogSegment) -> Footer:
        return await self._footers.get(segment.record.object, partial(self._load_footer, segment))

    async def _load_footer(self, segment: CatalogSegment) -> Footer:
        sections = (await self._read_footer(segment)).sections
        lean = [msgspec.structs.replace(one, producers=[]) for one in sections]
        return Footer(lean, [read_ranges_of(one) for one in lean])

    async def _read_footer(self, segment: CatalogSegment) -> SegmentFooter:
        record = segment.record
        tail = await self._get(segment, record.footer_start, record.object_bytes)
        footer = read_footer(tail, record.object_bytes, record.object)
        check_section(footer.sections, segment)
        return footer

    async def _block(self, segment: CatalogSegment, read_range: ReadRange) -> list[memoryview]:
        key = (segment.record.object, read_range.start)
        return await self._blocks.get(key, partial(self._load_block, segment, read_range))

    def _read_ahead(self, segment: CatalogSegment, read_ranges: list[ReadRange], place: int) -> None:
        """Start reads of this range and of those after it, concurrently."""
        for read_range in read_ranges[place : place + 1 + AHEAD]:
            key = (segment.record.object, read_range.start)
            if key not in self._blocks and self._blocks.loading < self._loading_max:
                self._blocks.begin(key, partial(self._load_block, segment, read_range))
        section = (segment.record.object, segment.record.section)
        if place + AHEAD >= len(read_ranges) and section not in self._followed:
            self._followed.put(section, True)
            self._tasks.spawn(self._read_on(segment), f"read ahead behind {segment.record.object}")

    async def _read_on(self, segment: CatalogSegment) -> None:
        """Read the first range of the next segment. Errors are ignored: the reader that needs it will try again."""
        with suppress(DanubeError):
            following = await self.catalog.find(segment.topic_id, segment.index, segment.end_offset)
            if following is not None:
                await self._block(following, (await self._read_ranges(following))[0])

    async def _load_block(self, segment: CatalogSegment, read_range: ReadRange) -> list[memoryview]:
        section = await self._section(segment)
        async with self._loading_bytes.taken(read_range.end - read_range.start):
            block = await self._get(segment, read_range.start, read_range.end)
        return await asyncio.to_thread(section.split, block, read_range.start, f"object {segment.record.object}")

    async def _get(self, segment: CatalogSegment, start: int, end: int) -> memoryview:
        key = segment.record.object
        try:
            data = await self.objects.get(key, start, end)
        except NotFound:
            raise Corrupt(f"object {key} is missing in {self.objects.url}: put back a copy of it") from None
        if len(data) != end - start:
            raise Corrupt(f"object {key} ends at {start + len(data)} instead of {end}: put back a copy of it")
        return data


def _copied_if_few(views: list[memoryview], block: list[memoryview]) -> list[memoryview]:
    """Return copies of the views if they are a small part of the block, all of which a view keeps in memory."""
    if 2 * sum(map(len, views)) > sum(map(len, block)):
        return views
    return [memoryview(bytes(view)) for view in views]


def check_section(sections: list[SegmentSection], segment: CatalogSegment) -> None:
    """Raise Corrupt unless the object holds what the catalog says."""
    record = segment.record
    section = sections[record.section] if record.section < len(sections) else None
    said = (segment.topic_id, segment.index, segment.first_offset, segment.end_offset, record.start, record.end)
    if section is None or said != (
        section.topic_id,
        section.partition,
        section.first_offset,
        section.end_offset,
        section.start,
        section.end,
    ):
        raise Corrupt(f"object {record.object} does not hold what the catalog says: put back a copy of it")


def read_footer(tail: memoryview, object_bytes: int, key: str) -> SegmentFooter:
    """Decode the footer from the last bytes of an object. Raises Corrupt unless `tail` holds all of it."""
    trailer = read_trailer(tail, object_bytes, f"object {key}")
    footer = trailer.footer_in(tail)
    if footer is None:
        raise Corrupt(f"object {key} has its footer at {trailer.footer_start}, which the catalog does not know of")
    return decode_footer(footer, trailer)


def read_ranges_of(section: SegmentSection) -> list[ReadRange]:
    """Return the blocks of the section, joined to ranges of about READ_RANGE_BYTES."""
    found: list[ReadRange] = []
    starts = [(offset, position) for offset, _, position in section.index]
    ends = [position for _, position in starts[1:]] + [section.end]
    for (offset, position), end in zip(starts, ends, strict=True):
        if found and end - found[-1].start <= READ_RANGE_BYTES:
            found[-1] = found[-1]._replace(end=end)
        else:
            found.append(ReadRange(offset, position, end))
    return found


class PartitionHistory:
    """The uploaded part of one partition: offsets [start, end)."""

    def __init__(
        self, reader: SegmentReader, topic_id: int, index: int, start: int, end: int, is_dense: bool = False
    ) -> None:
        """`is_dense`: every offset belongs to a message, so that any gap is a loss."""
        self._is_dense = is_dense
        self._reader = reader
        self._topic_id = topic_id
        self._index = index
        self.start = start
        self.end = end
        self.sizes: list[StoredRange] = []
        """What was there when the partition was opened; the sizes are approximate."""
        self._latest: CatalogSegment | None = None
        """The segment that was read last; most readers continue in it."""

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        segment = self._latest
        if segment is None or not segment.first_offset <= offset < segment.end_offset:
            segment = await self._reader.catalog.find(self._topic_id, self._index, offset)
        while segment is not None:
            self._latest = segment
            try:
                return await self._reader.read(segment, offset, bytes_max)
            except Corrupt:
                # Merging or retention may have removed the segment from the catalog, and its object from the store.
                found = await self._reader.catalog.find(self._topic_id, self._index, offset)
                if found == segment:
                    raise
                segment = found
        return []

    async def check_gap(self, offset: int) -> None:
        """Raise Corrupt if the catalog has lost the segments at `offset`. In a gap that a crash or a restore left, the
        cumulative bytes of the segments on both sides add up, and nothing is raised."""
        catalog = self._reader.catalog
        after = await catalog.find(self._topic_id, self._index, offset)
        if after is None or after.first_offset <= offset:
            return  # it was uploaded or merged meanwhile
        before = await catalog.before(self._topic_id, self._index, offset)
        if self._is_dense or (before is not None and is_lost_between(before, after, 0)):
            raise Corrupt(
                f"offsets {offset}..{after.first_offset - 1} of partition {self._index} of topic {self._topic_id} were "
                f"uploaded, and the catalog lists no object for them: restore the metadata from a backup"
            )

    def extend(self, first: int, end: int) -> None:
        """Record that the offsets [first, end) were uploaded."""
        if self.end == 0:
            self.start = first
        self.end = end

    def trim(self, start: int) -> None:
        """Record that the segments below `start` were removed."""
        self.start = max(self.start, start)

    async def find_time(self, time_us: int, start: int) -> int | None:
        return await self._reader.find_time(self._topic_id, self._index, time_us, start, self.end)

    async def producers(self) -> list[ProducerEntry]:
        """Return the producer table as of `end`."""
        segment = await self._last()
        return await self._reader.producers(segment) if segment is not None else []

    async def last_time(self) -> int:
        """Return the append time of the last batch; 0 if nothing was uploaded."""
        if self.sizes and self.sizes[-1].end == self.end:
            return self.sizes[-1].last_time
        segment = await self._last()
        return segment.record.last_time if segment is not None else 0

    async def total(self) -> int:
        """Return the cumulative bytes of all segments, removed ones included."""
        segment = await self._last()
        return segment.record.total if segment is not None else 0

    async def gaps(self, start: int) -> list[tuple[int, int]]:
        """Return the ranges of offsets, from `start` on, that never held a message."""
        if self._is_dense or self.start >= self.end:
            return []
        return await self._reader.catalog.gaps(self._topic_id, self._index, start, self.end)

    async def load_sizes(self) -> None:
        self.sizes = await self._reader.catalog.sizes(self._topic_id, self._index, self.start, self.end)

    async def _last(self) -> CatalogSegment | None:
        return await self._reader.catalog.find(self._topic_id, self._index, self.end - 1) if self.end else None
