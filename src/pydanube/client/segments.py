"""Reads history without a broker: batches and Arrow record batches from the segment objects of an object store.

```python
async with open_segments("s3://bucket/danube", {"region": "eu-central-1"}) as segments:
    for info in await segments.find(topic_id=18, partition=0): ...
    async for batch in segments.history(18, 0, start=1000): ...             # Batch
    async for table in segments.arrow(infos, end=datetime(...)): ...        # pyarrow.RecordBatch

with open_segments_blocking("file:///var/lib/danube/objects") as segments:
    for batch in segments.history(18, 0): ...
```

Only the needed bytes are read: the end of an object with its footer, then the blocks that hold the range, neighbouring
blocks with one read, and a few reads ahead. A range is exact: of a batch at its edge, the rows within the range are
copied.

Invariants
    every batch is verified whole (checksums, structure, text, offsets) before the caller gets it
    at most `read_ahead` + 2 reads of `range_bytes` (or of one block, where that is larger) are held in memory
    a missing or damaged range is an error that names object and offsets; nothing is skipped unless gaps are allowed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypedDict, TypeVar, Unpack

import msgspec

from pydanube.client.blocking.loop_thread import Blocking, LoopThread, blocking, stands_for
from pydanube.client.history.coverage import (
    CoverageWindow,
    SegmentInfo,
    WantedRange,
    check_covered,
    resolve_overlaps,
    sort_segments,
)
from pydanube.client.positions import AnyPosition
from pydanube.codec.batch import Batch
from pydanube.codec.batch.header import offsets_of
from pydanube.codec.segment import END_BYTES, Block, SegmentFooter, SegmentSection, decode_footer, read_trailer
from pydanube.model.errors import Corrupt, DanubeError, NotFound, Unavailable
from pydanube.model.limits import KIB, MIB
from pydanube.runtime.cache import Cache
from pydanube.runtime.objects import ObjectInfo, ObjectStore
from pydanube.runtime.objects.local import LocalStore
from pydanube.runtime.objects.opening import open_store
from pydanube.runtime.objects.store_address import StoreAddress
from pydanube.runtime.tasks import Tasks, run_together

from .lifecycle import Openable
from .settings import check_count

if TYPE_CHECKING:
    import pyarrow

__all__ = ["BlockingSegments", "SegmentInfo", "Segments", "open_segments", "open_segments_blocking"]

FOOTERS_KEPT: Final = 128
FOOTERS_AT_ONCE: Final = 16
"""Footers that `find` reads at the same time."""

SHARED: Final = "segments/shared/"
"""The prefix of objects that hold sections of several partitions."""

T = TypeVar("T")
AnySegments = str | SegmentInfo | Sequence[SegmentInfo]
"""An object key, one segment, or several of one partition."""


class SpanArguments(TypedDict, total=False):
    """What to read of the segments, as `Segments.batches` says."""

    start: AnyPosition | None
    end: AnyPosition | None
    allow_gaps: bool


MakeResult = Callable[[Batch, int, int], T]
"""A function that makes the result of rows [start, end) of a batch."""


class _Read(NamedTuple):
    """A read of neighbouring blocks of one section, in flight."""

    segment: SegmentInfo
    section: SegmentSection
    wanted: WantedRange
    block: Block
    content: asyncio.Task[memoryview]


class Segments(Openable):
    """The segments of one object store. Made by `open_segments`, or with a store that the caller opens and closes."""

    _what = "segment reader"

    def __init__(
        self,
        store: ObjectStore | str,
        settings: Mapping[str, str] | None = None,
        *,
        read_ahead: int = 4,
        range_bytes: int = 4 * MIB,
    ) -> None:
        """`store` is an open store, which the caller closes, or a URL, which is opened and closed with this object."""
        super().__init__()
        check_count("read_ahead", read_ahead, 1, 64)
        check_count("range_bytes", range_bytes, 64 * KIB, 256 * MIB)
        self._store_or_url = store
        self._settings = settings
        self._opened_store: ObjectStore | None = None
        self._read_ahead = read_ahead
        self._range_bytes = range_bytes
        self._footers: Cache[str, tuple[SegmentFooter, int]] = Cache(FOOTERS_KEPT)

    # -- finding segments --------------------------------------------------------------------------------------------

    async def sections(self, key: str, object_bytes: int = 0) -> list[SegmentInfo]:
        """Return the sections of an object. Its size, if the caller knows it, saves a request."""
        footer, size = await self._footer(key, object_bytes)
        return [SegmentInfo.of(key, number, section, size) for number, section in enumerate(footer.sections)]

    async def find(self, topic_id: int, partition: int) -> list[SegmentInfo]:
        """Find the segments of a partition by listing the store; `history.coverage` says how overlaps are resolved.

        Reads the end of every object of the partition and of every shared object. A list from the catalog of a broker,
        or from a manifest, is faster and certain.
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
                    await run_together(self._collect_sections(one, wanted, found) for one in listed)
                    listed = []
            await run_together(self._collect_sections(one, wanted, found) for one in listed)
        return resolve_overlaps(found)

    async def _collect_sections(self, stored: ObjectInfo, wanted: tuple[int, int], found: list[SegmentInfo]) -> None:
        with suppress(NotFound):  # it was replaced by another object and deleted since
            held = await self.sections(stored.key, stored.size)
            found.extend(info for info in held if (info.topic_id, info.partition) == wanted)

    async def _footer(self, key: str, object_bytes: int) -> tuple[SegmentFooter, int]:
        known = self._footers.get(key)
        if known is not None:
            return known
        size = object_bytes or (await self._store.head(key)).size
        tail = await self._store.get(key, max(0, size - END_BYTES), size)
        trailer = read_trailer(tail, size, key)
        footer = trailer.footer_in(tail)
        if footer is None:
            footer = await self._store.get(key, trailer.footer_start, trailer.footer_end)
        decoded = decode_footer(footer, trailer)
        # Producer tables are the largest part of a footer, and only brokers need them.
        sections = [msgspec.structs.replace(section, producers=[]) for section in decoded.sections]
        known = msgspec.structs.replace(decoded, sections=sections), size
        self._footers.put(key, known)
        return known

    # -- reading -----------------------------------------------------------------------------------------------------

    def batches(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> AsyncGenerator[Batch, None]:
        """Yield the batches of an object, or of segments of one partition, in order. A list of segments is trusted.

        `start` and `end` are offsets or append times (see `model.positions`); the end is not included. Raises NotFound
        if wanted offsets, or offsets between two segments, are in no segment, unless `allow_gaps` is set. A caller that
        stops early closes the generator (`contextlib.aclosing`). Cancelled, nothing is left behind.
        """
        return self._results(segments, _rows, start=start, end=end, allow_gaps=allow_gaps)

    def arrow(self, segments: AnySegments, **span: Unpack[SpanArguments]) -> AsyncGenerator[pyarrow.RecordBatch, None]:
        """Like `batches`, but yields Arrow record batches over the same memory. Needs pyarrow."""
        return self._results(segments, _arrow_rows, **span)

    async def row_lists(
        self, segments: AnySegments, **span: Unpack[SpanArguments]
    ) -> AsyncGenerator[list[tuple[Batch, int, int]], None]:
        """Like `batches`, without a copy at the edges: yields for each read whole batches, and the wanted rows
        [start, end) of each. Batches are verified on another thread, so that the event loop is free meanwhile."""
        async with aclosing(self._reads(segments, **span)) as reads:
            async for read, content in reads:
                if results := await asyncio.to_thread(_make_results, read, content, _row_range):
                    yield results

    async def history(
        self, topic_id: int, partition: int, **span: Unpack[SpanArguments]
    ) -> AsyncGenerator[Batch, None]:
        """Yield the batches of a partition from the segments that `find` returns."""
        found = await self.find(topic_id, partition)
        async with aclosing(self.batches(found, **span)) as batches:
            async for batch in batches:
                yield batch

    async def _results(
        self, segments: AnySegments, make_result: MakeResult[T], **span: Unpack[SpanArguments]
    ) -> AsyncGenerator[T, None]:
        async with aclosing(self._reads(segments, **span)) as reads:
            async for read, content in reads:
                for result in _make_results(read, content, make_result):
                    yield result

    async def _reads(
        self,
        segments: AnySegments,
        *,
        start: AnyPosition | None = None,
        end: AnyPosition | None = None,
        allow_gaps: bool = False,
    ) -> AsyncGenerator[tuple[_Read, memoryview], None]:
        """Yield each read with its bytes, in order. A task plans the reads and starts them, a few ahead."""
        window = CoverageWindow.parse(start, end)
        chosen = [segment for segment in await self._sorted(segments) if window.touches(segment)]
        if not allow_gaps:
            check_covered(chosen, window.first_offset, window.end_offset)
        reads: asyncio.Queue[_Read | Exception | None] = asyncio.Queue(self._read_ahead)
        async with Tasks(on_crash=_raised_where_awaited) as tasks:
            tasks.spawn(self._start_reads(chosen, window, reads, tasks), "plan reads of segments")
            while (read := await reads.get()) is not None:
                if isinstance(read, Exception):
                    raise read
                yield read, await read.content

    async def _sorted(self, segments: AnySegments) -> list[SegmentInfo]:
        if isinstance(segments, str):
            return sort_segments(await self.sections(segments))
        return sort_segments([segments] if isinstance(segments, SegmentInfo) else segments)

    async def _start_reads(
        self,
        chosen: list[SegmentInfo],
        window: CoverageWindow,
        reads: asyncio.Queue[_Read | Exception | None],
        tasks: Tasks,
    ) -> None:
        """Start reads and put them into the queue, which limits how many are ahead; then None, or the error."""
        try:
            for segment in chosen:
                section = await self._section(segment)
                wanted = window.within(segment, section)
                blocks = section.blocks(wanted.first_offset, wanted.end_offset)
                for block in _join_blocks(blocks, self._range_bytes):
                    content = tasks.spawn(self._content(segment, block), f"read {segment.object}")
                    await reads.put(_Read(segment, section, wanted, block, content))
        except Exception as error:
            await reads.put(error)
        else:
            await reads.put(None)

    async def _section(self, segment: SegmentInfo) -> SegmentSection:
        """Return the section of a segment. Raises Corrupt if the object does not hold the segment's offsets."""
        try:
            footer, _ = await self._footer(segment.object, segment.object_bytes)
        except DanubeError as error:
            raise _with_offsets(segment.first_offset, segment.end_offset, error) from error
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
            raise _with_offsets(block.first_offset, block.end_offset, error) from error

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    @property
    def _store(self) -> ObjectStore:
        self._check_open()
        if isinstance(self._store_or_url, str):
            assert self._opened_store is not None
            return self._opened_store
        return self._store_or_url

    async def _begin(self) -> None:
        if isinstance(self._store_or_url, str):
            self._opened_store = await open_store(self._store_or_url, self._settings)

    async def _end(self) -> None:
        if self._opened_store is not None:
            await self._opened_store.close()


class BlockingSegments(Blocking[Segments]):
    """`Segments` for programs without an event loop. Its thread runs from `open` to `close`."""

    sections = blocking(Segments.sections)
    find = blocking(Segments.find)

    @stands_for(Segments.batches)
    def batches(self, segments: AnySegments, **span: Unpack[SpanArguments]) -> Iterator[Batch]:
        return self._results(segments, _rows, **span)

    @stands_for(Segments.arrow)
    def arrow(self, segments: AnySegments, **span: Unpack[SpanArguments]) -> Iterator[pyarrow.RecordBatch]:
        return self._results(segments, _arrow_rows, **span)

    def rows(self, segments: AnySegments, **span: Unpack[SpanArguments]) -> Iterator[tuple[Batch, int, int]]:
        """Like `batches`, without a copy at the edges: yields whole batches, and the wanted rows [start, end)."""
        return self._results(segments, _row_range, **span)

    def history(self, topic_id: int, partition: int, **span: Unpack[SpanArguments]) -> Iterator[Batch]:
        """See `Segments.history`."""
        return self.batches(self.find(topic_id, partition), **span)

    def _results(self, segments: AnySegments, make_result: MakeResult[T], **span: Unpack[SpanArguments]) -> Iterator[T]:
        """Yield the results. The event loop reads the bytes; the calling thread verifies them and makes the results."""
        with closing(self._thread.iterate(self._inner._reads(segments, **span))) as reads:
            for read, content in reads:
                yield from _make_results(read, content, make_result)

    def open(self) -> Self:
        self._thread.start()
        try:
            return super().open()
        except BaseException:
            self._thread.stop()
            raise

    def close(self, timeout: float | None = None) -> None:
        try:
            super().close(timeout)
        finally:
            self._thread.stop()


def open_segments(
    url: str, settings: Mapping[str, str] | None = None, *, read_ahead: int = 4, range_bytes: int = 4 * MIB
) -> Segments:
    """Return the segments of the store at `url` (see `runtime.objects.opening`), to be opened with `async with`."""
    return Segments(url, settings, read_ahead=read_ahead, range_bytes=range_bytes)


def open_segments_blocking(
    url: str, settings: Mapping[str, str] | None = None, *, read_ahead: int = 4, range_bytes: int = 4 * MIB
) -> BlockingSegments:
    """Like `open_segments`, for programs without an event loop: to be opened with `with`."""
    return BlockingSegments(open_segments(url, settings, read_ahead=read_ahead, range_bytes=range_bytes), LoopThread())


def store_to_read(url: str, settings: Mapping[str, str] | None = None) -> LocalStore | str:
    """Return what opens the store at `url` for reading only: a local one is neither created nor locked.

    Raises Unavailable for a directory that this machine does not have.
    """
    address = StoreAddress.parse(url)
    if address.scheme != "file" or (settings or {}).keys() - {"shared"}:
        return url
    address.expect(host=False)
    directory = Path("/", address.path)
    if not directory.is_dir():
        raise Unavailable(
            f"there is no directory {directory} on this machine: mount it, name another address of the store with the "
            f"option `store`, or use a store that can be reached from here"
        )
    return LocalStore(directory)


def _raised_where_awaited(task: asyncio.Task[Any], error: BaseException) -> None:
    """Do nothing: awaiting a failed read raises its error, and the reads after it are not needed."""


def _with_offsets(first_offset: int, end_offset: int, error: DanubeError) -> DanubeError:
    """Return the same error, which names the object, with the offsets that cannot be read because of it."""
    return type(error)(f"offsets {first_offset}..{end_offset} cannot be read: {error.message}")


def _join_blocks(blocks: Sequence[Block], bytes_max: int) -> Iterator[Block]:
    """Join neighbouring blocks to reads of at most `bytes_max` bytes, or of a single block."""
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


def _make_results(read: _Read, content: memoryview, make_result: MakeResult[T]) -> list[T]:
    """Verify the batches that were read and return the results of their wanted rows. Raises Corrupt."""
    results: list[T] = []
    for view in read.section.split(content, read.block.start, read.segment.object):
        offset, end_offset = offsets_of(view)
        if end_offset <= read.wanted.first_offset or offset >= read.wanted.end_offset:
            continue
        try:
            batch = Batch.open(view, stamped=True)
        except Corrupt as error:
            raise Corrupt(f"{read.segment.object}: batch of offset {offset}: {error.message}") from None
        start, end = read.wanted.rows_of(batch)
        if start < end:
            results.append(make_result(batch, start, end))
    return results


def _row_range(batch: Batch, start: int, end: int) -> tuple[Batch, int, int]:
    return batch, start, end


def _rows(batch: Batch, start: int, end: int) -> Batch:
    return batch if end - start == batch.count else batch.slice(start, end)


def _arrow_rows(batch: Batch, start: int, end: int) -> pyarrow.RecordBatch:
    whole = batch.to_arrow()
    return whole if end - start == batch.count else whole.slice(start, end - start)
