"""Administration of object storage: what is there, what waits, whether it is sound, and what can go.

```python
usage = await client.storage_usage()
print(usage.status.uploads, usage.total.uploaded_bytes, usage.total.waiting_bytes)
found = await client.verify_storage("/default/orders")
assert not found.damages
```

The broker answers in steps of about a second, so that whatever takes long can be watched, slowed down and ended. A
`progress` is called after each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pydanube.client.connection.routing import Brokers
from pydanube.client.history.coverage import SegmentInfo
from pydanube.client.lifecycle import Openable
from pydanube.client.positions import AnyPosition, wire_start
from pydanube.client.settings import check_count, check_number
from pydanube.codec.native import requests
from pydanube.model.errors import NotFound, Unavailable
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    StorageCollected,
    StoragePlace,
    StorageUpload,
    StorageUsage,
    StorageVerified,
)
from pydanube.runtime.tasks import run_together

STEP_BYTES: Final = 8 * 1024 * 1024
"""What one step of a verification reads, about."""

SEGMENTS_AT_ONCE: Final = 1000
SEGMENTS_A_STEP: Final = 100
"""Where only as many are wanted as some range needs."""

HISTORIES_AT_ONCE: Final = 32
"""Requests under way: half of what a broker works at for one connection."""


class StoredHistory(NamedTuple):
    """Where in object storage the offsets of a partition are: what whoever reads them there has to know."""

    store: str
    """Its URL, without credentials."""
    topic_id: int
    segments: list[SegmentInfo]


class StorageAdmin(Openable):
    """The part of a client that looks after object storage."""

    _brokers: Brokers

    async def storage_usage(self, topic: str | None = None) -> StorageUsage:
        """What is in the log and in object storage, of one topic or of all, and how uploads are doing."""
        request = requests.DescribeStorage(topic=_name(topic))
        answer = first = await self._storage(request, requests.StorageUsed)
        found: dict[tuple[str, int], PartitionUsage] = {}
        while True:
            for one in answer.partitions:
                key = (one.topic, one.partition)
                found[key] = _together(found[key], one) if key in found else one
            if answer.next is None:
                return StorageUsage(first.status, list(found.values()))
            answer = await self._storage(
                requests.DescribeStorage(topic=request.topic, place=answer.next), requests.StorageUsed
            )

    async def storage_segments(
        self, topic: str, partition: int = 0, *, start: AnyPosition = EARLIEST, count: int | None = None
    ) -> list[SegmentDescription]:
        """The objects that hold a partition's history, from the one that holds `start` on; `count`: not more."""
        check_count("partition", partition, 0, PARTITIONS_MAX - 1)
        found: list[SegmentDescription] = []
        begin = wire_start(start)
        while True:
            wanted = SEGMENTS_AT_ONCE if count is None else min(SEGMENTS_AT_ONCE, count - len(found))
            if wanted <= 0:
                return found
            request = requests.ListSegments(topic=_name(topic), partition=partition, start=begin, count=wanted)
            answer = await self._storage(request, requests.SegmentList)
            found += answer.segments
            if answer.next_offset < 0:
                return found
            begin = requests.Start("offset", answer.next_offset)

    async def storage_histories(self, wanted: Sequence[tuple[str, int, int, int]]) -> list[StoredHistory]:
        """For each topic, partition, start and end: where those offsets are in object storage, as far as they are.

        A topic or a partition that is not there has none; whoever reads it from the broker is told so.
        """
        histories: list[StoredHistory | None] = [None] * len(wanted)
        places = asyncio.Semaphore(HISTORIES_AT_ONCE)

        async def look(number: int, topic: str, partition: int, start: int, end: int) -> None:
            async with places:
                try:
                    histories[number] = await self._history(topic, partition, start, end)
                except NotFound:
                    histories[number] = StoredHistory(store="", topic_id=0, segments=[])

        await run_together(look(number, *one) for number, one in enumerate(wanted))
        return [one for one in histories if one is not None]

    async def _history(self, topic: str, partition: int, start: int, end: int) -> StoredHistory:
        check_count("partition", partition, 0, PARTITIONS_MAX - 1)
        found: list[SegmentInfo] = []
        place = start
        while True:
            begin = requests.Start("offset", place)
            request = requests.ListSegments(topic=_name(topic), partition=partition, start=begin, count=SEGMENTS_A_STEP)
            answer = await self._storage(request, requests.SegmentList)
            reached = found[-1].end_offset if found else 0
            found += (_located(one, answer.topic_id, reached) for one in answer.segments if one.first_offset < end)
            place = answer.next_offset
            if not start <= place < end:
                return StoredHistory(answer.store, answer.topic_id, found)

    async def upload_storage(
        self, topic: str | None = None, *, progress: Callable[[StorageUpload], None] | None = None
    ) -> StorageUpload:
        """Upload what waits now, however little, and wait for it: of one topic or of all. Raises Unavailable when the
        store does not take it. Cancelled, it goes on all the same."""
        state = (await self._storage(requests.UploadStorage(topic=_name(topic)), requests.StorageUploading)).upload
        while not state.done:
            if progress is not None:
                progress(state)
            state = (await self._storage(requests.UploadStorage(run=state.run), requests.StorageUploading)).upload
        if progress is not None:
            progress(state)
        if state.failure:
            raise Unavailable(f"{state.left_bytes} bytes are not uploaded: {state.failure}")
        return state

    async def verify_storage(
        self,
        topic: str | None = None,
        *,
        rate: float | None = None,
        progress: Callable[[StorageVerified], None] | None = None,
    ) -> StorageVerified:
        """Let the broker read every object of a topic, or of all topics, and tell what is damaged or missing.

        Nothing is changed. `rate`: at most so many bytes a second. What is uploaded meanwhile is read too.
        """
        if rate is not None:
            check_number("rate", rate, 1, 1e15)
        name, clock = _name(topic), self._brokers.clock
        begin, step_bytes = clock.monotonic(), STEP_BYTES if rate is None else int(min(STEP_BYTES, rate))
        found, place = StorageVerified(), StoragePlace()
        while True:
            request = requests.VerifyStorage(topic=name, place=place, bytes_max=step_bytes)
            answer = await self._storage(request, requests.StorageStep)
            found = found.plus(answer.verified)
            if progress is not None:
                progress(found)
            if answer.next is None:
                return found
            place = answer.next
            if rate is not None:
                await clock.sleep(max(0.0, begin + found.bytes / rate - clock.monotonic()))

    async def collect_garbage(
        self,
        *,
        orphans: bool = False,
        dry_run: bool = False,
        progress: Callable[[StorageCollected], None] | None = None,
    ) -> StorageCollected:
        """Delete objects that nobody needs any more and whose grace period is over; the broker does so by itself
        every minute. `orphans`: also what was left by uploads that were cut short, which takes a listing of the whole
        store. `dry_run`: only count."""
        found = StorageCollected()
        for kind in (False, True) if orphans else (False,):
            after = ""
            while True:
                request = requests.CollectGarbage(orphans=kind, dry_run=dry_run, after=after)
                answer = await self._storage(request, requests.GarbageCollected)
                found = found.plus(answer.collected)
                if progress is not None:
                    progress(found)
                after = answer.next
                if not after:
                    break
        return found

    async def _storage(self, request: requests.Request, answer: type[requests.StructT]) -> requests.StructT:
        self._check_open()
        return await self._brokers.call(request, answer)


def _name(topic: str | None) -> str:
    return "" if topic is None else str(TopicName.parse(topic))


def _located(segment: SegmentDescription, topic_id: int, reached: int) -> SegmentInfo:
    """What it holds from `reached` on: segments that were listed before may have been merged into this one since."""
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


def _together(one: PartitionUsage, more: PartitionUsage) -> PartitionUsage:
    return replace(
        one,
        segments=one.segments + more.segments,
        uploaded_bytes=one.uploaded_bytes + more.uploaded_bytes,
        messages=one.messages + more.messages,
    )
