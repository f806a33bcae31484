"""The catalog: which object holds which offsets of a partition. It is stored in the metadata store.

```
/segments/<topic id>/<index>/<end offset>              SegmentRecord
/objects/<object key>/<topic id>/<index>/<end offset>  (empty)         a segment that uses the object
/garbage/<object key>                                  GarbageRecord   unused, and since when
/uploads/<object key>                                  UploadRecord    about to be put and listed, and since when
```

A key contains the end offset of its segment, so the segment that holds an offset is the first key after that offset.
No part of the catalog has to stay in memory, however long the history is.

A broker that puts an object records the upload first, and lists the object by a transaction that compares that record
(`uploading`). A collector, which may be in another broker, removes the record before it deletes the object. So an
object is listed or deleted, never both, however long its uploader was paused.

Invariants
    the segments of a partition do not overlap, and their times rise with their offsets
    an object that any segment refers to is not garbage
    the record of an upload is never written again once it is removed
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from pydanube.metadata.request_groups import Transact
from pydanube.metadata.store import Compare, Delete, KeyValue, MetadataStore, Put, list_all
from pydanube.model.errors import Corrupt
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.storage.stream import StoredRange

GARBAGE: Final = "/garbage/"
OBJECTS: Final = "/objects/"
SEGMENTS: Final = "/segments/"
UPLOADS: Final = "/uploads/"

GARBAGE_AT_ONCE: Final = 1000

SIZES_READ_MAX: Final = 500
"""`Catalog.sizes` reads up to this many segments one by one, and samples the rest."""

SAMPLES: Final = 64
"""How many samples `Catalog.sizes` takes of the segments that it does not read."""


class SegmentRecord(msgspec.Struct, omit_defaults=True):
    """One section of one object. Bytes [start, end) of the object hold the batches; the footer has the index."""

    object: str
    first_offset: int
    start: int
    end: int
    footer_start: int
    object_bytes: int
    section: int = 0
    """Index of the section in the footer."""
    ledger_id: int = 0
    epoch: int = 0
    messages: int = 0
    first_time: int = 0
    last_time: int = 0
    """Append times of the first and the last batch, microseconds."""
    total: int = 0
    """Cumulative bytes of all segments of the partition up to the end of this one, removed segments included."""


class GarbageRecord(msgspec.Struct):
    since: int


class UploadRecord(msgspec.Struct):
    since: int


class CatalogSegment(msgspec.Struct, frozen=True):
    """A segment, with the partition that it belongs to."""

    topic_id: int
    index: int
    end_offset: int
    record: SegmentRecord

    @property
    def first_offset(self) -> int:
        return self.record.first_offset

    @property
    def bytes(self) -> int:
        return self.record.end - self.record.start


def is_lost_between(before: CatalogSegment | None, after: CatalogSegment, start: int) -> bool:
    """Return whether the catalog has lost segments between these two: then their cumulative bytes do not add up.

    `before` is None when `after` is the first segment. Then nothing may be missing before it, unless retention has
    moved the `start` of the partition.
    """
    if not after.record.total or (before is None and start):
        return False
    return after.record.total - after.bytes != (before.record.total if before is not None else 0)


def segments_of(topic_id: int, index: int | None = None) -> str:
    return f"{SEGMENTS}{topic_id:016x}/" if index is None else f"{SEGMENTS}{topic_id:016x}/{index:08x}/"


def segment_key(topic_id: int, index: int, end_offset: int) -> str:
    return f"{segments_of(topic_id, index)}{end_offset:016x}"


def users_of(object_key: str) -> str:
    # The colon ends the key of the object, which may be a prefix of another key.
    return f"{OBJECTS}{object_key}:"


def user_key(object_key: str, topic_id: int, index: int, end_offset: int) -> str:
    return f"{users_of(object_key)}{topic_id:016x}/{index:08x}/{end_offset:016x}"


def garbage_key(object_key: str) -> str:
    return f"{GARBAGE}{object_key}"


def upload_key(object_key: str) -> str:
    return f"{UPLOADS}{object_key}"


def uploading(object_key: str) -> Compare:
    """Return the comparison that holds while the upload of the object is recorded: only then may it be listed."""
    return Compare.version(upload_key(object_key), 1)


def entries(segment: CatalogSegment) -> list[Put | Delete]:
    """Return the writes that add a segment to the catalog. The caller adds a comparison of the owner's epoch."""
    place = (segment.topic_id, segment.index, segment.end_offset)
    return [
        Put(segment_key(*place), msgspec.msgpack.encode(segment.record)),
        Put(user_key(segment.record.object, *place), b""),
    ]


def garbage(object_key: str, now_us: int) -> Put:
    """Return the write that marks the object as garbage. The collector ignores the mark while the object is used."""
    return Put(garbage_key(object_key), msgspec.msgpack.encode(GarbageRecord(now_us)))


CatalogWrite: TypeAlias = Callable[[Sequence[Put | Delete]], Awaitable[object]]
"""Makes changes of the catalog in one transaction, which compares what its caller must still hold."""


class Catalog:
    """Reads the catalog, removes segments from it, and records uploads."""

    def __init__(self, store: MetadataStore, begin: Transact | None = None) -> None:
        """`begin` makes the transactions that record uploads, perhaps several at once."""
        self._store = store
        self._begin = begin or store.transact

    async def find(self, topic_id: int, index: int, offset: int) -> CatalogSegment | None:
        """Return the segment that holds `offset`, or else the first one after it."""
        found = await self.after(topic_id, index, offset, 1)
        return found[0] if found else None

    async def after(self, topic_id: int, index: int, offset: int, limit: int) -> list[CatalogSegment]:
        """Return the first `limit` segments whose end offset is greater than `offset`, in order."""
        prefix = segments_of(topic_id, index)
        pairs = await self._store.list(prefix, start_after=f"{prefix}{max(0, offset):016x}", limit=limit)
        return [parse(one) for one in pairs]

    async def before(self, topic_id: int, index: int, offset: int) -> CatalogSegment | None:
        """Return the last segment that ends at `offset` or before it; a binary search."""
        best: CatalogSegment | None = None
        start, middle, end = 0, offset - 1, offset
        while start < end:
            segment = await self.find(topic_id, index, middle)
            if segment is not None and segment.end_offset <= offset:
                best, start = segment, segment.end_offset
            else:
                end = middle
            middle = (start + end) // 2
        return best

    async def find_time(self, topic_id: int, index: int, time_us: int, start: int, end: int) -> CatalogSegment | None:
        """Return the first segment within [start, end) whose last append time is at or after `time_us`; a binary
        search."""
        best: CatalogSegment | None = None
        while start < end:
            segment = await self.find(topic_id, index, (start + end) // 2)
            if segment is None or segment.first_offset >= end:
                end = (start + end) // 2
            elif segment.record.last_time >= time_us:
                best, end = segment, min(segment.first_offset, (start + end) // 2)
            else:
                start = segment.end_offset
        return best

    async def sizes(self, topic_id: int, index: int, start: int, end: int) -> list[StoredRange]:
        """Return ranges with their approximate sizes and their times, in order. Reads a bounded number of entries."""
        found = await self.after(topic_id, index, start, SIZES_READ_MAX)
        if len(found) < SIZES_READ_MAX:
            return [
                StoredRange(one.first_offset, one.end_offset, one.bytes, one.record.first_time, one.record.last_time)
                for one in found
            ]
        begin, size = found[0], sum(one.bytes for one in found)
        sizes = [
            StoredRange(
                begin.first_offset, found[-1].end_offset, size, begin.record.first_time, found[-1].record.last_time
            )
        ]
        last, read_end = found[-1], found[-1].end_offset
        for sample in range(1, SAMPLES + 1):
            one = await self.find(topic_id, index, read_end + (end - 1 - read_end) * sample // SAMPLES)
            if one is not None and one.end_offset > sizes[-1][1]:
                size = max(0, one.record.total - last.record.total)
                before = last.record.last_time
                sizes.append(StoredRange(sizes[-1].end, one.end_offset, size, before, one.record.last_time))
                last = one
        return sizes

    async def gaps(self, topic_id: int, index: int, start: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges within [start, end) that lie before or between segments and never held a message: a crash
        or a restore skipped them. Offsets whose segment the catalog has lost are not included. Reads all entries of the
        partition in that range, a page at a time."""
        found: list[tuple[int, int]] = []
        before: CatalogSegment | None = None
        async for page in self.pages(topic_id, index, start):
            for one in page:
                if one.first_offset >= end:
                    return found
                ended = before.end_offset if before is not None else start
                if ended < one.first_offset and not is_lost_between(before, one, start):
                    found.append((ended, one.first_offset))
                before = one
        return found

    async def pages(
        self, topic_id: int, index: int, offset: int = 0, size: int = 1000
    ) -> AsyncIterator[list[CatalogSegment]]:
        """Yield the segments of a partition from the one that holds `offset` on, oldest first."""
        while page := await self.after(topic_id, index, offset, size):
            yield page
            offset = page[-1].end_offset

    async def remove(self, segments: Sequence[CatalogSegment], now_us: int, write: CatalogWrite | None = None) -> None:
        """Remove segments, and mark objects that are no longer used as garbage.

        write   makes the changes, for an owner that compares its record; without it nothing is compared

        Cancelled, or `write` raised: some segments are removed, each of them completely.
        """
        for start in range(0, len(segments), METADATA_OPERATIONS_MAX // 4):
            part = segments[start : start + METADATA_OPERATIONS_MAX // 4]
            writes: list[Put | Delete] = []
            for one in part:
                place = (one.topic_id, one.index, one.end_offset)
                writes += [Delete(segment_key(*place)), Delete(user_key(one.record.object, *place))]
            if write is None:
                await self._store.transact([], writes)
            else:
                await write(writes)
            for key in dict.fromkeys(one.record.object for one in part):
                await self.mark_if_unused(key, now_us)

    async def mark_if_unused(self, object_key: str, now_us: int) -> None:
        """Mark the object as garbage, unless a segment uses it."""
        if not await self._store.list(users_of(object_key), limit=1):
            await self._store.transact([Compare.missing(garbage_key(object_key))], [garbage(object_key, now_us)])

    async def remove_topic(self, topic_id: int, now_us: int) -> None:
        """Remove all segments of a topic that was deleted."""
        while pairs := await self._store.list(segments_of(topic_id), limit=1000):
            await self.remove([parse(one) for one in pairs], now_us)

    async def topics(self) -> list[int]:
        """Return the ids of all topics that have segments."""
        found: list[int] = []
        after = ""
        while pairs := await self._store.list(SEGMENTS, start_after=after, limit=1):
            found.append(parse(pairs[0]).topic_id)
            after = f"{SEGMENTS}{found[-1]:016x}0"  # "0" follows "/": sorts after all keys of this topic
        return found

    async def is_used(self, object_key: str) -> bool:
        return bool(await self._store.list(users_of(object_key), limit=1))

    async def garbage(self, after: str = "") -> AsyncIterator[tuple[str, int]]:
        """Yield the keys of garbage objects after the key `after`, each with the time since when it is garbage."""
        while pairs := await self._store.list(GARBAGE, start_after=f"{GARBAGE}{after}", limit=GARBAGE_AT_ONCE):
            for one in pairs:
                yield one.key.removeprefix(GARBAGE), msgspec.msgpack.decode(one.value, type=GarbageRecord).since
            after = pairs[-1].key.removeprefix(GARBAGE)

    async def is_garbage(self, object_key: str) -> bool:
        return await self._store.get(garbage_key(object_key)) is not None

    async def forget_garbage(self, object_key: str) -> None:
        await self._store.transact([], [Delete(garbage_key(object_key))])

    # -- uploads -------------------------------------------------------------------------------------------------------

    async def begin_upload(self, object_key: str, now_us: int) -> None:
        """Record that this object is about to be put and listed. Every try has an object key of its own."""
        record = msgspec.msgpack.encode(UploadRecord(now_us))
        await self._begin([Compare.missing(upload_key(object_key))], [Put(upload_key(object_key), record)])

    async def end_upload(self, object_key: str) -> None:
        """Remove the record of an upload, after which nothing can list the object any more."""
        await self._store.transact([], [Delete(upload_key(object_key))])

    async def is_uploading(self, object_key: str, begun_before_us: int) -> bool:
        """Return whether the object is being uploaded, and did not begin before `begun_before_us`."""
        found = await self._store.get(upload_key(object_key))
        return found is not None and _begun(found) >= begun_before_us

    async def condemn(self, object_key: str, begun_before_us: int) -> bool:
        """Make sure that nothing lists the object from now on, and return whether it may be deleted: no segment uses
        it, and its upload is over, or began before `begun_before_us` and was given up by this call."""
        found = await self._store.get(upload_key(object_key))
        if found is not None and (_begun(found) >= begun_before_us or not await self._give_up(found)):
            return False
        return not await self.is_used(object_key)  # read after the record is gone: later than the last listing

    async def uploads(self, begun_before_us: int) -> AsyncIterator[str]:
        """Yield the objects of recorded uploads that began before `begun_before_us`."""
        async for one in list_all(self._store, UPLOADS):
            if _begun(one) < begun_before_us:
                yield one.key.removeprefix(UPLOADS)

    async def _give_up(self, upload: KeyValue) -> bool:
        compare = Compare.mod_revision(upload.key, upload.mod_revision)
        return (await self._store.transact([compare], [Delete(upload.key)])).succeeded


def _begun(upload: KeyValue) -> int:
    return msgspec.msgpack.decode(upload.value, type=UploadRecord).since


def parse(pair: KeyValue) -> CatalogSegment:
    try:
        topic_id, index, end_offset = pair.key.removeprefix(SEGMENTS).split("/")
        record = msgspec.msgpack.decode(pair.value, type=SegmentRecord)
        return CatalogSegment(int(topic_id, 16), int(index, 16), int(end_offset, 16), record)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Corrupt(
            f"catalog entry {pair.key} cannot be read ({error}); restore the metadata from a backup"
        ) from None
