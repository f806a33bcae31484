"""Writes manifests into the object store: all metadata in one object, for a broker that lost everything else.

```
manifests/<number, 20 digits>-<writer>.manifest      codec.manifest describes the content
```

In a cluster one broker writes manifests. The others write their positions beside them (`positions`), and the manifest
has the newest positions of each partition. Two brokers that write at the same time do no harm: each manifest is whole.

A manifest is written soon after the metadata has changed, and about once a minute when only positions have. The newest
few are kept. The number is the revision of the metadata plus a base that a restore sets, so that newer manifests have
higher numbers also across restores.

Publishes never wait for a manifest. A failed write is logged once and tried again. Keys are read and packed page by
page, so a manifest takes as much memory as it takes in the store. After each manifest there is a pause of at least
twenty times its duration, so that a large catalog costs a few percent of one core at most.

Invariants
    a manifest is put completely, or not at all
    the positions of a partition that is not open are copied from the previous manifest
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from pydanube.codec.manifest import (
    ABOUT_BYTES_MAX,
    PAGE_BYTES,
    ClusterManifest,
    ManifestBuilder,
    Pair,
    PartitionPositions,
    read_about,
)
from pydanube.metadata.store import Generation, MetadataStore
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.broker_positions import (
    Key,
    PositionParts,
    PositionSource,
    fingerprint,
    join,
    join_own,
    position_pages,
    positions_by_partition,
    read_parts,
)

log = get_logger(__name__)

PREFIX: Final = "manifests/"
SUFFIX: Final = ".manifest"
KEPT: Final = 5
"""How many manifests are kept; older ones are deleted."""

CHANGED_S: Final = 5.0
"""Delay after a change of the metadata, so that changes in quick succession share a manifest."""

EVERY_S: Final = 60.0
"""Interval of manifests when only positions have moved."""

PAUSE_FACTOR: Final = 20
"""The pause after a manifest, as a multiple of its duration."""

BASE_KEY: Final = "/manifests/base"
"""Metadata key of the number that is added to the revision."""

LOG_KEYS: Final = "/log"
"""The beginning of the keys of logs, each of which one broker writes."""

LEFT_OUT: Final = (
    "/brokers/",
    "/dropped/",
    "/garbage/",
    "/identity",
    "/ledgers/",
    LOG_KEYS,
    "/manifests/",
    "/nodes/",
    "/objects/",
    "/proofs/",
    "/restored/",
    "/security/first-key",
    "/security/keys/",
    "/staged/decisions/",
    "/staged/pending/",
    "/uploads/",
)
"""Prefixes of keys that belong to data directories and running brokers, or can be derived from the others; and API
keys: a restore from an older manifest would make those work again that were revoked since. A restored broker has no
key, so it makes a first one again."""


class ManifestWriter:
    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        clock: Clock,
        cluster: str,
        writer: str,
        source: PositionSource,
        parts: PositionParts | None = None,
    ) -> None:
        """`parts` has the positions of the other brokers of a cluster; None: there are none."""
        self._objects = objects
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._writer = writer
        self._source = source
        self._parts = parts
        self._writing = asyncio.Lock()
        self._revision = -1
        self._fingerprint_written = b""
        self._written_at = float("-inf")
        self._took_s = 0.0
        self._positions: dict[Key, PartitionPositions] = {}
        """The last known positions of every partition."""
        self._last_key = ""
        """The manifest that this process wrote last; empty if it wrote none."""
        self.failure: DanubeError | None = None
        """Why the last manifest could not be written; None if it was."""

    async def write_if_due(self) -> bool:
        """Write a manifest if one is due, and return whether it was written. A failure is tried again later.

        Cancelled: the manifest may or may not have been written.
        """
        now = self._clock.monotonic()
        since = now - self._written_at
        if since < max(CHANGED_S, PAUSE_FACTOR * self._took_s):
            return False
        try:
            if await self._store.revision() == self._revision:
                if since < EVERY_S:
                    return False
                others = await self._positions_of_others()
                if fingerprint([*others, *self._source.positions()]) == self._fingerprint_written:
                    self._written_at = now
                    return False
            await self.write()
        except DanubeError as error:
            if self.failure is None:
                log.warning("manifest.failed", store=self._objects.url, error=error.message)
            self.failure, self._written_at = error, now
            return False
        self.failure = None
        return True

    async def write(self) -> str:
        """Write a manifest now and return its object key. Cancelled: it may or may not have been written."""
        async with self._writing:
            key = await self._write()
            await self._delete_older()
        return key

    async def _write(self) -> str:
        started = self._clock.monotonic()
        revision = await self._store.revision()
        number = await number_at(self._store, revision)
        await self._read_last_positions()
        others, own = await self._positions_of_others(), self._source.positions()
        identity = await self._store.identity()
        etcd = (*identity.generation, *await _newest_mark(self._store)) if identity.generation.cluster else None
        about = self._cluster, self._writer, number, self._clock.now_us(), identity.store_id, revision
        builder = ManifestBuilder(*about, etcd)
        async for pairs in _metadata_pages(self._store):
            await asyncio.to_thread(builder.add_keys, pairs)
        for page in position_pages(self._all_positions(others, own)):
            await asyncio.to_thread(builder.add_positions, page)
        pieces = builder.finish()
        key = f"{PREFIX}{number:020d}-{self._writer}{SUFFIX}"
        await self._objects.put(key, pieces)
        self._revision, self._fingerprint_written, self._last_key = revision, fingerprint([*others, *own]), key
        self._written_at = self._clock.monotonic()
        self._took_s = self._written_at - started
        log.debug("manifest.written", object=key, bytes=sum(map(len, pieces)))
        return key

    async def _positions_of_others(self) -> list[PartitionPositions]:
        return await self._parts.others() if self._parts is not None else []

    def _all_positions(
        self, others: list[PartitionPositions], own: list[PartitionPositions]
    ) -> list[PartitionPositions]:
        """Return the newest positions of partitions that are open somewhere, and the last known ones of the rest."""
        join(self._positions, others)
        join_own(self._positions, own)
        topics = self._source.topic_ids()
        self._positions = {key: one for key, one in self._positions.items() if key[0] in topics}
        return list(self._positions.values())

    async def _read_last_positions(self) -> None:
        """Read the positions in the newest manifests, unless this process wrote them. Only a cluster has other
        writers; two of them may have written at the same revision."""
        if self._last_key and self._parts is None:
            return
        found = await candidates(self._objects)
        if all(one.key == self._last_key for one in found if one.number == found[0].number):
            return
        number = -1
        async for manifest in newest_first(self._objects, self._cluster):
            if manifest.number < number:
                return
            number = manifest.number
            join(self._positions, positions_by_partition(manifest).values())

    async def _delete_older(self) -> None:
        found = [info.key async for info in self._objects.list(PREFIX) if info.key.endswith(SUFFIX)]
        if older := found[:-KEPT]:
            await self._objects.delete(older)


async def number_at(store: MetadataStore, revision: int) -> int:
    base = await store.get(BASE_KEY)
    return revision + (int(base.value) if base is not None else 0)


async def _metadata_pages(store: MetadataStore) -> AsyncIterator[list[Pair]]:
    """Yield the metadata in pages of about PAGE_BYTES."""
    page: list[Pair] = []
    size, after = 0, ""
    while entries := await store.list("", start_after=after, limit=1000):
        after = entries[-1].key
        left_out = next((prefix for prefix in LEFT_OUT if after.startswith(prefix)), "")
        for entry in entries:
            if entry.lease or entry.key.startswith(LEFT_OUT):
                continue
            page.append((entry.key, entry.value))
            size += len(entry.key) + len(entry.value)
            if size >= PAGE_BYTES:
                yield page
                page, size = [], 0
        if left_out.endswith("/"):
            after = f"{left_out[:-1]}0"  # "0" follows "/": sorts after all keys with this prefix
    if page:
        yield page


class Candidate(NamedTuple):
    key: str
    number: int


async def _newest_mark(store: MetadataStore) -> tuple[str, int]:
    """Return the key of a log that was written last, and at which revision. Only its broker writes it, so that an older
    copy of the metadata shows by it."""
    marks = await store.list(LOG_KEYS)
    newest = max(marks, key=lambda one: one.mod_revision, default=None)
    return ("", 0) if newest is None else (newest.key, newest.mod_revision)


async def lacks_newest(objects: ObjectStore, store: MetadataStore, newest: Candidate) -> str:
    """Return how it shows that an etcd is an older copy than the one of which the newest manifest was made, although
    its revision is higher; empty: it does not."""
    generation = (await store.identity()).generation
    if not generation.cluster:
        return ""
    size = (await objects.head(newest.key)).size
    about = read_about(await objects.get(newest.key, 0, min(size, ABOUT_BYTES_MAX)), f"object {newest.key}")
    if not about.mark_key or generation.may_continue(Generation(about.etcd_cluster, about.etcd_term)):
        return ""
    own = await store.get(about.mark_key)
    if own is None or own.mod_revision >= about.mark:  # a broker that was removed has no key any more
        return ""
    return f"it has {about.mark_key} of revision {own.mod_revision}, and the manifest has seen it at {about.mark}"


async def candidates(objects: ObjectStore) -> list[Candidate]:
    """Return the manifests in the store, newest first, without reading them."""
    found: list[Candidate] = []
    async for info in objects.list(PREFIX):
        number, _, _ = info.key.removeprefix(PREFIX).partition("-")
        if info.key.endswith(SUFFIX) and number.isdigit():
            found.append(Candidate(info.key, int(number)))
    return found[::-1]


async def newest_first(
    objects: ObjectStore, cluster: str, damaged: Callable[[str, DanubeError], None] | None = None
) -> AsyncIterator[ClusterManifest]:
    """Yield the manifests of this cluster that are complete, newest first. `damaged` is called for each of the
    others."""
    found = await candidates(objects)
    while found:
        alike = [one for one in found if one.number == found[0].number]
        found = found[len(alike) :]
        opened: list[ClusterManifest] = []
        for key, _ in alike:
            try:
                opened.append(await _open(objects, key, cluster))
            except (Corrupt, NotFound) as error:
                log.warning("manifest.damaged", object=key, error=error.message)
                if damaged is not None:
                    damaged(key, error)
        # Two processes may have written at the same revision, after positions had moved: the later one is newer.
        for manifest in sorted(opened, key=lambda one: one.created_at_us, reverse=True):
            yield manifest


async def _open(objects: ObjectStore, key: str, cluster: str) -> ClusterManifest:
    data = await objects.get(key)
    manifest = await asyncio.to_thread(ClusterManifest.open, data, f"object {key}")
    if manifest.cluster != cluster:
        raise Corrupt(f"object {key} is of cluster {manifest.cluster}, not of {cluster}")
    return manifest


async def known_positions(objects: ObjectStore, cluster: str) -> dict[Key, PartitionPositions]:
    """Return the newest positions of partitions that the object store has, from the newest manifest and from what each
    broker wrote since."""
    known: dict[Key, PartitionPositions] = {}
    async for manifest in newest_first(objects, cluster):
        known = positions_by_partition(manifest)
        break
    join(known, await read_parts(objects, cluster))
    return known
