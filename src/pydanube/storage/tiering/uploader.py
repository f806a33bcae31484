"""Uploads: reads sealed ranges from the log, puts them into objects, lists them in the catalog, then lets the log go.

```
 plan --> read from the log --> object (create-only) --> catalog, comparing the owner's epoch --> log released
```

Each step can be the last one before a crash. Before the catalog entry the object is an orphan, which is collected
later; after it the range is uploaded, and the next round begins behind it. Nothing is uploaded twice, and nothing is
released that the catalog does not list.

Invariants
    a range is released from the log only after its catalog entry is durable
    one object is in the making at a time; its bytes are the memory this takes
    a store that fails stops uploads for a while, never publishes; a partition that cannot be read stops its own only
    no key is used for two tries: a try whose answer was lost leaves an orphan, and the next one is not in its way
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple, Protocol

from pydanube.codec.batch.header import offsets_of
from pydanube.codec.segment import SegmentBuilder, SegmentFooter
from pydanube.core.tiering import TieringPolicy, UploadJob, WaitingUpload, plan
from pydanube.model.errors import AlreadyExists, Corrupt, DanubeError, StaleEpoch, Unavailable
from pydanube.model.ledgers import ProducerEntry
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import Buffer, ObjectStore
from pydanube.runtime.telemetry import get_logger

from .catalog import CatalogSegment, SegmentRecord

log = get_logger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
UNREADABLE_S: Final = 60.0
"""A partition whose log is damaged is looked at again after so long."""


class Sealed(Protocol):
    """A partition as the uploader sees it: what is visible, and not yet uploaded."""

    topic_id: int
    index: int

    def waiting(self) -> WaitingUpload | None:
        """What there is to upload; None when there is nothing."""

    async def producers(self) -> ProducerHistory:
        """What was known of producers where the uploaded part ends."""

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Stored batches from `offset` on."""

    def ledger_of(self, offset: int) -> tuple[int, int]:
        """The ledger that holds `offset`, and its epoch."""

    async def commit(self, segments: list[CatalogSegment], producers: list[ProducerEntry]) -> None:
        """Into the catalog, by comparison; then the log may let go of it. `producers`: as of their end.
        Raises StaleEpoch."""


class ProducerHistory(Protocol):
    """The producer table of a partition, as of what was read so far."""

    def replay(self, batch: memoryview) -> None: ...

    def entries(self) -> list[ProducerEntry]: ...


@dataclass(frozen=True, slots=True)
class UploadSettings:
    policy: TieringPolicy
    interval_s: float
    bytes_per_s: int
    """0: as fast as it goes."""


class Unreadable(NamedTuple):
    error: Corrupt
    again_at: float
    """When it is tried again."""


class Uploader:
    """Makes objects out of what partitions have. One for each broker."""

    def __init__(
        self,
        objects: ObjectStore,
        partitions: Callable[[], Iterable[Sealed]],
        writer: str,
        clock: Clock,
        settings: UploadSettings,
    ) -> None:
        self._objects = objects
        self._partitions = partitions
        self._writer = writer
        self._clock = clock
        self._settings = settings
        self._numbers = count(1)
        self._retry_s = RETRY_S_MIN
        self._uploading = asyncio.Lock()
        self.failure: DanubeError | None = None
        """Why the last upload did not work; None while they do."""
        self.failing_since_us = 0
        """When that began."""
        self.unreadable: dict[tuple[int, int], Unreadable] = {}
        """Partitions whose log is damaged, until they can be uploaded again."""
        self.making = ""
        """The object that may be in the store and is not in the catalog yet."""
        self.uploaded_bytes = 0
        self.objects_made = 0

    @property
    def pause_s(self) -> float:
        """How long to wait before the next round."""
        return self._settings.interval_s if self.failure is None else self._retry_s

    async def round(self, everything: bool = False, only: Collection[tuple[int, int]] | None = None) -> int:
        """Upload what is due; `everything`: whatever there is; `only`: of these partitions. Returns how many objects
        were made. What fails is tried again in the next round.
        Cancelled: an object may be left behind that nobody lists."""
        made = 0
        async with self._uploading:
            tiers = {(one.topic_id, one.index): one for one in self._partitions()}
            self.unreadable = {key: one for key, one in self.unreadable.items() if key in tiers}
            if only is not None:
                tiers = {key: one for key, one in tiers.items() if key in only}
            jobs = plan(self._waiting(tiers.values()), elapsed_us(self._clock), self._settings.policy, everything)
            if not jobs and only is None:
                self.failure, self._retry_s = None, RETRY_S_MIN  # what failed is not wanted any more
            for job in jobs:
                try:
                    made += await self._upload(job, tiers)
                except DanubeError as error:
                    self.fail(error)
                    break
                self.failure, self._retry_s = None, RETRY_S_MIN
        return made

    @property
    def is_behind(self) -> bool:
        """Whether a segment's worth of bytes is waiting somewhere."""
        return self.due_bytes > 0

    @property
    def due_bytes(self) -> int:
        """What waits where a segment's worth has gathered, or more."""
        waiting, usual = self._waiting(self._partitions()), self._settings.policy.segment_bytes
        return sum(one.bytes for one in waiting if one.bytes >= (one.segment_bytes or usual))

    def _waiting(self, tiers: Iterable[Sealed]) -> list[WaitingUpload]:
        now = self._clock.monotonic()
        aside = {key for key, one in self.unreadable.items() if one.again_at > now}
        readable = [one for one in tiers if (one.topic_id, one.index) not in aside]
        return [found for one in readable if (found := one.waiting()) is not None]

    def fail(self, error: DanubeError) -> None:
        """Uploads do not work at present."""
        if self.failure is None:
            self.failing_since_us = self._clock.now_us()
            log.warning("upload.failed", store=self._objects.url, error=error.message)
        else:
            self._retry_s = min(RETRY_S_MAX, self._retry_s * 2)
        self.failure = error

    async def _upload(self, job: UploadJob, tiers: dict[tuple[int, int], Sealed]) -> bool:
        builder = SegmentBuilder(self._writer, self._clock.now_us())
        histories: list[tuple[Sealed, int]] = []
        for part in job.parts:
            tier = tiers[part.topic_id, part.index]
            try:
                sections = await self._gather(builder, tier, part)
            except Corrupt as error:
                self._set_aside(part, error)
                rest = UploadJob(tuple(one for one in job.parts if one is not part))
                return await self._upload(rest, tiers)  # without what was gathered of it
            self.unreadable.pop((part.topic_id, part.index), None)
            if sections:
                histories.append((tier, sections))
        if not histories:
            return False
        pieces, footer = await asyncio.to_thread(builder.finish)
        key = self._key(job, footer)
        size = sum(map(len, pieces))
        self.making = key
        try:
            await self._put(key, pieces, size)
            await self._commit(key, size, footer, histories)
        finally:
            self.making = ""
        self.uploaded_bytes += size
        self.objects_made += 1
        log.info("segment.uploaded", object=key, bytes=size, sections=len(footer.sections))
        return True

    def _set_aside(self, part: WaitingUpload, error: Corrupt) -> None:
        log.error("upload.unreadable", topic=part.topic_id, partition=part.index, error=error.message)
        self.unreadable[part.topic_id, part.index] = Unreadable(error, self._clock.monotonic() + UNREADABLE_S)

    async def _gather(self, builder: SegmentBuilder, tier: Sealed, part: WaitingUpload) -> int:
        """Add a partition's batches, a section for each ledger. Returns how many sections."""
        gathering = Gathering(builder, tier, await tier.producers(), part)
        limit = builder.size + (part.segment_bytes or self._settings.policy.segment_bytes)
        while not gathering.is_done and builder.size < limit:
            views = await tier.read(gathering.offset, min(READ_BYTES, limit - builder.size))
            if not views:
                break
            await asyncio.to_thread(gathering.add, views)
        gathering.end()
        return gathering.sections

    def _key(self, job: UploadJob, footer: SegmentFooter) -> str:
        number, first = next(self._numbers), footer.sections[0]
        if len(job.parts) > 1:
            return f"segments/shared/{footer.created_at_us >> 32:08x}/{self._writer}-{number:08x}.seg"
        place = f"segments/{first.topic_id:016x}/{first.partition:08x}"
        origin = f"{first.ledger_id:016x}-{first.owner_epoch:08x}-{self._writer}-{number:08x}"
        return f"{place}/{first.first_offset:020d}-{origin}.seg"

    async def _put(self, key: str, pieces: Sequence[Buffer], size: int) -> None:
        started = self._clock.monotonic()
        try:
            await self._objects.put(key, pieces, create=True)
        except AlreadyExists:
            # The key is of this try alone, so the store itself tried again after an answer was lost.
            if (await self._objects.head(key)).size != size:
                raise Unavailable(f"object {key} exists with another size: it is left alone") from None
        if self._settings.bytes_per_s:
            spent = self._clock.monotonic() - started
            await self._clock.sleep(max(0.0, size / self._settings.bytes_per_s - spent))

    async def _commit(self, key: str, size: int, footer: SegmentFooter, tiers: list[tuple[Sealed, int]]) -> None:
        place = 0
        for tier, sections in tiers:
            segments = [segment_of(key, size, footer, number) for number in range(place, place + sections)]
            place += sections
            try:
                await tier.commit(segments, footer.sections[place - 1].producers)
            except StaleEpoch as error:
                log.info("upload.fenced", object=key, topic=tier.topic_id, partition=tier.index, error=error.message)


def elapsed_us(clock: Clock) -> int:
    """Time that never goes back: what has waited is uploaded in time, whatever becomes of the wall clock."""
    return round(clock.monotonic() * MICROSECONDS)


class Gathering:
    """One partition's batches on their way into an object."""

    def __init__(self, builder: SegmentBuilder, tier: Sealed, producers: ProducerHistory, part: WaitingUpload) -> None:
        self._builder = builder
        self._tier = tier
        self._producers = producers
        self._part = part
        self._ledger_id = -1
        self.offset = part.first_offset
        self.sections = 0

    @property
    def is_done(self) -> bool:
        return self.offset >= self._part.end_offset

    def add(self, views: list[memoryview]) -> None:
        """In a thread: checksums are taken of everything."""
        for view in views:
            base, end = offsets_of(view)
            if base >= self._part.end_offset:
                break
            ledger_id, epoch = self._tier.ledger_of(base)
            if ledger_id != self._ledger_id or base != self.offset:
                self.end()
                self._builder.begin(self._part.topic_id, self._part.index, ledger_id, epoch)
                self._ledger_id = ledger_id
                self.sections += 1
            self._builder.add(view)
            self._producers.replay(view)
            self.offset = end

    def end(self) -> None:
        if self._ledger_id >= 0:
            self._builder.end(self._producers.entries())
            self._ledger_id = -1


def segment_of(key: str, size: int, footer: SegmentFooter, number: int) -> CatalogSegment:
    section = footer.sections[number]
    record = SegmentRecord(
        object=key,
        first_offset=section.first_offset,
        start=section.start,
        end=section.end,
        footer_start=footer.start,
        object_bytes=size,
        section=number,
        ledger_id=section.ledger_id,
        epoch=section.owner_epoch,
        messages=section.messages,
        first_time=section.append_time_min,
        last_time=section.append_time_max,
    )
    return CatalogSegment(section.topic_id, section.partition, section.end_offset, record)
