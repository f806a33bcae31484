"""Brokers of one cluster in one process: one metadata store, one object store, a log for each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from broker_harness import SETTINGS, changed
from tiering_harness import SMALL, WAL

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import StoredRecord
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.cluster.peers import NoPeers
from pydanube.broker.registry.records import PartitionRecord
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import AllowAll
from pydanube.metadata.store import Compare, MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.runtime.clock import Clock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects import Buffer, ObjectInfo, ObjectStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, NodeIdentity


class ScriptedMembership:
    """The membership of one broker of a cluster, as the test sets it."""

    is_alone = False

    def __init__(self, name: str, coordinator: bool = False) -> None:
        self.session = BrokerSession(name, 1, BrokerAddresses("127.0.0.1:1"), log=name)
        self.coordinator = coordinator
        self.session_key = f"/brokers/sessions/{name}"
        self.compares_session = False
        """Whether the metadata has the key of the session; writes compare it then."""

    def holds(self) -> bool:
        return True

    def age_s(self) -> float:
        return 0.0

    def is_own_log(self, log: str) -> bool:
        return log in ("", self.session.log)

    def sessions(self) -> list[BrokerSession]:
        return [self.session]

    def find(self, name: str) -> BrokerSession | None:
        return self.session if name == self.session.name else None

    def alive(self) -> list[Compare]:
        return [Compare.version(self.session_key, 1)] if self.compares_session else []

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        return []

    def give_up(self, incarnation: int) -> None:
        raise AssertionError("no test lets a session be given up")

    def is_coordinator(self) -> bool:
        return self.coordinator

    coordinator_name = ""
    lease = 0

    def away(self) -> list[str]:
        return []

    def away_since(self, name: str) -> int:
        return 0

    def subscribe(self, listener: MembershipListener) -> None:
        """Nothing ever changes."""


class ScriptedOwners:
    """The owners of all partitions, by topic id and index, as the test sets them; by default the broker itself."""

    def __init__(self, membership: ScriptedMembership) -> None:
        self._membership = membership
        self.others: dict[tuple[int, int], BrokerSession] = {}

    def record(self, topic_id: int, index: int) -> PartitionRecord | None:
        return None

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        return self.others.get((topic_id, index), self._membership.session)

    def of_broker(self, name: str) -> list[tuple[int, int]]:
        return []

    def subscribe(self, changed: Callable[[tuple[int, int]], None]) -> None:
        """No record ever changes."""

    def stored(self, topic_id: int, index: int) -> StoredRecord | None:
        return None

    def wrote(self, topic_id: int, index: int, stored: StoredRecord) -> None:
        """The test says who owns what."""


class HeldStore(MemoryStore):
    """An object store that holds the answer to a put of a segment back while `holds` is set."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.holds = False
        self.is_there = asyncio.Event()
        """Set once the object is in the store and its uploader waits."""
        self.go_on = asyncio.Event()

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        info = await super().put(key, data, create=create, if_match=if_match)
        if self.holds and key.startswith("segments/"):
            self.is_there.set()
            await self.go_on.wait()
        return info


@asynccontextmanager
async def broker_of(
    store: MetadataStore, objects: ObjectStore, directory: Path, clock: Clock, membership: ScriptedMembership
) -> AsyncIterator[Broker]:
    """Open a broker of a cluster on this metadata and object store, which others share, with its own log."""
    async with AsyncExitStack() as parts:
        registry = Registry(store, clock)
        await registry.load()
        identity = NodeIdentity("cluster", membership.session.name, membership.session.log)
        writer = await LogWriter.open(OsDisk(), directory / membership.session.name, identity, WAL, clock)
        parts.push_async_callback(writer.close)
        tasks = Tasks()
        parts.push_async_callback(tasks.close)
        cluster = ClusterParts(membership, ScriptedOwners(membership), NoPeers())
        made_of = BrokerParts(
            store,
            registry,
            writer,
            AllowAll(),
            clock,
            tasks,
            lambda: membership.session.addresses,
            objects,
            cluster=cluster,
        )
        yield Broker(made_of, changed(SETTINGS, storage=replace(SMALL, grace_s=0)))
