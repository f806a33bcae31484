"""Deletes objects that nobody needs: those whose segments left the catalog, and those that never came into it.

An object goes only after a grace period, so that whoever planned to read it has finished. What is in the catalog again,
or is younger than that, stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger

from .catalog import Catalog

log = get_logger(__name__)

OBJECTS_PREFIX: Final = "segments/"
DELETED_AT_ONCE: Final = 100


@dataclass(slots=True)
class Collected:
    """What a round did."""

    looked_at: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    waiting: int = 0
    """Not needed, and within the grace period."""


class Collector:
    """One for each broker."""

    def __init__(self, objects: ObjectStore, catalog: Catalog, clock: Clock, grace_us: int) -> None:
        self._objects = objects
        self._catalog = catalog
        self._clock = clock
        self._grace_us = grace_us

    async def collect_garbage(self) -> Collected:
        """Objects whose last segment left the catalog. Cancelled: some are deleted, the rest are still known."""
        result, now_us = Collected(), self._clock.now_us()
        async for key, since_us in self._catalog.garbage():
            result.looked_at += 1
            if await self._catalog.is_used(key):
                await self._catalog.forget_garbage(key)
            elif now_us - since_us < self._grace_us:
                result.waiting += 1
            else:
                await self._objects.delete([key])
                await self._catalog.forget_garbage(key)
                result.deleted += 1
        if result.deleted:
            log.info("objects.deleted", count=result.deleted)
        return result

    async def collect_orphans(self) -> Collected:
        """Objects that no segment refers to and none will: their upload was cut short. Reads the whole listing."""
        result, now_us = Collected(), self._clock.now_us()
        orphans: list[tuple[str, int]] = []
        async for info in self._objects.list(OBJECTS_PREFIX):
            result.looked_at += 1
            if await self._catalog.is_used(info.key):
                continue
            if now_us - info.modified_us < self._grace_us:
                result.waiting += 1
            else:
                orphans.append((info.key, info.size))
        for start in range(0, len(orphans), DELETED_AT_ONCE):
            part = orphans[start : start + DELETED_AT_ONCE]
            await self._objects.delete([key for key, _ in part])
            result.deleted += len(part)
            result.deleted_bytes += sum(size for _, size in part)
        if result.deleted:
            log.info("orphans.deleted", count=result.deleted, bytes=result.deleted_bytes)
        return result
