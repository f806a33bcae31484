"""Rebuilds the metadata of a broker that lost everything except its object store.

```
 newest complete manifest --> records of this release --> metadata store, empty before
 segments uploaded later  --> only where they continue a partition exactly
```

A later segment is added only if it begins where the partition ended, its footer is complete, and its ledger and epoch
are not older than the last ones. Everything else is left alone and reported.

Messages that were acked to publishers and not yet uploaded are lost; so are changes of the metadata after the manifest.
Their numbers must not be used again for something else, so numbering continues far beyond what may have been in use:

    offsets   of each partition, by a hundred million for every second since the manifest was written: a gap that is
              reported like any other, is acknowledged, and is not counted as messages
    ids       of topics, subscriptions, producers, ledgers and schemas, by a million
    versions  of each subject of the schema registry, by a thousand
    epochs    by a thousand, so that a former owner that still writes is fenced

Subscriptions start at the positions in the manifest, or at later ones that the owner of the partition wrote beside it:
what was acknowledged after that is delivered again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pydanube.broker.registry import records
from pydanube.broker.registry.ids import LEDGER_COUNTER
from pydanube.broker.registry.records import PartitionRecord, RestoredRecord, SubscriptionRecord, TopicRecord
from pydanube.broker.schemas.records import (
    DEFINITION_COUNTER,
    SCHEMA_COUNTER,
    SUBJECTS,
    VERSIONS,
    SubjectRecord,
    VersionIndex,
    subject_of_key,
    version_of_key,
)
from pydanube.codec.manifest import ClusterManifest, Pair, PartitionPositions
from pydanube.codec.segment import END_BYTES, SegmentFooter, decode_footer, read_trailer
from pydanube.core.dispatch.cursor import Cursor
from pydanube.metadata.id_counters import counter_key
from pydanube.metadata.levels import LEVEL_KEY, check_level, parse_level
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import KeyValue, MetadataStore, Put, Succession, split_writes
from pydanube.model.errors import Corrupt, NotFound
from pydanube.model.levels import THIS_RELEASE
from pydanube.model.limits import METADATA_OPERATIONS_MAX, METADATA_TRANSACTION_BYTES_MAX
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectInfo, ObjectStore
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.broker_positions import join, positions_by_partition, read_parts
from pydanube.storage.segments.catalog import SEGMENTS, CatalogSegment, entries, garbage, garbage_key, parse
from pydanube.storage.segments.garbage_collector import OBJECTS_PREFIX
from pydanube.storage.segments.manifest import BASE_KEY, newest_first
from pydanube.storage.segments.store_ownership import StoreOwner, next_restore
from pydanube.storage.segments.uploader import segment_of

log = get_logger(__name__)

OFFSETS_PER_S: Final = 100_000_000
"""More than a partition can append. One core appended 11 million empty messages per second, each with at least 4 bytes
that are checked and written. There is no other bound: a broker continues while its store is unavailable, so neither
manifests nor segments tell how long it ran, or how fast."""

BEHIND_S_MIN: Final = 60
"""The least time to assume: clocks differ, and a manifest has the state from when its writing began."""

LEFT_OUT_KEPT_US: Final = 24 * 3600 * MICROSECONDS
"""Objects that were left out can be inspected for this long, plus the grace period, before they are deleted."""

MANIFESTS_PER_RESTORE_BITS: Final = 44
"""The base of manifest numbers is the restore number shifted by this, so that later manifests have higher numbers."""

IDS_SKIPPED: Final = 1_000_000
EPOCHS_SKIPPED: Final = 1_000
VERSIONS_SKIPPED: Final = 1_000
COUNTERS: Final = ("topic", "subscription", "producer", LEDGER_COUNTER, SCHEMA_COUNTER, DEFINITION_COUNTER)

_OF_TOPIC: Final = ("/access/", records.CONSUMERS, "/partitions/", "/producers/", SEGMENTS, "/subscriptions/")
"""Prefixes of keys that are followed by a topic id."""

SECTIONS_KEPT_MAX: Final = 1_000_000
"""The most sections of unlisted objects that are held in memory while they are ordered."""

Key = tuple[int, int]
"""Topic id and partition index."""


@dataclass(slots=True)
class Restored:
    """The report of a restore: what was restored, and what is missing."""

    manifest: str = ""
    manifest_us: int = 0
    """When the manifest was written. What happened later and was not uploaded is lost."""
    cluster: str = ""
    damaged_manifests: list[str] = field(default_factory=list)
    """Newer manifests that could not be read."""
    topics: int = 0
    partitions: int = 0
    subscriptions: int = 0
    subjects: int = 0
    """Subjects of the schema registry, with their versions."""
    segments: int = 0
    messages: int = 0
    bytes: int = 0
    added: list[str] = field(default_factory=list)
    """Objects that were uploaded after the manifest and continue a partition."""
    left_out: list[str] = field(default_factory=list)
    """Objects that are not in the catalog and do not continue a partition, or cannot be read."""
    missing: list[str] = field(default_factory=list)
    """Objects in the catalog that the store does not have, or has with another size."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """Progress of one step of a restore. `total` is 0 while it is unknown."""

    step: str
    done: int
    total: int


OnProgress = Callable[[RestoreProgress], None]


@dataclass(slots=True)
class UploadedTail:
    """The end of the uploaded part of a partition."""

    end: int = 0
    starts: frozenset[int] = frozenset({0})
    """Offsets at which the next segment may begin: `end`, or the offset after a gap."""
    ledger_id: int = 0
    epoch: int = 0

    def continues(self, one: CatalogSegment) -> bool:
        record = one.record
        begins = record.first_offset in self.starts and record.first_offset >= self.end
        return begins and record.ledger_id >= self.ledger_id and record.epoch >= self.epoch

    def advance(self, one: CatalogSegment) -> None:
        self.end = one.end_offset
        self.starts = frozenset({one.end_offset})
        self.ledger_id, self.epoch = one.record.ledger_id, one.record.epoch


async def rebuild(
    objects: ObjectStore, store: MetadataStore, clock: Clock, owner: StoreOwner, progress: OnProgress = lambda _: None
) -> Restored:
    """Fill the empty metadata `store` from the newest manifest in `objects`, and return a report.

    Raises NotFound or Corrupt if there is no complete manifest, and Refused if this release does not know its feature
    level. Cancelled or failed: the metadata store is unusable.
    """
    report = Restored()
    manifest = await newest_manifest(objects, owner.cluster, report)
    positions = positions_by_partition(manifest)
    join(positions, await read_parts(objects, owner.cluster))
    restore = _Restore(objects, store, manifest, positions, owner, clock.now_us(), report, progress)
    await restore.run()
    log.info(
        "metadata.restored",
        manifest=report.manifest,
        topics=report.topics,
        segments=report.segments,
        added=len(report.added),
        missing=len(report.missing),
    )
    return report


@dataclass(slots=True)
class _KnownPartition:
    """What the manifest contains of one partition."""

    record: PartitionRecord = field(default_factory=PartitionRecord)
    tail: UploadedTail = field(default_factory=UploadedTail)
    total: int = 0


class _Restore:
    """The state of one restore."""

    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        manifest: ClusterManifest,
        positions: dict[Key, PartitionPositions],
        owner: StoreOwner,
        now_us: int,
        report: Restored,
        progress: OnProgress,
    ) -> None:
        self._objects = objects
        self._store = store
        self._manifest = manifest
        self._owner = owner
        self._now_us = now_us
        self._report = report
        self._progress = progress
        self._positions = positions
        self._topics: dict[int, TopicRecord] = {}
        self._known: dict[Key, _KnownPartition] = {}
        self._subscriptions: dict[int, list[Pair]] = {}
        self._wanted: dict[str, int] = {}
        """Sizes of the objects in the catalog."""
        self._versions: set[tuple[int, int]] = set()
        """The versions of the schema registry that are restored: schema ids and versions."""
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._writes: list[Put] = []
        self._writes_bytes = 0

    async def run(self) -> None:
        self._read_topics()
        self._choose_versions()
        async for pair in self._pairs():
            await self._restore_key(*pair)
        unlisted = await self._compare_with_store()
        await self._add_later_segments(unlisted)
        for topic_id in self._topics:
            await self._restore_topic(topic_id)
        for name, last in self._counters.items():
            await self._put(counter_key(name), b"%d" % (last + IDS_SKIPPED))
        restore, restore_write = next_restore(self._owner)
        await self._put(restore_write.key, restore_write.value)
        # Higher than all that the lost broker may still write, so that its manifests are never the newest.
        await self._put(BASE_KEY, b"%d" % max(self._manifest.number + 1, restore << MANIFESTS_PER_RESTORE_BITS))
        await self._flush()
        if self._manifest.store_id:
            await self._store.record_succession(Succession(self._manifest.store_id, self._manifest.revision))
        self._report.topics = len(self._topics)

    async def _pairs(self) -> AsyncIterator[Pair]:
        done = 0
        for page in self._manifest.pairs():
            for pair in page:
                yield pair
            done += len(page)
            self._progress(RestoreProgress("metadata restored", done, self._manifest.keys))

    def _read_topics(self) -> None:
        for page in self._manifest.pairs():
            for key, value in page:
                if key == LEVEL_KEY:
                    check_level(parse_level(value), THIS_RELEASE)
                elif key.startswith(records.TOPICS):
                    record = unpack(value, TopicRecord)
                    self._topics[record.topic_id] = record
        for record in self._topics.values():
            self._raise_counter("topic", record.topic_id)
            for index in range(record.config().partition_count):
                self._known[record.topic_id, index] = _KnownPartition()

    def _choose_versions(self) -> None:
        """Leave out versions that were registered while the manifest was written, and are in it without their subject,
        or without a version that they refer to."""
        schema_ids: dict[str, int] = {}
        references: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for page in self._manifest.pairs():
            for key, value in page:
                if key.startswith(SUBJECTS):
                    schema_ids[subject_of_key(key)] = unpack(value, SubjectRecord).schema_id
                elif key.startswith(VERSIONS):
                    used = unpack(value, VersionIndex).references
                    references[version_of_key(key)] = [(subject, version) for _, subject, version in used]
        known = set(schema_ids.values())
        self._versions = {place for place in references if place[0] in known}
        while lost := {
            place
            for place in self._versions
            if any((schema_ids.get(subject, 0), one) not in self._versions for subject, one in references[place])
        }:
            self._versions -= lost

    def _raise_counter(self, counter: str, number: int) -> None:
        self._counters[counter] = max(self._counters[counter], number)

    async def _restore_key(self, key: str, value: bytes) -> None:
        """Restore one key of the manifest. Keys of topics that no longer exist are dropped."""
        if key.startswith(_OF_TOPIC) and int(key.split("/")[2], 16) not in self._topics:
            return
        if key.startswith("/counters/"):
            name = key.removeprefix("/counters/")
            self._counters.setdefault(name, 0)
            self._raise_counter(name, int(value))
        elif key.startswith("/partitions/"):
            topic_id, index = (int(part, 16) for part in key.split("/")[2:])
            self._known.setdefault((topic_id, index), _KnownPartition()).record = unpack(value, PartitionRecord)
        elif key.startswith("/subscriptions/"):
            self._subscriptions.setdefault(int(key.split("/")[2], 16), []).append((key, value))
        elif key.startswith(SEGMENTS):
            await self._list_segment(parse(KeyValue(key, value, 0, 0, 0)))
        elif key.startswith(SUBJECTS):
            # Batches may carry versions that were registered after the manifest, and are lost.
            subject = unpack(value, SubjectRecord)
            subject.last_version += VERSIONS_SKIPPED
            await self._put(key, pack(subject))
            self._report.subjects += 1
        elif key.startswith(VERSIONS):
            if version_of_key(key) in self._versions:
                await self._put(key, value)
        else:
            await self._put(key, value)

    async def _list_segment(self, segment: CatalogSegment) -> None:
        """Add a segment to the catalog. Segments come in order, so the last one of a partition is its tail."""
        known = self._known.setdefault((segment.topic_id, segment.index), _KnownPartition())
        known.tail.advance(segment)
        # The recorded total is kept, so that segments that the catalog has lost are still noticed.
        known.total = segment.record.total = segment.record.total or known.total + segment.bytes
        self._wanted[segment.record.object] = segment.record.object_bytes
        self._raise_counter(LEDGER_COUNTER, segment.record.ledger_id)
        self._report.segments += 1
        self._report.messages += segment.record.messages
        self._report.bytes += segment.bytes
        for write in entries(segment):
            assert isinstance(write, Put)
            await self._put(write.key, write.value)

    # -- comparison with the store -------------------------------------------------------------------------------------

    async def _compare_with_store(self) -> list[ObjectInfo]:
        """Report missing objects, and return the objects that the catalog does not list."""
        unlisted: list[ObjectInfo] = []
        wanted = dict(self._wanted)
        async for info in list_segment_objects(self._objects, self._progress):
            size = wanted.pop(info.key, None)
            if size is None:
                if info.key not in self._wanted:
                    unlisted.append(info)
            elif size != info.size:
                self._report.missing.append(info.key)
        self._report.missing += wanted
        return unlisted

    async def _add_later_segments(self, unlisted: list[ObjectInfo]) -> None:
        found = await read_unlisted(self._objects, unlisted, self._report, self._progress)
        for one in found:
            self._raise_counter("topic", one.topic_id)
            self._raise_counter(LEDGER_COUNTER, one.record.ledger_id)
        for (topic_id, _), known in self._known.items():
            known.tail.end = max(known.tail.end, known.record.uploaded_end)
            known.tail.starts = self._starts(self._topics[topic_id], known)
        chosen = choose_continuations({key: one.tail for key, one in self._known.items()}, found)
        for one in chosen:
            await self._list_segment(one)
        added = {one.record.object for one in chosen}
        self._report.added += sorted(added)
        self._report.left_out += sorted({one.record.object for one in found} - added)
        for key in self._report.left_out:
            await self._put(garbage_key(key), garbage(key, self._now_us + LEFT_OUT_KEPT_US).value)

    def _starts(self, topic: TopicRecord, known: _KnownPartition) -> frozenset[int]:
        reserved, starts = known.record.reserved_end, {known.tail.end, known.record.start_offset}
        if reserved > known.tail.end:
            # A durable topic reserves offsets only in a restore. What a former owner uploaded since does not belong to
            # the restored partition.
            starts = {reserved} if topic.config().ack_level is AckLevel.DURABLE else {*starts, reserved}
        return frozenset(starts)

    # -- topics, partitions, subscriptions -----------------------------------------------------------------------------

    async def _restore_topic(self, topic_id: int) -> None:
        topic = self._topics[topic_id]
        ends: dict[int, tuple[int, int]] = {}
        for index in range(topic.config().partition_count):
            known = self._known[topic_id, index]
            positions = self._positions.get((topic_id, index), PartitionPositions(topic_id, index, 0, []))
            ends[index] = await self._restore_partition(topic, index, known, positions)
            self._report.partitions += 1
        for key, value in self._subscriptions.get(topic_id, ()):
            await self._restore_subscription(topic, key, unpack(value, SubscriptionRecord), ends)
            self._report.subscriptions += 1

    async def _restore_partition(
        self, topic: TopicRecord, index: int, known: _KnownPartition, positions: PartitionPositions
    ) -> tuple[int, int]:
        """Restore the record of a partition. Returns the range of offsets that are lost."""
        record, tail = known.record, known.tail
        end = max(tail.end, record.start_offset)
        given_out = max(
            [end, record.reserved_end, positions.end_offset, *(Cursor(*one[1:]).end for one in positions.cursors)]
        )
        if topic.reliable:
            seconds = max(BEHIND_S_MIN, (self._now_us - self._manifest.created_at_us) // MICROSECONDS + 1)
            given_out += seconds * OFFSETS_PER_S
        restored = PartitionRecord(
            epoch=max(record.epoch, tail.epoch) + EPOCHS_SKIPPED,
            reserved_end=given_out if topic.reliable else 0,
            start_offset=record.start_offset,
            uploaded_end=tail.end,
        )
        await self._put(records.partition_key(topic.topic_id, index), pack(restored))
        return end, given_out

    async def _restore_subscription(
        self, topic: TopicRecord, key: str, record: SubscriptionRecord, ends: dict[int, tuple[int, int]]
    ) -> None:
        """Restore a subscription at its last known positions, and acknowledge the lost offsets in its cursors."""
        self._raise_counter("subscription", record.subscription_id)
        starts = list(record.starts) + [0] * (len(ends) - len(record.starts))
        for index, (lost, end) in ends.items():
            cursor = self._cursor(topic.topic_id, index, record)
            if topic.config().reliable and topic.config().ack_level is not AckLevel.MEMORY:
                cursor.ack(lost, end)
            starts[index] = cursor.position
            if cursor.gaps:
                kept = records.restored_key(topic.topic_id, index, record.subscription_id)
                entry = RestoredRecord(record.subscription_id, cursor.position, cursor.acked)
                await self._put(kept, pack(entry))
        await self._put(key, pack(msgspec.structs.replace(record, starts=starts)))

    def _cursor(self, topic_id: int, index: int, record: SubscriptionRecord) -> Cursor:
        positions = self._positions.get((topic_id, index))
        for entry in positions.cursors if positions is not None else ():
            if entry.subscription_id == record.subscription_id:
                return Cursor(entry.position, entry.acked)
        return Cursor(record.start(index))

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _put(self, key: str, value: bytes) -> None:
        self._writes.append(Put(key, value))
        self._writes_bytes += len(value)
        if len(self._writes) >= METADATA_OPERATIONS_MAX or self._writes_bytes >= METADATA_TRANSACTION_BYTES_MAX // 2:
            await self._flush()

    async def _flush(self) -> None:
        """Write what `_put` collected, as several transactions if one may not hold it."""
        writes, self._writes, self._writes_bytes = self._writes, [], 0
        for part in split_writes(writes):
            await self._store.transact([], part)


# -- reading the store -------------------------------------------------------------------------------------------------


async def newest_manifest(objects: ObjectStore, cluster: str, report: Restored) -> ClusterManifest:
    """Return the newest complete manifest. Raises NotFound if there is none, Corrupt if all are damaged."""
    async for manifest in newest_first(objects, cluster, lambda key, _: report.damaged_manifests.append(key)):
        report.manifest = manifest.name.removeprefix("object ")
        report.manifest_us = manifest.created_at_us
        report.cluster = manifest.cluster
        return manifest
    if report.damaged_manifests:
        raise Corrupt(f"none of the manifests in {objects.url} is whole, for example {report.damaged_manifests[0]}")
    raise NotFound(f"there is no manifest in {objects.url}: nothing was ever kept there, or it is another store")


async def list_segment_objects(objects: ObjectStore, progress: OnProgress) -> AsyncIterator[ObjectInfo]:
    """Yield every segment object of the store."""
    count = 0
    async for info in objects.list(OBJECTS_PREFIX):
        count += 1
        if count % 1000 == 0:
            progress(RestoreProgress("objects looked at", count, 0))
        yield info
    progress(RestoreProgress("objects looked at", count, count))


async def read_segments(objects: ObjectStore, info: ObjectInfo) -> list[CatalogSegment]:
    """Return the segments in an object, from its footer. Raises Corrupt, or NotFound if the object is gone."""
    footer = await read_footer_of(objects, info.key, info.size)
    return [segment_of(info.key, info.size, footer, number) for number in range(len(footer.sections))]


async def read_footer_of(objects: ObjectStore, key: str, size: int) -> SegmentFooter:
    """Read the footer of an object of which only the size is known."""
    tail = await objects.get(key, max(0, size - END_BYTES), size)
    trailer = read_trailer(tail, size, f"object {key}")
    footer = trailer.footer_in(tail)
    if footer is None:
        footer = await objects.get(key, trailer.footer_start, trailer.footer_end)
    return decode_footer(footer, trailer)


def choose_continuations(tails: dict[Key, UploadedTail], found: Iterable[CatalogSegment]) -> list[CatalogSegment]:
    """Return the segments of `found` that continue their partitions exactly, in order, and advance the tails.

    Of several candidates the one of the latest owner is chosen, and of these the longest.
    """
    waiting: dict[Key, dict[int, list[CatalogSegment]]] = {}
    for one in found:
        waiting.setdefault((one.topic_id, one.index), {}).setdefault(one.first_offset, []).append(one)
    chosen: list[CatalogSegment] = []
    for key, by_start in waiting.items():
        tail = tails.get(key)
        while tail is not None:
            candidates = [one for start in tail.starts for one in by_start.get(start, ()) if tail.continues(one)]
            if not candidates:
                break
            chosen_one = max(candidates, key=lambda one: (one.record.epoch, one.record.ledger_id, one.end_offset))
            tail.advance(chosen_one)
            chosen.append(chosen_one)
    return chosen


async def read_unlisted(
    objects: ObjectStore, infos: Iterable[ObjectInfo], report: Restored, progress: OnProgress
) -> list[CatalogSegment]:
    """Return the segments in objects that the catalog does not list. Unreadable objects are reported as left out."""
    found: list[CatalogSegment] = []
    unlisted = list(infos)
    for count, info in enumerate(unlisted, 1):
        try:
            found += await read_segments(objects, info)
        except (Corrupt, NotFound):
            report.left_out.append(info.key)
        if len(found) > SECTIONS_KEPT_MAX:
            raise Corrupt(
                f"{objects.url} has more than {SECTIONS_KEPT_MAX} segments that its manifest does not list: "
                f"it is not this cluster's, or its manifests are very old"
            )
        progress(RestoreProgress("later objects read", count, len(unlisted)))
    return found
