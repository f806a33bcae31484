"""Finds out which broker of which cluster a data directory is, when a broker of a cluster starts.

The cluster's id belongs to the metadata: the first broker writes it, and the data directories of all take it over. The
broker of a name writes one log for ever, which /nodes/<name> names.

Invariants
    nothing is written, neither to the metadata nor to the data directory, by a broker that is refused here
    of several brokers that start together on empty metadata, one founds the cluster and the others join it
    two data directories never get the same log, also if two brokers of one name start together
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from pydanube.codec.wal import NodeIdentity
from pydanube.metadata.levels import put_level, refuse_unknown_level
from pydanube.metadata.opening import MetadataPlace
from pydanube.metadata.store import Compare, MetadataStore, Put
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Corrupt, Refused, Unavailable
from pydanube.model.levels import THIS_RELEASE, Levels
from pydanube.runtime.disk import Disk
from pydanube.runtime.randomness import identity
from pydanube.storage.directory import DataDirectory

from .cluster_membership import namesake, other_log
from .node_records import FOUNDER_LOG_KEY, IDENTITY_KEY, node_key, session_key, unpack_node, unpack_session

METADATA_PART: Final = "metadata"
"""The part of a data directory that shows that it has had metadata, wherever that is."""

TRIES: Final = 10
"""How often joining begins again because another broker has founded the cluster meanwhile; that happens once."""


class Joining(NamedTuple):
    """What a broker that starts is in its cluster."""

    founder: NodeIdentity
    name: str
    log: str
    """The log that this broker writes."""

    @property
    def identity(self) -> NodeIdentity:
        """What the data directory and the log of this broker say about themselves."""
        return NodeIdentity(self.founder.cluster, self.name, self.log)

    def open_directory(self, disk: Disk, path: Path) -> DataDirectory:
        """Lock the data directory, and create it if it is empty."""
        cluster = self.founder.cluster
        return DataDirectory.open(disk, path, cluster=cluster, node=self.name, incarnation=lambda: self.log)


async def join_cluster(
    store: MetadataStore,
    place: MetadataPlace,
    disk: Disk,
    path: Path,
    name: str,
    check: Callable[[Joining], Awaitable[None]],
    levels: Levels = THIS_RELEASE,
) -> Joining:
    """Found the cluster if there is none at `place`, and return what the broker called `name` with the data directory
    `path` is in it. `check` raises if something else that the broker has does not belong to this cluster; it is awaited
    before anything is written.

    Raises Refused if the metadata has a feature level that is not one of `levels`, if the data directory belongs to
    another cluster, was emptied, or is not the one of this name, and if another broker of this name lives.
    """
    for _ in range(TRIES):
        await refuse_unknown_level(store, levels)
        joining = await _plan(store, place, disk, path, name)
        await check(joining)
        if await _found(store, joining.founder, levels.newest):
            return joining
    raise Unavailable(f"{place} changes its founder all the time: it is not the metadata of one cluster")


async def _plan(store: MetadataStore, place: MetadataPlace, disk: Disk, path: Path, name: str) -> Joining:
    """Return what the broker is, or would be if it founded the cluster. Writes nothing; raises as `join_cluster`."""
    written, parts = DataDirectory.peek(disk, path) or (None, frozenset())
    known_founder = founder = await read_founder(store)
    if founder is None:
        if METADATA_PART in parts:
            raise Refused(f"{place} is empty, but {path} had metadata: put back a copy, or mount the right disk")
        founder = written or _new_identity(name)
    if written is not None and written.cluster != founder.cluster:
        raise Refused(
            f"{path} belongs to cluster {written.cluster!r}, and {place} is the metadata of cluster "
            f"{founder.cluster!r}: mount the right disk, take another directory, or correct --metadata"
        )
    if written is not None and written.node != name:
        raise Refused(
            f"{path} belongs to broker {written.node!r}, not to {name!r}: start it with --name {written.node}, or take "
            f"another directory"
        )
    await _refuse_namesake(store, name, written)
    known = await _known_log(store, founder, name)
    if known and written is None:
        raise Refused(
            f"{path} is empty, but broker {name!r} of this cluster had its log in it: mount the right disk, put back a "
            f"copy, or give this broker a name of its own (--name, server.name)"
        )
    if known and written is not None and written.incarnation != known:
        raise other_log(name, known, written.incarnation)
    if written is not None:
        return Joining(founder, name, written.incarnation)
    return Joining(founder, name, founder.incarnation if known_founder is None else identity())


def _new_identity(name: str) -> NodeIdentity:
    log = identity()
    return NodeIdentity(f"danube-{log[:12]}", name, log)


async def read_founder(store: MetadataStore) -> NodeIdentity | None:
    """Return the identity of the broker that founded the cluster, or is alone; None if there is no metadata."""
    found = await store.get(IDENTITY_KEY)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.value, type=NodeIdentity)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"metadata key {IDENTITY_KEY} cannot be read ({error}): restore the metadata from a backup"
        ) from None


async def _found(store: MetadataStore, founder: NodeIdentity, level: int) -> bool:
    """Write the founder's identity and the feature level of the new cluster, unless it is there; return False if that
    of another broker is there.

    A store that has no space refuses this also if nothing needs to be written: before a broker of a known cluster
    changes anything.
    """
    writes = [Put(IDENTITY_KEY, msgspec.json.encode(founder)), put_level(level)]
    await store.transact([Compare.missing(IDENTITY_KEY)], writes)
    return await read_founder(store) == founder


async def _refuse_namesake(store: MetadataStore, name: str, written: NodeIdentity | None) -> None:
    """Raise Refused if another broker of this name lives. A session of the own log is that of a process that has ended,
    or that of a copy of the data directory: see `refuse_copy`."""
    living = await _read_session(store, name)
    if living is not None and (written is None or written.incarnation != living.log):
        raise namesake(living)


async def refuse_copy(
    store: MetadataStore, joining: Joining, is_living: Callable[[BrokerSession], Awaitable[bool]]
) -> None:
    """Raise Refused if there is a session of the broker's own log and `is_living` says that its process answers: this
    data directory is in use, or a copy of one that is."""
    former = await _read_session(store, joining.name)
    if former is not None and former.log == joining.log and await is_living(former):
        raise namesake(former)


async def _read_session(store: MetadataStore, name: str) -> BrokerSession | None:
    key = session_key(name)
    found = await store.get(key)
    return None if found is None else unpack_session(key, found.value)


async def _known_log(store: MetadataStore, founder: NodeIdentity, name: str) -> str:
    """Return the log that the broker of this name writes; empty if it never started.

    A founder whose metadata was copied has no record yet, but has begun its log. One that was killed before it had made
    its data directory has begun none, and gets another one.
    """
    found = await store.get(node_key(name))
    if found is not None:
        return unpack_node(found.key, found.value).log
    has_log = founder.node == name and await store.get(FOUNDER_LOG_KEY) is not None
    return founder.incarnation if has_log else ""
