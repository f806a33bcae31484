"""Brokers of one cluster in one process, on one metadata store, with a log each: who lives is decided by the test.

`open_world`        brokers that take partitions when they are asked to; sessions are keys of the store
`placing_cluster`   brokers that place and open partitions by themselves
`moving_cluster`    the same, as `server` makes them: with real sessions, on one object store
`talking_cluster`   brokers with native listeners, which talk to each other
`open_brokers`      brokers that know nothing of each other, and follow the same metadata
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from broker_harness import SETTINGS, TOPIC, BrokerClient, changed
from following_harness import Member as FollowingMember
from metadata_harness import FaultyStore, Writes

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.cluster_membership import ClusterMembership
from pydanube.broker.cluster.loads import Loads
from pydanube.broker.cluster.membership import Membership, MembershipListener
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.cluster.peers import NoPeers, Peers
from pydanube.broker.registry.records import PARTITIONS, PartitionRecord, partition_key
from pydanube.broker.registry.registry import Registry
from pydanube.codec.native.requests import Request
from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.gateway.native import NativePeers, NativeServer
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.following import Follower
from pydanube.metadata.levels import put_level
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Compare, Delete, MetadataStore, Put
from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.levels import THIS_RELEASE
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LimitSettings, LogSettings, Sections
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, MetadataStamp, NodeIdentity
from waiting import until

FOUNDER = "a"
"""The broker whose log earlier releases meant when they named none."""
SESSION_S = 10


def session_key(name: str) -> str:
    return f"/brokers/sessions/{name}"


def addresses_of(name: str) -> BrokerAddresses:
    return BrokerAddresses(f"{name}.test:6650", f"{name}.test:6651", f"{name}.test:6652", f"{name}.test:6653")


# -- sessions ----------------------------------------------------------------------------------------------------------


class Sessions:
    """The sessions of a cluster, which every member sees at the same time. The first broker by name coordinates.

    With `store`, a session is a key of it, as in a real cluster, so that transactions compare it.
    """

    def __init__(self, store: Any = None) -> None:
        self.store = store
        self.living: dict[str, BrokerSession] = {}
        self.away: dict[str, int] = {}
        self.ages_s: dict[str, float] = {}
        """For how long brokers have had no session that the store knows; those that are missing here have one."""
        self.members: dict[str, Member] = {}
        self._incarnations = 0

    async def begin(self, name: str, zone: str = "") -> Member:
        """Begin a session; a broker that has had one takes a new incarnation."""
        self._incarnations += 1
        session = BrokerSession(
            name, self._incarnations, addresses_of(name), log=f"log-{name}", zone=zone, proof=f"proof of {name}"
        )
        revision = 0
        if self.store is not None:
            revision = (await self.store.transact([], [Put(session_key(name), b"%d" % self._incarnations)])).revision
        self.living[name] = session
        self.away.pop(name, None)
        member = self.members.setdefault(name, Member(self, session))
        member.begin(revision)
        for other in self.members.values():
            other.tell("renewed" if other is member else "joined", session)
        return member

    async def end(self, name: str, since_us: int = 0, learns: bool = True) -> None:
        """End a session. With `learns`, the broker is told; without, it is paused or cut off, and does not know."""
        session = self.living.pop(name)
        self.away[name] = since_us
        if self.store is not None:
            await self.store.transact([], [Delete(session_key(name))])
        for other in self.members.values():
            if other.name != name:
                other.tell("left", session)
        if learns:
            self.learn(session)

    async def leave(self, name: str) -> None:
        """Forget a broker that has stopped."""
        member = self.members.pop(name)
        member.is_held = False
        if name in self.living:
            await self.end(name, learns=False)
            self.away.pop(name)

    def learn(self, session: BrokerSession) -> None:
        """Tell a broker that its session is over."""
        if (member := self.members.get(session.name)) is not None:
            member.is_held = False
            member.tell("lost", session)


class Member:
    """The membership of one broker."""

    is_alone = False

    def __init__(self, sessions: Sessions, session: BrokerSession) -> None:
        self.name = session.name
        self.is_held = True
        """Whether the broker may believe that its session lives."""
        self.lease = 0
        self.given_up: list[int] = []
        """The incarnations of the sessions that the broker gave up; a test begins the next one."""
        self._sessions = sessions
        self._last = session
        self._revision = 0
        self._listeners: list[MembershipListener] = []

    def begin(self, revision: int) -> None:
        self.is_held = True
        self._revision = revision

    def tell(self, what: str, session: BrokerSession) -> None:
        for listener in list(self._listeners):
            getattr(listener, what)(session)

    @property
    def session(self) -> BrokerSession:
        self._last = self._sessions.living.get(self.name, self._last)
        return self._last

    @property
    def identity(self) -> tuple[str, int]:
        return self.session.name, self.session.incarnation

    def holds(self) -> bool:
        return self.is_held and not self.age_s()

    def age_s(self) -> float:
        return self._sessions.ages_s.get(self.name, 0.0)

    def is_own_log(self, log: str) -> bool:
        return log == self.session.log or (not log and self.name == FOUNDER)

    def sessions(self) -> list[BrokerSession]:
        return [one for _, one in sorted(self._sessions.living.items())]

    def find(self, name: str) -> BrokerSession | None:
        return self._sessions.living.get(name)

    def alive(self) -> list[Compare]:
        if self._sessions.store is None:
            return []
        return [Compare.mod_revision(session_key(self.name), self._revision)]

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        if self._sessions.store is None:
            living = self.find(name)
            return None if living is not None and living.incarnation == incarnation else []
        found = await self._sessions.store.get(session_key(name))
        if found is not None and int(found.value) == incarnation:
            return None
        return [Compare.mod_revision(session_key(name), found.mod_revision if found is not None else 0)]

    def give_up(self, incarnation: int) -> None:
        self.given_up.append(incarnation)

    def is_coordinator(self) -> bool:
        return self.coordinator_name == self.name

    @property
    def coordinator_name(self) -> str:
        return min(self._sessions.living, default="")

    def away(self) -> list[str]:
        return sorted(self._sessions.away)

    def away_since(self, name: str) -> int:
        return self._sessions.away.get(name, 0)

    def is_drained(self, name: str) -> bool:
        return False

    def is_founder_log(self, log: str) -> bool:
        return log == f"log-{FOUNDER}"

    def subscribe(self, listener: MembershipListener) -> None:
        self._listeners.append(listener)


class SeenOwners(ClusterOwners):
    """The owners as a broker sees them that may not know the newest ones yet."""

    def __init__(self, membership: Membership, follower: Follower) -> None:
        super().__init__(membership, follower)
        self.outdated: dict[tuple[int, int], BrokerSession] = {}

    def owner(self, topic_id: int, index: int) -> BrokerSession | None:
        return self.outdated.get((topic_id, index)) or super().owner(topic_id, index)


# -- brokers -----------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """A broker that does nothing yet, and what it is made of."""

    broker: Broker
    registry: Registry
    writer: LogWriter
    cluster: ClusterParts | None


async def make_broker(
    parts: AsyncExitStack,
    directory: Path,
    store: Any,
    clock: Clock,
    log: str,
    make_cluster: Callable[[Registry, Tasks], Awaitable[ClusterParts | None]],
    *,
    name: str = "",
    registry: Registry | None = None,
    is_own_log: Callable[[str], bool] | None = None,
    objects: ObjectStore | None = None,
    wal: LogSettings | None = None,
    settings: Sections = SETTINGS,
) -> Made:
    """Make a broker as `server` does: the metadata is checked against the log before anything is freed. `parts` closes
    it. `make_cluster` is awaited once the log is open."""
    name = name or log.removeprefix("log-")
    registry = registry or Registry(store, clock)
    await registry.load()
    known = await registry.known_ledgers(is_own_log or (lambda one: one == log or (not one and name == FOUNDER)))
    writer = await LogWriter.open(
        OsDisk(),
        directory / name / "wal",
        NodeIdentity("cluster", name, log),
        wal or LogSettings(),
        clock,
        is_needed=known.needed.__contains__,
        check=lambda recovered: known.check(store, recovered, directory / "metadata.db"),
        metadata=MetadataStamp((await store.identity()).store_id, await store.revision()),
    )
    parts.push_async_callback(writer.close)
    writer.forget(set(writer.recovered.ledgers) - known.needed)
    tasks = Tasks()
    parts.push_async_callback(tasks.close)
    cluster = await make_cluster(registry, tasks)
    session = cluster.membership if cluster is not None else None
    made_of = BrokerParts(
        store,
        registry,
        writer,
        AllowAll(),
        clock,
        tasks,
        lambda: session.session.addresses if session is not None else BrokerAddresses("127.0.0.1:1"),
        objects,
        cluster=cluster,
    )
    broker = Broker(made_of, settings)
    parts.push_async_callback(broker.close)
    return Made(broker, registry, writer, cluster)


class Node:
    """One running broker of the cluster, whose sessions the test begins and ends."""

    server: NativeServer
    """Its listener, in a cluster that has them."""

    def __init__(self, made: Made, parts: AsyncExitStack) -> None:
        assert made.cluster is not None
        assert isinstance(made.cluster.membership, Member) and isinstance(made.cluster.owners, SeenOwners)
        self.broker = made.broker
        self.registry = made.registry
        self.writer = made.writer
        self.member = made.cluster.membership
        self.name = self.member.name
        self.owners = made.cluster.owners
        self.loads = made.cluster.loads
        self.peers = made.cluster.peers
        self.partitions = made.broker._partitions
        self.client = BrokerClient(made.broker)
        self.asked: Counter[tuple[str, type[Request]]] = Counter()
        """The requests that this broker sent, by the broker that they went to."""
        self._parts = parts
        ask = self.peers.request

        def count(to: str, request: Request, answer: Any) -> Any:
            self.asked[to, type(request)] += 1
            return ask(to, request, answer)

        self.peers.request = count  # type: ignore[method-assign, assignment]

    def opened(self, topic: TopicName = TOPIC) -> set[int]:
        return {one.index for one in self.partitions.of(topic)}

    async def stop_following(self) -> None:
        """Let the broker hear of no further change, as one that stands still; it does what it is asked."""
        await stop_following(self.broker)

    async def stop(self) -> None:
        await self._parts.aclose()


async def stop_following(broker: Broker) -> None:
    assert broker._following is not None
    broker._following.cancel()
    await asyncio.wait([broker._following])


class Cluster:
    """One metadata store, and the brokers that the test starts on it."""

    def __init__(self, directory: Path, store: Any, clock: Clock, parts: AsyncExitStack, sessions: Sessions) -> None:
        self._directory = directory
        self._parts = parts
        self.store = store
        self.clock = clock
        self.sessions = sessions
        self.nodes: dict[str, Node] = {}
        self.objects: ObjectStore | None = None
        """The object store of the brokers that are started from now on."""

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def session(self, name: str) -> BrokerSession:
        return self.sessions.living[name]

    async def _make(
        self,
        name: str,
        zone: str = "",
        follower: Follower | None = None,
        peers: Callable[[Member, Tasks], Peers] = lambda _member, _tasks: NoPeers(),
        **options: Any,
    ) -> Node:
        """Make a broker and begin its session. It sees the owners by `follower`, or by what its registry follows."""
        parts = await self._parts.enter_async_context(AsyncExitStack())

        async def make_cluster(registry: Registry, tasks: Tasks) -> ClusterParts:
            member = await self.sessions.begin(name, zone)
            parts.push_async_callback(self.sessions.leave, name)
            if follower is not None:
                await follower.start()
                tasks.spawn(follower.run(), f"follow {name}")
            followed = follower or registry.follower
            return ClusterParts(member, SeenOwners(member, followed), peers(member, tasks), Loads(followed))

        options.setdefault("objects", self.objects)
        made = await make_broker(parts, self._directory, self.store, self.clock, f"log-{name}", make_cluster, **options)
        node = self.nodes[name] = Node(made, parts)
        return node

    async def know(self, topic: TopicName = TOPIC) -> None:
        """Wait until every broker knows the topic."""
        await until(lambda: all(node.registry.find_topic(topic) is not None for node in self.nodes.values()))

    async def refresh(self) -> None:
        """Wait until every broker has read what the others changed."""
        revision = await self.store.revision()
        for node in self.nodes.values():
            await node.registry.follower.reached(revision)


@asynccontextmanager
async def opened_store(directory: Path, clock: Clock) -> AsyncIterator[tuple[EmbeddedStore, AsyncExitStack]]:
    """Open a metadata store, and what the brokers on it are closed with."""
    async with AsyncExitStack() as parts:
        store = await EmbeddedStore.open(directory / "metadata.db", clock)
        parts.push_async_callback(store.close)
        yield store, parts


# -- brokers that take partitions when they are asked to ---------------------------------------------------------------


class Interrupted:
    """A store in front of the real one: calls `before` once, just before the next transaction that writes a key with
    `prefix`, or before the next listing of it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.prefix = ""
        self.before: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def interrupt(self, prefix: str, before: Callable[[], Awaitable[object]]) -> None:
        self.prefix, self.before = prefix, before

    async def transact(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> Any:
        await self._call([one.key for one in writes])
        return await self._store.transact(compares, writes)

    async def list(self, prefix: str, **options: Any) -> Any:
        await self._call([prefix])
        return await self._store.list(prefix, **options)

    async def _call(self, keys: Sequence[str]) -> None:
        if self.before is not None and any(key.startswith(self.prefix) for key in keys):
            before, self.before = self.before, None
            await before()


class World(Cluster):
    """Brokers that open nothing by themselves."""

    async def start(self, name: str, *, follows: bool = False, **changes: Any) -> Node:
        """Start a broker. With `follows`, its registry follows what the others change."""
        options = {one: changes.pop(one) for one in ("objects", "wal") if one in changes}
        follower = None if follows else Follower(self.store, self.clock)
        node = await self._make(name, follower=follower, settings=changed(SETTINGS, **changes), **options)
        if follows:
            await node.broker.start()
        else:
            await node.registry.follower.list_added()
        return node


@asynccontextmanager
async def open_world(directory: Path, clock: Clock | None = None) -> AsyncIterator[World]:
    clock = clock or SystemClock()
    async with opened_store(directory, clock) as (embedded, parts):
        store = Interrupted(embedded)
        yield World(directory, store, clock, parts, Sessions(store))


# -- brokers that place partitions -------------------------------------------------------------------------------------


class PlacingCluster(Cluster):
    """Brokers that place and open partitions by themselves."""

    async def start(self, name: str, zone: str = "", run: bool = True) -> Node:
        """Start a broker; without `run`, its tasks that open and place by themselves do not run."""
        node = await self._make(name, zone)
        await node.broker.start()
        if run:
            node.broker.joined()
        return node

    async def create(self, by: Node, topic: TopicName = TOPIC, **config: Any) -> int:
        """Create a topic, wait until every broker knows it, and return its id."""
        await by.broker.topics.create(ANONYMOUS, topic, TopicConfig(**config))
        await self.know(topic)
        return by.registry.topic(topic).topic_id


@asynccontextmanager
async def placing_cluster(directory: Path, clock: Clock | None = None) -> AsyncIterator[PlacingCluster]:
    clock = clock or SystemClock()
    async with opened_store(directory, clock) as (store, parts):
        yield PlacingCluster(directory, store, clock, parts, Sessions())


# -- brokers with real sessions ----------------------------------------------------------------------------------------


class MovingBroker:
    """One broker, with a way to the metadata of its own, which fails where a test says so."""

    def __init__(
        self, name: str, broker: Broker, membership: ClusterMembership, faults: FaultyStore, server: NativeServer
    ) -> None:
        self.name = name
        self.broker = broker
        self.server = server
        """Its listener, for clients and other brokers."""
        self.membership = membership
        self.faults = faults
        self.client = BrokerClient(broker)
        self.partitions = broker._partitions

    @property
    def address(self) -> str:
        return self.membership.session.addresses.native

    def opened(self, topic: TopicName = TOPIC) -> set[int]:
        return {one.index for one in self.partitions.of(topic)}

    async def stop_following(self) -> None:
        """Let the broker hear of no further change of the metadata; it does what it is asked."""
        await stop_following(self.broker)

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
        clock, parts, faults, log = SystemClock(), self._parts, FaultyStore(), f"log-{name}"
        store = faults.before(self.store)

        session = BrokerSession(name, 0, NO_ADDRESSES, log=log, level=THIS_RELEASE.newest)

        async def make_cluster(registry: Registry, tasks: Tasks) -> ClusterParts:
            follower = registry.follower
            membership = ClusterMembership(store, follower, clock, tasks, lambda: session, "log-a", SESSION_S)
            parts.push_async_callback(membership.leave)
            peers = NativePeers(membership, clock, tasks)
            parts.callback(peers.close)
            return ClusterParts(membership, ClusterOwners(membership, follower), peers, Loads(follower))

        settings = changed(SETTINGS, **changes)
        made = await make_broker(
            parts, self._directory, store, clock, log, make_cluster, objects=self.objects, settings=settings
        )
        assert made.cluster is not None and isinstance(made.cluster.membership, ClusterMembership)
        await made.broker.start()
        server = NativeServer(made.broker, LimitSettings(), clock, made.broker._tasks)
        host, port = await server.start("127.0.0.1", 0)
        parts.push_async_callback(server.close, 0.0)
        session = replace(session, addresses=BrokerAddresses(f"{host}:{port}"))
        await made.cluster.membership.join()
        made.broker.joined()
        node = self.brokers[name] = MovingBroker(name, made.broker, made.cluster.membership, faults, server)
        await until(lambda: all(len(one.membership.sessions()) == len(self.brokers) for one in self.brokers.values()))
        return node

    async def create(self, partitions: int = 0, ack_level: AckLevel = AckLevel.STORED, **config: Any) -> int:
        """Create the topic through any broker, and wait until every partition is open; return its id."""
        by = next(iter(self.brokers.values()))
        await by.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions, ack_level=ack_level, **config))
        await until(lambda: all(one.broker._registry.find_topic(TOPIC) is not None for one in self.brokers.values()))
        await until(lambda: len(self.owners()) == max(1, partitions))
        return by.broker._registry.topic(TOPIC).topic_id

    def owners(self) -> dict[int, MovingBroker]:
        """Return the broker that has each partition open."""
        return {index: one for one in self.brokers.values() for index in one.opened()}

    async def record(self, topic_id: int, index: int = 0) -> PartitionRecord:
        found = await self.store.get(partition_key(topic_id, index))
        assert found is not None
        return unpack(found.value, PartitionRecord)


def releases(writes: Writes) -> bool:
    """Whether a transaction writes a partition without an owner."""
    return any(
        isinstance(one, Put)
        and one.key.startswith(PARTITIONS)
        and (record := unpack(one.value, PartitionRecord)).epoch > 0
        and not record.owner
        for one in writes
    )


@asynccontextmanager
async def moving_cluster(
    directory: Path, *names: str, objects: MemoryStore | None = None, **changes: Any
) -> AsyncIterator[MovingCluster]:
    async with opened_store(directory, SystemClock()) as (store, parts):
        await store.transact([], [put_level(THIS_RELEASE.newest)])
        cluster = MovingCluster(directory, store, objects or MemoryStore(), parts)
        for name in names:
            await cluster.start(name, **changes)
        yield cluster


# -- brokers that talk to each other -----------------------------------------------------------------------------------


class TalkingCluster(Cluster):
    """Brokers with native listeners. Who owns what is what the partitions' records say."""

    async def start(self, name: str, settings: LimitSettings, **changes: Any) -> None:
        def make_peers(member: Member, tasks: Tasks) -> NativePeers:
            peers = NativePeers(member, self.clock, tasks)
            self._parts.callback(peers.close)
            return peers

        node = await self._make(name, peers=make_peers, settings=changed(SETTINGS, **changes))
        await node.broker._follow()
        server = node.server = NativeServer(node.broker, settings, self.clock, node.broker._tasks)
        host, port = await server.start("127.0.0.1", 0)
        self._parts.push_async_callback(server.close, 0.0)
        self.sessions.living[name] = replace(self.session(name), addresses=BrokerAddresses(f"{host}:{port}"))

    async def create(self, topic: TopicName = TOPIC, partitions: int = 0, **config: Any) -> int:
        """Create a topic whose partitions belong to the brokers in turn; return its id."""
        first, names = next(iter(self.nodes.values())), list(self.nodes)
        await first.broker.topics.create(ANONYMOUS, topic, TopicConfig(partitions, **config))
        topic_id = first.registry.topic(topic).topic_id
        for index in range(max(1, partitions)):
            assigned = PartitionRecord(assigned=names[index % len(names)])
            await self.store.transact([], [Put(partition_key(topic_id, index), pack(assigned))])
        await self.refresh()
        return topic_id


@asynccontextmanager
async def talking_cluster(
    directory: Path,
    names: str = "abc",
    objects: ObjectStore | None = None,
    settings: LimitSettings | None = None,
    **changes: Any,
) -> AsyncIterator[TalkingCluster]:
    clock = SystemClock()
    async with opened_store(directory, clock) as (store, parts):
        cluster = TalkingCluster(directory, store, clock, parts, Sessions())
        cluster.objects = objects
        for name in names:
            await cluster.start(name, settings or LimitSettings(), **changes)
        yield cluster


# -- brokers that follow the same metadata -----------------------------------------------------------------------------


class MemberBroker(FollowingMember):
    """A broker with a follower, on a store that others use too."""

    broker: Broker


@asynccontextmanager
async def open_brokers(directory: Path, *nodes: str) -> AsyncIterator[list[MemberBroker]]:
    """Open a store, and brokers on it that have logs of their own. Nothing here gives partitions to one of them: the
    one that a test uses for a partition opens it."""
    async with opened_store(directory, SystemClock()) as (store, parts):
        yield [await _open_broker(parts, directory, store, node) for node in nodes]


async def _open_broker(parts: AsyncExitStack, directory: Path, store: MetadataStore, node: str) -> MemberBroker:
    async def no_cluster(_registry: Registry, _tasks: Tasks) -> None:
        return None

    member = MemberBroker(store)
    made = await make_broker(
        parts,
        directory,
        member.store.view,
        SystemClock(),
        f"log of {node}",
        no_cluster,
        name=node,
        registry=member.registry,
        is_own_log=lambda _log: True,
    )
    member.broker = made.broker
    await member.broker.start()
    member._running = member.broker._following
    parts.push_async_callback(member.close)
    return member
