"""History without a broker: batches and Arrow record batches straight from the segment objects of a store.

```python
async with open_segments("s3://bucket/danube", {"region": "eu-central-1"}) as segments:
    for info in await segments.find(topic_id=18, partition=0): ...
    async for batch in segments.history(18, 0, start=1000): ...             # Batch
    async for table in segments.arrow(infos, end=datetime(...)): ...        # pyarrow.RecordBatch

with open_segments_blocking("file:///var/lib/danube/objects") as segments:
    for batch in segments.history(18, 0): ...
```

Only what is asked for is read: the end of an object with its footer, then the blocks that hold the range, neighbours
together, some of them before they are asked for. A range is exact: of the batches at its edges come the rows that are
in it, as copies.

Invariants
    every batch was verified whole (checksums, structure, text, place) before anybody gets it
    at most `read_ahead` + 2 reads of `range_bytes` (or of one block, where that is larger) are held in memory
    what is missing or damaged is an error that names object and offsets; nothing is skipped unless gaps are allowed
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import msgspec

from pydanube.client.blocking.loop_thread import Blocking, LoopThread, blocking
from pydanube.client.history.coverage import CoverageWindow, SegmentInfo, WantedRange, check_covered, ordered, resolved
from pydanube.client.positions import AnyPosition
from pydanube.codec.batch import Batch
from pydanube.codec.batch.peek import offsets_of
from pydanube.codec.segment import END_BYTES, Block, SegmentFooter, SegmentSection, decode_footer, read_trailer
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.model.limits import KIB, MIB
from pydanube.runtime.objects import ObjectInfo, ObjectStore
from pydanube.runtime.objects.opening import open_store
from pydanube.runtime.tasks import Tasks, run_together

from .lifecycle import Openable
from .settings import check_count

if TYPE_CHECKING:
    import pyarrow

FOOTERS_KEPT: Final = 128
FOOTERS_AT_ONCE: Final = 16
"""Footers that are read side by side when a store is searched."""

SHARED: Final = "segments/shared/"
"""Where objects are that hold sections of several partitions."""

T = TypeVar("T")
AnySegments = str | SegmentInfo | Sequence[SegmentInfo]
"""An object key, one segment, or several of one partition."""

Form = Callable[[Batch, int, int], T]
"""What is made of rows [start, end) of a batch."""


class _Read(NamedTuple):
    """Neighbouring blocks of one section, on their way."""

    segment: SegmentInfo
    section: SegmentSection
    wanted: WantedRange
    block: Block
    content: asyncio.Task[memoryview]


class Segments(Openable):
    """The segments of one object store. Made by `open_segments`, or over a store that somebody else closes."""

    _what = "segment reader"

    def __init__(
        self,
        store: ObjectStore | str,
        settings: Mapping[str, str] | None = None,
        *,
        read_ahead: int = 4,
        range_bytes: int = 4 * MIB,
    ) -> None:
        """A store that is named by its URL is opened and closed with this."""
        super().__init__()
        check_count("read_ahead", read_ahead, 1, 64)
        check_count("range_bytes", range_bytes, 64 * KIB, 256 * MIB)
        self._given = store
        self._settings = settings
        self._own: ObjectStore | None = None
        self._read_ahead = read_ahead
        self._range_bytes = range_bytes
        self._footers: OrderedDict[str, tuple[SegmentFooter, int]] = OrderedDict()

    # -- what there is -----------------------------------------------------------------------------------------------

    async def sections(self, key: str, object_bytes: int = 0) -> list[SegmentInfo]:
        """What an object holds. The size saves a request where it is known."""
        footer, size = await self._footer(key, object_bytes)
        return [SegmentInfo.of(key, number, section, size) for number, section in enumerate(footer.sections)]

    async def find(self, topic_id: int, partition: int) -> list[SegmentInfo]:
        """The history of a partition, as far as the store alone can tell; `coverage` says how it is decided.

        Reads the end of each of the partition's objects, and of each shared one. Where the catalog or a manifest can be
        asked, what it says is quicker and certain.
        """
        check_count("topic_id", topic_id, 0, 1 << 63)
        check_count("partition", partition, 0, 1 << 31)
        wanted = (topic_id, partition)
        found: list[SegmentInfo] = []
        for prefix in (f"segments/{topic_id:016x}/{partition:08x}/", SHARED):
            listed: list[ObjectInfo] = []
            async for stored in self._store.list(prefix):
                if stored.key.endswith(".seg"):
                    listed.append(stored)
                if len(listed) >= FOOTERS_AT_ONCE:
                    await run_together(self._look(one, wanted, found) for one in listed)
                    listed = []
            await run_together(self._look(one, wanted, found) for one in listed)
        return resolved(found)

    async def _look(self, stored: ObjectInfo, wanted: tuple[int, int], found: list[SegmentInfo]) -> None:
        with suppress(NotFound):  # replaced by another and deleted since it was listed
            held = await self.sections(stored.key, stored.size)
            found.extend(info for info in held if (info.topic_id, info.partition) == wanted)

    async def _footer(self, key: str, object_bytes: int) -> tuple[SegmentFooter, int]:
        known = self._footers.get(key)
        if known is not None:
            self._footers.move_to_end(key)
            return known
        size = object_bytes or (await self._store.head(key)).size
        tail = await self._store.get(key, max(0, size - END_BYTES), size)
        trailer = read_trailer(tail, size, key)
        footer = trailer.footer_in(tail)
        if footer is None:
            footer = await self._store.get(key, trailer.footer_start, trailer.footer_end)
        decoded = decode_footer(footer, trailer)
        # Producer tables are for brokers, and the largest part of a footer.
        sections = [msgspec.structs.replace(section, producers=[]) for section in decoded.sections]
        self._footers[key] = known = msgspec.structs.replace(decoded, sections=sections), size
        if len(self._footers) > FOOTERS_KEPT:
            self._footers.popitem(last=False)
        return known

    # -- reading -----------------------------------------------------------------------------------------------------

    async def batches(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> AsyncGenerator[Batch, None]:
        """The batches of an object or of a partition's segments, in order; a list that is given is taken at its word.

        `start` and `end` are offsets or append times (see `model.positions`), the end not included. Offsets that are
        asked for, or that lie between two segments, and are in none raise NotFound unless gaps are allowed. Left early,
        close it (`contextlib.aclosing`); cancelled, nothing is left behind.
        """
        async with aclosing(self._portions(segments, start, end, allow_gaps, _rows)) as portions:
            async for portion in portions:
                for batch in portion:
                    yield batch

    async def arrow(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> AsyncGenerator[pyarrow.RecordBatch, None]:
        """As `batches`, as Arrow record batches over the same memory. Needs pyarrow."""
        async with aclosing(self._portions(segments, start, end, allow_gaps, _arrow_rows)) as portions:
            async for portion in portions:
                for batch in portion:
                    yield batch

    async def history(
        self,
        topic_id: int,
        partition: int,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> AsyncGenerator[Batch, None]:
        """The batches of a partition, from the segments that `find` finds."""
        found = await self.find(topic_id, partition)
        async with aclosing(self.batches(found, start=start, end=end, allow_gaps=allow_gaps)) as batches:
            async for batch in batches:
                yield batch

    async def _portions(
        self,
        segments: AnySegments,
        start: AnyPosition | None,
        end: AnyPosition | None,
        allow_gaps: bool,
        form: Form[T],
    ) -> AsyncGenerator[list[T], None]:
        """What each read brings."""
        async with aclosing(self._reads(segments, start, end, allow_gaps)) as reads:
            async for read, content in reads:
                if portion := _portion(read, content, form):
                    yield portion

    async def _reads(
        self, segments: AnySegments, start: AnyPosition | None, end: AnyPosition | None, allow_gaps: bool
    ) -> AsyncGenerator[tuple[_Read, memoryview], None]:
        """Bytes as they come. Reads are planned and begun by a task of their own, a few ahead."""
        window = CoverageWindow.parse(start, end)
        chosen = [segment for segment in await self._chosen(segments) if window.touches(segment)]
        if not allow_gaps:
            check_covered(chosen, window.first_offset, window.end_offset)
        reads: asyncio.Queue[_Read | Exception | None] = asyncio.Queue(self._read_ahead)
        async with Tasks(on_crash=_told_where_it_is_awaited) as tasks:
            tasks.spawn(self._plan(chosen, window, reads, tasks), "plan reads of segments")
            while (read := await reads.get()) is not None:
                if isinstance(read, Exception):
                    raise read
                yield read, await read.content

    async def _chosen(self, segments: AnySegments) -> list[SegmentInfo]:
        if isinstance(segments, str):
            return ordered(await self.sections(segments))
        return ordered([segments] if isinstance(segments, SegmentInfo) else segments)

    async def _plan(
        self,
        chosen: list[SegmentInfo],
        window: CoverageWindow,
        reads: asyncio.Queue[_Read | Exception | None],
        tasks: Tasks,
    ) -> None:
        """Begin one read after the other, as there is room for them; then None, or what stopped it."""
        try:
            for segment in chosen:
                section = await self._section(segment)
                wanted = window.within(segment, section)
                blocks = section.blocks(wanted.first_offset, wanted.end_offset)
                for block in _together(blocks, self._range_bytes):
                    content = tasks.spawn(self._content(segment, block), f"read {segment.object}")
                    await reads.put(_Read(segment, section, wanted, block, content))
        except Exception as error:
            await reads.put(error)
        else:
            await reads.put(None)

    async def _section(self, segment: SegmentInfo) -> SegmentSection:
        """The section that is meant, if it is what it was said to be."""
        try:
            footer, _ = await self._footer(segment.object, segment.object_bytes)
        except DanubeError as error:
            raise _about(segment.first_offset, segment.end_offset, error) from error
        if 0 <= segment.section < len(footer.sections):
            section = footer.sections[segment.section]
            if (
                (section.topic_id, section.partition) == (segment.topic_id, segment.partition)
                and section.first_offset <= segment.first_offset
                and segment.end_offset <= section.end_offset
            ):
                return section
        raise Corrupt(
            f"{segment}: topic {segment.topic_id}, partition {segment.partition} has no such offsets in this object"
        )

    async def _content(self, segment: SegmentInfo, block: Block) -> memoryview:
        try:
            return await self._store.get(segment.object, block.start, block.end)
        except DanubeError as error:
            raise _about(block.first_offset, block.end_offset, error) from error

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> ObjectStore:
        self._check_open()
        if isinstance(self._given, str):
            assert self._own is not None
            return self._own
        return self._given

    async def _begin(self) -> None:
        if isinstance(self._given, str):
            self._own = await open_store(self._given, self._settings)

    async def _end(self) -> None:
        if self._own is not None:
            await self._own.close()


class BlockingSegments(Blocking[Segments]):
    """See `Segments`. Its thread lives from `open` to `close`."""

    sections = blocking(Segments.sections)
    find = blocking(Segments.find)

    def batches(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> Iterator[Batch]:
        """See `Segments.batches`."""
        return self._formed(segments, start, end, allow_gaps, _rows)

    def arrow(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> Iterator[pyarrow.RecordBatch]:
        """See `Segments.arrow`."""
        return self._formed(segments, start, end, allow_gaps, _arrow_rows)

    def rows(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> Iterator[tuple[Batch, int, int]]:
        """As `batches`, without copying at the edges: whole batches, and which rows [start, end) of each are meant."""
        return self._formed(segments, start, end, allow_gaps, _places)

    def history(
        self,
        topic_id: int,
        partition: int,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> Iterator[Batch]:
        """See `Segments.history`."""
        return self.batches(self.find(topic_id, partition), start=start, end=end, allow_gaps=allow_gaps)

    def _formed(
        self,
        segments: AnySegments,
        start: AnyPosition | None,
        end: AnyPosition | None,
        allow_gaps: bool,
        form: Form[T],
    ) -> Iterator[T]:
        """The loop brings bytes; what is made of them is made by the thread that asks for it."""
        with closing(self._thread.iterate(self._inner._reads(segments, start, end, allow_gaps))) as reads:
            for read, content in reads:
                yield from _portion(read, content, form)

    def open(self) -> Self:
        self._thread.start()
        try:
            return super().open()
        except BaseException:
            self._thread.stop()
            raise

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._thread.stop()


def open_segments(
    url: str, settings: Mapping[str, str] | None = None, *, read_ahead: int = 4, range_bytes: int = 4 * MIB
) -> Segments:
    """The segments in the store at this URL (see `runtime.objects.opening`): to be opened with `async with`."""
    return Segments(url, settings, read_ahead=read_ahead, range_bytes=range_bytes)


def open_segments_blocking(
    url: str, settings: Mapping[str, str] | None = None, *, read_ahead: int = 4, range_bytes: int = 4 * MIB
) -> BlockingSegments:
    """As `open_segments`, without await: to be opened with `with`."""
    return BlockingSegments(open_segments(url, settings, read_ahead=read_ahead, range_bytes=range_bytes), LoopThread())


def _told_where_it_is_awaited(task: asyncio.Task[Any], error: BaseException) -> None:
    """A read that failed says so to whoever waits for it; nobody does for those behind it."""


def _about(first_offset: int, end_offset: int, error: DanubeError) -> DanubeError:
    """The same error, which names the object already, with the offsets that cannot be read for it."""
    return type(error)(f"offsets {first_offset}..{end_offset} cannot be read: {error.message}")


def _together(blocks: Sequence[Block], bytes_max: int) -> Iterator[Block]:
    """Neighbouring blocks joined to reads of at most this size, or of one block."""
    joined: Block | None = None
    for block in blocks:
        if joined is not None and block.end - joined.start <= bytes_max:
            joined = joined._replace(end=block.end, end_offset=block.end_offset)
            continue
        if joined is not None:
            yield joined
        joined = block
    if joined is not None:
        yield joined


def _portion(read: _Read, content: memoryview, form: Form[T]) -> list[T]:
    """What is wanted of the batches that were read, all of it verified."""
    portion: list[T] = []
    for view in read.section.split(content, read.block.start, read.segment.object):
        offset, behind = offsets_of(view)
        if behind <= read.wanted.first_offset or offset >= read.wanted.end_offset:
            continue
        try:
            batch = Batch.open(view, stamped=True)
        except Corrupt as error:
            raise Corrupt(f"{read.segment.object}: batch of offset {offset}: {error.message}") from None
        start, end = read.wanted.rows_of(batch)
        if start < end:
            portion.append(form(batch, start, end))
    return portion


def _places(batch: Batch, start: int, end: int) -> tuple[Batch, int, int]:
    return batch, start, end


def _rows(batch: Batch, start: int, end: int) -> Batch:
    return batch if end - start == batch.count else batch.slice(start, end)


def _arrow_rows(batch: Batch, start: int, end: int) -> pyarrow.RecordBatch:
    whole = batch.to_arrow()
    return whole if end - start == batch.count else whole.slice(start, end - start)
