"""Brokers of one cluster in one process, as `server` makes them: real sessions, placement and openers on one metadata
store and one object store. Each broker has a way to the metadata of its own, which fails where a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker_harness import SETTINGS, TOPIC, BrokerClient, changed
from metadata_harness import FaultyStore

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.cluster_membership import ClusterMembership
from pydanube.broker.cluster.loads import Loads
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.cluster.peers import NoPeers
from pydanube.broker.registry.records import PartitionRecord, partition_key
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import unpack
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, MetadataStamp, NodeIdentity

SESSION_S = 10


class MovingBroker:
    """One broker of the cluster."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        membership: ClusterMembership,
        faults: FaultyStore,
        following: asyncio.Task[None],
    ) -> None:
        self.name = name
        self._following = following
        self.broker = broker
        self.membership = membership
        self.faults = faults
        self.client = BrokerClient(broker)
        self.partitions = broker._partitions

    def opened(self, topic: TopicName = TOPIC) -> set[int]:
        return {one.index for one in self.partitions.of(topic)}

    async def stop_following(self) -> None:
        """Let the broker hear of no further change of the metadata; it does what it is asked."""
        self._following.cancel()
        await asyncio.wait([self._following])

    async def lose_session(self, store: EmbeddedStore) -> None:
        """End the session as a time-out does."""
        await store.revoke(self.membership.lease)


class MovingCluster:
    def __init__(self, directory: Path, store: EmbeddedStore, objects: MemoryStore, parts: AsyncExitStack) -> None:
        self._directory = directory
        self._parts = parts
        self.store = store
        self.objects = objects
        self.brokers: dict[str, MovingBroker] = {}

    async def start(self, name: str, **changes: Any) -> MovingBroker:
        clock, parts, faults = SystemClock(), self._parts, FaultyStore()
        store = faults.before(self.store)
        registry = Registry(store, clock)
        await registry.load()
        log = f"log-{name}"
        writer = await LogWriter.open(
            OsDisk(),
            self._directory / name / "wal",
            NodeIdentity("cluster", name, log),
            LogSettings(),
            clock,
            metadata=MetadataStamp((await store.identity()).store_id, await store.revision()),
        )
        parts.push_async_callback(writer.close)
        tasks = Tasks()
        parts.push_async_callback(tasks.close)
        follower = registry.follower
        session = BrokerSession(name, 0, BrokerAddresses(f"{name}.test:6650"), log=log)
        membership = ClusterMembership(store, follower, clock, tasks, lambda: session, "log-a", SESSION_S)
        parts.push_async_callback(membership.leave)
        cluster = ClusterParts(membership, ClusterOwners(membership, follower), NoPeers(), Loads(follower))
        made_of = BrokerParts(
            store,
            registry,
            writer,
            AllowAll(),
            clock,
            tasks,
            lambda: session.addresses,
            self.objects,
            cluster=cluster,
        )
        broker = Broker(made_of, changed(SETTINGS, **changes))
        parts.push_async_callback(broker.close)
        await broker.start()
        following = broker._following
        assert following is not None
        await membership.join()
        broker.joined()
        made = self.brokers[name] = MovingBroker(name, broker, membership, faults, following)
        await until(lambda: all(len(one.membership.sessions()) == len(self.brokers) for one in self.brokers.values()))
        return made

    async def create(self, partitions: int = 0, ack_level: AckLevel = AckLevel.STORED, **config: Any) -> int:
        """Create the topic through any broker, and wait until every partition is open; return its id."""
        by = next(iter(self.brokers.values()))
        await by.broker.create_topic(ANONYMOUS, TOPIC, TopicConfig(partitions, ack_level=ack_level, **config))
        await until(lambda: all(one.broker._registry.find_topic(TOPIC) is not None for one in self.brokers.values()))
        await until(lambda: len(self.owners(partitions)) == max(1, partitions))
        return by.broker._registry.topic(TOPIC).topic_id

    def owners(self, partitions: int = 0) -> dict[int, MovingBroker]:
        """Return the broker that has each partition open."""
        return {index: one for one in self.brokers.values() for index in one.opened()}

    async def record(self, topic_id: int, index: int = 0) -> PartitionRecord:
        found = await self.store.get(partition_key(topic_id, index))
        assert found is not None
        return unpack(found.value, PartitionRecord)


@asynccontextmanager
async def moving_cluster(directory: Path, *names: str, **changes: Any) -> AsyncIterator[MovingCluster]:
    async with AsyncExitStack() as parts:
        store = await EmbeddedStore.open(directory / "metadata.db", SystemClock())
        parts.push_async_callback(store.close)
        cluster = MovingCluster(directory, store, MemoryStore(), parts)
        for name in names:
            await cluster.start(name, **changes)
        yield cluster


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something that other tasks do has happened."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for happens inside the brokers
            await asyncio.sleep(0.005)
