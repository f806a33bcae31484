"""`danube metadata copy`: copies the metadata of a stopped broker into an empty store, SQLite to etcd or back.

The copy is a store of its own, which names the one that it succeeds: a data directory that has seen the former accepts
it, and one that has seen the copy no longer accepts the former. Keys that are bound to a lease are not copied; they
belong to brokers that run.

The copy is compared with its source, key by key, before the broker's identity is written as the last key. A copy that
was interrupted has no identity, and no broker starts on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from .broker.cluster.node_records import IDENTITY_KEY
from .metadata.opening import MetadataPlace, open_metadata
from .metadata.store import Compare, MetadataStore, Put, StoreIdentity, Succession, list_all, split_writes
from .model.errors import Refused
from .model.limits import METADATA_TRANSACTION_BYTES_MAX
from .runtime.clock import Clock
from .storage.tiering.manifest import BASE_KEY, number_at

OnCopied = Callable[[int], None]
"""Called with the number of keys that are copied so far."""


@dataclass(frozen=True, slots=True)
class MetadataCopied:
    """The result of a copy."""

    source: str
    target: str
    store_id: str
    """The id of the copy; `succeeds` is the id of its source, and `revision` the revision that was copied."""
    succeeds: str
    revision: int
    keys: int
    bytes: int


async def copy_metadata(
    source: MetadataPlace, target: MetadataPlace, clock: Clock, progress: OnCopied = lambda _: None
) -> MetadataCopied:
    """Copy the metadata at `source` to `target`, where there must be none; the broker of the source must not run.

    Raises Refused if there is no metadata at the source, or some at the target, or if the source changes meanwhile.
    Cancelled or failed: the target may hold a part, on which no broker starts; copy to another place, or empty it.
    """
    former = await open_metadata(source, clock)
    try:
        identity = await former.get(IDENTITY_KEY)
        if identity is None:
            raise Refused(f"{source} holds no metadata of a broker: is it the right place?")
        copy = await open_metadata(target, clock)
        try:
            return await _copy(source, former, target, copy, identity.value, progress)
        finally:
            await copy.close()
    finally:
        await former.close()


async def _copy(
    source: MetadataPlace,
    former: MetadataStore,
    target: MetadataPlace,
    copy: MetadataStore,
    identity: bytes,
    progress: OnCopied,
) -> MetadataCopied:
    if await copy.list("", limit=1):
        raise Refused(f"{target} is not empty: copy to another place, or delete what an interrupted copy left there")
    revision = await former.revision()
    before, after = await former.identity(), await copy.identity()
    for one in _successions(before, after, revision):
        await copy.record_succession(one)
    base = Put(BASE_KEY, b"%d" % await number_at(former, revision))  # the numbers of manifests must go on
    await copy.transact([], [base])
    keys, size = await _write_all(former, copy, progress)
    if not await _is_equal(former, copy):
        raise Refused(f"{source} was changed while it was copied: stop its broker, and copy again to another place")
    await copy.transact([Compare.missing(IDENTITY_KEY)], [Put(IDENTITY_KEY, identity)])
    return MetadataCopied(str(source), str(target), after.store_id, before.store_id, revision, keys + 2, size)


def _successions(former: StoreIdentity, copy: StoreIdentity, revision: int) -> list[Succession]:
    """Return what the copy succeeds and does not name yet: its source, and what that succeeds."""
    wanted = (*former.succeeds, Succession(former.store_id, revision))
    return [one for one in wanted if one not in copy.succeeds]


async def _write_all(former: MetadataStore, copy: MetadataStore, progress: OnCopied) -> tuple[int, int]:
    """Copy all pairs; return how many there were, and their bytes."""
    keys = size = 0
    waiting: list[Put] = []
    waiting_bytes = 0
    async for pair in _pairs(former):
        waiting.append(pair)
        waiting_bytes += len(pair.value)
        keys, size = keys + 1, size + len(pair.key) + len(pair.value)
        if waiting_bytes > METADATA_TRANSACTION_BYTES_MAX or len(waiting) >= 1_000:
            await _write(copy, waiting)
            waiting, waiting_bytes = [], 0
            progress(keys)
    await _write(copy, waiting)
    return keys, size


async def _write(copy: MetadataStore, pairs: list[Put]) -> None:
    for part in split_writes(pairs):
        await copy.transact([], part)


async def _is_equal(former: MetadataStore, copy: MetadataStore) -> bool:
    """Read both stores, and return whether they hold the same pairs."""
    copied = _pairs(copy)
    async for pair in _pairs(former):
        if await anext(copied, None) != pair:
            return False
    return await anext(copied, None) is None


async def _pairs(store: MetadataStore) -> AsyncIterator[Put]:
    """Yield what is copied as it is, in order."""
    async for entry in list_all(store, ""):
        if not entry.lease and entry.key not in (IDENTITY_KEY, BASE_KEY):
            yield Put(entry.key, entry.value)
