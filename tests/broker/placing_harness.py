"""Several brokers in one process, on one metadata store, with memberships that the test gives and takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker_harness import SETTINGS, TOPIC

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.loads import Loads
from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.cluster.peers import NoPeers
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Compare, MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, NodeIdentity


class Sessions:
    """The sessions of a cluster, which every member sees at the same time. The first broker by name coordinates."""

    def __init__(self) -> None:
        self.living: dict[str, BrokerSession] = {}
        self.away: dict[str, int] = {}
        self.members: list[Member] = []
        self._incarnations = 0

    def begin(self, name: str, zone: str = "") -> BrokerSession:
        self._incarnations += 1
        address = BrokerAddresses(f"{name}:7080")
        session = BrokerSession(
            name, self._incarnations, address, log=f"log-{name}", zone=zone, proof=f"proof of {name}"
        )
        self.living[name] = session
        self.away.pop(name, None)
        for member in self.members:
            member.tell(lambda one: one.joined, lambda one: one.renewed, session)
        return session

    def end(self, name: str, now_us: int = 0) -> None:
        session = self.living.pop(name)
        self.away[name] = now_us
        for member in self.members:
            member.tell(lambda one: one.left, lambda one: one.lost, session)


class Member:
    """The membership of one broker."""

    is_alone = False

    def __init__(self, sessions: Sessions, name: str) -> None:
        self._sessions = sessions
        self._name = name
        self._last = sessions.living[name]
        self._listeners: list[MembershipListener] = []
        self.lease = 0
        sessions.members.append(self)

    def tell(
        self,
        other: Callable[[MembershipListener], Callable[[BrokerSession], None]],
        own: Callable[[MembershipListener], Callable[[BrokerSession], None]],
        session: BrokerSession,
    ) -> None:
        for listener in self._listeners:
            (own if session.name == self._name else other)(listener)(session)

    @property
    def session(self) -> BrokerSession:
        self._last = self._sessions.living.get(self._name, self._last)
        return self._last

    def holds(self) -> bool:
        return self._name in self._sessions.living

    def age_s(self) -> float:
        return 0.0

    def is_own_log(self, log: str) -> bool:
        return log == f"log-{self._name}"

    def sessions(self) -> list[BrokerSession]:
        return [one for _, one in sorted(self._sessions.living.items())]

    def find(self, name: str) -> BrokerSession | None:
        return self._sessions.living.get(name)

    def alive(self) -> list[Compare]:
        return []

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        living = self.find(name)
        return None if living is not None and living.incarnation == incarnation else []

    def give_up(self, incarnation: int) -> None:
        raise AssertionError("no test lets a session be given up")

    def is_coordinator(self) -> bool:
        return self._name == min(self._sessions.living, default="")

    @property
    def coordinator_name(self) -> str:
        return min(self._sessions.living, default="")

    def away(self) -> list[str]:
        return sorted(self._sessions.away)

    def away_since(self, name: str) -> int:
        return self._sessions.away.get(name, 0)

    def subscribe(self, listener: MembershipListener) -> None:
        self._listeners.append(listener)


class Node:
    """One broker of the cluster."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        registry: Registry,
        cluster: ClusterParts,
        following: asyncio.Task[None],
        stop: Any,
    ) -> None:
        self.name = name
        self.broker = broker
        self.registry = registry
        self.member = cluster.membership
        self.owners = cluster.owners
        self.loads = cluster.loads
        self.partitions = broker._partitions
        self._following = following
        self._stop = stop

    def opened(self, topic: TopicName = TOPIC) -> set[int]:
        return {one.index for one in self.partitions.of(topic)}

    async def stop_following(self) -> None:
        """Let the broker hear of no further change, as one that stands still; it does what it is asked."""
        self._following.cancel()
        await asyncio.wait([self._following])

    async def stop(self) -> None:
        await self._stop()


class Cluster:
    """Brokers on one store; each is started by the test."""

    def __init__(self, directory: Path, store: MetadataStore, clock: Clock, parts: AsyncExitStack) -> None:
        self._directory = directory
        self.store = store
        self.clock = clock
        self._parts = parts
        self.sessions = Sessions()
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str, zone: str = "", run: bool = True) -> Node:
        """Start a broker; without `run`, its tasks that open and place by themselves do not run."""
        clock = self.clock
        parts = await self._parts.enter_async_context(AsyncExitStack())
        self.sessions.begin(name, zone)
        member = Member(self.sessions, name)
        registry = Registry(self.store, clock)
        await registry.load()
        writer = await LogWriter.open(
            OsDisk(), self._directory / name, NodeIdentity("cluster", name, f"log-{name}"), LogSettings(), clock
        )
        parts.push_async_callback(writer.close)
        tasks = Tasks()
        parts.push_async_callback(tasks.close)
        follower = registry.follower
        cluster = ClusterParts(member, ClusterOwners(member, follower), NoPeers(), Loads(follower))
        address = BrokerAddresses(f"{name}:7080")
        made_of = BrokerParts(
            self.store,
            registry,
            writer,
            AllowAll(),
            clock,
            tasks,
            lambda: address,
            cluster=cluster,
        )
        broker = Broker(made_of, SETTINGS)
        await broker.start()
        following = broker._following
        assert following is not None
        if run:
            broker.joined()
        parts.push_async_callback(broker.close)
        node = self.nodes[name] = Node(name, broker, registry, cluster, following, parts.aclose)
        return node

    async def create(self, by: Node, topic: TopicName = TOPIC, **config: Any) -> int:
        """Create a topic, wait until every broker knows it, and return its id."""
        await by.broker.create_topic(ANONYMOUS, topic, TopicConfig(**config))
        await self.know(topic)
        return by.registry.topic(topic).topic_id

    async def know(self, topic: TopicName = TOPIC) -> None:
        """Wait until every broker knows the topic."""
        await until(lambda: all(node.registry.find_topic(topic) is not None for node in self.nodes.values()))


@asynccontextmanager
async def open_cluster(directory: Path, clock: Clock | None = None) -> AsyncIterator[Cluster]:
    clock = clock or SystemClock()
    async with AsyncExitStack() as parts:
        store = await EmbeddedStore.open(directory / "metadata.db", clock)
        parts.push_async_callback(store.close)
        yield Cluster(directory, store, clock, parts)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something that other tasks do has happened."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for happens inside the brokers
            await asyncio.sleep(0.005)
