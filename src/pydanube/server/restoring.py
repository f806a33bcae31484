"""`danube storage restore`: makes a broker's data directory from an empty directory and an object store.

The directory is locked, then filled with metadata, and its identity is written last. A restore that is interrupted
leaves a directory on which no broker starts: empty it, and restore again. The object store is only read; the restored
broker takes it over when it starts (storage.segments.store_ownership), and not before.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pydanube.broker.cluster.joining import METADATA_PART
from pydanube.broker.cluster.node_records import IDENTITY_KEY
from pydanube.broker.tiering.disaster_recovery import OnProgress, Restored, rebuild
from pydanube.metadata.journal import journal_path
from pydanube.metadata.opening import open_metadata
from pydanube.metadata.store import Compare, Put
from pydanube.model.errors import Refused
from pydanube.runtime.disk import Disk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.opening import open_store
from pydanube.server.server import DEFAULT_NODE, Components
from pydanube.settings import Settings
from pydanube.storage.directory import IDENTITY, DataDirectory
from pydanube.storage.segments.store_ownership import StoreOwner, read_owner


async def restore(
    settings: Settings, progress: OnProgress = lambda _: None, components: Components | None = None
) -> Restored:
    """Rebuild the data directory that the settings name from their object store; `progress` is called at every step.

    Raises Refused if the directory, the log or the metadata is not empty, and NotFound or Corrupt if the store has no
    complete manifest. Cancelled or failed: the directory is not a data directory; empty it before the next try.
    """
    world = components or Components.real()
    async with await open_store(settings.store_url, settings.storage.options) as objects:
        owner = await read_owner(objects)
        _refuse_used(world.disk, settings)
        data_dir = settings.server.data_dir
        beside = frozenset({"objects"}) if not settings.storage.url else frozenset[str]()
        directory = DataDirectory.begin(
            world.disk, data_dir, cluster=owner.cluster, node=settings.server.name or DEFAULT_NODE, beside=beside
        )
        try:
            report = await _fill(settings, world, objects, directory, owner, progress)
            directory.add_part(METADATA_PART)
            return report
        finally:
            directory.close()


async def _fill(
    settings: Settings,
    world: Components,
    objects: ObjectStore,
    directory: DataDirectory,
    owner: StoreOwner,
    progress: OnProgress,
) -> Restored:
    store = await open_metadata(settings.metadata_place, world.clock)
    try:
        if await store.list("", limit=1):
            raise Refused(f"{settings.metadata_place} is not empty: use another place")
        report = await rebuild(objects, store, world.clock, owner, progress)
        mine = msgspec.json.encode(directory.identity)
        await store.transact([Compare.missing(IDENTITY_KEY)], [Put(IDENTITY_KEY, mine)])
    finally:
        await store.close()
    return report


def _refuse_used(disk: Disk, settings: Settings) -> None:
    """Raise Refused if there is a log or metadata already; both may be outside the data directory."""
    used: list[Path] = []
    if disk.exists(settings.log_directory) and disk.list(settings.log_directory):
        used.append(settings.log_directory)
    if isinstance(place := settings.metadata_place, Path):
        used += filter(disk.exists, (place, journal_path(place)))
    if used:
        begun = not disk.exists(settings.server.data_dir / IDENTITY)
        why = (
            "a restore that was cut short has begun it; delete it, and restore again" if begun else "use another place"
        )
        raise Refused(f"{used[0]} is not empty: {why}")
