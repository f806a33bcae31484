"""Brokers of one cluster in one process: one metadata store, a log each, and sessions that the test ends and begins.

A session is a key of the store, as in a real cluster, so that transactions compare it. The test decides when a broker
learns that its session is over, and until when it may believe that it lives (`Member.is_held`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker_harness import SETTINGS, BrokerClient, changed

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.cluster.peers import NoPeers
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import AllowAll
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.following import Follower
from pydanube.metadata.store import Compare, Delete, Put
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, MetadataStamp, NodeIdentity

FOUNDER = "a"
"""The broker whose log earlier releases meant when they named none."""


def session_key(name: str) -> str:
    return f"/brokers/sessions/{name}"


def is_log_of(name: str, log: str) -> bool:
    return log == f"log-{name}" or (not log and name == FOUNDER)


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


class Sessions:
    """The sessions of a cluster."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.living: dict[str, BrokerSession] = {}
        self.away: dict[str, int] = {}
        self.members: dict[str, Member] = {}
        self._incarnations = 0

    async def begin(self, name: str) -> Member:
        """Begin a session; a broker that has had one takes a new incarnation."""
        self._incarnations += 1
        address = BrokerAddresses(f"{name}.test:6650")
        session = BrokerSession(name, self._incarnations, address, log=f"log-{name}")
        result = await self.store.transact([], [Put(session_key(name), b"%d" % self._incarnations)])
        self.living[name] = session
        self.away.pop(name, None)
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = Member(self, session, result.revision)
        else:
            member.begin(session, result.revision)
        for other in self.members.values():
            other.tell("renewed" if other is member else "joined", session)
        return member

    async def end(self, name: str, since_us: int = 0, learns: bool = True) -> None:
        """End a session. With `learns`, the broker is told; without, it is paused or cut off, and does not know."""
        session = self.living.pop(name)
        self.away[name] = since_us
        await self.store.transact([], [Delete(session_key(name))])
        for other in self.members.values():
            if other.session.name != name:
                other.tell("left", session)
        if learns:
            self.learn(session)

    def learn(self, session: BrokerSession) -> None:
        """Tell a broker that its session is over."""
        self.members[session.name].is_held = False
        self.members[session.name].tell("lost", session)


class Member:
    """The membership of one broker."""

    is_alone = False
    lease = 0

    def __init__(self, sessions: Sessions, session: BrokerSession, revision: int) -> None:
        self._sessions = sessions
        self._listeners: list[MembershipListener] = []
        self.given_up: list[int] = []
        """The incarnations of the sessions that the broker gave up; a test begins the next one."""
        self.begin(session, revision)

    def begin(self, session: BrokerSession, revision: int) -> None:
        self.session = session
        self.is_held = True
        self._revision = revision

    def tell(self, what: str, session: BrokerSession) -> None:
        for listener in list(self._listeners):
            getattr(listener, what)(session)

    def holds(self) -> bool:
        return self.is_held

    def age_s(self) -> float:
        return 0.0

    def is_own_log(self, log: str) -> bool:
        return is_log_of(self.session.name, log)

    def sessions(self) -> list[BrokerSession]:
        return [one for _, one in sorted(self._sessions.living.items())]

    def find(self, name: str) -> BrokerSession | None:
        return self._sessions.living.get(name)

    def alive(self) -> list[Compare]:
        return [Compare.mod_revision(session_key(self.session.name), self._revision)]

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        found = await self._sessions.store.get(session_key(name))
        if found is not None and int(found.value) == incarnation:
            return None
        return [Compare.mod_revision(session_key(name), found.mod_revision if found is not None else 0)]

    def give_up(self, incarnation: int) -> None:
        self.given_up.append(incarnation)

    def is_coordinator(self) -> bool:
        return self.session.name == min(self._sessions.living, default="")

    coordinator_name = ""

    def away(self) -> list[str]:
        return []

    def away_since(self, name: str) -> int:
        return self._sessions.away.get(name, 0)

    def subscribe(self, listener: MembershipListener) -> None:
        self._listeners.append(listener)


class Node:
    """One running broker of the cluster."""

    def __init__(self, broker: Broker, member: Member, writer: LogWriter, parts: AsyncExitStack) -> None:
        self.broker = broker
        self.member = member
        self.writer = writer
        self.partitions = broker._partitions
        self.client = BrokerClient(broker)
        self._parts = parts

    async def stop(self) -> None:
        await self._parts.aclose()


class World:
    """One metadata store, and the brokers that the test starts on it."""

    def __init__(self, directory: Path, store: Any, clock: Clock, parts: AsyncExitStack) -> None:
        self._directory = directory
        self.store = store
        self.clock = clock
        self._parts = parts
        self.sessions = Sessions(store)
        self.objects: ObjectStore | None = None
        """The object store of the brokers that are started from now on."""

    async def start(self, name: str, **changes: Any) -> Node:
        """Start a broker as `server` does: the metadata is checked against the log before anything is freed. With
        `follows`, its registry follows what the others change."""
        follows = changes.pop("follows", False)
        parts = await self._parts.enter_async_context(AsyncExitStack())
        objects = changes.pop("objects", self.objects)
        registry = Registry(self.store, self.clock)
        await registry.load()
        known = await registry.known_ledgers(lambda log: is_log_of(name, log))
        writer = await LogWriter.open(
            OsDisk(),
            self._directory / name / "wal",
            NodeIdentity("cluster", name, f"log-{name}"),
            changes.pop("wal", LogSettings()),
            self.clock,
            is_needed=known.needed.__contains__,
            check=lambda recovered: known.check(self.store, recovered, self._directory / "metadata.db"),
            metadata=MetadataStamp((await self.store.identity()).store_id, await self.store.revision()),
        )
        parts.push_async_callback(writer.close)
        writer.forget(set(writer.recovered.ledgers) - known.needed)
        member = await self.sessions.begin(name)
        parts.push_async_callback(self._leave, name)
        tasks = Tasks()
        parts.push_async_callback(tasks.close)
        follower = registry.follower if follows else Follower(self.store, self.clock)
        cluster = ClusterParts(member, ClusterOwners(member, follower), NoPeers())
        if not follows:
            await follower.start()
            tasks.spawn(follower.run(), f"follow {name}")
        made_of = BrokerParts(
            self.store,
            registry,
            writer,
            AllowAll(),
            self.clock,
            tasks,
            lambda: member.session.addresses,
            objects,
            cluster=cluster,
        )
        broker = Broker(made_of, changed(SETTINGS, **changes))
        if follows:
            await broker.start()
        else:
            await registry.follower.list_added()
        parts.push_async_callback(broker.close)
        return Node(broker, member, writer, parts)

    async def _leave(self, name: str) -> None:
        self.sessions.members.pop(name)
        if name in self.sessions.living:
            await self.sessions.store.transact([], [Delete(session_key(name))])
            session = self.sessions.living.pop(name)
            for other in self.sessions.members.values():
                other.tell("left", session)


@asynccontextmanager
async def open_world(directory: Path, clock: Clock | None = None) -> AsyncIterator[World]:
    clock = clock or SystemClock()
    async with AsyncExitStack() as parts:
        embedded = await EmbeddedStore.open(directory / "metadata.db", clock)
        parts.push_async_callback(embedded.close)
        yield World(directory, Interrupted(embedded), clock, parts)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something that other tasks do has happened."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for happens inside the broker
            await asyncio.sleep(0.005)
