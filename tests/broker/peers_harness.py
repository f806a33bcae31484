"""Several brokers with native listeners in one process, on one metadata store, which talk to each other.

Which broker lives and which owns what is decided by the test; the owners are what the partitions' records say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_harness import SETTINGS, BrokerClient, changed
from placing_harness import Member as Membership
from placing_harness import Sessions

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.loads import Loads
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.registry.records import PartitionRecord, partition_key
from pydanube.broker.registry.registry import Registry
from pydanube.codec.native.requests import Request
from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.gateway.native import NativePeers, NativeServer
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.following import Follower
from pydanube.metadata.packing import pack
from pydanube.metadata.store import MetadataStore, Put
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LimitSettings, LogSettings
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, NodeIdentity

TOPIC = TopicName.parse("/default/orders")


class SeenOwners(ClusterOwners):
    """The owners as a broker sees them that may not know the newest ones yet."""

    def __init__(self, membership: Membership, follower: Follower) -> None:
        super().__init__(membership, follower)
        self.outdated: dict[tuple[int, int], BrokerSession] = {}

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        return self.outdated.get((topic_id, index)) or super().owner(topic_id, index)


class Node:
    """One broker of the cluster."""

    def __init__(
        self, name: str, broker: Broker, registry: Registry, cluster: ClusterParts, server: NativeServer
    ) -> None:
        assert isinstance(cluster.peers, NativePeers) and isinstance(cluster.owners, SeenOwners)
        self.name = name
        self.broker = broker
        self.registry = registry
        self.owners = cluster.owners
        self.peers = cluster.peers
        self.server = server
        self.asked: Counter[tuple[str, type[Request]]] = Counter()
        """The requests that this broker sent, by the broker that they went to."""
        ask = self.peers.request

        def count(to: str, request: Request, answer: Any) -> Any:
            self.asked[to, type(request)] += 1
            return ask(to, request, answer)

        self.peers.request = count  # type: ignore[method-assign, assignment]

    @property
    def client(self) -> BrokerClient:
        return BrokerClient(self.broker, TOPIC)


class Cluster:
    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.sessions = Sessions()
        self.nodes: dict[str, Node] = {}
        self.followers: list[Follower] = []

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def session(self, name: str) -> BrokerSession:
        return self.sessions.living[name]

    async def create(self, topic: TopicName = TOPIC, partitions: int = 0, **config: Any) -> int:
        """Create a topic whose partitions belong to the brokers in turn; return its id."""
        first = next(iter(self.nodes.values()))
        await first.broker.create_topic(ANONYMOUS, topic, TopicConfig(partitions, **config))
        topic_id, names = first.registry.topic(topic).topic_id, list(self.nodes)
        for index in range(max(1, partitions)):
            assigned = PartitionRecord(assigned=names[index % len(names)])
            await self.store.transact([], [Put(partition_key(topic_id, index), pack(assigned))])
        await self.refresh()
        return topic_id

    async def refresh(self) -> None:
        """Wait until every broker has read what the others changed."""
        revision = await self.store.revision()
        for follower in self.followers:
            await follower.reached(revision)


@asynccontextmanager
async def open_cluster(
    directory: Path,
    names: str = "abc",
    objects: ObjectStore | None = None,
    settings: LimitSettings | None = None,
    **changes: Any,
) -> AsyncIterator[Cluster]:
    clock = SystemClock()
    async with AsyncExitStack() as parts:
        store = await EmbeddedStore.open(directory / "metadata.db", clock)
        parts.push_async_callback(store.close)
        cluster = Cluster(store)
        for name in names:
            cluster.sessions.begin(name)
            membership = Membership(cluster.sessions, name)
            identity = NodeIdentity("cluster", name, f"log-{name}")
            writer = await LogWriter.open(OsDisk(), directory / f"wal-{name}", identity, LogSettings(), clock)
            parts.push_async_callback(writer.close)
            tasks = Tasks()
            parts.push_async_callback(tasks.close)
            registry = Registry(store, clock)
            follower = registry.follower
            peers = NativePeers(membership, clock, tasks)
            cluster_parts = ClusterParts(membership, SeenOwners(membership, follower), peers, Loads(follower))
            made_of = BrokerParts(
                store,
                registry,
                writer,
                AllowAll(),
                clock,
                tasks,
                lambda name=name: cluster.session(name).addresses,  # type: ignore[misc]
                objects,
                cluster=cluster_parts,
            )
            broker = Broker(made_of, changed(SETTINGS, **changes))
            await registry.load()
            await broker._follow()
            parts.push_async_callback(broker.close)
            server = NativeServer(broker, settings or LimitSettings(), clock, tasks)
            host, port = await server.start("127.0.0.1", 0)
            parts.push_async_callback(server.close, 0.0)
            parts.callback(peers.close)
            cluster.sessions.living[name] = replace(cluster.session(name), addresses=BrokerAddresses(f"{host}:{port}"))
            cluster.nodes[name] = Node(name, broker, registry, cluster_parts, server)
            cluster.followers.append(follower)
        yield cluster
