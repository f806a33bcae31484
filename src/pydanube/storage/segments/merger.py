"""Merges neighbouring small segments of a partition, so that the history of a quiet partition has fewer objects.

```
 catalog: a run of small segments --> read, checked --> one object (create-only) --> catalog: new replaces old, in
                                                        one transaction comparing the owner's epoch --> old: garbage
```

A crash may happen after any step: before the transaction the new object is an orphan, after it the old objects are
garbage; both are collected later. Readers of the old objects finish within the grace period.

Invariants
    at every moment each offset is in the catalog exactly once
    batches are unchanged, and so is the producer table at the end of each section
    a round reads a bounded part of the catalog and makes at most one object, which it holds in memory
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, Protocol

from pydanube.codec.segment import SegmentBuilder, SegmentFooter, split
from pydanube.core.tiering import MergeCandidate, plan_merge
from pydanube.metadata.store import Compare, Delete, Put
from pydanube.model.errors import Corrupt, DanubeError, NotFound, StaleEpoch
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.runtime.clock import Clock
from pydanube.runtime.rates import Pacer
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.catalog import CatalogSegment, entries, garbage, segment_key, uploading, user_key
from pydanube.storage.segments.garbage_collector import OBJECTS_PREFIX
from pydanube.storage.segments.history import SegmentReader
from pydanube.storage.segments.uploader import segment_of

log = get_logger(__name__)

PAGE: Final = 250
"""Segments that are read from the catalog at a time."""

PAGES: Final = 32
"""Pages that are read in one round."""

UNREADABLE_S: Final = 3600.0
"""A partition with an unreadable object is skipped for this long."""

Key = tuple[int, int]


class MergeablePartition(Protocol):
    """A partition, as the merger uses it."""

    topic_id: int
    index: int

    @property
    def segment_bytes(self) -> int:
        """The segment size of the topic; 0 means the broker's setting."""

    async def rewrite(self, writes: Sequence[Put | Delete], compares: Sequence[Compare] = ()) -> None:
        """Change the catalog, comparing the owner's epoch and `compares`. Raises StaleEpoch, or Unavailable if only one
        of `compares` does not hold."""


class SegmentMerger:
    """Merges the segments of all partitions. Each round continues where the last one ended."""

    def __init__(
        self,
        history: SegmentReader,
        partitions: Mapping[Key, MergeablePartition],
        writer: str,
        clock: Clock,
        segment_bytes: int,
        bytes_per_s: int,
    ) -> None:
        self._history = history
        self._objects = history.objects
        self._catalog = history.catalog
        self._partitions = partitions
        self._writer = writer
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._pace = Pacer(bytes_per_s, clock)
        self._numbers = count(1)
        self._place: tuple[Key, int] = ((0, 0), 0)
        self._unreadable: dict[Key, float] = {}
        self.making = ""
        """Key of the object that may be in the store and is not yet in the catalog; empty if there is none."""
        self.merged = 0
        """The number of objects that were made."""

    async def round(self) -> bool:
        """Read the next part of the catalog and merge one run of segments. Returns whether something was merged.

        Raises Unavailable when the store does. Cancelled: an orphan may be left in the store.
        """
        keys = sorted(self._partitions)
        for _ in range(PAGES):
            key, offset = self._place
            key = next((one for one in keys if one >= key), (0, 0))
            partition = self._partitions.get(key)
            if partition is None:
                self._place = ((0, 0), 0)  # the next round starts from the beginning
                return False
            if key != self._place[0]:
                offset = 0
            page = await self._catalog.after(*key, offset, PAGE)
            run = self._find_run(page, partition.segment_bytes or self._segment_bytes)
            if run and self._is_readable(key):
                self._place = (key, run[0].first_offset)
                return await self._merge_run(partition, run)
            self._move_on(key, page)
        return False

    def _find_run(self, page: list[CatalogSegment], segment_bytes: int) -> list[CatalogSegment]:
        """Return neighbouring segments of the page that should become one object."""
        groups = _by_object(page)
        found = plan_merge(
            [MergeCandidate(sum(one.bytes for one in group), len(group)) for group in groups], segment_bytes
        )
        return [one for group in groups[slice(*found)] for one in group] if found is not None else []

    def _move_on(self, key: Key, page: list[CatalogSegment]) -> None:
        """Continue after this page. Its second half is read again, because a run may continue on the next page."""
        topic_id, index = key
        if len(page) < PAGE:
            self._place = ((topic_id, index + 1), 0)
        else:
            self._place = (key, page[PAGE // 2].end_offset)

    def _is_readable(self, key: Key) -> bool:
        return self._unreadable.get(key, 0.0) <= self._clock.monotonic()

    async def _merge_run(self, partition: MergeablePartition, run: list[CatalogSegment]) -> bool:
        key = (partition.topic_id, partition.index)
        try:
            await self._merge(partition, run)
        except StaleEpoch:
            self._place = ((key[0], key[1] + 1), 0)  # the partition has another owner now
            return False
        except (Corrupt, NotFound) as error:
            log.error("merge.unreadable", topic=key[0], partition=key[1], error=error.message)
            self._unreadable[key] = self._clock.monotonic() + UNREADABLE_S
            self._place = ((key[0], key[1] + 1), 0)
            return False
        return True

    async def _merge(self, partition: MergeablePartition, run: list[CatalogSegment]) -> None:
        builder = SegmentBuilder(self._writer, self._clock.now_us())
        for group in _by_section(run):
            first = group[0]
            builder.begin(first.topic_id, first.index, first.record.ledger_id, first.record.epoch)
            for segment in group:
                await self._copy(builder, segment)
            builder.end(await self._history.producers(group[-1]))
        pieces, footer = await asyncio.to_thread(builder.finish)
        size = sum(map(len, pieces))
        key = self._object_key(footer)
        await self._pace.take(size)
        self.making = key
        try:
            await self._catalog.begin_upload(key, self._clock.now_us())
            await self._objects.put(key, pieces, create=True)
            made = [segment_of(key, size, footer, number) for number in range(len(footer.sections))]
            await self._replace(partition, run, made)
            await self._catalog.end_upload(key)
        finally:
            self.making = ""
        self.merged += 1
        log.info("segments.merged", object=key, bytes=size, segments=len(run), sections=len(made))

    async def _copy(self, builder: SegmentBuilder, segment: CatalogSegment) -> None:
        record = segment.record
        data = await self._objects.get(record.object, record.start, record.end)
        if len(data) != record.end - record.start:
            raise Corrupt(f"object {record.object} is cut short: put back a copy of it")

        def copy() -> None:
            name = f"object {record.object}"
            for view in split(data, record.first_offset, segment.end_offset, name, record.start):
                builder.add(view)

        await asyncio.to_thread(copy)

    def _object_key(self, footer: SegmentFooter) -> str:
        first = footer.sections[0]
        place = f"{OBJECTS_PREFIX}{first.topic_id:016x}/{first.partition:08x}"
        origin = f"{first.ledger_id:016x}-{first.owner_epoch:08x}-{self._writer}-m{next(self._numbers):08x}"
        return f"{place}/{first.first_offset:020d}-{origin}.seg"

    async def _replace(
        self, partition: MergeablePartition, old: list[CatalogSegment], new: list[CatalogSegment]
    ) -> None:
        totals = {one.end_offset: one.record.total for one in old}
        writes: dict[str, Put | Delete] = {}
        for one in old:
            place = (one.topic_id, one.index, one.end_offset)
            writes[segment_key(*place)] = Delete(segment_key(*place))
            writes[user_key(one.record.object, *place)] = Delete(user_key(one.record.object, *place))
        for one in new:
            one.record.total = totals[one.end_offset]
            writes.update({write.key: write for write in entries(one)})
        now_us = self._clock.now_us()
        replaced = {one.record.object: _is_unshared(one) for one in old}
        writes.update({write.key: write for write in (garbage(key, now_us) for key, own in replaced.items() if own)})
        assert len(writes) <= METADATA_OPERATIONS_MAX
        await partition.rewrite(list(writes.values()), [uploading(new[0].record.object)])
        try:
            for key in [key for key, own in replaced.items() if not own]:
                await self._catalog.mark_if_unused(key, now_us)
        except DanubeError as error:
            # The objects become orphans, which are collected as well.
            log.warning("merge.garbage_unnoted", error=error.message)


def _is_unshared(segment: CatalogSegment) -> bool:
    """Return whether the object holds only segments of this partition."""
    return segment.record.object.startswith(f"{OBJECTS_PREFIX}{segment.topic_id:016x}/")


def _by_object(segments: Sequence[CatalogSegment]) -> list[list[CatalogSegment]]:
    """Group neighbours that are in one object of their partition. A segment in a shared object is a group of its
    own."""
    groups: list[list[CatalogSegment]] = []
    for one in segments:
        if _is_unshared(one) and groups and groups[-1][0].record.object == one.record.object:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _by_section(run: Sequence[CatalogSegment]) -> list[list[CatalogSegment]]:
    """Group segments that continue a ledger without a gap: each group becomes one section."""
    groups: list[list[CatalogSegment]] = []
    for one in run:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and (last.record.ledger_id, last.record.epoch) == (one.record.ledger_id, one.record.epoch)
            and last.end_offset == one.first_offset
            and last.record.last_time <= one.record.first_time
        ):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
