"""`danube metadata copy`: copies the metadata of a stopped broker into an empty store, SQLite to etcd or back.

The copy is a store of its own, which names the one that it succeeds: a data directory that has seen the former accepts
it, and one that has seen the copy no longer accepts the former. Metadata that a broker of a cluster uses now is not
copied. Keys that are bound to a lease are left out: they belong to sessions.

A file has the metadata of one broker, the founder of the cluster. So nothing is copied to a file while partitions are
in the logs of others: the founder would go on without the messages that only those logs have.

The copy is compared with its source, key by key, before the broker's identity is written as the last key. A copy that
was interrupted has no identity, and no broker starts on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from pydanube.broker.cluster.joining import read_founder
from pydanube.broker.cluster.node_records import IDENTITY_KEY, NODES, SESSIONS, unpack_node, unpack_session
from pydanube.broker.cluster.placing import is_bound_to_log
from pydanube.broker.registry.records import (
    PARTITIONS,
    TOPICS,
    PartitionRecord,
    TopicRecord,
    partition_of_key,
    topic_of_key,
)
from pydanube.codec.wal import NodeIdentity
from pydanube.metadata.levels import refuse_unknown_level
from pydanube.metadata.opening import MetadataPlace, open_metadata
from pydanube.metadata.packing import unpack
from pydanube.metadata.store import Compare, MetadataStore, Put, StoreIdentity, Succession, list_all, split_writes
from pydanube.model.errors import Refused
from pydanube.model.limits import METADATA_TRANSACTION_BYTES_MAX
from pydanube.runtime.clock import Clock
from pydanube.storage.segments.manifest import BASE_KEY, number_at

NAMED_MAX: Final = 5
"""The most partitions that a refusal names."""

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
    broker: str
    """The name of the broker that is alone or began the cluster: the one that can use a copy in a file."""


async def copy_metadata(
    source: MetadataPlace, target: MetadataPlace, clock: Clock, progress: OnCopied = lambda _: None
) -> MetadataCopied:
    """Copy the metadata at `source` to `target`, where there must be none; the brokers of the source must not run.

    Raises Refused if there is no metadata at the source, if this release does not know its feature level, if there is
    some at the target, if a broker uses the source, if the target is a file and partitions are in the logs of several
    brokers, or if the source changes meanwhile.
    Cancelled or failed: the target may hold a part, on which no broker starts; copy to another place, or empty it.
    """
    former = await open_metadata(source, clock)
    try:
        founder = await read_founder(former)
        if founder is None:
            raise Refused(f"{source} holds no metadata of a broker: is it the right place?")
        await refuse_unknown_level(former)
        await _refuse_sessions(source, former)
        if isinstance(target, Path):
            await _refuse_other_logs(former, founder)
        copy = await open_metadata(target, clock)
        try:
            return await _copy(source, former, target, copy, founder, progress)
        finally:
            await copy.close()
    finally:
        await former.close()


async def _refuse_sessions(source: MetadataPlace, former: MetadataStore) -> None:
    """Raise Refused if a broker of a cluster uses the metadata."""
    living = [unpack_session(one.key, one.value) async for one in list_all(former, SESSIONS)]
    if living:
        named = ", ".join(f"{one.name!r} at {one.addresses.native}" for one in living)
        raise Refused(
            f"{source} is in use by {'broker' if len(living) == 1 else 'brokers'} {named}: stop all brokers of the "
            f"cluster, and copy again; one that was killed counts as gone after cluster.session_s"
        )


async def _refuse_other_logs(former: MetadataStore, founder: NodeIdentity) -> None:
    """Raise Refused if partitions are in the logs of other brokers than the founder."""
    brokers = {
        unpack_node(one.key, one.value).log: one.key.removeprefix(NODES) async for one in list_all(former, NODES)
    }
    topics = {}
    async for one in list_all(former, TOPICS):
        record = unpack(one.value, TopicRecord)
        topics[record.topic_id] = topic_of_key(one.key), record
    found = []
    async for one in list_all(former, PARTITIONS):
        topic_id, index = partition_of_key(one.key)
        partition = unpack(one.value, PartitionRecord)
        if topic_id not in topics or partition.log in ("", founder.incarnation):
            continue
        name, topic = topics[topic_id]
        if is_bound_to_log(topic, partition):
            broker = brokers.get(partition.log, partition.owner)
            found.append(f"{name.partition(index) if topic.partitions else name} (broker {broker!r})")
    if found:
        more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
        raise Refused(
            f"a file is for broker {founder.node!r} alone, and other brokers have partitions in their logs: "
            f"{', '.join(found[:NAMED_MAX])}{more}; start the cluster again and put them into the object store, with "
            f"`danube topics set-ack-level TOPIC stored`, or take them over with `danube topics takeover`"
        )


async def _copy(
    source: MetadataPlace,
    former: MetadataStore,
    target: MetadataPlace,
    copy: MetadataStore,
    founder: NodeIdentity,
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
    await copy.transact([Compare.missing(IDENTITY_KEY)], [Put(IDENTITY_KEY, msgspec.json.encode(founder))])
    ids = after.store_id, before.store_id
    return MetadataCopied(str(source), str(target), *ids, revision, keys + 2, size, founder.node)


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
