"""Object storage as the broker uses it: uploads, collection of what nobody needs, and what that says of its health.

One task uploads what is due, lets the log go of it, and now and then deletes objects that nobody needs any more.
Nothing of it is on the way of a publish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydanube.core.tiering import TieringPolicy
from pydanube.metadata.store import Store
from pydanube.model.errors import AlreadyExists, DanubeError, Refused, Unavailable
from pydanube.runtime.clock import MICROSECONDS, Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.tasks import Tasks
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.tiering.catalog import Catalog
from pydanube.storage.tiering.collecting import Collector
from pydanube.storage.tiering.history import History
from pydanube.storage.tiering.uploader import Sealed, Uploader, UploadSettings
from pydanube.storage.wal import LogWriter

log = get_logger(__name__)

OWNER_KEY: Final = "danube-cluster"
"""The object that says whose store it is."""

COLLECT_EVERY_S: Final = 60.0
ORPHANS_EVERY: Final = 60
"""The listing of the store is read whole to find orphans: once in so many collections."""


@dataclass(frozen=True, slots=True)
class TieringSettings:
    """See the `storage` section of the settings."""

    segment_bytes: int
    segment_age_s: int
    shared_below_bytes: int
    upload_interval_s: float
    upload_bytes_per_s: int
    log_keep_bytes: int
    log_bytes_max: int
    cache_bytes: int
    grace_s: int

    def uploads(self) -> UploadSettings:
        policy = TieringPolicy(self.segment_bytes, self.segment_age_s * MICROSECONDS, self.shared_below_bytes)
        return UploadSettings(policy, self.upload_interval_s, self.upload_bytes_per_s)


class Tiers:
    """One broker's object storage."""

    def __init__(
        self,
        objects: ObjectStore,
        store: Store,
        writer: LogWriter,
        clock: Clock,
        tasks: Tasks,
        settings: TieringSettings,
        cluster: str,
    ) -> None:
        self._cluster = cluster
        self._claimed = False
        self.objects = objects
        self.settings = settings
        self.catalog = Catalog(store)
        self.history = History(objects, self.catalog, tasks, settings.cache_bytes)
        self.partitions: dict[tuple[int, int], Sealed] = {}
        """Every open partition that has something to upload, now or later."""
        self._writer = writer
        self._clock = clock
        self.uploader = Uploader(objects, self._sealed, identity(), clock, settings.uploads())
        self.collector = Collector(objects, self.catalog, clock, settings.grace_s * MICROSECONDS)

    def _sealed(self) -> Iterable[Sealed]:
        return list(self.partitions.values())

    async def run(self) -> None:
        """Until it is cancelled."""
        next_collection = self._clock.monotonic() + COLLECT_EVERY_S
        collections = 0
        while True:
            await self._clock.sleep(self.uploader.pause_s)
            if await self._is_ours() and await self.uploader.round():
                await self.trim()
            if self._clock.monotonic() >= next_collection:
                next_collection = self._clock.monotonic() + COLLECT_EVERY_S
                collections += 1
                await self._collect(orphans=collections % ORPHANS_EVERY == 0)

    async def _is_ours(self) -> bool:
        """Whether the store is this cluster's: nothing is put among somebody else's objects."""
        if not self._claimed:
            try:
                await claim(self.objects, self._cluster)
                self._claimed = True
            except DanubeError as error:
                self.uploader.fail(error)
        return self._claimed

    async def _collect(self, orphans: bool) -> None:
        try:
            await self.collector.collect_garbage()
            if orphans:
                await self.collector.collect_orphans()
        except DanubeError as error:
            log.warning("collection.postponed", store=self.objects.url, error=error.message)

    async def trim(self) -> None:
        """Give back the files of the log that are uploaded, but for the newest: they are a warm cache."""
        try:
            released = await self._writer.trim(self.settings.log_keep_bytes)
        except OSError as error:
            log.warning("log.trim_failed", error=str(error))
            return
        if released:
            log.info("log.trimmed", generations=released)

    def refusal(self) -> Unavailable | None:
        """Why nothing is taken now: the log is as large as it may be, because uploads do not keep up."""
        limit = self.settings.log_bytes_max
        if not limit or self._writer.stored_bytes < limit:
            return None
        why = f": {self.uploader.failure.message}" if self.uploader.failure is not None else ""
        return Unavailable(
            f"the log holds {self._writer.stored_bytes} bytes, and storage.log_bytes_max is {limit}; object storage "
            f"does not keep up{why}; send it again"
        )

    async def forget_topic(self, topic_id: int) -> None:
        """A deleted topic's segments leave the catalog. Cancelled: the next collection finds the rest."""
        for key in [key for key in self.partitions if key[0] == topic_id]:
            del self.partitions[key]
        await self.catalog.remove_topic(topic_id, self._clock.now_us())


async def claim(objects: ObjectStore, cluster: str) -> None:
    """Write down whose store it is. Raises Refused when it is somebody else's."""
    try:
        await objects.put(OWNER_KEY, cluster.encode(), create=True)
    except AlreadyExists:
        owner = bytes(await objects.get(OWNER_KEY)).decode(errors="replace")
        if owner != cluster:
            raise Refused(
                f"{objects.url} holds the history of cluster {owner}, and this is {cluster}: use another prefix, or "
                f"`danube storage restore` to take it over"
            ) from None
