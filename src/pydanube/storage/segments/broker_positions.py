"""Positions of partitions as each broker of a cluster knows its own, for the manifests that one of them writes.

```
positions/<broker>.positions      a manifest (codec.manifest) without keys: the positions of one broker
```

The metadata does not hold end offsets and cursors: only the owner of a partition knows them. A broker replaces its
object with every upload, and at an interval while cursors move. The coordinator joins these objects into each manifest,
a restore joins those that are newer than the manifest, and who takes a partition of a lost broker over reads the last
one of that partition (`manifest.known_positions`); its producers are in its segments.

Invariants
    of two positions of a partition the one of the higher epoch counts, and within an epoch the later one: an epoch has
    one owner, so these times are of one clock
    an object of positions is put completely, or not at all
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from pydanube.codec.manifest import PAGE_BYTES, ClusterManifest, ManifestBuilder, PartitionPositions
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectInfo, ObjectStore
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

PREFIX: Final = "positions/"
SUFFIX: Final = ".positions"

Key = tuple[int, int]
"""Topic id and partition index."""


class PositionSource(Protocol):
    """The broker, as the source of positions that the metadata does not hold."""

    def positions(self) -> list[PartitionPositions]:
        """Return the positions of all open partitions."""

    def topic_ids(self) -> set[int]:
        """Return the ids of all topics, open or not."""


class _Part(NamedTuple):
    etag: str
    positions: list[PartitionPositions]


class PositionParts:
    """The objects of positions of a cluster: writes that of this broker, and reads those of the others."""

    def __init__(
        self,
        objects: ObjectStore,
        clock: Clock,
        cluster: str,
        broker: str,
        source: PositionSource,
        interval_s: float = 60.0,
    ) -> None:
        """`interval_s`: how often positions that have moved are written, if nothing is uploaded."""
        self._objects = objects
        self._clock = clock
        self._cluster = cluster
        self._broker = broker
        self._source = source
        self._interval_s = interval_s
        self._key = f"{PREFIX}{quote(broker, safe='')}{SUFFIX}"
        self._own: dict[Key, PartitionPositions] = {}
        """The last positions of every partition that this process had open: it may close one before they are read."""
        self._parts: dict[str, _Part] = {}
        """Those of other brokers, by object key."""
        self._written = b""
        self._written_at = float("-inf")

    async def write_if_due(self, *, uploaded: bool = False) -> bool:
        """Write the positions of this broker if they have moved: when something was `uploaded`, else at an interval.
        Return whether it did so. A failure is logged and tried again later."""
        now = self._clock.monotonic()
        if not uploaded and now - self._written_at < self._interval_s:
            return False
        self._written_at = now
        try:
            return await self.write()
        except DanubeError as error:
            log.warning("positions.failed", store=self._objects.url, error=error.message)
            return False

    async def write(self) -> bool:
        """Write the positions of this broker now, unless they are written already; return whether it did so."""
        join_own(self._own, self._source.positions())
        topics = self._source.topic_ids()
        self._own = {key: one for key, one in self._own.items() if key[0] in topics}
        positions = list(self._own.values())
        moved = fingerprint(positions)
        if moved == self._written:
            return False
        builder = ManifestBuilder(self._cluster, self._broker, 0, self._clock.now_us())
        for page in position_pages(positions):
            await asyncio.to_thread(builder.add_positions, page)
        await self._objects.put(self._key, builder.finish())
        self._written = moved
        return True

    async def others(self) -> list[PartitionPositions]:
        """Return what the other brokers wrote; an object is read only after it has changed."""
        found: dict[str, _Part] = {}
        async for info in self._objects.list(PREFIX):
            if info.key == self._key or not info.key.endswith(SUFFIX):
                continue
            known = self._parts.get(info.key)
            if known is not None and known.etag == info.etag:
                found[info.key] = known
            else:
                found[info.key] = _Part(info.etag, await read_part(self._objects, info, self._cluster))
        self._parts = found
        return [one for part in found.values() for one in part.positions]


async def read_part(objects: ObjectStore, info: ObjectInfo, cluster: str) -> list[PartitionPositions]:
    """Return the positions in one object; none if it cannot be read, which is logged, or is of another cluster."""
    try:
        data = await objects.get(info.key)
        part = await asyncio.to_thread(ClusterManifest.open, data, f"object {info.key}")
    except (Corrupt, NotFound) as error:
        log.warning("positions.damaged", object=info.key, error=error.message)
        return []
    return list(positions_by_partition(part).values()) if part.cluster == cluster else []


async def read_parts(objects: ObjectStore, cluster: str) -> list[PartitionPositions]:
    """Return the positions that all brokers of the cluster wrote."""
    infos = [one async for one in objects.list(PREFIX) if one.key.endswith(SUFFIX)]
    return [position for info in infos for position in await read_part(objects, info, cluster)]


def join(known: dict[Key, PartitionPositions], others: Iterable[PartitionPositions]) -> None:
    """Take over those of `others` that are newer than what is known."""
    for one in others:
        former = known.get((one.topic_id, one.index))
        if former is None or (one.epoch, one.known_at) >= (former.epoch, former.known_at):
            known[one.topic_id, one.index] = one


def join_own(known: dict[Key, PartitionPositions], own: Iterable[PartitionPositions]) -> None:
    """Take over positions that this broker has now, whatever its clock says, unless there was a later owner."""
    for one in own:
        former = known.get((one.topic_id, one.index))
        if former is None or one.epoch >= former.epoch:
            known[one.topic_id, one.index] = one


def fingerprint(positions: Iterable[PartitionPositions]) -> bytes:
    """Return bytes that change when a cursor moves. New messages that were not consumed do not change them."""
    return msgspec.msgpack.encode(
        [[(one[0], one[1], len(one[2])) for one in partition.cursors] for partition in positions]
    )


def position_pages(positions: Iterable[PartitionPositions]) -> Iterator[list[PartitionPositions]]:
    """Yield positions in pages of about PAGE_BYTES. The cursors of one partition may be spread over several pages."""
    page: list[PartitionPositions] = []
    size = 0
    for partition in positions:
        page.append(msgspec.structs.replace(partition, cursors=[]))
        size += 32
        for cursor in partition.cursors:
            page[-1].cursors.append(cursor)
            size += 32 + 18 * len(cursor.acked)
            if size >= PAGE_BYTES:
                yield page
                page, size = [msgspec.structs.replace(partition, cursors=[])], 0
    if page:
        yield page


def positions_by_partition(manifest: ClusterManifest) -> dict[Key, PartitionPositions]:
    """Return the positions in a manifest by topic id and partition index."""
    found: dict[Key, PartitionPositions] = {}
    for partition in manifest.all_positions():
        known = found.setdefault((partition.topic_id, partition.index), partition)
        if known is not partition:
            known.cursors.extend(partition.cursors)
    return found
