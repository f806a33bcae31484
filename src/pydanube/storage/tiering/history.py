"""Reads what is in object storage: finds the segment, reads the stretch of it that is wanted, checks every batch.

```
 offset --> catalog: segment --> footer (cached): stretch --> range read (cached, read ahead) --> verified batches
```

Objects are read in stretches of a megabyte or two, never whole. Stretches and footers that were read stay in a cache of
bounded size, shared by all partitions; whoever reads on finds the next stretch on its way.

Invariants
    a batch is served only after its checksums, its structure and its place were checked
    a damaged or missing object is an error that names it: nothing is skipped
    two readers of one stretch cause one read
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from pydanube.codec.batch import read_header
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.segment import SegmentFooter, SegmentSection, decode_footer, read_trailer
from pydanube.model.errors import Corrupt, DanubeError, NotFound, Unavailable
from pydanube.model.ledgers import ProducerEntry
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks

from .catalog import Catalog, CatalogSegment, is_lost_between

STRETCH_BYTES: Final = 2 * 1024 * 1024
"""What is read at a time; a batch that is larger is read whole. Half of it takes twice as many turns of threads."""

AHEAD: Final = 2
"""Stretches that are read before they are asked for."""

AHEAD_FROM_BYTES: Final = 200 * 1024
"""Whoever asks for less than this wants to look something up."""

FOOTERS_MAX: Final = 256

T = TypeVar("T")


class Stretch(NamedTuple):
    """Neighbouring batches of a section: bytes [start, end) of the object, offsets from `first_offset` on."""

    first_offset: int
    start: int
    end: int


class SharedRead(Generic[T]):
    """Values that are loaded once for everybody who asks, and kept up to a size, the least recently used leaving."""

    def __init__(self, tasks: Tasks, size_max: int, size_of: Callable[[T], int]) -> None:
        self._tasks = tasks
        self._size_max = size_max
        self._size_of = size_of
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._loading: dict[Hashable, asyncio.Future[T]] = {}
        self.size = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept or key in self._loading

    @property
    def loading(self) -> int:
        """How many are on their way."""
        return len(self._loading)

    async def get(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> T:
        """Cancelled: it is loaded all the same, for the others."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        return await asyncio.shield(self.begin(key, load))

    def begin(self, key: Hashable, load: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Load it, unless somebody does."""
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = asyncio.get_running_loop().create_future()
            self._tasks.spawn(self._load(key, load, loading), f"load {key}")
        return loading

    async def _load(self, key: Hashable, load: Callable[[], Awaitable[T]], loading: asyncio.Future[T]) -> None:
        """Cancelled: whoever waits is told to come back."""
        outcome: DanubeError = Unavailable("the broker is closing")
        try:
            value = await load()
        except DanubeError as error:
            outcome = error
        else:
            self._keep(key, value)
            loading.set_result(value)
        finally:
            del self._loading[key]
            if not loading.done():
                loading.set_exception(outcome)
                loading.exception()  # what was only read ahead nobody asks for: it is no mistake of anybody

    def _keep(self, key: Hashable, value: T) -> None:
        self._kept[key] = value
        self.size += self._size_of(value)
        while self.size > self._size_max and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self.size -= self._size_of(oldest)


class Footer(NamedTuple):
    """What is kept of an object's footer: producer tables, which can be large, are not."""

    sections: list[SegmentSection]
    stretches: list[list[Stretch]]
    """Of each section."""


class SegmentReader:
    """The segments of all partitions. One for each broker."""

    def __init__(self, objects: ObjectStore, catalog: Catalog, tasks: Tasks, cache_bytes: int) -> None:
        self.objects = objects
        self.catalog = catalog
        self._tasks = tasks
        self._footers: SharedRead[Footer] = SharedRead(tasks, FOOTERS_MAX, lambda _: 1)
        self._blocks: SharedRead[list[memoryview]] = SharedRead(tasks, cache_bytes, lambda views: sum(map(len, views)))
        self._loading_max = max(1, cache_bytes // STRETCH_BYTES // 2)
        """What is read ahead must not push out what was read ahead for others."""
        self._followed: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Sections behind which was read ahead already."""

    async def read(self, segment: CatalogSegment, offset: int, bytes_max: int) -> list[memoryview]:
        """Batches of a segment from the first one that ends after `offset`."""
        stretches = await self._stretches(segment)
        place = max(0, bisect_right(stretches, offset, key=lambda one: one.first_offset) - 1)
        if bytes_max > AHEAD_FROM_BYTES:
            self._read_ahead(segment, stretches, place)
        views: list[memoryview] = []
        while place < len(stretches) and (bytes_max > 0 or not views):
            found = await self._block(segment, stretches[place])
            for view in found:
                if (views and bytes_max <= 0) or offsets_of(view)[1] <= offset:
                    continue
                views.append(view)
                bytes_max -= len(view)
            place += 1
        return views

    async def find_time(self, topic_id: int, index: int, time_us: int, start: int, end: int) -> int | None:
        """The first offset of the first batch within [start, end) appended at or after this time."""
        segment = await self.catalog.find_time(topic_id, index, time_us, start, end)
        if segment is None:
            return None
        section = await self._section(segment)
        first, _ = section.block_at_time(time_us)
        for stretch in await self._stretches(segment):
            if stretch.end <= first:
                continue
            for view in await self._block(segment, stretch):
                header = read_header(view)
                if header.append_time >= time_us:
                    return max(start, header.base_offset)
        return max(start, segment.end_offset)

    async def producers(self, segment: CatalogSegment) -> list[ProducerEntry]:
        """What the partition knew of its producers where the segment ends."""
        return (await self._read_footer(segment)).sections[segment.record.section].producers

    # -- objects -------------------------------------------------------------------------------------------------------

    async def _section(self, segment: CatalogSegment) -> SegmentSection:
        footer = await self._footer(segment)
        check_section(footer.sections, segment)
        return footer.sections[segment.record.section]

    async def _stretches(self, segment: CatalogSegment) -> list[Stretch]:
        footer = await self._footer(segment)
        check_section(footer.sections, segment)
        return footer.stretches[segment.record.section]

    async def _footer(self, segment: CatalogSegment) -> Footer:
        return await self._footers.get(segment.record.object, partial(self._load_footer, segment))

    async def _load_footer(self, segment: CatalogSegment) -> Footer:
        sections = (await self._read_footer(segment)).sections
        lean = [msgspec.structs.replace(one, producers=[]) for one in sections]
        return Footer(lean, [stretches_of(one) for one in lean])

    async def _read_footer(self, segment: CatalogSegment) -> SegmentFooter:
        record = segment.record
        tail = await self._get(segment, record.footer_start, record.object_bytes)
        footer = read_footer(tail, record.object_bytes, record.object)
        check_section(footer.sections, segment)
        return footer

    async def _block(self, segment: CatalogSegment, stretch: Stretch) -> list[memoryview]:
        key = (segment.record.object, stretch.start)
        return await self._blocks.get(key, partial(self._load_block, segment, stretch))

    def _read_ahead(self, segment: CatalogSegment, stretches: list[Stretch], place: int) -> None:
        """This stretch and those after it, side by side."""
        for stretch in stretches[place : place + 1 + AHEAD]:
            key = (segment.record.object, stretch.start)
            if key not in self._blocks and self._blocks.loading < self._loading_max:
                self._blocks.begin(key, partial(self._load_block, segment, stretch))
        section = (segment.record.object, segment.record.section)
        if place + AHEAD >= len(stretches) and section not in self._followed:
            self._followed[section] = None
            self._tasks.spawn(self._read_on(segment), f"read ahead behind {segment.record.object}")
        while len(self._followed) > FOOTERS_MAX:
            self._followed.popitem(last=False)

    async def _read_on(self, segment: CatalogSegment) -> None:
        """The beginning of the next segment. What fails is tried again by whoever needs it."""
        with suppress(DanubeError):
            following = await self.catalog.find(segment.topic_id, segment.index, segment.end_offset)
            if following is not None:
                await self._block(following, (await self._stretches(following))[0])

    async def _load_block(self, segment: CatalogSegment, stretch: Stretch) -> list[memoryview]:
        section = await self._section(segment)
        block = await self._get(segment, stretch.start, stretch.end)
        return await asyncio.to_thread(section.split, block, stretch.start, f"object {segment.record.object}")

    async def _get(self, segment: CatalogSegment, start: int, end: int) -> memoryview:
        key = segment.record.object
        try:
            data = await self.objects.get(key, start, end)
        except NotFound:
            raise Corrupt(f"object {key} is missing in {self.objects.url}: put back a copy of it") from None
        if len(data) != end - start:
            raise Corrupt(f"object {key} ends at {start + len(data)} instead of {end}: put back a copy of it")
        return data


def check_section(sections: list[SegmentSection], segment: CatalogSegment) -> None:
    """Corrupt unless the object holds what the catalog says."""
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
    """The footer from the last bytes of an object, which hold all of it."""
    trailer = read_trailer(tail, object_bytes, f"object {key}")
    footer = trailer.footer_in(tail)
    if footer is None:
        raise Corrupt(f"object {key} has its footer at {trailer.footer_start}, which the catalog does not know of")
    return decode_footer(footer, trailer)


def stretches_of(section: SegmentSection) -> list[Stretch]:
    """The section's blocks, put together to about STRETCH_BYTES each."""
    found: list[Stretch] = []
    starts = [(offset, position) for offset, _, position in section.index]
    ends = [position for _, position in starts[1:]] + [section.end]
    for (offset, position), end in zip(starts, ends, strict=True):
        if found and end - found[-1].start <= STRETCH_BYTES:
            found[-1] = found[-1]._replace(end=end)
        else:
            found.append(Stretch(offset, position, end))
    return found


class PartitionHistory:
    """One partition's part of it."""

    def __init__(
        self, history: SegmentReader, topic_id: int, index: int, start: int, end: int, is_dense: bool = False
    ) -> None:
        """`is_dense`: every offset was given to a message, so that none can be missing."""
        self._is_dense = is_dense
        self._history = history
        self._topic_id = topic_id
        self._index = index
        self.start = start
        self.end = end
        self.sizes: list[tuple[int, int, int]] = []
        """About how much lay where when it was opened: offsets [first, end) and their bytes."""
        self._latest: CatalogSegment | None = None
        """The one that was read last: most readers go on in it."""

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        segment = self._latest
        if segment is None or not segment.first_offset <= offset < segment.end_offset:
            segment = await self._history.catalog.find(self._topic_id, self._index, offset)
        while segment is not None:
            self._latest = segment
            try:
                return await self._history.read(segment, offset, bytes_max)
            except Corrupt:
                # It may have left the catalog meanwhile, and its object the store.
                found = await self._history.catalog.find(self._topic_id, self._index, offset)
                if found == segment:
                    raise
                segment = found
        return []

    async def check_gap(self, offset: int) -> None:
        """Corrupt where what follows from `offset` on has left the catalog by mistake. Where a crash or a restore left
        offsets out, the bytes of the segments on both sides add up."""
        catalog = self._history.catalog
        after = await catalog.find(self._topic_id, self._index, offset)
        if after is None or after.first_offset <= offset:
            return  # it is there by now
        before = await catalog.before(self._topic_id, self._index, offset)
        if self._is_dense or (before is not None and is_lost_between(before, after, 0)):
            raise Corrupt(
                f"offsets {offset}..{after.first_offset - 1} of partition {self._index} of topic {self._topic_id} were "
                f"uploaded, and the catalog lists no object for them: restore the metadata from a backup"
            )

    async def find_time(self, time_us: int, start: int) -> int | None:
        return await self._history.find_time(self._topic_id, self._index, time_us, start, self.end)

    async def producers(self) -> list[ProducerEntry]:
        """As of the end."""
        segment = await self._last()
        return await self._history.producers(segment) if segment is not None else []

    async def last_time(self) -> int:
        """When the last of it was appended; 0 when there is nothing."""
        segment = await self._last()
        return segment.record.last_time if segment is not None else 0

    async def total(self) -> int:
        """Bytes of all segments that there ever were."""
        segment = await self._last()
        return segment.record.total if segment is not None else 0

    async def gaps(self, start: int) -> list[tuple[int, int]]:
        """Return the ranges of offsets, from `start` on, that never held a message."""
        if self._is_dense or self.start >= self.end:
            return []
        return await self._history.catalog.gaps(self._topic_id, self._index, start, self.end)

    async def load_sizes(self) -> None:
        self.sizes = await self._history.catalog.sizes(self._topic_id, self._index, self.start, self.end)

    async def _last(self) -> CatalogSegment | None:
        return await self._history.catalog.find(self._topic_id, self._index, self.end - 1) if self.end else None
