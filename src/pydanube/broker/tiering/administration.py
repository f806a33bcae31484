"""Administration of object storage: usage, segments, uploads, verification, garbage collection.

Requests that may take long run in steps of about a second, and the response says where the next step continues. Only an
upload runs in the background once it is started; the caller asks for its progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from pydanube.broker.context import BrokerContext
from pydanube.broker.partitions.broker_slices import BrokerSlices, SliceCounts
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.records import PartitionRecord, TopicRecord, partition_key
from pydanube.codec.batch import read_header
from pydanube.core.access import ANONYMOUS, BROKER, Action, Principal
from pydanube.metadata.packing import unpack
from pydanube.model.errors import DanubeError, Denied, Full, Invalid, NotFound, Refused, Unauthenticated
from pydanube.model.names import TopicName
from pydanube.model.positions import OFFSET_END, Position
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    StorageCollected,
    StoragePlace,
    StorageStatus,
    StorageUpload,
)
from pydanube.model.topics import AckLevel
from pydanube.operations.storage import (
    SEGMENTS_MAX,
    VERIFY_BYTES_MAX,
    DescribeStorage,
    GarbageCollected,
    SegmentList,
    SliceRepaired,
    StorageStep,
    StorageUploading,
    StorageUsed,
    UploadStorage,
)
from pydanube.runtime.budget import Budget
from pydanube.runtime.clock import MICROSECONDS
from pydanube.storage.segments.catalog import CatalogSegment
from pydanube.storage.segments.garbage_collector import CollectionStep
from pydanube.storage.segments.verifier import CatalogBounds, PartitionToVerify, SegmentVerifier, VerificationStep

from .object_storage import ObjectStorage

STEP_S: Final = 1.0
"""How long a step may take, because the caller waits for the response."""

COUNTED_MAX: Final = 20_000
"""Segments that are counted in one step."""

PARTITIONS_MAX: Final = 1000
"""Partitions in one response."""

GARBAGE_COUNTED_MAX: Final = 10_000
RUNS_MAX: Final = 16
"""Uploads whose progress or result is remembered."""


class UploadRun:
    """An upload of what `targets` had in the log when it started; the values are their end offsets then."""

    def __init__(
        self,
        number: int,
        tiers: ObjectStorage,
        targets: dict[tuple[int, int], int],
        resource: str = BROKER,
        users: tuple[str, ...] = (),
    ) -> None:
        """`resource`: what is uploaded, a topic or everything; who may start the upload may follow it. `users`: whose
        share of all uploads it takes."""
        self.users = users
        self.number = number
        self.resource = resource
        self.others: dict[str, int] = {}
        """The numbers of the uploads that other brokers run for this one, by their names."""
        self._tiers = tiers
        self._targets = targets
        self.done = asyncio.Event()
        self.failure = ""
        self._total = sum(self._left().values())

    async def run(self) -> None:
        """Upload until nothing is left or an upload fails. Cancelled: finished uploads stay."""
        try:
            while left := self._left():
                if (
                    not await self._tiers.upload(left.keys()) and self._left()
                ):  # unless the uploader has done it meanwhile
                    failure = self._tiers.uploader.failure
                    self.failure = failure.message if failure is not None else "these partitions have another owner now"
                    break
        except DanubeError as error:
            self.failure = error.message
        finally:
            self.done.set()

    def _left(self) -> dict[tuple[int, int], int]:
        """Return the approximate bytes that are not uploaded yet, by partition."""
        left: dict[tuple[int, int], int] = {}
        for key, target in self._targets.items():
            tier = self._tiers.partitions.get(key)
            waiting = tier.waiting(target) if tier is not None else None
            if waiting is not None:
                left[key] = waiting.bytes
        return left

    def describe(self) -> StorageUpload:
        left = self._left()
        size = sum(left.values())
        return StorageUpload(
            self.number, max(self._total, size), size, len(left), self.done.is_set(), failure=self.failure
        )


class StorageAdministration:
    """The requests of administrators. Every method checks the principal's permission first."""

    def __init__(
        self,
        context: BrokerContext,
        partitions: Partitions,
        tiers: ObjectStorage | None,
        slices: BrokerSlices | None = None,
    ) -> None:
        self._slices = slices
        self._gathering = context.gathering
        self._registry = context.registry
        self._partitions = partitions
        self._authorizer = context.authorizer
        self._store = context.store
        self._writer = context.writer
        self._clock = context.clock
        self._tasks = context.tasks
        self._tiers = tiers
        self._verifying = asyncio.Lock()  # so that only one range is in memory, however many callers there are
        self._runs: dict[int, UploadRun] = {}
        self._numbers = count(1)

    # -- usage ---------------------------------------------------------------------------------------------------------

    async def usage(self, principal: Principal, topic: TopicName | None, place: StoragePlace) -> StorageUsed:
        """Return the status of this broker, if the caller may see that, the usage of some partitions from `place` on,
        and where the next step continues. What only the owner of a partition knows comes from there.

        A partition with a long history may be returned in several parts, over several steps; the caller adds up their
        segments, bytes and messages. Without a topic, all partitions that the caller may see are walked.
        """
        if topic is not None:
            self._authorizer.check(principal, Action.DESCRIBE, str(topic))
        tiers = self._stored()
        found, stopped = await self._usage_step(principal, tiers, topic, place)
        found = await self._ask_owners(found)
        if not self._authorizer.allows(principal, Action.DESCRIBE, BROKER):
            return StorageUsed(StorageStatus(url="", uploads="hidden"), found, stopped)
        return StorageUsed(await self._status(tiers, with_garbage=place == StoragePlace()), found, stopped)

    async def own_usage(self, principal: Principal, partitions: Sequence[tuple[str, int]]) -> StorageUsed:
        """Return what this broker knows of partitions that it owns, without their segments, for another broker."""
        tiers = self._authorize(principal, Action.DESCRIBE, None)
        found: list[PartitionUsage] = []
        for topic, index in partitions:
            name = TopicName.parse(topic)
            record = await self._registry.refresh_topic(name) or self._registry.topic(name)
            found.append(await self._describe_partition(tiers, name, record, index))
        return StorageUsed(await self._status(tiers, with_garbage=False), found)

    async def _ask_owners(self, found: list[PartitionUsage]) -> list[PartitionUsage]:
        """Return the usage with what the other owners of these partitions know, or why they do not say it."""
        if self._gathering.is_alone:
            return found
        owners: dict[str, list[tuple[str, int]]] = {}
        for one in found:
            record = self._registry.find_topic(TopicName.parse(one.topic))
            owner = self._gathering.elsewhere(record.topic_id, one.partition, False) if record is not None else None
            if owner is not None:
                owners.setdefault(owner, []).append((one.topic, one.partition))
        requests = {
            broker: DescribeStorage(own_only=True, partitions=partitions) for broker, partitions in owners.items()
        }
        known: dict[tuple[str, int], PartitionUsage | DanubeError] = {}
        for broker, answer in (await self._gathering.ask(requests, StorageUsed)).items():
            if isinstance(answer, DanubeError):
                known |= dict.fromkeys(owners[broker], answer)
            else:
                known |= {(one.topic, one.partition): one for one in answer.partitions}
        return [_with_owner(one, known.get((one.topic, one.partition))) for one in found]

    async def _usage_step(
        self, principal: Principal, tiers: ObjectStorage, topic: TopicName | None, place: StoragePlace
    ) -> tuple[list[PartitionUsage], StoragePlace | None]:
        deadline = self._clock.monotonic() + STEP_S
        found: list[PartitionUsage] = []
        counted = 0
        async for name, record, index, offset in self._walk(topic, place):
            if not self._authorizer.allows(principal, Action.DESCRIBE, str(name)):
                continue
            if found and (len(found) >= PARTITIONS_MAX or self._clock.monotonic() >= deadline):
                return found, StoragePlace(str(name), index, offset)
            about = (
                await self._describe_partition(tiers, name, record, index)
                if not offset
                else PartitionUsage(str(name), index)
            )
            about, offset, some = await self._count(tiers, record.topic_id, about, offset, COUNTED_MAX - counted)
            counted += some
            found.append(about)
            if offset:
                return found, StoragePlace(str(name), index, offset)
        return found, None

    async def _count(
        self, tiers: ObjectStorage, topic_id: int, about: PartitionUsage, offset: int, most: int
    ) -> tuple[PartitionUsage, int, int]:
        """Add the segments from `offset` on to `about`. Returns the new usage, the offset to continue at (0: done), and
        the number of segments counted."""
        some = 0
        async for page in tiers.catalog.pages(topic_id, about.partition, offset):
            some += len(page)
            about = replace(
                about,
                segments=about.segments + len(page),
                uploaded_bytes=about.uploaded_bytes + sum(one.bytes for one in page),
                messages=about.messages + sum(one.record.messages for one in page),
            )
            if some >= most:
                return about, page[-1].end_offset, some
        return about, 0, some

    async def _describe_partition(
        self, tiers: ObjectStorage, topic: TopicName, record: TopicRecord, index: int
    ) -> PartitionUsage:
        bounds = await self._bounds(record.topic_id, index)
        about = PartitionUsage(str(topic), index, bounds.start, bounds.uploaded_end, bounds.uploaded_end)
        if self._gathering.elsewhere(record.topic_id, index, own_only=False) is not None:
            return about
        try:
            partition = await self._partitions.get(topic, index)
            first, waiting_s = await self._oldest_waiting(partition, bounds.uploaded_end)
        except NotFound:
            raise
        except DanubeError as error:
            return replace(about, health=error.message)
        stream = partition.stream
        unreadable = tiers.uploader.unreadable.get((record.topic_id, index))
        return replace(
            about,
            health=about.health if unreadable is None else unreadable.error.message,
            start_offset=stream.start_offset,
            end_offset=stream.end_offset,
            log_bytes=partition.describe("").stored_bytes,
            waiting_bytes=partition.sizes.between(first, stream.end_offset),
            waiting_messages=stream.gaps.messages(first, stream.end_offset),
            waiting_s=waiting_s,
        )

    async def _oldest_waiting(self, partition: Partition, uploaded_end: int) -> tuple[int, float]:
        """Return the first offset that is not uploaded, and its age in seconds. A restore may have left a gap before
        it."""
        stream = partition.stream
        first = max(uploaded_end, stream.start_offset)
        views = await stream.read(first, 0) if first < stream.end_offset else []
        if not views:
            return stream.end_offset, 0.0
        header = read_header(views[0])
        return max(first, header.base_offset), max(0, self._clock.now_us() - header.append_time) / MICROSECONDS

    async def _status(self, tiers: ObjectStorage, with_garbage: bool) -> StorageStatus:
        failure, refusal = tiers.uploader.failure, tiers.refusal() or tiers.unlisted.refusal()
        slices = self._slices.counts() if self._slices is not None else SliceCounts()
        damaged = next((one.error.message for one in tiers.uploader.unreadable.values()), "")
        return StorageStatus(
            url=tiers.objects.url,
            uploads=_upload_state(failure, damaged),
            failure=failure.message if failure is not None else damaged,
            failing_since=tiers.uploader.failing_since_us if failure is not None else 0,
            refusing=refusal.message if refusal is not None else "",
            log_bytes=self._writer.stored_bytes,
            log_bytes_max=tiers.settings.log_bytes_max,
            uploaded_bytes=tiers.uploader.uploaded_bytes,
            objects_made=tiers.uploader.objects_made,
            garbage=await self._count_garbage(tiers) if with_garbage else 0,
            slice_puts=slices.puts,
            slice_puts_per_s=round(slices.puts_per_s, 1),
            slice_waiting_bytes=slices.waiting_bytes,
            slice_unlisted_bytes=slices.unlisted_bytes,
            slice_unlisted_bytes_max=tiers.unlisted.limit,
        )

    async def _count_garbage(self, tiers: ObjectStorage) -> int:
        found = 0
        async for _ in tiers.catalog.garbage():
            found += 1
            if found >= GARBAGE_COUNTED_MAX:
                break
        return found

    # -- segments ------------------------------------------------------------------------------------------------------

    async def segments(
        self, principal: Principal, topic: TopicName, partition: int, start: Position, most: int
    ) -> SegmentList:
        """Return up to `most` segments from the one that holds `start` on. They tell where history lies, for readers
        that read it there themselves: so it takes READ."""
        tiers = self._authorize(principal, Action.READ, topic)
        record = self._registry.topic(topic)
        self._check_partition(topic, record, partition)
        bounds = await self._bounds(record.topic_id, partition)
        offset = start.value if start.kind == "offset" else bounds.uploaded_end if start.kind == "latest" else 0
        if start.kind == "time":
            first = await tiers.catalog.find_time(record.topic_id, partition, start.value, 0, bounds.uploaded_end)
            offset = first.first_offset if first is not None else bounds.uploaded_end
        most = max(1, min(most, SEGMENTS_MAX))
        async for page in tiers.catalog.pages(record.topic_id, partition, offset, most):
            following = page[-1].end_offset if len(page) == most else -1
            return SegmentList(list(map(_describe_segment, page)), following, record.topic_id, tiers.objects.url)
        return SegmentList([], -1, record.topic_id, tiers.objects.url)

    # -- uploading -----------------------------------------------------------------------------------------------------

    async def upload(self, principal: Principal, topic: TopicName | None, own_only: bool = False) -> StorageUpload:
        """Start to upload all that is in the log now, due or not. The upload runs in the background, here and, unless
        `own_only` is set, at the other owners. Raises Unavailable if one of them does not answer."""
        tiers = self._authorize(principal, Action.ADMINISTER, topic)
        resource = BROKER if topic is None else str(topic)
        users = self._make_room_for_run(principal, topic)
        owners = set[str]()
        async for name, record, index, _ in self._walk(topic, StoragePlace()):
            own, others = self._gathering.shares(record.topic_id, [index], own_only)
            owners.update(others)
            if own:
                await self._partitions.get(name, index)
        request = UploadStorage(topic=topic, own_only=True)
        uploads = await self._ask_uploads(dict.fromkeys(sorted(owners), request))
        ids = None if topic is None else self._registry.topic(topic).topic_id
        targets = {
            key: waiting.end_offset
            for key, tier in tiers.partitions.items()
            if ids in (None, key[0]) and (waiting := tier.waiting()) is not None
        }
        run = UploadRun(next(self._numbers), tiers, targets, resource, users)
        self._runs[run.number] = run
        self._tasks.spawn(run.run(), f"upload {run.number}")
        run.others = {broker: one.run for broker, one in uploads.items()}
        return _added_up(run.describe(), uploads.values())

    async def _ask_uploads(self, requests: Mapping[str, UploadStorage]) -> dict[str, StorageUpload]:
        found: dict[str, StorageUpload] = {}
        for broker, answer in (await self._gathering.ask(requests, StorageUploading)).items():
            if isinstance(answer, DanubeError):
                raise answer
            found[broker] = answer.upload
        return found

    async def upload_state(
        self, principal: Principal, number: int, wait_s: float = STEP_S / 2, own_only: bool = False
    ) -> StorageUpload:
        """Return the progress of an upload, after waiting up to `wait_s` for its end here. Raises Unavailable if
        another owner, where the upload runs too, does not answer; with `own_only`, none is asked."""
        run = self._runs.get(number)
        if run is None or not self._authorizer.allows(principal, Action.DESCRIBE, run.resource):
            self._authorizer.check(principal, Action.ADMINISTER, BROKER)
            raise NotFound(f"upload {number} is not known here: the broker was started anew, or it is long done")
        self._authorizer.check(principal, Action.ADMINISTER, run.resource)
        try:
            async with asyncio.timeout(wait_s):
                await run.done.wait()
        except TimeoutError:
            pass
        requests = {
            broker: UploadStorage(run=other, own_only=True)
            for broker, other in ({} if own_only else run.others).items()
        }
        return _added_up(run.describe(), (await self._ask_uploads(requests)).values())

    def _make_room_for_run(self, principal: Principal, topic: TopicName | None) -> tuple[str, ...]:
        """Forget the oldest finished uploads, and return whose share a new one takes. Raises Full if too many are
        running, or too many of these users, unless principals are not told apart."""
        for number in [number for number, run in self._runs.items() if run.done.is_set()]:
            if len(self._runs) >= RUNS_MAX:
                del self._runs[number]
        if len(self._runs) >= RUNS_MAX:
            raise Full(f"{len(self._runs)} uploads are under way: wait for them")
        if principal == ANONYMOUS or principal.is_broker:
            return ()
        users = (*(() if topic is None else (f"namespace /{topic.namespace}",)), principal.id)
        running = Budget(RUNS_MAX)
        for run in self._runs.values():
            if not run.done.is_set():
                running.take(1, *run.users)
        if full := running.over_share(1, *users):
            raise Full(f"{full} has {running.used_by(full)} uploads under way: wait for them")
        return users

    # -- verifying -----------------------------------------------------------------------------------------------------

    async def verify(
        self, principal: Principal, topic: TopicName | None, place: StoragePlace, bytes_max: int
    ) -> StorageStep:
        """Verify up to `bytes_max` of segments from `place` on."""
        tiers = self._authorize(principal, Action.ADMINISTER, topic)
        verifier = SegmentVerifier(tiers.objects, tiers.catalog, self._clock)
        async with self._verifying:
            step = VerificationStep(max(1, min(bytes_max, VERIFY_BYTES_MAX)), self._clock.monotonic() + STEP_S)
            async for name, record, index, offset in self._walk(topic, place):
                at = place if (place.topic, place.partition) == (str(name), index) else StoragePlace(offset=offset)
                target = self._to_verify(name, record, index)
                if (stopped := await verifier.verify(target, at, step)) is not None:
                    return StorageStep(step.result(), stopped)
                if step.is_over(self._clock.monotonic()):
                    return StorageStep(step.result(), StoragePlace(str(name), index + 1))
            return StorageStep(step.result())

    def _to_verify(self, topic: TopicName, record: TopicRecord, index: int) -> PartitionToVerify:
        async def bounds() -> CatalogBounds:
            current = self._registry.find_topic(topic)
            if current is None or current.topic_id != record.topic_id:
                return CatalogBounds(OFFSET_END, 0)  # the topic was deleted meanwhile: nothing can be missing
            return await self._bounds(record.topic_id, index)

        return PartitionToVerify(str(topic), record.topic_id, index, bounds)

    # -- collecting ----------------------------------------------------------------------------------------------------

    async def collect(self, principal: Principal, orphans: bool, dry_run: bool, after: str) -> GarbageCollected:
        """Delete some unused objects."""
        tiers = self._authorize(principal, Action.ADMINISTER, None)
        await tiers.check_ours()
        if not after and not dry_run:
            await tiers.forget_deleted_topics()
        step = CollectionStep(after, self._clock.monotonic() + STEP_S, dry_run)
        collect = tiers.collector.collect_orphans if orphans else tiers.collector.collect_garbage
        found = await collect(step)
        done = StorageCollected(found.looked_at, found.deleted, found.deleted_bytes, found.waiting)
        return GarbageCollected(done, found.stopped_at)

    async def repair_slice(self, principal: Principal, path: str, accept_loss: bool) -> SliceRepaired:
        """Replace a damaged slice, and let the partitions that wait for it be opened here at once; other brokers try
        again by themselves."""
        self._authorize(principal, Action.ADMINISTER, None)
        if self._slices is None:
            raise Refused("the object store of this broker keeps no slices: there is nothing to repair")
        lost = await self._slices.repair(path, accept_loss)
        self._partitions.try_again()
        return SliceRepaired(lost)

    # -- shared lookups ------------------------------------------------------------------------------------------------

    def _authorize(self, principal: Principal, action: Action, topic: TopicName | None) -> ObjectStorage:
        self._authorizer.check(principal, action, BROKER if topic is None else str(topic))
        return self._stored()

    def _stored(self) -> ObjectStorage:
        if self._tiers is None:
            raise Refused("this broker keeps everything in its log: it has no object storage")
        return self._tiers

    async def _walk(
        self, topic: TopicName | None, place: StoragePlace
    ) -> AsyncIterator[tuple[TopicName, TopicRecord, int, int]]:
        """Yield stored partitions from `place` on, ordered by name, each with the offset to begin at."""
        if place.partition < 0 or not 0 <= place.offset < OFFSET_END or place.byte < 0 or not 0 <= place.crc < 2**32:
            raise Invalid("a place to go on at is what the last answer gave, unchanged")
        first = TopicName.parse(place.topic) if place.topic else None
        names = self._registry.topics() if topic is None else [topic]
        if topic is not None:
            self._registry.topic(topic)
        for name in names:
            record = self._registry.find_topic(name)
            if record is None or (first is not None and name < first) or not _is_stored(record):
                continue
            begin = place.partition if name == first else 0
            for index in range(begin, record.config().partition_count):
                yield name, record, index, place.offset if name == first and index == begin else 0

    async def _bounds(self, topic_id: int, index: int) -> CatalogBounds:
        found = await self._store.get(partition_key(topic_id, index))
        record = unpack(found.value, PartitionRecord) if found is not None else PartitionRecord()
        return CatalogBounds(record.start_offset, record.uploaded_end)

    def _check_partition(self, topic: TopicName, record: TopicRecord, partition: int) -> None:
        have = record.config().partition_count
        if not 0 <= partition < have:
            raise NotFound(f"topic {topic} has {have} partitions: there is no partition {partition}")


def _with_owner(about: PartitionUsage, owner: PartitionUsage | DanubeError | None) -> PartitionUsage:
    """Return the usage of a partition with what its owner knows of it, if another broker owns it."""
    match owner:
        case None:
            return about
        case DanubeError():
            return replace(about, health=owner.message)
    return replace(
        owner,
        segments=about.segments,
        uploaded_bytes=about.uploaded_bytes,
        messages=about.messages,
        uploaded_end=max(about.uploaded_end, owner.uploaded_end),
    )


def _added_up(own: StorageUpload, others: Iterable[StorageUpload]) -> StorageUpload:
    """Return the progress of an upload that several brokers run."""
    parts = [own, *others]
    return StorageUpload(
        own.run,
        sum(one.total_bytes for one in parts),
        sum(one.left_bytes for one in parts),
        sum(one.partitions_left for one in parts),
        all(one.done for one in parts),
        "; ".join(dict.fromkeys(one.failure for one in parts if one.failure)),
    )


def _upload_state(failure: DanubeError | None, damaged: str) -> str:
    """Return the value of StorageStatus.uploads."""
    if failure is None:
        return "damaged" if damaged else "ok"
    return "refused" if isinstance(failure, Refused | Denied | Unauthenticated | Invalid) else "failing"


def _is_stored(record: TopicRecord) -> bool:
    config = record.config()
    return config.reliable and config.ack_level is not AckLevel.MEMORY


def _describe_segment(segment: CatalogSegment) -> SegmentDescription:
    record = segment.record
    return SegmentDescription(
        partition=segment.index,
        first_offset=segment.first_offset,
        end_offset=segment.end_offset,
        messages=record.messages,
        bytes=segment.bytes,
        object=record.object,
        object_bytes=record.object_bytes,
        section=record.section,
        first_time=record.first_time,
        last_time=record.last_time,
        ledger_id=record.ledger_id,
        epoch=record.epoch,
    )
