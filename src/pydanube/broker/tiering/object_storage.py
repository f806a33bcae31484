"""Object storage of one broker: uploads, merging, manifests, garbage collection, and what its state of health is.

One task uploads what is due and releases it from the log, another deletes unused objects from time to time. Publishes
never wait for either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from itertools import count
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.partitions.partition_table import PartitionTable
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.partitions.unlisted_bytes import UnlistedBytes
from pydanube.broker.registry.records import (
    DELETED,
    PARTITIONS,
    TOPICS,
    PartitionRecord,
    TopicRecord,
    deleted_of_key,
)
from pydanube.broker.registry.registry import Registry
from pydanube.codec.manifest import PartitionPositions
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import list_all
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.ledgers import CursorEntry
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.broker_positions import PositionParts
from pydanube.storage.segments.catalog import Catalog
from pydanube.storage.segments.garbage_collector import GarbageCollector
from pydanube.storage.segments.history import PartitionHistory, SegmentReader
from pydanube.storage.segments.manifest import ManifestWriter, known_positions
from pydanube.storage.segments.merger import SegmentMerger
from pydanube.storage.segments.store_ownership import CHECK_S, DELETE_CHECK_S, StoreOwnership
from pydanube.storage.segments.time_limits import TimeLimitedStore
from pydanube.storage.segments.uploader import Uploader, UploadSource
from pydanube.storage.slices import SliceCollector

from .tiered_partition import TieredPartition

log = get_logger(__name__)

LAST_MANIFEST_S: Final = 5.0
"""How long a broker that stops waits for its last manifest."""

MERGE_EVERY_S: Final = 10.0
"""How often a part of the catalog is searched for small segments."""

COLLECT_EVERY_S: Final = 60.0
PAUSE_FACTOR: Final = 2.0
"""The pause after uploads, as a multiple of the time they took."""

BURST_BYTES_PER_S: Final = 16 << 20
BURST_S_MAX: Final = 5.0
"""While more than BURST_BYTES_PER_S is published, uploads wait, but not longer than BURST_S_MAX."""

PAUSE_S_MAX: Final = 2.0
URGENT_BYTES: Final = 1 << 30
"""When more than this is due, there is no pause."""

CARRIED_AT_ONCE: Final = 100
"""Partitions per round; each takes one or two transactions."""

FREED_AT_ONCE: Final = 1000
"""Quiet partitions that write their state again in one round: their snapshots share slices, and each takes one metadata
transaction, at most once in ten minutes."""

ORPHANS_EVERY: Final = 60
"""Every this many collections also look for orphans, which needs a listing of the whole store."""


class OpenPositions:
    """Reads from open partitions what the metadata does not hold: their end offsets and the cursors of subscriptions.

    Implements `storage.segments.positions.PositionSource`.
    """

    def __init__(self, registry: Registry, open_partitions: PartitionTable, clock: Clock) -> None:
        self._registry = registry
        self._open_partitions = open_partitions
        self._clock = clock

    def topic_ids(self) -> set[int]:
        return {self._registry.topic(name).topic_id for name in self._registry.topics()}

    def positions(self) -> list[PartitionPositions]:
        now_us = self._clock.now_us()
        return [
            PartitionPositions(
                topic_id,
                partition.index,
                partition.stream.end_offset,
                [
                    CursorEntry(one.subscription_id, one.cursor.position, list(one.cursor.acked))
                    for one in partition.subscriptions.values()
                ],
                partition.epoch,
                now_us,
            )
            for topic_id in self.topic_ids()
            for partition in self._open_partitions.of_topic(topic_id)
            if partition.is_stored
        ]


class ObjectStorage:
    """One broker's object storage."""

    def __init__(self, context: BrokerContext, objects: ObjectStore, open_partitions: PartitionTable) -> None:
        store, registry, clock = context.store, context.registry, context.clock
        settings, membership = context.settings.storage, context.cluster.membership
        cluster = context.writer.identity.cluster
        self._next_merge = 0.0
        self.unlisted = UnlistedBytes(context.settings.slices.unlisted_bytes_max)
        self.unlisted.reason = self._upload_problem
        self._store = store
        self._registry = registry
        self.objects = objects = TimeLimitedStore(objects, settings.store_timeout_s, self.check_deletion)
        self.settings = settings
        self.ownership = StoreOwnership(objects, store, cluster, clock)
        self.catalog = Catalog(store)
        self.history = SegmentReader(objects, self.catalog, context.tasks, settings.cache_bytes)
        self.partitions: dict[tuple[int, int], TieredPartition] = {}
        """The open partitions that are uploaded, by topic id and index."""
        self._writer = context.writer
        self._clock = clock
        process = identity()
        self.uploader = Uploader(objects, self.catalog, self._upload_sources, process, clock, settings)
        self._membership = membership
        positions = OpenPositions(registry, open_partitions, clock)
        name = membership.session.name
        self.positions = (
            None
            if membership.is_alone
            else PositionParts(objects, clock, cluster, name, positions, settings.state_upload_s)
        )
        """Where the brokers of a cluster write the positions of their partitions; None: this broker is alone."""
        self.manifests = ManifestWriter(objects, store, clock, cluster, process, positions, self.positions)
        self.merger = SegmentMerger(
            self.history, self.partitions, process, clock, settings.segment_bytes, settings.upload_bytes_per_s
        )
        self._cluster = cluster
        grace_us = settings.grace_s * MICROSECONDS
        self.collector = GarbageCollector(objects, self.catalog, clock, grace_us, self._is_in_progress)
        self.slice_collector = SliceCollector(objects, self._lowest_slices, clock)

    def open_partition(
        self, ownership: Ownership, history: PartitionHistory, remembered_max: int, partition: StoredPartition
    ) -> TieredPartition:
        """Upload what this partition stores from now on."""
        topic_id = ownership.topic_id
        tiered = TieredPartition(
            topic_id, partition, ownership, history, self.catalog, self._writer, self._clock, remembered_max
        )
        self.partitions[topic_id, partition.index] = tiered
        return tiered

    def close_partition(self, topic_id: int, index: int) -> None:
        """Upload nothing more of this partition until it is opened again. An upload in progress is committed before its
        owner gives it up, or not at all."""
        self.partitions.pop((topic_id, index), None)

    def _upload_sources(self) -> Iterable[UploadSource]:
        return list(self.partitions.values())

    def _is_in_progress(self, object_key: str) -> bool:
        return object_key in (self.uploader.making, self.merger.making)

    async def run(self) -> None:
        """Upload and collect garbage until cancelled. Two tasks, so that a long collection does not delay uploads."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._keep_uploading())
            both.create_task(self._keep_collecting())

    async def _keep_uploading(self) -> None:
        """Run upload rounds. An unexpected exception is logged and shown as a failure, and uploads are tried again."""
        made, started = 0, self._clock.monotonic()
        while True:
            appended = self._writer.appended_bytes
            pause_s = self._pause_s(self._clock.monotonic() - started) if made else self.uploader.pause_s
            await self._clock.sleep(pause_s)
            if self._should_wait_for_burst(self._writer.appended_bytes - appended, pause_s, started):
                continue
            started = self._clock.monotonic()
            try:
                made = await self._round()
            except Exception as error:
                made = 0
                log.exception("upload.crashed", store=self.objects.url)
                self.uploader.fail(Unavailable(f"uploading failed: {type(error).__name__}: {error}"))

    async def _round(self) -> int:
        """Upload what is due, trim the log, merge, and write a manifest. Returns how many objects were uploaded."""
        ours = await self._is_ours()
        made = await self.uploader.round(everything=self._is_nearly_full) if ours else 0
        if self._writer.stored_bytes > self._kept_bytes:
            await self.trim()  # also when nothing was uploaded: a pinned file may be free by now
        if ours:
            await self._merge()
            await self._write_positions(uploaded=made > 0)
        return made

    async def cursors_of(self, keys: Sequence[tuple[int, int]]) -> dict[tuple[int, int], list[CursorEntry]]:
        """Return the newest cursors of these partitions, by topic id and index, that brokers have put into the object
        store."""
        known = await known_positions(self.objects, self._cluster)
        return {key: known[key].cursors for key in keys if key in known}

    async def _write_positions(self, *, uploaded: bool) -> None:
        """Write a manifest if this broker is the coordinator; in a cluster, write the positions that manifests and
        takers need."""
        if self._membership.is_coordinator():
            await self.manifests.write_if_due()
        if self.positions is not None:
            await self.positions.write_if_due(uploaded=uploaded)

    async def _keep_collecting(self) -> None:
        for collection in count():
            await self._clock.sleep(COLLECT_EVERY_S)
            try:
                await self._free_slices()
                await self._collect(orphans=collection % ORPHANS_EVERY == 0)
            except Exception:
                log.exception("collection.crashed", store=self.objects.url)

    async def _merge(self) -> None:
        """Merge small segments, unless uploads are failing or behind."""
        if self._clock.monotonic() < self._next_merge or self.uploader.failure is not None or self.uploader.is_behind:
            return
        try:
            merged = await self.merger.round()
        except DanubeError as error:
            merged = False
            log.warning("merge.postponed", store=self.objects.url, error=error.message)
        self._next_merge = self._clock.monotonic() + (0 if merged else MERGE_EVERY_S)

    def _should_wait_for_burst(self, appended: int, within_s: float, last_round: float) -> bool:
        """Return whether uploads should wait because much is being published and the log has room for it: the store and
        the log may be on the same disk."""
        if self._clock.monotonic() - last_round > BURST_S_MAX or appended < within_s * BURST_BYTES_PER_S:
            return False
        return not self._is_nearly_full and self.uploader.due_bytes < URGENT_BYTES

    def _pause_s(self, worked_s: float) -> float:
        """Return how long to wait after a round that uploaded objects. While the log has room there is a pause, which
        leaves the machine to publishers."""
        due = self.uploader.due_bytes
        if not due:
            return self.uploader.pause_s
        is_urgent = due > URGENT_BYTES or self._is_nearly_full
        return 0.0 if is_urgent else min(PAUSE_S_MAX, worked_s * PAUSE_FACTOR)

    async def upload(self, only: Collection[tuple[int, int]]) -> int:
        """Run one round that uploads all that these partitions have, due or not. Returns how many objects were made; if
        none, `uploader.failure` may say why. Cancelled: finished uploads stay."""
        made = await self.uploader.round(everything=True, only=only) if await self._is_ours() else 0
        if made:
            await self.trim()
        return made

    async def close(self, is_lost: bool = False) -> None:
        """Upload what is waiting and write a last manifest, within time limits; nothing of that if the store `is_lost`.
        Cancelled: finished uploads stay."""
        if is_lost:
            log.warning("upload.cut_short", store=self.objects.url, seconds=0, left_bytes=self._waiting_bytes)
            return
        await self._upload_rest()
        if self.ownership.is_held:
            try:
                async with asyncio.timeout(LAST_MANIFEST_S):
                    await self._write_last_positions()
            except (DanubeError, TimeoutError) as error:
                log.warning("manifest.failed", store=self.objects.url, error=str(error))

    async def _write_last_positions(self) -> None:
        if self._membership.is_coordinator():
            await self.manifests.write()
        if self.positions is not None:
            await self.positions.write()  # the next coordinator may have written its first manifest already

    async def _upload_rest(self) -> None:
        """Upload all that is waiting, for at most `shutdown_upload_s`."""
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
        """Raise unless this broker owns the store, checked recently enough for a deletion."""
        await self.check_ours(DELETE_CHECK_S)

    async def check_ours(self, within_s: float = CHECK_S) -> None:
        """Raise unless this broker owns the store; a check within the last `within_s` seconds is enough. A failure is
        also recorded as a failed upload."""
        try:
            await self.ownership.check(within_s=within_s)
        except DanubeError as error:
            self.uploader.fail(error)
            raise

    async def _is_ours(self) -> bool:
        """Return whether this broker owns the store; if not, nothing may be written to it."""
        try:
            await self.ownership.check(within_s=CHECK_S if self.uploader.failure is None else 0.0)
        except DanubeError as error:
            self.uploader.fail(error)
            return False
        return True

    async def _free_slices(self) -> None:
        """Let quiet partitions need newer slices. Cancelled: some do."""
        keeping = [one for one in self.partitions.values() if one.keeps_slices][:FREED_AT_ONCE]
        for error in await asyncio.gather(*(one.free_slices() for one in keeping), return_exceptions=True):
            if isinstance(error, DanubeError):
                log.warning("slices.kept", error=error.message)
            elif error is not None:
                raise error

    async def _lowest_slices(self) -> dict[int, int]:
        """Read, by incarnation, the lowest slice that any partition needs."""
        lowest: dict[int, int] = {}
        async for one in list_all(self._store, PARTITIONS):
            for sequence in unpack(one.value, PartitionRecord).sequences:
                known = lowest.get(sequence.incarnation, sequence.lowest)
                lowest[sequence.incarnation] = min(known, sequence.lowest)
        return lowest

    async def _collect(self, orphans: bool) -> None:
        """Delete garbage and slices, and with `orphans` also orphans, if this broker owns the store: in a store of
        another cluster all objects would look like orphans. Of a cluster, only the coordinator does so."""
        if not self._membership.is_coordinator():
            return
        try:
            await self.check_ours()
            await self.slice_collector.collect()
            await self.collector.collect_garbage()
            if orphans:
                await self.forget_deleted_topics()
                await self.collector.collect_orphans()
        except DanubeError as error:
            log.warning("collection.postponed", store=self.objects.url, error=error.message)

    async def forget_deleted_topics(self) -> None:
        """Finish deletions of topics that were cut short: remove their segments from the catalog.

        Only a recorded deletion counts. Segments of a topic that neither exists nor was deleted stay in the catalog:
        the metadata has lost keys, and a later copy of it may need the objects.
        """
        for key in [one.key async for one in list_all(self._store, DELETED)]:
            await self.forget_topic(deleted_of_key(key))
        listed = await self.catalog.topics()  # read before the topics, so that a new topic is not taken for unknown
        pairs = [one async for one in list_all(self._store, TOPICS)] if listed else []
        known = {unpack(one.value, TopicRecord).topic_id for one in pairs}
        known |= {deleted_of_key(one.key) async for one in list_all(self._store, DELETED)}
        if unknown := [topic_id for topic_id in listed if topic_id not in known]:
            log.warning("catalog.unknown_topics", topics=len(unknown), first=unknown[0])

    async def trim(self) -> None:
        """Delete log files whose content is uploaded, except for the newest ones, which serve as a cache."""
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
        return min(keep, limit // 2) if limit else keep  # or the cache could make the log refuse publishes

    def _carry_forward(self) -> None:
        carried = 0
        for one in self.partitions.values():
            carried += one.carry_forward()
            if carried >= CARRIED_AT_ONCE:
                break

    @property
    def _is_nearly_full(self) -> bool:
        """Whether the log, or what slices hold and the catalog does not list, is close to its size limit: then
        everything is uploaded, due or not."""
        limit = self.settings.log_bytes_max
        return self.unlisted.is_nearly_full or (bool(limit) and self._writer.stored_bytes >= limit * 3 // 4)

    def refusal(self) -> Unavailable | None:
        """Return why publishes are refused, or None: the log has reached its size limit, because uploads are too
        slow."""
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
        """A problem for an administrator, in one sentence; empty while there is none."""
        if (refusal := self.refusal()) is not None:
            return f"publishes are refused: {refusal.message}"
        if (refusal := self.unlisted.refusal()) is not None:
            return f"publishes to `stored` topics are refused: {refusal.message}"
        if problem := self._upload_problem():
            return problem
        if self.manifests.failure is not None:
            return f"manifests, which a restore needs, cannot be written: {self.manifests.failure.message}"
        return ""

    def _upload_problem(self) -> str:
        """Return why something is not uploaded, in one sentence; empty while everything is."""
        if self.uploader.failure is not None:
            return f"uploads fail: {self.uploader.failure.message}"
        if unreadable := self.uploader.unreadable:
            first = next(iter(unreadable.values())).error.message
            others = f" (and {len(unreadable) - 1} more)" if len(unreadable) > 1 else ""
            return f"a partition cannot be uploaded: {first}{others}"
        return ""

    async def forget_topic(self, topic_id: int) -> None:
        """Remove the segments of a deleted topic from the catalog, then the record of its deletion.

        Cancelled or failed: the record is still there, and the next collection removes the rest.
        """
        for key in [key for key in self.partitions if key[0] == topic_id]:
            del self.partitions[key]
        await self.catalog.remove_topic(topic_id, self._clock.now_us())
        await self._registry.clean_up(topic_id)
