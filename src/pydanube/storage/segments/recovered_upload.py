"""Uploads batches that were read from the slices of a former owner, as segments, so that the new owner has nothing but
objects to read from, and the slices can go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Final, NamedTuple

from pydanube.codec.batch.header import offsets_of
from pydanube.codec.segment import SegmentBuilder, SegmentFooter
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.catalog import Catalog, CatalogSegment
from pydanube.storage.segments.uploader import ProducerHistory, segment_of

log = get_logger(__name__)


class RecoveredSection(NamedTuple):
    """Batches of one ledger, without a gap."""

    ledger_id: int
    epoch: int
    batches: list[memoryview]


class RecoveredUpload:
    """Makes segments of recovered batches. The caller lists them in the catalog."""

    _numbers: Final = count(1)

    def __init__(self, objects: ObjectStore, catalog: Catalog, writer: str, clock: Clock, segment_bytes: int) -> None:
        """`writer` names this process in the keys of objects."""
        self._objects = objects
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._segment_bytes = segment_bytes

    async def upload(
        self, topic_id: int, index: int, sections: Sequence[RecoveredSection], producers: ProducerHistory
    ) -> AsyncIterator[list[CatalogSegment]]:
        """Put the batches, and yield the segments of each object, which the caller lists before the next is made.

        `producers` is the producer table before the first of them, which is brought forward. Each object is recorded as
        an upload first: the caller compares that record (`catalog.uploading`) and deletes it with the listing. Raises
        what the store raises. Cancelled: objects may be left, which are in no catalog.
        """
        for part in _split(sections, self._segment_bytes):
            yield await self._put(topic_id, index, part, producers)

    async def _put(
        self, topic_id: int, index: int, sections: Sequence[RecoveredSection], producers: ProducerHistory
    ) -> list[CatalogSegment]:
        builder = SegmentBuilder(self._writer, self._clock.now_us())

        def build() -> tuple[Sequence[memoryview | bytes | bytearray], SegmentFooter]:
            for one in sections:
                builder.begin(topic_id, index, one.ledger_id, one.epoch)
                for view in one.batches:
                    builder.add(view)
                    producers.replay(view)
                builder.end(producers.entries())
            return builder.finish()

        pieces, footer = await asyncio.to_thread(build)
        first = offsets_of(sections[0].batches[0])[0]
        place = f"segments/{topic_id:016x}/{index:08x}"
        key = f"{place}/{first:020d}-recovered-{self._writer}-{next(self._numbers):08x}.seg"
        size = sum(map(len, pieces))
        await self._catalog.begin_upload(key, self._clock.now_us())
        await self._objects.put(key, list(pieces), create=True)
        log.info("segment.recovered", object=key, bytes=size, sections=len(sections))
        return [segment_of(key, size, footer, number) for number in range(len(footer.sections))]


def _split(sections: Sequence[RecoveredSection], bytes_max: int) -> list[list[RecoveredSection]]:
    """Divide the batches into objects of about `bytes_max`."""
    parts: list[list[RecoveredSection]] = [[]]
    size = 0
    for one in sections:
        batches: list[memoryview] = []
        for view in one.batches:
            if size and size + len(view) > bytes_max:
                parts[-1] += [one._replace(batches=batches)] if batches else []
                parts.append([])
                batches, size = [], 0
            batches.append(view)
            size += len(view)
        parts[-1] += [one._replace(batches=batches)] if batches else []
    return [part for part in parts if part]
