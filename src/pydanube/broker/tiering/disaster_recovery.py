"""Rebuilds the metadata of a broker that lost everything but its object store.

```
 newest whole manifest --> records of this release --> metadata store, empty before
 segments behind it   ---> only where they continue a partition exactly
```

What was acked to publishers and not yet uploaded is lost; so is whatever happened to the metadata after the manifest.
Nothing of that may come back as something else, so numbers go on far beyond those that may have been given out:

    offsets   of each partition, by a hundred million for every second since the manifest was written: a gap that is
              reported like any other, counts as consumed, and is counted nowhere as messages
    ids       of topics, subscriptions, producers and ledgers, by a million
    epochs    by a thousand, so that whatever an owner of before still writes is older

Subscriptions stand where the manifest says: what was consumed after it is delivered again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import msgspec

from pydanube.broker.registry import records
from pydanube.broker.registry.ids import LEDGER_COUNTER
from pydanube.broker.registry.records import PartitionRecord, RestoredRecord, SubscriptionRecord, TopicRecord
from pydanube.codec.manifest import ClusterManifest, ManifestPlace, Pair
from pydanube.core.dispatch.cursor import Cursor
from pydanube.metadata.counters import counter_key
from pydanube.metadata.store import KeyValue, MetadataStore, Put, Succession
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectInfo, ObjectStore
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.tiering import restoring
from pydanube.storage.tiering.catalog import SEGMENTS, CatalogSegment, entries, garbage, garbage_key, parse
from pydanube.storage.tiering.claim import Owner, next_restore
from pydanube.storage.tiering.manifest import BASE_KEY, places_of
from pydanube.storage.tiering.restoring import Key, ProgressDone, Restored, RestoreProgress, UploadedTail

log = get_logger(__name__)

OFFSETS_PER_S: Final = 100_000_000
"""More than a partition takes in. One core took 11 million empty messages a second, each of which has 4 bytes at least
that are checked and written. Nothing else bounds what was given out: a broker goes on while its store is away, so
neither manifests nor segments tell how long it lived, or how fast it was."""

BEHIND_S_MIN: Final = 60
"""Clocks differ, and a manifest says what was known when its writing began."""

LEFT_OUT_KEPT_US: Final = 24 * 3600 * MICROSECONDS
"""What was left out may be looked at for so long, and the usual grace period after it, before it is deleted."""

MANIFESTS_PER_RESTORE_BITS: Final = 44
"""A manifest's number is the metadata's revision and this, times the restores: newer is higher over restores too."""

IDS_SKIPPED: Final = 1_000_000
EPOCHS_SKIPPED: Final = 1_000
COUNTERS: Final = ("topic", "subscription", "producer", LEDGER_COUNTER)

_OF_TOPIC: Final = ("/access/", "/partitions/", "/producers/", SEGMENTS, "/subscriptions/")
"""Keys whose second part is a topic's id."""


async def rebuild(
    objects: ObjectStore, store: MetadataStore, clock: Clock, owner: Owner, progress: ProgressDone = lambda _: None
) -> Restored:
    """Fill an empty metadata store. Raises NotFound or Corrupt where no manifest is whole. Cancelled or failed: what
    is in the store is worth nothing."""
    report = Restored()
    manifest = await restoring.newest_manifest(objects, owner.cluster, report)
    rebuilding = _Rebuilding(objects, store, manifest, owner, clock.now_us(), report, progress)
    await rebuilding.run()
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
class _Known:
    """What the manifest says of one partition."""

    record: PartitionRecord = field(default_factory=PartitionRecord)
    tail: UploadedTail = field(default_factory=UploadedTail)
    total: int = 0


class _Rebuilding:
    """One restore."""

    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        manifest: ClusterManifest,
        owner: Owner,
        now_us: int,
        report: Restored,
        progress: ProgressDone,
    ) -> None:
        self._objects = objects
        self._store = store
        self._manifest = manifest
        self._owner = owner
        self._now_us = now_us
        self._report = report
        self._progress = progress
        self._places = places_of(manifest)
        self._topics: dict[int, TopicRecord] = {}
        self._known: dict[Key, _Known] = {}
        self._subscriptions: dict[int, list[Pair]] = {}
        self._wanted: dict[str, int] = {}
        """Objects of the catalog, and how large they are."""
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._writes: list[Put] = []

    async def run(self) -> None:
        self._learn_topics()
        async for pair in self._pairs():
            await self._take(*pair)
        unlisted = await self._compare_listing()
        await self._add_later(unlisted)
        for topic_id in self._topics:
            await self._end_topic(topic_id)
        for name, last in self._counters.items():
            await self._put(counter_key(name), b"%d" % (last + IDS_SKIPPED))
        restore, claim = next_restore(self._owner)
        await self._put(claim.key, claim.value)
        # Higher than whatever the lost broker still writes, should it live: its manifests count no more.
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

    def _learn_topics(self) -> None:
        for page in self._manifest.pairs():
            for key, value in page:
                if key.startswith(records.TOPICS):
                    record = records.unpack(value, TopicRecord)
                    self._topics[record.topic_id] = record
        for record in self._topics.values():
            self._seen("topic", record.topic_id)
            for index in range(record.config().partition_count):
                self._known[record.topic_id, index] = _Known()

    def _seen(self, counter: str, number: int) -> None:
        self._counters[counter] = max(self._counters[counter], number)

    async def _take(self, key: str, value: bytes) -> None:
        """One key of the manifest. What hangs on a topic that does not exist any more is left behind."""
        if key.startswith(_OF_TOPIC) and int(key.split("/")[2], 16) not in self._topics:
            return
        if key.startswith("/counters/"):
            name = key.removeprefix("/counters/")
            self._counters.setdefault(name, 0)
            self._seen(name, int(value))
        elif key.startswith("/partitions/"):
            topic_id, index = (int(part, 16) for part in key.split("/")[2:])
            self._known.setdefault((topic_id, index), _Known()).record = records.unpack(value, PartitionRecord)
        elif key.startswith("/subscriptions/"):
            self._subscriptions.setdefault(int(key.split("/")[2], 16), []).append((key, value))
        elif key.startswith(SEGMENTS):
            await self._list_segment(parse(KeyValue(key, value, 0, 0, 0)))
        else:
            await self._put(key, value)

    async def _list_segment(self, segment: CatalogSegment) -> None:
        """Into the catalog. They come in order, so the last one of a partition is its tail."""
        known = self._known.setdefault((segment.topic_id, segment.index), _Known())
        known.tail.advance(segment)
        # As it was, so that what the catalog has lost still shows; what came later goes on from there.
        known.total = segment.record.total = segment.record.total or known.total + segment.bytes
        self._wanted[segment.record.object] = segment.record.object_bytes
        self._seen(LEDGER_COUNTER, segment.record.ledger_id)
        self._report.segments += 1
        self._report.messages += segment.record.messages
        self._report.bytes += segment.bytes
        for write in entries(segment):
            assert isinstance(write, Put)
            await self._put(write.key, write.value)

    # -- what the store has --------------------------------------------------------------------------------------------

    async def _compare_listing(self) -> list[ObjectInfo]:
        """What is missing is reported; what the catalog does not know is returned."""
        unlisted: list[ObjectInfo] = []
        wanted = dict(self._wanted)
        async for info in restoring.listed(self._objects, self._progress):
            size = wanted.pop(info.key, None)
            if size is None:
                if info.key not in self._wanted:
                    unlisted.append(info)
            elif size != info.size:
                self._report.missing.append(info.key)
        self._report.missing += wanted
        return unlisted

    async def _add_later(self, unlisted: list[ObjectInfo]) -> None:
        found = await restoring.gather_unlisted(self._objects, unlisted, self._report, self._progress)
        for one in found:
            self._seen("topic", one.topic_id)
            self._seen(LEDGER_COUNTER, one.record.ledger_id)
        for (topic_id, _), known in self._known.items():
            known.tail.end = max(known.tail.end, known.record.uploaded_end)
            known.tail.starts = self._starts(self._topics[topic_id], known)
        chosen = restoring.continue_with({key: one.tail for key, one in self._known.items()}, found)
        for one in chosen:
            await self._list_segment(one)
        added = {one.record.object for one in chosen}
        self._report.added += sorted(added)
        self._report.left_out += sorted({one.record.object for one in found} - added)
        for key in self._report.left_out:
            await self._put(garbage_key(key), garbage(key, self._now_us + LEFT_OUT_KEPT_US).value)

    def _starts(self, topic: TopicRecord, known: _Known) -> frozenset[int]:
        reserved, starts = known.record.reserved_end, {known.tail.end, known.record.start_offset}
        if reserved > known.tail.end:
            # A durable topic reserves nothing but in a restore: what a former owner uploads since is not its history.
            starts = {reserved} if topic.config().ack_level is AckLevel.DURABLE else {*starts, reserved}
        return frozenset(starts)

    # -- what follows from it ------------------------------------------------------------------------------------------

    async def _end_topic(self, topic_id: int) -> None:
        topic = self._topics[topic_id]
        ends: dict[int, tuple[int, int]] = {}
        for index in range(topic.config().partition_count):
            known = self._known[topic_id, index]
            place = self._places.get((topic_id, index), ManifestPlace(topic_id, index, 0, []))
            ends[index] = await self._end_partition(topic, index, known, place)
            self._report.partitions += 1
        for key, value in self._subscriptions.get(topic_id, ()):
            await self._end_subscription(topic, key, records.unpack(value, SubscriptionRecord), ends)
            self._report.subscriptions += 1

    async def _end_partition(
        self, topic: TopicRecord, index: int, known: _Known, place: ManifestPlace
    ) -> tuple[int, int]:
        """Where the lost offsets begin, and where the partition goes on."""
        record, tail = known.record, known.tail
        end = max(tail.end, record.start_offset)
        given_out = max([end, record.reserved_end, place.end_offset, *(Cursor(*one[1:]).end for one in place.cursors)])
        if topic.reliable:
            seconds = max(BEHIND_S_MIN, (self._now_us - self._manifest.created_at_us) // MICROSECONDS + 1)
            given_out += seconds * OFFSETS_PER_S
        restored = PartitionRecord(
            epoch=max(record.epoch, tail.epoch) + EPOCHS_SKIPPED,
            reserved_end=given_out if topic.reliable else 0,
            start_offset=record.start_offset,
            uploaded_end=tail.end,
        )
        await self._put(records.partition_key(topic.topic_id, index), records.pack(restored))
        return end, given_out

    async def _end_subscription(
        self, topic: TopicRecord, key: str, record: SubscriptionRecord, ends: dict[int, tuple[int, int]]
    ) -> None:
        """Where it stood, and behind that the lost offsets are consumed: nobody waits for them."""
        self._seen("subscription", record.subscription_id)
        starts = list(record.starts) + [0] * (len(ends) - len(record.starts))
        for index, (lost, end) in ends.items():
            cursor = self._cursor(topic.topic_id, index, record)
            if topic.config().reliable and topic.config().ack_level is not AckLevel.MEMORY:
                cursor.ack(lost, end)
            starts[index] = cursor.position
            if cursor.gaps:
                kept = records.restored_key(topic.topic_id, index, record.subscription_id)
                entry = RestoredRecord(record.subscription_id, cursor.position, cursor.acked)
                await self._put(kept, records.pack(entry))
        await self._put(key, records.pack(msgspec.structs.replace(record, starts=starts)))

    def _cursor(self, topic_id: int, index: int, record: SubscriptionRecord) -> Cursor:
        place = self._places.get((topic_id, index))
        for entry in place.cursors if place is not None else ():
            if entry.subscription_id == record.subscription_id:
                return Cursor(entry.position, entry.acked)
        return Cursor(record.start(index))

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _put(self, key: str, value: bytes) -> None:
        self._writes.append(Put(key, value))
        if len(self._writes) >= METADATA_OPERATIONS_MAX:
            await self._flush()

    async def _flush(self) -> None:
        writes, self._writes = self._writes, []
        if writes:
            await self._store.transact([], writes)
