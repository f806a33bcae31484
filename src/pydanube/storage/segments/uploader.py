"""Uploads ranges of the log: puts them into objects, lists these in the catalog, then releases the log.

```
 plan --> read from the log --> upload recorded --> object (create-only) --> catalog, comparing the owner's epoch and
                                                                             the record of the upload --> log released
```

A crash may happen after any step. Before the catalog entry the object is an orphan, which is collected later; after it
the range counts as uploaded, and the next round begins after it. Nothing is listed twice, and nothing is released from
the log that the catalog does not list.

Invariants
    a range is released from the log only after its catalog entry is durable
    one object is made at a time, and held in memory
    a store that fails stops uploads for a while, never publishes; an unreadable partition stops only its own uploads
    every try has a key of its own: a try whose response was lost leaves an orphan, and the next one does not collide
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Final, NamedTuple, Protocol

from pydanube.codec.batch.header import offsets_of
from pydanube.codec.segment import SegmentBuilder, SegmentFooter
from pydanube.core.tiering import TieringPolicy, UploadJob, WaitingUpload, plan_uploads
from pydanube.model.errors import AlreadyExists, Corrupt, DanubeError, StaleEpoch, Unavailable
from pydanube.model.ledgers import ProducerEntry
from pydanube.model.settings.sections import StorageSettings
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import Buffer, ObjectStore
from pydanube.runtime.rates import Pacer
from pydanube.runtime.retry import RetryBackoff
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.catalog import Catalog, CatalogSegment, SegmentRecord

log = get_logger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024
RETRY_S_MIN: Final = 1.0
RETRY_S_MAX: Final = 60.0
UNREADABLE_S: Final = 60.0
"""A partition whose log is damaged is tried again after this long."""


class UploadSource(Protocol):
    """A partition, as the uploader uses it: it has messages that are visible and not yet uploaded."""

    topic_id: int
    index: int

    def waiting(self) -> WaitingUpload | None:
        """Return what is to be uploaded, or None."""

    async def producers(self) -> ProducerHistory:
        """Return the producer table as of the end of the uploaded part."""

    async def read(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Return stored batches from `offset` on."""

    def ledger_of(self, offset: int) -> tuple[int, int]:
        """Return the id and the epoch of the ledger that holds `offset`."""

    async def commit(self, segments: list[CatalogSegment], producers: list[ProducerEntry]) -> None:
        """Add the segments to the catalog, comparing the owner's epoch and the record of the upload, then release them
        from the log.

        `producers` is the producer table as of the end of the segments. Raises StaleEpoch, and Unavailable if the
        upload was given up: the range is uploaded again.
        """


class ProducerHistory(Protocol):
    """The producer table of a partition, which is brought forward batch by batch."""

    def replay(self, batch: memoryview) -> None: ...

    def entries(self) -> list[ProducerEntry]: ...


class UnreadablePartition(NamedTuple):
    error: Corrupt
    again_at: float
    """When the partition is tried again, by the monotonic clock."""


class Uploader:
    """Uploads what the partitions of a broker have in the log."""

    def __init__(
        self,
        objects: ObjectStore,
        catalog: Catalog,
        partitions: Callable[[], Iterable[UploadSource]],
        writer: str,
        clock: Clock,
        settings: StorageSettings,
    ) -> None:
        self._objects = objects
        self._catalog = catalog
        self._partitions = partitions
        self._writer = writer
        self._clock = clock
        self._settings = settings
        age_us = settings.segment_age_s * MICROSECONDS
        self._policy = TieringPolicy(settings.segment_bytes, age_us, settings.shared_below_bytes)
        self._pace = Pacer(settings.upload_bytes_per_s, clock)
        self._numbers = count(1)
        self._backoff = RetryBackoff(RETRY_S_MIN, RETRY_S_MAX)
        self._retry_s = 0.0
        self._uploading = asyncio.Lock()
        self.failure: DanubeError | None = None
        """Why the last upload failed; None if it succeeded."""
        self.failing_since_us = 0
        """When uploads began to fail."""
        self.unreadable: dict[tuple[int, int], UnreadablePartition] = {}
        """Partitions whose log is damaged, until they can be uploaded again."""
        self.making = ""
        """Key of the object that may be in the store and is not yet in the catalog; empty if there is none."""
        self.uploaded_bytes = 0
        self.objects_made = 0
        self.failures = 0
        self.waiting_bytes = 0
        """Bytes that were not uploaded when the last round began."""

    @property
    def pause_s(self) -> float:
        """How long to wait before the next round."""
        return self._settings.upload_interval_s if self.failure is None else self._retry_s

    async def round(self, everything: bool = False, only: Collection[tuple[int, int]] | None = None) -> int:
        """Upload what is due, and return how many objects were made. What fails is tried again in the next round.

        `everything` uploads all that is waiting, due or not; `only` restricts the round to these partitions.
        Cancelled: an orphan may be left in the store.
        """
        made = 0
        async with self._uploading:
            sources = {(one.topic_id, one.index): one for one in self._partitions()}
            self.unreadable = {key: one for key, one in self.unreadable.items() if key in sources}
            if only is not None:
                sources = {key: one for key, one in sources.items() if key in only}
            waiting = self._waiting(sources.values())
            if only is None:
                self.waiting_bytes = sum(one.bytes for one in waiting)
            jobs = plan_uploads(waiting, elapsed_us(self._clock), self._policy, everything)
            if not jobs and only is None:
                self._succeeded()  # what failed is no longer waiting
            for job in jobs:
                try:
                    made += await self._upload(job, sources)
                except DanubeError as error:
                    self.fail(error)
                    break
                self._succeeded()
        return made

    @property
    def is_behind(self) -> bool:
        """Whether any partition has a full segment waiting."""
        return self.due_bytes > 0

    @property
    def due_bytes(self) -> int:
        """Bytes that wait in partitions with at least one full segment."""
        waiting, usual = self._waiting(self._partitions()), self._policy.segment_bytes
        return sum(one.bytes for one in waiting if one.bytes >= (one.segment_bytes or usual))

    def _waiting(self, sources: Iterable[UploadSource]) -> list[WaitingUpload]:
        now = self._clock.monotonic()
        aside = {key for key, one in self.unreadable.items() if one.again_at > now}
        readable = [one for one in sources if (one.topic_id, one.index) not in aside]
        return [found for one in readable if (found := one.waiting()) is not None]

    def fail(self, error: DanubeError) -> None:
        """Record a failed upload, and increase the pause before the next round."""
        self.failures += 1
        if self.failure is None:
            self.failing_since_us = self._clock.now_us()
            log.warning("upload.failed", store=self._objects.url, error=error.message)
        self._retry_s = self._backoff.next()
        self.failure = error

    def _succeeded(self) -> None:
        self.failure = None
        self._backoff.reset()

    async def _upload(self, job: UploadJob, sources: dict[tuple[int, int], UploadSource]) -> bool:
        builder = SegmentBuilder(self._writer, self._clock.now_us())
        gathered: list[tuple[UploadSource, int]] = []
        for part in job.parts:
            source = sources[part.topic_id, part.index]
            try:
                sections = await self._gather(builder, source, part)
            except Corrupt as error:
                self._skip_unreadable(part, error)
                rest = UploadJob(tuple(one for one in job.parts if one is not part))
                return await self._upload(rest, sources)  # a new object, without what was read of this partition
            self.unreadable.pop((part.topic_id, part.index), None)
            if sections:
                gathered.append((source, sections))
        if not gathered:
            return False
        pieces, footer = await asyncio.to_thread(builder.finish)
        key = self._object_key(job, footer)
        size = sum(map(len, pieces))
        self.making = key
        try:
            await self._catalog.begin_upload(key, self._clock.now_us())
            await self._put(key, pieces, size)
            await self._commit(key, size, footer, gathered)
            await self._catalog.end_upload(key)
        finally:
            self.making = ""
        self.uploaded_bytes += size
        self.objects_made += 1
        log.info("segment.uploaded", object=key, bytes=size, sections=len(footer.sections))
        return True

    def _skip_unreadable(self, part: WaitingUpload, error: Corrupt) -> None:
        log.error("upload.unreadable", topic=part.topic_id, partition=part.index, error=error.message)
        self.unreadable[part.topic_id, part.index] = UnreadablePartition(error, self._clock.monotonic() + UNREADABLE_S)

    async def _gather(self, builder: SegmentBuilder, source: UploadSource, part: WaitingUpload) -> int:
        """Add the batches of a partition to the object, a section for each ledger. Returns the number of sections."""
        gathering = PartitionUpload(builder, source, await source.producers(), part)
        limit = builder.size + (part.segment_bytes or self._policy.segment_bytes)
        while not gathering.is_done and builder.size < limit:
            views = await source.read(gathering.offset, min(READ_BYTES, limit - builder.size))
            if not views:
                break
            await asyncio.to_thread(gathering.add, views)
        gathering.end()
        return gathering.sections

    def _object_key(self, job: UploadJob, footer: SegmentFooter) -> str:
        number, first = next(self._numbers), footer.sections[0]
        if len(job.parts) > 1:
            return f"segments/shared/{footer.created_at_us >> 32:08x}/{self._writer}-{number:08x}.seg"
        place = f"segments/{first.topic_id:016x}/{first.partition:08x}"
        origin = f"{first.ledger_id:016x}-{first.owner_epoch:08x}-{self._writer}-{number:08x}"
        return f"{place}/{first.first_offset:020d}-{origin}.seg"

    async def _put(self, key: str, pieces: Sequence[Buffer], size: int) -> None:
        await self._pace.take(size)
        try:
            await self._objects.put(key, pieces, create=True)
        except AlreadyExists:
            # The key belongs to this try alone, so the store has retried the put after it lost a response.
            if (await self._objects.head(key)).size != size:
                raise Unavailable(f"object {key} exists with another size: it is left alone") from None

    async def _commit(
        self, key: str, size: int, footer: SegmentFooter, sources: list[tuple[UploadSource, int]]
    ) -> None:
        place = 0
        for source, sections in sources:
            segments = [segment_of(key, size, footer, number) for number in range(place, place + sections)]
            place += sections
            try:
                await source.commit(segments, footer.sections[place - 1].producers)
            except StaleEpoch as error:
                log.info(
                    "upload.fenced", object=key, topic=source.topic_id, partition=source.index, error=error.message
                )


def elapsed_us(clock: Clock) -> int:
    """Return the monotonic time, so that uploads are on time whatever happens to the wall clock."""
    return round(clock.monotonic() * MICROSECONDS)


class PartitionUpload:
    """Adds the batches of one partition to an object."""

    def __init__(
        self, builder: SegmentBuilder, source: UploadSource, producers: ProducerHistory, part: WaitingUpload
    ) -> None:
        self._builder = builder
        self._source = source
        self._producers = producers
        self._part = part
        self._ledger_id = -1
        self.offset = part.first_offset
        self.sections = 0

    @property
    def is_done(self) -> bool:
        return self.offset >= self._part.end_offset

    def add(self, views: list[memoryview]) -> None:
        """Add batches. Called in a worker thread, because it computes checksums of all bytes."""
        for view in views:
            base, end = offsets_of(view)
            if base >= self._part.end_offset:
                break
            ledger_id, epoch = self._source.ledger_of(base)
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
