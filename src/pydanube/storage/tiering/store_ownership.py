"""Whose store it is, and which of its brokers may write to it.

```
danube-cluster      <cluster>                           as long as nothing was restored
                    <cluster>\\n<restore> <token>\\n      the restores of this cluster are counted; the token is of one
```

A broker compares the object with its metadata before it writes for the first time, again every CHECK_S, and before
whatever it deletes. A restored broker has the higher number. It takes the store over, by a put that counts only if the
object is still the one it has seen, and the broker that was given up for lost finds out and leaves the store alone. So
does one that was started on an old copy of its data directory: the store has manifests of a later moment.

Invariants
    a lower number never replaces a higher one, and of two with the same number the first one stays
    nothing is deleted from a store that was somebody else's DELETE_CHECK_S before
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

from .manifest import candidates, number_at

log = get_logger(__name__)

OWNER_KEY: Final = "danube-cluster"
RESTORE_KEY: Final = "/manifests/restore"
"""In the metadata: number and token of the restore that made it. Manifests leave it out."""

CHECK_S: Final = 30.0
"""For so long a broker may go on uploading after another one took over: what it puts then nobody lists."""

DELETE_CHECK_S: Final = 1.0
"""What is deleted cannot be put back: somebody who deletes much looks once a second."""

LOOK_S: Final = 10.0
"""A look is a few bytes: a store that takes longer hangs, and whoever looks at the broker should see it soon."""

TRIES: Final = 3
"""Somebody else may write the object between looking and putting; then it is looked at again."""


class StoreOwner(NamedTuple):
    """What the object says, or should say."""

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
    """Raises NotFound where nobody has written there yet."""
    try:
        return StoreOwner.decode(bytes(await objects.get(OWNER_KEY)), objects.url)
    except NotFound:
        raise NotFound(f"{objects.url} holds no history: it has no object {OWNER_KEY!r}") from None


def next_restore(owner: StoreOwner) -> tuple[int, Put]:
    """The number of a restore from this store, and what the restored metadata must have to say so."""
    number = owner.restore + 1
    return number, Put(RESTORE_KEY, f"{number} {identity()}".encode())


class StoreOwnership:
    """One broker's claim to its store."""

    def __init__(self, objects: ObjectStore, store: MetadataStore, cluster: str, clock: Clock) -> None:
        self._objects = objects
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._mine: StoreOwner | None = None
        self._checked_at = float("-inf")
        self._is_newest = False
        self.is_held = False
        """As far as was seen last."""

    async def check(self, *, within_s: float = CHECK_S) -> None:
        """Raises Refused where the store is somebody else's, Unavailable where nobody knows. What was seen longer ago
        than `within_s` does not count. Cancelled: it is claimed, or not."""
        if self.is_held and self._clock.monotonic() - self._checked_at < within_s:
            return
        self.is_held = False
        try:
            async with asyncio.timeout(LOOK_S):
                for _ in range(TRIES):
                    if await self._look():
                        self.is_held, self._checked_at = True, self._clock.monotonic()
                        return
        except TimeoutError:
            raise Unavailable(f"{self._objects.url}: no answer within {LOOK_S:.0f} s") from None
        raise Unavailable(f"{self._objects.url}: somebody else writes {OWNER_KEY} at this moment")

    async def _look(self) -> bool:
        """Whether it is ours; False: look again."""
        mine = await self._own()
        try:
            etag = (await self._objects.head(OWNER_KEY)).etag
            found = await read_owner(self._objects)
        except NotFound:
            return await self._create(mine)
        if found == mine:
            await self._refuse_older()
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

    async def _refuse_older(self) -> None:
        """Once: a copy of the data directory from before would take for orphans what was uploaded since."""
        if self._is_newest:
            return
        newest = await candidates(self._objects)
        if newest and newest[0].number > (mine := await number_at(self._store, await self._store.revision())):
            raise Refused(
                f"{self._objects.url} has a manifest of a later moment ({newest[0].number}) than this metadata "
                f"({mine}), which is an older copy: put back the newest one, or use `danube storage restore`"
            )
        self._is_newest = True

    async def _own(self) -> StoreOwner:
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
        """The restored broker's first look. A store that cannot compare is trusted to have one such broker."""
        try:
            if_match = etag if self._objects.capabilities.if_match else None
            await self._objects.put(OWNER_KEY, mine.encode(), if_match=if_match)
        except Refused as error:
            if type(error) is not Refused:  # not allowed to, say: no other broker's doing
                raise
            return False
        log.info("store.taken_over", store=self._objects.url, restore=mine.restore, former=found.restore)
        return True
