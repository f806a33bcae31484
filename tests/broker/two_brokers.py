"""Two brokers of one cluster in one process: one metadata store, a log each, and calls instead of connections.

A test gives a partition to a broker by its record in the metadata, which both brokers follow. A broker lives until the
test ends its session, and a request to another broker is a call of its listener's table. No task opens or places
partitions by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from broker_harness import SETTINGS

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.cluster.membership import MembershipListener
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.registry.records import PartitionRecord, partition_key
from pydanube.broker.registry.registry import Registry
from pydanube.codec.batch import Batch
from pydanube.codec.native import requests as wire
from pydanube.core.access import ANONYMOUS, AllowAll
from pydanube.gateway.native.requests import perform
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Compare, Put
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import Unavailable
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.settings.sections import LogSettings
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks, outcome_of
from pydanube.storage.wal import LogWriter, MetadataStamp, NodeIdentity

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
Key = tuple[int, int]


@dataclass
class Table:
    """Who lives and who owns what, as all brokers of the test see it at once."""

    sessions: dict[str, BrokerSession] = field(default_factory=dict)
    coordinator: str = "a"
    unreachable: set[str] = field(default_factory=set)
    """Brokers that live, and answer no other broker."""
    brokers: dict[str, Broker] = field(default_factory=dict)
    asked: list[tuple[str, object]] = field(default_factory=list)
    """Every request to another broker: its name, and the request or the batch."""
    ages_s: dict[str, float] = field(default_factory=dict)
    """For how long brokers have had no session; those that are missing here have one."""
    lose_answers: bool = False
    """Whether what a broker is asked happens and its answer is lost."""
    listeners: list[MembershipListener] = field(default_factory=list)
    following: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """What keeps each broker's memory as the metadata is; a test cancels one, and that broker hears of nothing new."""

    def end(self, name: str) -> None:
        """End the session of a broker, whose partitions have no owner then."""
        session = self.sessions.pop(name)
        for listener in self.listeners:
            listener.left(session)

    def reach(self, name: str, what: object) -> Broker:
        self.asked.append((name, what))
        if name not in self.sessions or name in self.unreachable:
            raise Unavailable(f"broker {name!r} does not answer")
        return self.brokers[name]


class TableMembership:
    is_alone = False
    lease = 0

    def __init__(self, table: Table, session: BrokerSession) -> None:
        self._table = table
        self._last = session

    @property
    def session(self) -> BrokerSession:
        self._last = self._table.sessions.get(self._last.name, self._last)
        return self._last

    def holds(self) -> bool:
        return not self.age_s()

    def age_s(self) -> float:
        return self._table.ages_s.get(self._last.name, 0.0)

    def is_own_log(self, log: str) -> bool:
        return log in ("", self.session.log)

    def sessions(self) -> list[BrokerSession]:
        return [one for _, one in sorted(self._table.sessions.items())]

    def find(self, name: str) -> BrokerSession | None:
        return self._table.sessions.get(name)

    def alive(self) -> list[Compare]:
        return []

    async def gone(self, name: str, incarnation: int) -> list[Compare] | None:
        found = self.find(name)
        return None if found is not None and found.incarnation == incarnation else []

    @property
    def coordinator_name(self) -> str:
        return self._table.coordinator

    def away(self) -> list[str]:
        return []

    def give_up(self, incarnation: int) -> None:
        raise AssertionError("no test lets a session be given up")

    def is_coordinator(self) -> bool:
        return self._table.coordinator == self.session.name

    def away_since(self, name: str) -> int:
        return 0

    def subscribe(self, listener: MembershipListener) -> None:
        self._table.listeners.append(listener)


class DirectPeers:
    """Calls the other broker in this process."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def request(self, broker: str, request: wire.Request, answer: type[AnswerT]) -> AnswerT:
        other = self._table.reach(broker, request)
        decoded = msgspec.msgpack.decode(wire.encode(request), type=wire.AnyRequest)
        found = wire.decode(memoryview(await perform(_Caller(other), decoded)), answer)  # type: ignore[arg-type]
        if self._table.lose_answers:
            raise Unavailable(f"the answer of broker {broker!r} was lost")
        return found

    async def publish(self, broker: str, topic: TopicName, partition: int, batch: memoryview) -> Published:
        other = self._table.reach(broker, batch)
        owned = await other._partitions.get(topic, partition)
        found: Published = await outcome_of(partial(owned.publish, Batch.open(memoryview(bytearray(batch)))))
        if self._table.lose_answers:
            raise Unavailable(f"the answer of broker {broker!r} was lost")
        return found._replace(duplicate=False)


class _Caller:
    """A connection from another broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.principal = ANONYMOUS
        self.producers: dict[int, Any] = {}
        self.consumers: dict[int, Any] = {}


@dataclass
class TwoBrokers:
    """The brokers `a` and `b`."""

    a: Broker
    b: Broker
    table: Table
    store: EmbeddedStore
    clock: Clock

    @property
    def registry(self) -> Registry:
        return self.a._registry

    async def give(self, topic: TopicName, index: int, name: str) -> None:
        """Let a broker be the owner of a partition that was never opened, and wait until both brokers know it."""
        key = (self.registry.topic(topic).topic_id, index)
        written = await self.store.transact([], [Put(partition_key(*key), pack(PartitionRecord(assigned=name)))])
        for broker in (self.a, self.b):
            await broker._registry.follower.reached(written.revision)

    async def create(self, topic: TopicName, partitions: int = 0, **owners: list[int]) -> int:
        """Create a topic whose partitions belong to `a`, except for those that `b` or `nobody` names; return its id."""
        await self.a.create_topic(ANONYMOUS, topic, TopicConfig(partitions))
        async with asyncio.timeout(60):
            while self.b._registry.find_topic(topic) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        for index in range(max(1, partitions)):
            await self.give(topic, index, next((name for name, some in owners.items() if index in some), "a"))
        return self.registry.topic(topic).topic_id

    def advertise(self, name: str, **addresses: str) -> None:
        """Let the session of a broker name the addresses of listeners that the test has opened."""
        session = self.table.sessions[name]
        self.table.sessions[name] = replace(session, addresses=replace(session.addresses, **addresses))

    def opened_by(self, topic: TopicName) -> dict[str, list[int]]:
        """Return which partitions of a topic each broker has open."""
        topic_id = self.registry.topic(topic).topic_id
        return {
            name: sorted(one.index for one in broker._partitions.open_of(topic_id))
            for name, broker in self.table.brokers.items()
        }


@asynccontextmanager
async def two_brokers(
    directory: Path, objects: ObjectStore | None = None, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[TwoBrokers]:
    clock = clock or SystemClock()
    table = Table()
    async with AsyncExitStack() as parts:
        store = await EmbeddedStore.open(directory / "metadata.db", clock)
        parts.push_async_callback(store.close)
        for number, name in enumerate("ab", 1):
            session = BrokerSession(name, number, addresses_of(name), log=f"log-{name}")
            table.sessions[name] = session
            table.brokers[name] = await _open(parts, directory, name, table, session, store, clock, objects)
        yield TwoBrokers(table.brokers["a"], table.brokers["b"], table, store, clock)


def addresses_of(name: str) -> BrokerAddresses:
    return BrokerAddresses(f"{name}.test:6650", f"{name}.test:6651", f"{name}.test:6652", f"{name}.test:6653")


async def _open(
    parts: AsyncExitStack,
    directory: Path,
    name: str,
    table: Table,
    session: BrokerSession,
    store: EmbeddedStore,
    clock: Clock,
    objects: ObjectStore | None,
) -> Broker:
    writer = await LogWriter.open(
        OsDisk(),
        directory / name / "wal",
        NodeIdentity("cluster", name, session.log),
        LogSettings(),
        clock,
        is_needed=lambda _ledger: True,
        metadata=MetadataStamp((await store.identity()).store_id, await store.revision()),
    )
    parts.push_async_callback(writer.close)
    tasks = Tasks()
    parts.push_async_callback(tasks.close)
    registry, membership = Registry(store, clock), TableMembership(table, session)
    cluster = ClusterParts(membership, ClusterOwners(membership, registry.follower), DirectPeers(table))
    await registry.load()
    broker_parts = BrokerParts(
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
    broker = Broker(broker_parts, SETTINGS)
    await broker._follow()
    assert broker._following is not None
    table.following[name] = broker._following
    if objects is not None:
        broker.staging.start()
    parts.push_async_callback(broker.close)
    return broker
