"""Deletes unused objects: garbage, whose segments were removed from the catalog, and orphans, which never were in it.

An object is deleted only after a grace period, so that readers that have found it in the catalog can finish. Objects
that are in the catalog again, or are younger than the grace period, stay.

Any broker of a cluster may be uploading an object that is not in the catalog yet, and may be paused while it does. The
catalog records its uploads: an upload that began less than UPLOAD_US_MAX ago is left alone, and a longer one is given
up before its object is deleted, so that it can no longer be listed. Two collectors at the same time do no harm.

Both collections can run in steps: a `CollectionStep` says where to begin and when to stop, and `Collected` where the
next step begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.catalog import Catalog

log = get_logger(__name__)

OBJECTS_PREFIX: Final = "segments/"
DELETED_AT_ONCE: Final = 100

ORPHAN_US_MIN: Final = 600 * MICROSECONDS
"""A younger object is no orphan: another process may be about to add it to the catalog."""

UPLOAD_US_MAX: Final = 3600 * MICROSECONDS
"""An upload takes minutes at most. One that began longer ago belongs to a broker that has stopped, or that must upload
the same again."""


@dataclass(frozen=True, slots=True)
class CollectionStep:
    """Bounds of one step. `after` is the object key at which the previous step stopped."""

    after: str = ""
    deadline: float = inf
    dry_run: bool = False


@dataclass(slots=True)
class Collected:
    """What a step did or, with a dry run, would have done."""

    looked_at: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    """Unused objects whose grace period has not ended."""
    stopped_at: str = ""
    """The key after which the next step begins; empty when nothing is left."""


@dataclass(eq=False)
class GarbageCollector:
    objects: ObjectStore
    catalog: Catalog
    clock: Clock
    grace_us: int
    is_in_progress: Callable[[str], bool] = lambda _: False
    """Whether an object is being uploaded and may enter the catalog at any moment."""

    async def collect_garbage(self, step: CollectionStep | None = None) -> Collected:
        """Delete objects whose last segment was removed from the catalog. Cancelled: some are deleted, the others are
        still recorded as garbage."""
        step, result = step or CollectionStep(), Collected()
        async for key, since_us in self.catalog.garbage(step.after):
            result.looked_at += 1
            if self.is_in_progress(key):  # other segments of the object may be about to enter the catalog
                result.waiting += 1
            elif await self.catalog.is_used(key):
                if not step.dry_run:
                    await self.catalog.forget_garbage(key)
            elif self.clock.now_us() - since_us < self.grace_us or not await self._may_delete(key, step):
                result.waiting += 1
            else:
                result.deleted += 1
                await self._delete([key], step)
                if not step.dry_run:
                    await self.catalog.forget_garbage(key)
            if self.clock.monotonic() >= step.deadline:
                result.stopped_at = key
                break
        if result.deleted and not step.dry_run:
            log.info("objects.deleted", count=result.deleted)
        return result

    async def collect_orphans(self, step: CollectionStep | None = None) -> Collected:
        """Delete objects of uploads that did not finish, so that no segment uses them. Lists all objects of the
        store."""
        step, result = step or CollectionStep(), Collected()
        found: list[str] = []
        async for info in self.objects.list(OBJECTS_PREFIX, step.after):
            result.looked_at += 1
            if not await self._is_needed(info.key):
                is_young = self.clock.now_us() - info.modified_us < max(self.grace_us, ORPHAN_US_MIN)
                if is_young or not await self._may_delete(info.key, step):
                    result.waiting += 1
                else:
                    result.deleted += 1
                    result.deleted_bytes += info.size
                    found.append(info.key)
            if len(found) >= DELETED_AT_ONCE:
                await self._delete(found, step)
                found = []
            if self.clock.monotonic() >= step.deadline:
                result.stopped_at = info.key
                break
        await self._delete(found, step)
        if not step.dry_run and not result.stopped_at:
            await self._give_up_uploads()
        if result.deleted and not step.dry_run:
            log.info("orphans.deleted", count=result.deleted, bytes=result.deleted_bytes)
        return result

    async def _is_needed(self, key: str) -> bool:
        """Return whether the object must not be treated as an orphan.

        Uploads in progress are checked first: one that has just ended is either in the catalog by then or never will
        be. Garbage has its own grace period, which began when the object left the catalog.
        """
        return self.is_in_progress(key) or await self.catalog.is_used(key) or await self.catalog.is_garbage(key)

    @property
    def _uploads_begun_before_us(self) -> int:
        return self.clock.now_us() - UPLOAD_US_MAX

    async def _may_delete(self, key: str, step: CollectionStep) -> bool:
        """Return whether no broker can list this object any more; unless this is a dry run, its upload is given up."""
        if step.dry_run:
            return not await self.catalog.is_uploading(key, self._uploads_begun_before_us)
        return await self.catalog.condemn(key, self._uploads_begun_before_us)

    async def _give_up_uploads(self) -> None:
        """Remove the records of uploads that brokers which have stopped left behind."""
        async for key in self.catalog.uploads(self._uploads_begun_before_us):
            if not self.is_in_progress(key):
                await self.catalog.end_upload(key)

    async def _delete(self, keys: list[str], step: CollectionStep) -> None:
        if keys and not step.dry_run:
            await self.objects.delete(keys)
