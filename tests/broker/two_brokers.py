"""Two brokers of one cluster in one process: one metadata store, a log each, and calls instead of connections.

A test gives a partition to a broker by its record in the metadata, which both brokers follow. A broker lives until the
test ends its session, and a request to another broker is a call of its listener's table. No task opens or places
partitions by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from cluster_harness import Sessions, make_broker, opened_store

from pydanube.broker import Broker
from pydanube.broker.cluster.owners import ClusterOwners
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.registry.records import PartitionRecord, partition_key
from pydanube.broker.registry.registry import Registry
from pydanube.codec.batch import Batch
from pydanube.codec.native import requests as wire
from pydanube.core.access import ANONYMOUS
from pydanube.core.identity import NOBODY
from pydanube.gateway.native.requests import perform
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import pack
from pydanube.metadata.store import Put
from pydanube.model.errors import Unavailable
from pydanube.model.messages import Published
from pydanube.model.names import TopicName
from pydanube.model.replies import InboxAddress, ReplyHead
from pydanube.model.topics import TopicConfig
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks, outcome_of
from waiting import until

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)


@dataclass
class Table:
    """The ways between the brokers, as all of them see them at once."""

    sessions: Sessions = field(default_factory=Sessions)
    unreachable: set[str] = field(default_factory=set)
    """Brokers that live, and answer no other broker."""
    brokers: dict[str, Broker] = field(default_factory=dict)
    asked: list[tuple[str, object]] = field(default_factory=list)
    """Every request to another broker: its name, and the request or the batch."""
    lose_answers: bool = False
    """Whether what a broker is asked happens and its answer is lost."""

    def reach(self, name: str, what: object) -> Broker:
        self.asked.append((name, what))
        if name not in self.sessions.living or name in self.unreachable:
            raise Unavailable(f"broker {name!r} does not answer")
        return self.brokers[name]


class DirectPeers:
    """Calls the other broker in this process."""

    def __init__(self, table: Table) -> None:
        self._table = table

    async def request(self, broker: str, request: wire.Request, answer: type[AnswerT]) -> AnswerT:
        other = self._table.reach(broker, request)
        decoded = wire.decode_request(memoryview(wire.encode(request)))
        with other.freshness.checked():
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

    def reply(self, inbox: InboxAddress, head: ReplyHead, payload: bytes) -> None:
        with suppress(Unavailable):
            self._table.reach(inbox.broker, inbox).inboxes.deliver(str(inbox), head, payload)


class _Caller:
    """A connection from another broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.principal = ANONYMOUS
        self.identity = NOBODY
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
        await self.a.topics.create(ANONYMOUS, topic, TopicConfig(partitions))
        await until(lambda: self.b._registry.find_topic(topic) is not None)
        for index in range(max(1, partitions)):
            await self.give(topic, index, next((name for name, some in owners.items() if index in some), "a"))
        return self.registry.topic(topic).topic_id

    def advertise(self, name: str, **addresses: str) -> None:
        """Let the session of a broker name the addresses of listeners that the test has opened."""
        session = self.table.sessions.living[name]
        self.table.sessions.living[name] = replace(session, addresses=replace(session.addresses, **addresses))

    def opened_by(self, topic: TopicName) -> dict[str, list[int]]:
        """Return which partitions of a topic each broker has open."""
        topic_id = self.registry.topic(topic).topic_id
        return {
            name: sorted(one.index for one in broker._partitions.open_of(topic_id))
            for name, broker in self.table.brokers.items()
        }


@asynccontextmanager
async def two_brokers(
    directory: Path, objects: ObjectStore | None = None, clock: Clock | None = None
) -> AsyncIterator[TwoBrokers]:
    clock = clock or SystemClock()
    table = Table()
    async with opened_store(directory, clock) as (store, parts):
        for name in "ab":
            await table.sessions.begin(name)
            table.brokers[name] = await _open(parts, directory, table, name, store, clock, objects)
        yield TwoBrokers(table.brokers["a"], table.brokers["b"], table, store, clock)


async def _open(
    parts: AsyncExitStack,
    directory: Path,
    table: Table,
    name: str,
    store: EmbeddedStore,
    clock: Clock,
    objects: ObjectStore | None,
) -> Broker:
    async def make_cluster(registry: Registry, _tasks: Tasks) -> ClusterParts:
        member = table.sessions.members[name]
        return ClusterParts(member, ClusterOwners(member, registry.follower), DirectPeers(table))

    made = await make_broker(parts, directory, store, clock, f"log-{name}", make_cluster, objects=objects)
    await made.broker._follow()
    if objects is not None:
        made.broker.staging.start()
    return made.broker
