"""Reads segments from object storage and reports where they differ from the catalog. Changes nothing.

```
 catalog: next segment --> object: size, header, footer, agreement --> range by range: every batch, the checksum
```

A verification runs in steps of bounded size and time. A step returns a `StoragePlace` at which the next one continues,
also in the middle of an object. The broker keeps no state between steps, so a caller may stop at any time.

Invariants
    one range is in memory at a time, and it does not enter the caches of readers
    an object that cannot be read now (Unavailable) is no damage: the step ends before it, or fails if it begins with
    it, and can be tried again
    a segment that leaves the catalog while it is read is no damage either
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from crc32c import crc32c

from pydanube.codec.segment import HEADER_BYTES, TRAILER_BYTES, SegmentSection, check_header, read_trailer
from pydanube.model.errors import Corrupt, NotFound, Unavailable
from pydanube.model.storage import StorageDamage, StoragePlace, StorageVerified
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.storage.segments.catalog import Catalog, CatalogSegment
from pydanube.storage.segments.history import ReadRange, read_footer, read_ranges_of

DAMAGES_MAX: Final = 1000
"""The most damages that one step reports, because the size of a response is limited."""


class CatalogBounds(NamedTuple):
    """The offsets [start, uploaded_end) that the segments of a partition must hold, by the metadata."""

    start: int
    uploaded_end: int


@dataclass(frozen=True, slots=True)
class PartitionToVerify:
    """A partition to verify. `bounds` reads its current bounds from the metadata."""

    topic: str
    topic_id: int
    index: int
    bounds: Callable[[], Awaitable[CatalogBounds]]


@dataclass(slots=True)
class VerificationStep:
    """One step: how much it may still read, and what it has found."""

    bytes_left: int
    deadline: float
    segments: int = 0
    messages: int = 0
    bytes: int = 0
    read_ranges: int = 0
    damages: list[StorageDamage] = field(default_factory=list)

    def is_over(self, now: float) -> bool:
        return self.bytes_left <= 0 or now >= self.deadline or len(self.damages) >= DAMAGES_MAX

    @property
    def has_result(self) -> bool:
        """Whether the step has made progress, so that it may end here."""
        return bool(self.read_ranges or self.segments)

    def take(self, size: int) -> None:
        self.bytes += size
        self.bytes_left -= size

    def result(self) -> StorageVerified:
        return StorageVerified(self.segments, self.messages, self.bytes, self.damages)


class SegmentVerifier:
    def __init__(self, objects: ObjectStore, catalog: Catalog, clock: Clock) -> None:
        self._objects = objects
        self._catalog = catalog
        self._clock = clock

    async def verify(
        self, target: PartitionToVerify, place: StoragePlace, step: VerificationStep
    ) -> StoragePlace | None:
        """Verify the partition from `place` on. Returns where the next step continues; None when the partition is
        done."""
        offset = place.offset
        before = await self._ending_at(target, offset)
        while True:
            bounds = await target.bounds()
            segment = await self._catalog.find(target.topic_id, target.index, offset)
            if segment is None:
                await self._check_end(target, offset, bounds, step)
                return None
            inside = place if place.object == segment.record.object else StoragePlace()
            try:
                stopped = await self._verify_segment(target, segment, inside, step)
            except Unavailable:
                if step.has_result:
                    return replace(place, topic=target.topic, partition=target.index, offset=offset)
                raise
            if stopped is not None:
                return StoragePlace(target.topic, target.index, offset, segment.record.object, *stopped)
            if before is not None or not (offset or bounds.start):  # else retention or a merge has removed it
                await self._check_gap(target, before, segment, step)
            before, offset, place = segment, segment.end_offset, StoragePlace()
            if step.is_over(self._clock.monotonic()):
                return StoragePlace(target.topic, target.index, offset)

    async def _ending_at(self, target: PartitionToVerify, offset: int) -> CatalogSegment | None:
        """Return the segment that ends at `offset`, if there is one."""
        found = await self._catalog.find(target.topic_id, target.index, offset - 1) if offset else None
        return found if found is not None and found.end_offset == offset else None

    async def _check_gap(
        self, target: PartitionToVerify, before: CatalogSegment | None, segment: CatalogSegment, step: VerificationStep
    ) -> None:
        """Report segments that are missing before `segment`. Offsets may have gaps, which a crash or a restore left,
        but the cumulative bytes of the segments add up there."""
        first, so_far = (before.end_offset, before.record.total) if before is not None else (0, 0)
        missing = segment.record.total - segment.bytes - so_far
        if missing and segment.record.total and await self._are_listed(before, segment):
            detail = f"the catalog lists no object for {missing} bytes of offsets {first}..{segment.first_offset - 1}"
            damage = StorageDamage(target.topic, target.index, first, segment.first_offset, "missing", detail)
            step.damages.append(damage)

    async def _are_listed(self, *segments: CatalogSegment | None) -> bool:
        return all([one is None or await self._is_listed(one) for one in segments])

    async def _check_end(
        self, target: PartitionToVerify, offset: int, bounds: CatalogBounds, step: VerificationStep
    ) -> None:
        """Report offsets after the last segment that should have been uploaded."""
        if bounds.uploaded_end <= offset:
            return
        # Retention may have moved the start since the bounds were read.
        first, end = max(offset, (await target.bounds()).start), bounds.uploaded_end
        if first < end:
            detail = f"the catalog lists no object for offsets {first}..{end - 1}, which were uploaded"
            step.damages.append(StorageDamage(target.topic, target.index, first, end, "missing", detail))

    async def _verify_segment(
        self, target: PartitionToVerify, segment: CatalogSegment, place: StoragePlace, step: VerificationStep
    ) -> tuple[int, int] | None:
        """Verify one segment. Returns the byte at which the step ended and the checksum so far; None when it is
        done."""
        kind = "damaged"
        try:
            section = await self._check_footer(segment, step)
            stopped = await self._verify_content(segment, section, place, step)
            if stopped is not None:
                return stopped
        except (Corrupt, NotFound) as error:
            if not await self._is_listed(segment):
                return None
            kind = "missing" if isinstance(error, NotFound) else kind
            detail = f"object {segment.record.object} is missing" if kind == "missing" else error.message
            damage = StorageDamage(
                target.topic,
                target.index,
                segment.first_offset,
                segment.end_offset,
                kind,
                detail,
                segment.record.object,
            )
            step.damages.append(damage)
        step.segments += 1
        step.messages += segment.record.messages
        return None

    async def _is_listed(self, segment: CatalogSegment) -> bool:
        """Return whether the catalog still lists the segment; it may have been merged or deleted meanwhile."""
        found = await self._catalog.find(segment.topic_id, segment.index, segment.end_offset - 1)
        return found == segment

    async def _check_footer(self, segment: CatalogSegment, step: VerificationStep) -> SegmentSection:
        """Check the size, header and footer of the object, and return the section from its footer."""
        record, name = segment.record, f"object {segment.record.object}"
        info = await self._objects.head(record.object)
        if info.size != record.object_bytes:
            raise Corrupt(f"{name} is {info.size} bytes long and the catalog says {record.object_bytes}")
        check_header(await self._get(segment, 0, HEADER_BYTES, step), name)
        tail = await self._get(segment, record.footer_start, record.object_bytes, step)
        footer = await asyncio.to_thread(read_footer, tail, record.object_bytes, record.object)
        if any(tail[read_trailer(tail, record.object_bytes).footer_length : -TRAILER_BYTES]):
            raise Corrupt(f"{name}: what lies between its footer and its end is not zero")
        if record.section >= len(footer.sections):
            raise Corrupt(
                f"{name} has {len(footer.sections)} sections and the catalog speaks of number {record.section}"
            )
        section = footer.sections[record.section]
        for what, found, listed in _facts(section, segment):
            if found != listed:
                raise Corrupt(f"{name}: its {what} is {found} and the catalog says {listed}")
        return section

    async def _verify_content(
        self, segment: CatalogSegment, section: SegmentSection, place: StoragePlace, step: VerificationStep
    ) -> tuple[int, int] | None:
        crc = place.crc if place.byte else 0
        for read_range in read_ranges_of(section):
            if read_range.start < place.byte:
                continue
            if step.read_ranges and step.is_over(self._clock.monotonic()):  # a step reads at least one range
                return read_range.start, crc
            try:
                crc = await self._check_range(segment, section, read_range, crc, step)
            except Unavailable:
                if step.read_ranges:
                    return read_range.start, crc
                raise
            step.read_ranges += 1
        if crc != section.crc:
            raise Corrupt(
                f"object {segment.record.object}: bytes {section.start}..{section.end} do not match their checksum"
            )
        return None

    async def _check_range(
        self, segment: CatalogSegment, section: SegmentSection, read_range: ReadRange, crc: int, step: VerificationStep
    ) -> int:
        block = await self._get(segment, read_range.start, read_range.end, step)

        def check() -> int:
            section.split(block, read_range.start, f"object {segment.record.object}")
            return crc32c(block, crc)

        return await asyncio.to_thread(check)

    async def _get(self, segment: CatalogSegment, start: int, end: int, step: VerificationStep) -> memoryview:
        data = await self._objects.get(segment.record.object, start, end)
        step.take(len(data))
        if len(data) != end - start:
            raise Corrupt(f"object {segment.record.object} ends at {start + len(data)} instead of {end}")
        return data


def _facts(section: SegmentSection, segment: CatalogSegment) -> list[tuple[str, int, int]]:
    """Return what both the footer and the catalog contain: name, value in the footer, value in the catalog."""
    record = segment.record
    return [
        ("topic id", section.topic_id, segment.topic_id),
        ("partition", section.partition, segment.index),
        ("first offset", section.first_offset, record.first_offset),
        ("end offset", section.end_offset, segment.end_offset),
        ("first byte", section.start, record.start),
        ("end byte", section.end, record.end),
        ("ledger", section.ledger_id, record.ledger_id),
        ("epoch", section.owner_epoch, record.epoch),
        ("number of messages", section.messages, record.messages),
        ("first time", section.append_time_min, record.first_time),
        ("last time", section.append_time_max, record.last_time),
    ]
