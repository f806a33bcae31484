"""Administration of object storage: usage, segments, uploads, verification, and deletion of unneeded objects.

```python
usage = await client.storage.usage()
print(usage.status.uploads, usage.total.uploaded_bytes, usage.total.waiting_bytes)
found = await client.storage.verify("/default/orders")
assert not found.damages
```

The broker works in steps of about a second, so that a long call can be observed, slowed down and cancelled. The
function `progress` is called after each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pydanube.client.history.coverage import SegmentInfo
from pydanube.client.positions import AnyPosition
from pydanube.client.settings import check_count, check_number
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    SliceLoss,
    StorageCollected,
    StoragePlace,
    StorageUpload,
    StorageUsage,
    StorageVerified,
)
from pydanube.operations.storage import (
    SEGMENTS_MAX,
    CollectGarbage,
    DescribeStorage,
    ListSegments,
    RepairSlice,
    UploadStorage,
    VerifyStorage,
)
from pydanube.runtime.rates import Pacer
from pydanube.runtime.tasks import run_together

from .area import Area

STEP_BYTES: Final = 8 * 1024 * 1024
"""One step of a verification reads about this many bytes."""

SEGMENTS_PER_HISTORY_REQUEST: Final = 100
"""Segments requested at a time for a range of offsets, which mostly needs few."""

HISTORIES_AT_ONCE: Final = 32
"""Unanswered requests: half of those that a broker works on for one connection at once."""


class StoredHistory(NamedTuple):
    """Where the offsets of a partition are in object storage: what a program needs to read them there."""

    store: str
    """The URL of the object store, without credentials."""
    topic_id: int
    segments: list[SegmentInfo]


class Storage(Area):
    """Object storage, as `client.storage` administers it."""

    async def usage(self, topic: str | None = None) -> StorageUsage:
        """Return what one topic, or all, have in the log and in object storage, and the state of the uploads."""
        name = _checked_name(topic)
        answer = first = await self._client._do(DescribeStorage(topic=name))
        found: dict[tuple[str, int], PartitionUsage] = {}
        while True:
            for one in answer.partitions:
                key = (one.topic, one.partition)
                found[key] = _add_usage(found[key], one) if key in found else one
            if answer.next is None:
                return StorageUsage(first.status, list(found.values()))
            answer = await self._client._do(DescribeStorage(topic=name, place=answer.next))

    async def segments(
        self, topic: str, partition: int = 0, *, start: AnyPosition = EARLIEST, count: int | None = None
    ) -> list[SegmentDescription]:
        """Return at most `count` segments of a partition, from the one that holds `start` on."""
        check_count("partition", partition, 0, PARTITIONS_MAX - 1)
        found: list[SegmentDescription] = []
        begin = Position.parse(start)
        while True:
            wanted = SEGMENTS_MAX if count is None else min(SEGMENTS_MAX, count - len(found))
            if wanted <= 0:
                return found
            request = ListSegments(topic=TopicName.parse(topic), partition=partition, start=begin, count=wanted)
            answer = await self._client._do(request)
            found += answer.segments
            if answer.next_offset < 0:
                return found
            begin = Position("offset", answer.next_offset)

    async def histories(self, wanted: Sequence[tuple[str, int, int, int]]) -> list[StoredHistory]:
        """Find where offsets are in object storage, as far as they are there; `wanted` is topic, partition, start, end.

        For a topic or a partition that does not exist the result has no segments; reading it from the broker raises
        NotFound.
        """
        histories: list[StoredHistory | None] = [None] * len(wanted)
        slots = asyncio.Semaphore(HISTORIES_AT_ONCE)

        async def find(number: int, topic: str, partition: int, start: int, end: int) -> None:
            async with slots:
                try:
                    histories[number] = await self._find_history(topic, partition, start, end)
                except NotFound:
                    histories[number] = StoredHistory(store="", topic_id=0, segments=[])

        await run_together(find(number, *one) for number, one in enumerate(wanted))
        return [one for one in histories if one is not None]

    async def _find_history(self, topic: str, partition: int, start: int, end: int) -> StoredHistory:
        check_count("partition", partition, 0, PARTITIONS_MAX - 1)
        found: list[SegmentInfo] = []
        offset = start
        while True:
            begin = Position("offset", offset)
            request = ListSegments(
                topic=TopicName.parse(topic), partition=partition, start=begin, count=SEGMENTS_PER_HISTORY_REQUEST
            )
            answer = await self._client._do(request)
            reached = found[-1].end_offset if found else 0
            found += (_segment_info(one, answer.topic_id, reached) for one in answer.segments if one.first_offset < end)
            offset = answer.next_offset
            if not start <= offset < end:
                return StoredHistory(answer.store, answer.topic_id, found)

    async def upload(
        self, topic: str | None = None, *, progress: Callable[[StorageUpload], None] | None = None
    ) -> StorageUpload:
        """Upload everything of one topic, or of all, that is not uploaded yet, and wait until it is.

        Raises Unavailable if the object store does not accept it. Cancelled, the upload continues.
        """
        state = (await self._client._do(UploadStorage(topic=_checked_name(topic)))).upload
        while not state.done:
            if progress is not None:
                progress(state)
            state = (await self._client._do(UploadStorage(run=state.run))).upload
        if progress is not None:
            progress(state)
        if state.failure:
            raise Unavailable(f"{state.left_bytes} bytes are not uploaded: {state.failure}")
        return state

    async def verify(
        self,
        topic: str | None = None,
        *,
        rate: float | None = None,
        progress: Callable[[StorageVerified], None] | None = None,
    ) -> StorageVerified:
        """Let the broker read every object of one topic, or of all, and report what is damaged or missing.

        Nothing is changed. `rate` limits the bytes read in a second. Objects uploaded meanwhile are read too.
        """
        if rate is not None:
            check_number("rate", rate, 1, 1e15)
        name, pace = _checked_name(topic), Pacer(rate, self._client._brokers.clock)
        step_bytes = STEP_BYTES if rate is None else int(min(STEP_BYTES, rate))
        found, place = StorageVerified(), StoragePlace()
        while True:
            answer = await self._client._do(VerifyStorage(topic=name, place=place, bytes_max=step_bytes))
            found = found.plus(answer.verified)
            if progress is not None:
                progress(found)
            if answer.next is None:
                return found
            place = answer.next
            await pace.take(answer.verified.bytes)

    async def collect_garbage(
        self,
        *,
        orphans: bool = False,
        dry_run: bool = False,
        progress: Callable[[StorageCollected], None] | None = None,
    ) -> StorageCollected:
        """Delete objects that are no longer needed and whose grace period is over, as the broker does every minute.

        orphans     also delete what interrupted uploads left behind; this lists the whole store
        dry_run     only count the objects
        """
        found = StorageCollected()
        for kind in (False, True) if orphans else (False,):
            after = ""
            while True:
                answer = await self._client._do(CollectGarbage(orphans=kind, dry_run=dry_run, after=after))
                found = found.plus(answer.collected)
                if progress is not None:
                    progress(found)
                after = answer.next
                if not after:
                    break
        return found

    async def repair_slice(self, path: str, *, accept_loss: bool = False) -> list[SliceLoss]:
        """Replace the damaged or missing object at a path under `slices/`, so that the partitions which wait for it
        open again; return the offsets that were given up with it.

        Raises Refused, and changes nothing, if the object is sound or still written, and without `accept_loss` if
        messages may be lost; the error says how many at most.
        """
        return (await self._client._do(RepairSlice(path=path, accept_loss=accept_loss))).losses


def _checked_name(topic: str | None) -> TopicName | None:
    return None if topic is None else TopicName.parse(topic)


def _segment_info(segment: SegmentDescription, topic_id: int, reached: int) -> SegmentInfo:
    """Return the segment from offset `reached` on: segments listed before may have been merged into this one since."""
    return SegmentInfo(
        object=segment.object,
        section=segment.section,
        topic_id=topic_id,
        partition=segment.partition,
        first_offset=max(segment.first_offset, reached),
        end_offset=segment.end_offset,
        ledger_id=segment.ledger_id,
        epoch=segment.epoch,
        object_bytes=segment.object_bytes,
        append_time_min=segment.first_time,
        append_time_max=segment.last_time,
    )


def _add_usage(one: PartitionUsage, more: PartitionUsage) -> PartitionUsage:
    return replace(
        one,
        segments=one.segments + more.segments,
        uploaded_bytes=one.uploaded_bytes + more.uploaded_bytes,
        messages=one.messages + more.messages,
    )
