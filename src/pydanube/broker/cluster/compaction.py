"""Has the metadata of a cluster forget events that no watcher needs, so that it does not grow without end.

Every broker notes the revision from time to time, so that each knows an old one when it becomes the coordinator; only
the coordinator compacts. Two that do so at the same time do no harm: what is compacted is at least KEPT_S old, and a
watcher that is so far behind lists everything again.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import DanubeError
from pydanube.runtime.clock import Clock
from pydanube.runtime.telemetry import get_logger

from .membership import Membership

log = get_logger(__name__)

EVERY_S: Final = 600.0
KEPT_S: Final = 3600.0
"""How long events are kept: longer than any watcher is without a connection before its broker gives up its session."""


class _Noted(NamedTuple):
    at: float
    """By the monotonic clock."""
    revision: int


class MetadataCompaction:
    def __init__(self, store: MetadataStore, membership: Membership, clock: Clock) -> None:
        self._store = store
        self._membership = membership
        self._clock = clock
        self._noted: deque[_Noted] = deque()
        self._compacted = 0

    async def run(self) -> None:
        """Run rounds until cancelled. A broker alone needs none: its store keeps few events."""
        while not self._membership.is_alone:
            try:
                await self.round()
            except DanubeError as error:
                log.warning("metadata.not_compacted", error=error.message)
            await self._clock.sleep(EVERY_S)

    async def round(self) -> None:
        """Note the revision of now; as the coordinator, compact the one of KEPT_S ago."""
        now = self._clock.monotonic()
        self._noted.append(_Noted(now, await self._store.revision()))
        revision = 0
        while self._noted and now - self._noted[0].at >= KEPT_S:
            revision = self._noted.popleft().revision
        if revision > self._compacted and self._membership.is_coordinator():
            await self._store.compact(revision)
            self._compacted = revision
            log.info("metadata.compacted", revision=revision)
