"""Decides which cluster owns an object store, and which broker of the cluster may write to it.

```
danube-cluster      <cluster>                           before the first restore
                    <cluster>\\n<restore> <token>\\n      the number of the last restore, and its random token
```

A broker compares this object with its metadata before its first write, again every CHECK_S, and before every deletion.
A restored broker has a higher restore number. It takes the store over by a conditional put, which succeeds only if the
object has not changed since it was read. The former broker, if it still runs, sees the higher number and stops writing:
it is fenced. A broker that was started on an old copy of its data directory is fenced too, because the store has newer
manifests.

Invariants
    a lower restore number never replaces a higher one; of two brokers with the same number the first one stays
    nothing is deleted unless the ownership was checked within the last DELETE_CHECK_S
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple, Self

from pydanube.metadata.store import MetadataStore, Put
from pydanube.model.errors import AlreadyExists, Corrupt, NotFound, Refused, Unavailable
from pydanube.runtime.clock import Clock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.runtime.telemetry import get_logger
from pydanube.storage.segments.manifest import candidates, lacks_newest, number_at

log = get_logger(__name__)

OWNER_KEY: Final = "danube-cluster"
RESTORE_KEY: Final = "/manifests/restore"
"""Metadata key: number and token of the restore that made this metadata. Manifests do not contain it."""

CHECK_S: Final = 30.0
"""A fenced broker may continue to upload for this long. The objects that it puts are in no catalog."""

DELETE_CHECK_S: Final = 1.0
"""Deletions need a more recent check, because they cannot be undone."""

CHECK_TIMEOUT_S: Final = 10.0
"""A check reads a few bytes. A store that takes longer hangs, and the state of the broker should soon say so."""

TRIES: Final = 3
"""Another broker may write the object between the read and the put; then the check starts again."""


class StoreOwner(NamedTuple):
    """The content of the object: the cluster, and the last restore."""

    cluster: str
    restore: int = 0
    token: str = ""

    def encode(self) -> bytes:
        return f"{self.cluster}\n{self.restore} {self.token}\n".encode() if self.restore else self.cluster.encode()

    @classmethod
    def decode(cls, data: bytes, url: str) -> Self:
        try:
            cluster, *rest = data.decode().splitlines()
            number, token = rest[0].split() if rest else ("0", "")
            return cls(cluster, int(number), token)
        except ValueError:
            raise Corrupt(f"object {OWNER_KEY} in {url} cannot be read: put back a copy of it") from None


async def read_owner(objects: ObjectStore) -> StoreOwner:
    """Read the owner of a store. Raises NotFound when no broker has used the store yet."""
    try:
        return StoreOwner.decode(bytes(await objects.get(OWNER_KEY)), objects.url)
    except NotFound:
        raise NotFound(f"{objects.url} holds no history: it has no object {OWNER_KEY!r}") from None


def next_restore(owner: StoreOwner) -> tuple[int, Put]:
    """Return the number of the next restore from this store, and the write that records it in the restored metadata."""
    number = owner.restore + 1
    return number, Put(RESTORE_KEY, f"{number} {identity()}".encode())


class StoreOwnership:
    """Checks that this broker owns its object store."""

    def __init__(self, objects: ObjectStore, store: MetadataStore, cluster: str, clock: Clock) -> None:
        self._objects = objects
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._mine: StoreOwner | None = None
        self._checked_at = float("-inf")
        self._is_newest = False
        self.is_held = False
        """The result of the last check."""

    async def check(self, *, within_s: float = CHECK_S) -> None:
        """Check that this broker owns the store; take it over if it has no owner, or after a restore.

        A successful check within the last `within_s` seconds is enough. Raises Refused when the store belongs to
        another cluster or broker, and Unavailable when the store does not answer. Cancelled: the store may or may not
        have been taken over.
        """
        if self.is_held and self._clock.monotonic() - self._checked_at < within_s:
            return
        self.is_held = False
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                for _ in range(TRIES):
                    if await self._check_object():
                        self.is_held, self._checked_at = True, self._clock.monotonic()
                        return
        except TimeoutError:
            raise Unavailable(f"{self._objects.url}: no answer within {CHECK_TIMEOUT_S:.0f} s") from None
        raise Unavailable(f"{self._objects.url}: another broker writes {OWNER_KEY} at this moment")

    async def _check_object(self) -> bool:
        """Read the object, and create or replace it if this broker may. Returns False if another broker was faster."""
        mine = await self._own_identity()
        try:
            etag = (await self._objects.head(OWNER_KEY)).etag
            found = await read_owner(self._objects)
        except NotFound:
            return await self._create(mine)
        if found == mine:
            await self._check_newest()
            return True
        if found.cluster != mine.cluster:
            raise Refused(
                f"{self._objects.url} holds the history of cluster {found.cluster}, and this is {mine.cluster}: "
                f"use another prefix, or `danube storage restore` to take it over"
            )
        if found.restore >= mine.restore:
            raise Refused(
                f"{self._objects.url} was taken over by a broker that was restored from it (restore {found.restore}, "
                f"this one is of {mine.restore}): stop this one; what it has and did not upload is in its log only"
            )
        return await self._take_over(mine, found, etag)

    async def _check_newest(self) -> None:
        """Raise Refused if the store has a newer manifest than this metadata; checked once.

        A broker on an old copy of its data directory would take later uploads for orphans and delete them.
        """
        if self._is_newest:
            return
        newest = await candidates(self._objects)
        if newest and newest[0].number > (mine := await number_at(self._store, await self._store.revision())):
            raise Refused(
                f"{self._objects.url} has a manifest of a later moment ({newest[0].number}) than this metadata "
                f"({mine}), which is an older copy: put back the newest one, or use `danube storage restore`"
            )
        if newest and (lacks := await lacks_newest(self._objects, self._store, newest[0])):
            raise Refused(
                f"the metadata is an older copy than a manifest in {self._objects.url}: {lacks}; put back the newest "
                f"copy, or use `danube storage restore`"
            )
        self._is_newest = True

    async def _own_identity(self) -> StoreOwner:
        if self._mine is None:
            found = await self._store.get(RESTORE_KEY)
            number, token = found.value.decode().split() if found is not None else ("0", "")
            self._mine = StoreOwner(self._cluster, int(number), token)
        return self._mine

    async def _create(self, mine: StoreOwner) -> bool:
        try:
            await self._objects.put(OWNER_KEY, mine.encode(), create=True)
        except AlreadyExists:
            return False
        return True

    async def _take_over(self, mine: StoreOwner, found: StoreOwner, etag: str) -> bool:
        """Write this broker into the object after a restore. Returns False if the object has changed meanwhile.

        A store without conditional puts is trusted to have only one restored broker.
        """
        try:
            if_match = etag if self._objects.capabilities.if_match else None
            await self._objects.put(OWNER_KEY, mine.encode(), if_match=if_match)
        except Refused as error:
            if type(error) is not Refused:  # a subclass, such as Denied: not caused by another broker
                raise
            return False
        log.info("store.taken_over", store=self._objects.url, restore=mine.restore, former=found.restore)
        return True
