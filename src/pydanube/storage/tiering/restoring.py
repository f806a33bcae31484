"""What an object store alone can tell of a cluster: its newest manifest, and segments that came after it.

The manifest is trusted; a segment that is not in its catalog is added only where it continues a partition exactly: it
begins where the partition ended, its footer is whole, and its ledger and epoch are not older. Everything else is left
alone and reported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from pydanube.codec.manifest import ClusterManifest
from pydanube.codec.segment import END_BYTES, SegmentFooter, decode_footer, read_trailer
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.runtime.objects import ObjectInfo, ObjectStore

from .catalog import CatalogSegment
from .garbage_collector import OBJECTS_PREFIX
from .manifest import newest_first
from .uploader import segment_of

SECTIONS_KEPT_MAX: Final = 1_000_000
"""Of objects that no catalog lists, held in memory while they are put in order."""

Key = tuple[int, int]
"""A topic's id and the partition's index."""


@dataclass(slots=True)
class Restored:
    """What was found, what was done with it, and what is missing."""

    manifest: str = ""
    manifest_us: int = 0
    """When it was written: what happened later, and was not uploaded, is lost."""
    cluster: str = ""
    damaged_manifests: list[str] = field(default_factory=list)
    """Newer ones that could not be read."""
    topics: int = 0
    partitions: int = 0
    subscriptions: int = 0
    segments: int = 0
    messages: int = 0
    bytes: int = 0
    added: list[str] = field(default_factory=list)
    """Objects that came after the manifest and continue it."""
    left_out: list[str] = field(default_factory=list)
    """Objects that nobody needs, or that continue nothing."""
    missing: list[str] = field(default_factory=list)
    """Objects that the catalog lists and the store does not have, or not in their size."""


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """A step of it. `total` is 0 where nobody knows."""

    step: str
    done: int
    total: int


ProgressDone = Callable[[RestoreProgress], None]


@dataclass(slots=True)
class UploadedTail:
    """Where the uploaded part of a partition ends."""

    end: int = 0
    starts: frozenset[int] = frozenset({0})
    """Where its next segment may begin: there, or where offsets go on that were reserved and never given out."""
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


async def newest_manifest(objects: ObjectStore, cluster: str, report: Restored) -> ClusterManifest:
    """Raises NotFound where there is none that is whole."""
    async for manifest in newest_first(objects, cluster, lambda key, _: report.damaged_manifests.append(key)):
        report.manifest = manifest.name.removeprefix("object ")
        report.manifest_us = manifest.created_at_us
        report.cluster = manifest.cluster
        return manifest
    if report.damaged_manifests:
        raise Corrupt(f"none of the manifests in {objects.url} is whole, for example {report.damaged_manifests[0]}")
    raise NotFound(f"there is no manifest in {objects.url}: nothing was ever kept there, or it is another store")


async def listed(objects: ObjectStore, progress: ProgressDone) -> AsyncIterator[ObjectInfo]:
    """Every segment object of the store."""
    count = 0
    async for info in objects.list(OBJECTS_PREFIX):
        count += 1
        if count % 1000 == 0:
            progress(RestoreProgress("objects looked at", count, 0))
        yield info
    progress(RestoreProgress("objects looked at", count, count))


async def sections_in(objects: ObjectStore, info: ObjectInfo) -> list[CatalogSegment]:
    """What an object says it holds. Raises Corrupt, or NotFound when it has gone."""
    footer = await read_whole_footer(objects, info.key, info.size)
    return [segment_of(info.key, info.size, footer, number) for number in range(len(footer.sections))]


async def read_whole_footer(objects: ObjectStore, key: str, size: int) -> SegmentFooter:
    """The footer of an object of which nothing is known but its size."""
    tail = await objects.get(key, max(0, size - END_BYTES), size)
    trailer = read_trailer(tail, size, f"object {key}")
    footer = trailer.footer_in(tail)
    if footer is None:
        footer = await objects.get(key, trailer.footer_start, trailer.footer_end)
    return decode_footer(footer, trailer)


def continue_with(tails: dict[Key, UploadedTail], found: Iterable[CatalogSegment]) -> list[CatalogSegment]:
    """Those of `found` that continue their partitions exactly, in order; the tails move on.

    Where several do, the one of the latest owner counts, and of these the longest.
    """
    waiting: dict[Key, dict[int, list[CatalogSegment]]] = {}
    for one in found:
        waiting.setdefault((one.topic_id, one.index), {}).setdefault(one.first_offset, []).append(one)
    chosen: list[CatalogSegment] = []
    for key, by_start in waiting.items():
        tail = tails.get(key)
        while tail is not None:
            heirs = [one for start in tail.starts for one in by_start.get(start, ()) if tail.continues(one)]
            if not heirs:
                break
            heir = max(heirs, key=lambda one: (one.record.epoch, one.record.ledger_id, one.end_offset))
            tail.advance(heir)
            chosen.append(heir)
    return chosen


async def gather_unlisted(
    objects: ObjectStore, infos: Iterable[ObjectInfo], report: Restored, progress: ProgressDone
) -> list[CatalogSegment]:
    """The sections of objects that the catalog does not know; what cannot be read is left out."""
    found: list[CatalogSegment] = []
    unlisted = list(infos)
    for count, info in enumerate(unlisted, 1):
        try:
            found += await sections_in(objects, info)
        except (Corrupt, NotFound) as error:
            _leave_out(report, info.key, error)
        if len(found) > SECTIONS_KEPT_MAX:
            raise Corrupt(
                f"{objects.url} has more than {SECTIONS_KEPT_MAX} segments that its manifest does not list: "
                f"it is not this cluster's, or its manifests are very old"
            )
        progress(RestoreProgress("later objects read", count, len(unlisted)))
    return found


def _leave_out(report: Restored, key: str, _error: DanubeError) -> None:
    report.left_out.append(key)
