"""Deletes objects that nobody needs: those whose segments left the catalog, and those that never came into it.

An object goes only after a grace period, so that whoever planned to read it has finished. What is in the catalog again,
or is younger than that, stays.

Both ways can be gone in steps: a `Step` says where to begin and when to stop, and the answer where to go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger

from .catalog import Catalog

log = get_logger(__name__)

OBJECTS_PREFIX: Final = "segments/"
DELETED_AT_ONCE: Final = 100

ORPHAN_US_MIN: Final = 600 * MICROSECONDS
"""What is not in the catalog may be on its way there, by another process: younger than this it is no orphan."""


@dataclass(frozen=True, slots=True)
class CollectionStep:
    """How far to go. `after` is an object's key, where the step before it ended."""

    after: str = ""
    deadline: float = inf
    dry_run: bool = False


@dataclass(slots=True)
class Collected:
    """What a round did; with a dry run, what it would have done."""

    looked_at: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    """Not needed, and within the grace period."""
    stopped_at: str = ""
    """Where the next step begins; empty when nothing is left."""


class GarbageCollector:
    """One for each broker."""

    def __init__(
        self,
        objects: ObjectStore,
        catalog: Catalog,
        clock: Clock,
        grace_us: int,
        is_being_made: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`is_being_made`: whether an object is on its way into the catalog at this moment."""
        self._is_being_made = is_being_made
        self._objects = objects
        self._catalog = catalog
        self._clock = clock
        self._grace_us = grace_us

    async def collect_garbage(self, step: CollectionStep | None = None) -> Collected:
        """Objects whose last segment left the catalog. Cancelled: some are deleted, the rest are still known."""
        step, result = step or CollectionStep(), Collected()
        async for key, since_us in self._catalog.garbage(step.after):
            result.looked_at += 1
            if self._is_being_made(key):  # others of its segments may be on their way into the catalog
                result.waiting += 1
            elif await self._catalog.is_used(key):
                if not step.dry_run:
                    await self._catalog.forget_garbage(key)
            elif self._clock.now_us() - since_us < self._grace_us:
                result.waiting += 1
            else:
                result.deleted += 1
                await self._delete([key], step)
                if not step.dry_run:
                    await self._catalog.forget_garbage(key)
            if self._clock.monotonic() >= step.deadline:
                result.stopped_at = key
                break
        if result.deleted and not step.dry_run:
            log.info("objects.deleted", count=result.deleted)
        return result

    async def collect_orphans(self, step: CollectionStep | None = None) -> Collected:
        """Objects that no segment refers to and none will: their upload was cut short. Reads the whole listing."""
        step, result = step or CollectionStep(), Collected()
        found: list[str] = []
        async for info in self._objects.list(OBJECTS_PREFIX, step.after):
            result.looked_at += 1
            if not await self._is_needed(info.key):
                if self._clock.now_us() - info.modified_us < max(self._grace_us, ORPHAN_US_MIN):
                    result.waiting += 1
                else:
                    result.deleted += 1
                    result.deleted_bytes += info.size
                    found.append(info.key)
            if len(found) >= DELETED_AT_ONCE:
                await self._delete(found, step)
                found = []
            if self._clock.monotonic() >= step.deadline:
                result.stopped_at = info.key
                break
        await self._delete(found, step)
        if result.deleted and not step.dry_run:
            log.info("orphans.deleted", count=result.deleted, bytes=result.deleted_bytes)
        return result

    async def _is_needed(self, key: str) -> bool:
        """In the making is asked first: what is not any more is in the catalog then, or never will be. What is known as
        garbage has a grace period of its own, which began when it left the catalog."""
        return self._is_being_made(key) or await self._catalog.is_used(key) or await self._catalog.is_garbage(key)

    async def _delete(self, keys: list[str], step: CollectionStep) -> None:
        if keys and not step.dry_run:
            await self._objects.delete(keys)
