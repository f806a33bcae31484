"""Keeps manifests beside the segments: all metadata in one object, for a broker that lost everything else.

```
manifests/<number, 20 digits>-<writer>.manifest      see codec.manifest for what is in it
```

One is written soon after the metadata changed, and once in a while when only positions did. The newest few are kept.
The number is the metadata's revision, counted on from the last one before a restore, so that newer manifests have
higher numbers whatever became of the store.

Nothing of it is on the way of a publish; what fails is tried again, and said once. Keys are read and packed page by
page; what a manifest takes in memory is what it takes in the store. The next one waits at least twenty times as long as
the last one took, so that a large catalog costs a few percent of one core at most.

Invariants
    a manifest is put whole, or not at all
    a partition that is not open stands in it as it stood in the manifest before
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import msgspec

from pydanube.codec.manifest import PAGE_BYTES, ClusterManifest, ManifestBuilder, ManifestPlace, Pair
from pydanube.metadata.store import MetadataStore
from pydanube.model.errors import Corrupt, DanubeError, NotFound
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.telemetry import get_logger

log = get_logger(__name__)

PREFIX: Final = "manifests/"
SUFFIX: Final = ".manifest"
KEPT: Final = 5
"""Older ones are deleted."""

CHANGED_S: Final = 5.0
"""After a change of the metadata; what follows closely is in the same manifest."""

EVERY_S: Final = 60.0
"""Without one, when positions moved."""

REST: Final = 20
"""Times the last one's duration."""

BASE_KEY: Final = "/manifests/base"
"""In the metadata: what to add to the revision."""

LEFT_OUT: Final = (
    "/dropped/",
    "/garbage/",
    "/identity",
    "/ledgers/",
    "/manifests/",
    "/objects/",
    "/restored/",
    "/staged/decisions/",
    "/staged/pending/",
)
"""What belongs to one data directory, or follows from the rest."""


class Living(Protocol):
    """The broker, as far as it knows more than the metadata says."""

    def places(self) -> list[ManifestPlace]:
        """Of the partitions that are open."""

    def topic_ids(self) -> set[int]:
        """Of all topics."""


class Manifests:
    """One for each broker."""

    def __init__(
        self,
        objects: ObjectStore,
        store: MetadataStore,
        clock: Clock,
        cluster: str,
        writer: str,
        living: Living | None = None,
    ) -> None:
        self._objects = objects
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._writer = writer
        self._living = living
        self._writing = asyncio.Lock()
        self._revision = -1
        self._positions = b""
        self._written_at = float("-inf")
        self._took_s = 0.0
        self._former: dict[tuple[int, int], ManifestPlace] | None = None
        self.failure: DanubeError | None = None
        """Why the last one could not be written; None while they can."""

    async def keep(self) -> bool:
        """Write one if it is time. What fails is tried again later. Cancelled: it is there, or not."""
        now = self._clock.monotonic()
        since = now - self._written_at
        if since < max(CHANGED_S, REST * self._took_s):
            return False
        if await self._store.revision() == self._revision:
            if since < EVERY_S:
                return False
            if self._fingerprint(self._places()) == self._positions:
                self._written_at = now
                return False
        try:
            await self.write()
        except DanubeError as error:
            if self.failure is None:
                log.warning("manifest.failed", store=self._objects.url, error=error.message)
            self.failure, self._written_at = error, now
            return False
        self.failure = None
        return True

    def _places(self) -> list[ManifestPlace]:
        return self._living.places() if self._living is not None else []

    async def write(self) -> str:
        """Write one now; its key. Cancelled: it is there, or not."""
        async with self._writing:
            key = await self._write()
            await self._delete_older()
        return key

    async def _write(self) -> str:
        started = self._clock.monotonic()
        revision = await self._store.revision()
        number = await number_at(self._store, revision)
        if self._former is None:
            self._former = await self._read_former()
        places = self._places()
        store_id = (await self._store.identity()).store_id
        builder = ManifestBuilder(self._cluster, self._writer, number, self._clock.now_us(), store_id, revision)
        async for pairs in _pages_of(self._store):
            await asyncio.to_thread(builder.add_keys, pairs)
        for page in _paged(self._all_places(places)):
            await asyncio.to_thread(builder.add_places, page)
        pieces = builder.finish()
        key = f"{PREFIX}{number:020d}-{self._writer}{SUFFIX}"
        await self._objects.put(key, pieces)
        self._revision, self._positions = revision, self._fingerprint(places)
        self._written_at = self._clock.monotonic()
        self._took_s = self._written_at - started
        log.debug("manifest.written", object=key, bytes=sum(map(len, pieces)))
        return key

    def _all_places(self, open_ones: list[ManifestPlace]) -> list[ManifestPlace]:
        """Of open partitions as they are, of the others as they were."""
        assert self._former is not None
        self._former.update({(one.topic_id, one.index): one for one in open_ones})
        topics = self._living.topic_ids() if self._living is not None else set()
        self._former = {key: one for key, one in self._former.items() if key[0] in topics}
        return list(self._former.values())

    async def _read_former(self) -> dict[tuple[int, int], ManifestPlace]:
        async for manifest in newest_first(self._objects, self._cluster):
            return places_of(manifest)
        return {}

    def _fingerprint(self, places: list[ManifestPlace]) -> bytes:
        """Changes when positions do; what came in and was not consumed is no reason for a manifest."""
        return msgspec.msgpack.encode([[(one[0], one[1], len(one[2])) for one in place.cursors] for place in places])

    async def _delete_older(self) -> None:
        found = [info.key async for info in self._objects.list(PREFIX) if info.key.endswith(SUFFIX)]
        if older := found[:-KEPT]:
            await self._objects.delete(older)


async def number_at(store: MetadataStore, revision: int) -> int:
    """What a manifest of this revision is called."""
    base = await store.get(BASE_KEY)
    return revision + (int(base.value) if base is not None else 0)


async def _pages_of(store: MetadataStore) -> AsyncIterator[list[Pair]]:
    """The metadata, about PAGE_BYTES at a time."""
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
            after = f"{left_out[:-1]}0"  # the character after the slash: behind all of them
    if page:
        yield page


def _paged(places: Iterable[ManifestPlace]) -> Iterator[list[ManifestPlace]]:
    """About PAGE_BYTES at a time; the cursors of one partition may be spread over several pages."""
    page: list[ManifestPlace] = []
    size = 0
    for place in places:
        page.append(msgspec.structs.replace(place, cursors=[]))
        size += 32
        for cursor in place.cursors:
            page[-1].cursors.append(cursor)
            size += 32 + 18 * len(cursor.acked)
            if size >= PAGE_BYTES:
                yield page
                page, size = [msgspec.structs.replace(place, cursors=[])], 0
    if page:
        yield page


def places_of(manifest: ClusterManifest) -> dict[tuple[int, int], ManifestPlace]:
    """By topic id and partition."""
    found: dict[tuple[int, int], ManifestPlace] = {}
    for place in manifest.all_places():
        former = found.setdefault((place.topic_id, place.index), place)
        if former is not place:
            former.cursors.extend(place.cursors)
    return found


class Candidate(NamedTuple):
    key: str
    number: int


async def candidates(objects: ObjectStore) -> list[Candidate]:
    """Keys of manifests, the newest first."""
    found: list[Candidate] = []
    async for info in objects.list(PREFIX):
        number, _, _ = info.key.removeprefix(PREFIX).partition("-")
        if info.key.endswith(SUFFIX) and number.isdigit():
            found.append(Candidate(info.key, int(number)))
    return found[::-1]


async def newest_first(
    objects: ObjectStore, cluster: str, damaged: Callable[[str, DanubeError], None] | None = None
) -> AsyncIterator[ClusterManifest]:
    """Manifests that are whole and of this cluster. `damaged` hears of those that are not."""
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
        # Two processes may have written at one revision: positions moved in between.
        for manifest in sorted(opened, key=lambda one: one.created_at_us, reverse=True):
            yield manifest


async def _open(objects: ObjectStore, key: str, cluster: str) -> ClusterManifest:
    data = await objects.get(key)
    manifest = await asyncio.to_thread(ClusterManifest.open, data, f"object {key}")
    if manifest.cluster != cluster:
        raise Corrupt(f"object {key} is of cluster {manifest.cluster}, not of {cluster}")
    return manifest
