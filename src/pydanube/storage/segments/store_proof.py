"""Proves that all brokers of a cluster see the same object store.

```
metadata   /proofs/<broker>                           ProofRecord: which object the broker wrote, and its content
objects    danube-proofs/<metadata store>/<token>     the token, which is random
```

A broker that starts reads what every broker of the cluster wrote, itself included, and at its first start writes its
own. A store that only one machine sees, such as a directory on its disk, is found out when the second broker starts.

Invariants
    a broker that is refused leaves nothing, neither in the metadata nor in the store
    of two brokers that start at the same time on different stores, at least one is refused: each writes before it
    reads a second time
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from pydanube.metadata.store import Delete, MetadataStore, Put, list_all
from pydanube.model.errors import Corrupt, DanubeError, NotFound, Refused, Unavailable
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.randomness import identity
from pydanube.storage.segments.store_ownership import CHECK_TIMEOUT_S, read_owner

PROOFS: Final = "/proofs/"
OBJECTS: Final = "danube-proofs/"


class ProofRecord(msgspec.Struct):
    """What one broker wrote: an object and its content. `url`: the store, as the broker names it."""

    object: str
    token: str
    url: str = ""


class StoreProof:
    """The proof of one broker that starts."""

    def __init__(self, objects: ObjectStore, store: MetadataStore, broker: str) -> None:
        self._objects = objects
        self._store = store
        self._broker = broker
        self._key = f"{PROOFS}{broker}"

    async def refuse_foreign(self, cluster: str) -> None:
        """Raise Refused if the object store belongs to another cluster, and Unavailable if it does not answer."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                owner = (await read_owner(self._objects)).cluster
        except NotFound:
            return
        except TimeoutError:
            raise self._silent() from None
        if owner != cluster:
            raise Refused(
                f"{self._objects.url} holds the history of cluster {owner}, and this broker belongs to {cluster}: use "
                f"the storage.url of the other brokers of this cluster, or another prefix for a new cluster"
            )

    async def check(self) -> None:
        """Read what the brokers of the cluster wrote, and write nothing. Raises Refused if this store is not theirs."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._check()
        except TimeoutError:
            raise self._silent() from None

    async def prove(self) -> None:
        """Read what the brokers of the cluster wrote, and write for those that start later. Raises Refused if this
        store is not theirs. Cancelled: the own object may be there, without a record or with it."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                await self._check()
                if await self._store.get(self._key) is None:
                    await self._write_and_check()
        except TimeoutError:
            raise self._silent() from None

    async def _write_and_check(self) -> None:
        """Write the own object and its record, and read what others wrote at the same time. What was written is removed
        if that fails."""
        token = identity()
        key = f"{OBJECTS}{(await self._store.identity()).store_id}/{token}"
        record = ProofRecord(key, token, self._objects.url)
        await self._objects.put(key, token.encode(), create=True)
        try:
            await self._store.transact([], [Put(self._key, msgspec.msgpack.encode(record))])
            try:
                await self._check()
            except Refused:
                await self._store.transact([], [Delete(self._key)])
                raise
        except DanubeError:
            await self._objects.delete([key])
            raise

    async def _check(self) -> None:
        for broker, record in (await _records(self._store)).items():
            try:
                found = bytes(await self._objects.get(record.object))
            except NotFound:
                found = b""
            if found != record.token.encode():
                raise Refused(
                    f"{self._objects.url} does not hold what broker {broker!r} of this cluster wrote to its object "
                    f"store ({record.url}): this broker sees another store; give all brokers a storage.url that all of "
                    f"them reach, not a directory of one machine"
                )

    def _silent(self) -> Unavailable:
        return Unavailable(
            f"{self._objects.url}: no answer within {CHECK_TIMEOUT_S:.0f} s: start the object store, or correct "
            f"--storage-url (storage.url)"
        )


async def refuse_missing(store: MetadataStore, broker: str, url: str) -> None:
    """Raise Refused if a broker of the cluster has written to its object store: the one at `url` is not there."""
    records = await _records(store)
    if broker in records:
        raise Refused(
            f"{url} is not there, and broker {broker!r} has used it as its object store ({records[broker].url}): mount "
            f"it, or put the directory back; if it was moved, give all brokers its new storage.url"
        )
    for other, record in records.items():
        raise Refused(
            f"{url} is not there, and broker {other!r} of this cluster wrote to its object store ({record.url}): mount "
            f"it, or give all brokers a storage.url that all of them reach, not a directory of one machine"
        )


async def _records(store: MetadataStore) -> dict[str, ProofRecord]:
    """Return what each broker of the cluster wrote, by its name."""
    return {entry.key.removeprefix(PROOFS): _unpack(entry.key, entry.value) async for entry in list_all(store, PROOFS)}


def _unpack(key: str, value: bytes) -> ProofRecord:
    try:
        return msgspec.msgpack.decode(value, type=ProofRecord)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"metadata key {key} cannot be read ({error}): restore the metadata from a backup") from None
