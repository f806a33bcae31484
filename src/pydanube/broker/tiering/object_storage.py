"""Object storage as the broker uses it: uploads, collection of what nobody needs, and what that says of its health.

One task uploads what is due, lets the log go of it, and now and then deletes objects that nobody needs any more.
Nothing of it is on the way of a publish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.registry.records import TOPICS, TopicRecord, unpack
from pydanube.core.tiering import TieringPolicy
from pydanube.metadata.store import MetadataStore, list_all
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.tiering.catalog import Catalog
from pydanube.storage.tiering.claim import CHECK_S, DELETE_CHECK_S, Claim
from pydanube.storage.tiering.collecting import Collector
from pydanube.storage.tiering.history import PartitionHistory, SegmentReader
from pydanube.storage.tiering.manifest import Living, Manifests
from pydanube.storage.tiering.merging import Merger
from pydanube.storage.tiering.patience import TimeLimitedStore
from pydanube.storage.tiering.uploader import Sealed, Uploader, UploadSettings
from pydanube.storage.wal import LogWriter

from .tiered_partition import TieredPartition

log = get_logger(__name__)

LAST_MANIFEST_S: Final = 5.0
"""How long the end of a broker waits for it."""

MERGE_EVERY_S: Final = 10.0
"""How often a part of the catalog is looked at for small segments."""

COLLECT_EVERY_S: Final = 60.0
LEISURE: Final = 2.0
"""Uploads rest so many times as long as they work."""

BURST_BYTES_PER_S: Final = 16 << 20
BURST_S_MAX: Final = 5.0
"""While more than this comes in every second uploads wait, but for no longer than this."""

LEISURE_S_MAX: Final = 2.0
LEISURE_BYTES_MAX: Final = 1 << 30
"""Past so much that is due they do not rest."""

CARRIED_AT_ONCE: Final = 100
"""Each is a transaction or two."""

ORPHANS_EVERY: Final = 60
"""The listing of the store is read whole to find orphans: once in so many collections."""


@dataclass(frozen=True, slots=True)
class TieringSettings:
    """See the `storage` section of the settings."""

    segment_bytes: int
    segment_age_s: int
    shared_below_bytes: int
    upload_interval_s: float
    upload_bytes_per_s: int
    shutdown_upload_s: int
    log_keep_bytes: int
    log_bytes_max: int
    cache_bytes: int
    grace_s: int
    stage_keep_s: int = 86_400
    staged_query_keep_s: int = 90 * 86_400
    store_timeout_s: float = 60.0
    """A call to the store that takes longer has failed; those with many bytes have more time."""

    def uploads(self) -> UploadSettings:
        policy = TieringPolicy(self.segment_bytes, self.segment_age_s * MICROSECONDS, self.shared_below_bytes)
        return UploadSettings(policy, self.upload_interval_s, self.upload_bytes_per_s)


class ObjectStorage:
    """One broker's object storage."""

    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        writer: LogWriter,
        clock: Clock,
        tasks: Tasks,
        settings: TieringSettings,
        cluster: str,
        living: Living | None = None,
    ) -> None:
        self._next_merge = 0.0
        self._store = store
        self.objects = objects = TimeLimitedStore(objects, settings.store_timeout_s, self.check_deletion)
        self.settings = settings
        self.claim = Claim(objects, store, cluster, clock)
        self.catalog = Catalog(store)
        self.history = SegmentReader(objects, self.catalog, tasks, settings.cache_bytes)
        self.partitions: dict[tuple[int, int], TieredPartition] = {}
        """Every open partition that has something to upload, now or later."""
        self._writer = writer
        self._clock = clock
        process = identity()
        self.uploader = Uploader(objects, self._sealed, process, clock, settings.uploads())
        self.manifests = Manifests(objects, store, clock, cluster, process, living)
        self.merger = Merger(
            self.history, self.partitions, process, clock, settings.segment_bytes, settings.upload_bytes_per_s
        )
        grace_us = settings.grace_s * MICROSECONDS
        self.collector = Collector(objects, self.catalog, clock, grace_us, self._is_being_made)

    def open_partition(
        self, ownership: Ownership, past: PartitionHistory, remembered_max: int, partition: StoredPartition
    ) -> TieredPartition:
        """Upload what this partition stores from now on."""
        topic_id = ownership.topic_id
        tiered = TieredPartition(
            topic_id, partition, ownership, past, self.catalog, self._writer, self._clock, remembered_max
        )
        self.partitions[topic_id, partition.index] = tiered
        return tiered

    def _sealed(self) -> Iterable[Sealed]:
        return list(self.partitions.values())

    def _is_being_made(self, object_key: str) -> bool:
        return object_key in (self.uploader.making, self.merger.making)

    async def run(self) -> None:
        """Until it is cancelled. A collection, which may read a long listing, is not in the way of uploads."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._keep_uploading())
            both.create_task(self._keep_collecting())

    async def _keep_uploading(self) -> None:
        """What nobody foresaw is said like any other failure, and tried again like it: uploads never end unseen."""
        made, started = 0, self._clock.monotonic()
        while True:
            appended = self._writer.appended_bytes
            pause_s = self._rest_s(self._clock.monotonic() - started) if made else self.uploader.pause_s
            await self._clock.sleep(pause_s)
            if self._waits_for_a_burst(self._writer.appended_bytes - appended, pause_s, started):
                continue
            started = self._clock.monotonic()
            try:
                made = await self._round()
            except Exception as error:
                made = 0
                log.exception("upload.crashed", store=self.objects.url)
                self.uploader.fail(Unavailable(f"uploading failed: {type(error).__name__}: {error}"))

    async def _round(self) -> int:
        """Upload what is due, let the log go of what is uploaded, merge, write a manifest. How many objects it made."""
        ours = await self._is_ours()
        made = await self.uploader.round(everything=self._is_nearly_full) if ours else 0
        if self._writer.stored_bytes > self._kept_bytes:
            await self.trim()  # also when nothing was made: what pinned a file may have been synced since
        if ours:
            await self._merge()
            await self.manifests.keep()
        return made

    async def _keep_collecting(self) -> None:
        for collection in count():
            await self._clock.sleep(COLLECT_EVERY_S)
            try:
                await self._collect(orphans=collection % ORPHANS_EVERY == 0)
            except Exception:
                log.exception("collection.crashed", store=self.objects.url)

    async def _merge(self) -> None:
        """Small segments, while there is nothing more important to do."""
        if self._clock.monotonic() < self._next_merge or self.uploader.failure is not None or self.uploader.is_behind:
            return
        try:
            merged = await self.merger.round()
        except DanubeError as error:
            merged = False
            log.warning("merge.postponed", store=self.objects.url, error=error.message)
        self._next_merge = self._clock.monotonic() + (0 if merged else MERGE_EVERY_S)

    def _waits_for_a_burst(self, appended: int, within_s: float, last_round: float) -> bool:
        """Whether much is being published just now, and the log can hold it a while longer: object and log may be on
        one disk."""
        if self._clock.monotonic() - last_round > BURST_S_MAX or appended < within_s * BURST_BYTES_PER_S:
            return False
        return not self._is_nearly_full and self.uploader.due_bytes < LEISURE_BYTES_MAX

    def _rest_s(self, worked_s: float) -> float:
        """How long to wait after objects were made. What the log can hold is uploaded at leisure: whoever publishes in
        bursts has the machine to himself most of the time."""
        due = self.uploader.due_bytes
        if not due:
            return self.uploader.pause_s
        is_urgent = due > LEISURE_BYTES_MAX or self._is_nearly_full
        return 0.0 if is_urgent else min(LEISURE_S_MAX, worked_s * LEISURE)

    async def upload(self, only: Collection[tuple[int, int]]) -> int:
        """Whatever these partitions have, however little: a round of it. How many objects were made; when none was,
        the uploader knows why. Cancelled: what was uploaded counts."""
        made = await self.uploader.round(everything=True, only=only) if await self._is_ours() else 0
        if made:
            await self.trim()
        return made

    async def close(self) -> None:
        """What waits and a last manifest, if the store takes them soon. Cancelled: what was uploaded counts."""
        await self._upload_rest()
        if self.claim.is_held:
            try:
                async with asyncio.timeout(LAST_MANIFEST_S):
                    await self.manifests.write()
            except (DanubeError, TimeoutError) as error:
                log.warning("manifest.failed", store=self.objects.url, error=str(error))

    async def _upload_rest(self) -> None:
        """A broker that ends in order leaves nothing behind that only its disk has, as far as the time for it goes."""
        seconds = self.settings.shutdown_upload_s
        if not seconds or self.uploader.failure is not None or not self._waiting_bytes:
            return
        try:
            async with asyncio.timeout(seconds):
                while await self.upload(self.partitions.keys()):
                    pass
        except TimeoutError:
            log.warning("upload.cut_short", store=self.objects.url, seconds=seconds, left_bytes=self._waiting_bytes)

    @property
    def _waiting_bytes(self) -> int:
        return sum(waiting.bytes for one in self.partitions.values() if (waiting := one.waiting()) is not None)

    async def check_deletion(self) -> None:
        """Asked before anything is deleted: what nobody needs here may be needed by whoever took over."""
        await self.check_ours(DELETE_CHECK_S)

    async def check_ours(self, within_s: float = CHECK_S) -> None:
        """Raises why the store is not this broker's, or why nobody knows: what is in it may be somebody else's. What
        was seen longer ago than `within_s` does not count."""
        try:
            await self.claim.check(within_s=within_s)
        except DanubeError as error:
            self.uploader.fail(error)
            raise

    async def _is_ours(self) -> bool:
        """Whether the store is this broker's: nothing is put among somebody else's objects."""
        try:
            await self.claim.check(within_s=CHECK_S if self.uploader.failure is None else 0.0)
        except DanubeError as error:
            self.uploader.fail(error)
            return False
        return True

    async def _collect(self, orphans: bool) -> None:
        """Only where the store is ours: what another cluster has there would all be orphans."""
        try:
            await self.check_ours()
            await self.collector.collect_garbage()
            if orphans:
                await self.forget_deleted_topics()
                await self.collector.collect_orphans()
        except DanubeError as error:
            log.warning("collection.postponed", store=self.objects.url, error=error.message)

    async def forget_deleted_topics(self) -> None:
        """Topics whose deletion was cut short. The catalog is read first: what it has then existed before."""
        listed = await self.catalog.topics()
        pairs = [one async for one in list_all(self._store, TOPICS)] if listed else []
        existing = {unpack(one.value, TopicRecord).topic_id for one in pairs}
        for topic_id in listed:
            if topic_id not in existing:
                await self.forget_topic(topic_id)

    async def trim(self) -> None:
        """Give back the files of the log that are uploaded, but for the newest: they are a warm cache."""
        keep = self._kept_bytes
        if self._writer.stored_bytes > keep:
            self._carry_forward()
        try:
            released = await self._writer.trim(keep)
        except OSError as error:
            log.warning("log.trim_failed", error=str(error))
            return
        if released:
            log.info("log.trimmed", generations=released)

    @property
    def _kept_bytes(self) -> int:
        keep, limit = self.settings.log_keep_bytes, self.settings.log_bytes_max
        return min(keep, limit // 2) if limit else keep  # or the cache would stand in the way of publishes

    def _carry_forward(self) -> None:
        carried = 0
        for one in self.partitions.values():
            carried += one.carry_forward()
            if carried >= CARRIED_AT_ONCE:
                break

    @property
    def _is_nearly_full(self) -> bool:
        """Whether the log comes close to its limit: then whatever can go goes, however little of a partition it is."""
        limit = self.settings.log_bytes_max
        return bool(limit) and self._writer.stored_bytes >= limit * 3 // 4

    def refusal(self) -> Unavailable | None:
        """Why nothing is taken now: the log is as large as it may be, because uploads do not keep up."""
        limit = self.settings.log_bytes_max
        if not limit or self._writer.stored_bytes < limit:
            return None
        why = f": {self.uploader.failure.message}" if self.uploader.failure is not None else ""
        return Unavailable(
            f"the log holds {self._writer.stored_bytes} bytes, and storage.log_bytes_max is {limit}; object storage "
            f"does not keep up{why}; send it again"
        )

    @property
    def trouble(self) -> str:
        """What somebody should look at; empty while all is well."""
        if (refusal := self.refusal()) is not None:
            return f"publishes are refused: {refusal.message}"
        if self.uploader.failure is not None:
            return f"uploads fail: {self.uploader.failure.message}"
        if unreadable := self.uploader.unreadable:
            first = next(iter(unreadable.values())).error.message
            others = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
            return f"a partition cannot be uploaded: {first}{others}"
        return ""

    async def forget_topic(self, topic_id: int) -> None:
        """A deleted topic's segments leave the catalog. Cancelled: the next collection finds the rest."""
        for key in [key for key in self.partitions if key[0] == topic_id]:
            del self.partitions[key]
        await self.catalog.remove_topic(topic_id, self._clock.now_us())
