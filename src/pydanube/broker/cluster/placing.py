"""Gives partitions that have no owner to living brokers, by writing `assigned` into their records.

The broker that creates or grows a topic, or meets an unplaced partition, places it; the coordinator places what is
left, and what brokers that are gone have left behind. All of them may do it at the same time: each record is compared
with what was read, so the first one wins and the others see its choice.

A partition that has ledgers in the log of one broker is never placed: it waits for that broker. Topics that keep
nothing (non-reliable, or with the ack level `memory`) have no such ledgers, and are placed anew when a broker is gone.
An empty partition of another topic is placed anew only when someone asks for it, so that a restart moves nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from pydanube.broker.registry.records import (
    PartitionRecord,
    TopicRecord,
    partition_key,
    partition_of_key,
    partitions_of,
    topic_key,
)
from pydanube.broker.registry.registry import Registry
from pydanube.core.placement import Candidate, Unplaced, place
from pydanube.metadata.packing import pack, pack_over, unpack
from pydanube.metadata.store import Compare, MetadataStore, Put, list_all
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, NotFound, Unavailable
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import Clock
from pydanube.runtime.long_work import Slices
from pydanube.runtime.telemetry import get_logger
from pydanube.runtime.waits import wait_at_most

from .loads import LEAVING, STORE_AWAY, STORE_OK
from .membership import MembershipListener
from .owners import Key, StoredRecord, has_ledgers
from .parts import ClusterParts

log = get_logger(__name__)

TRIES: Final = 10
"""How often the records of a topic are read again because another broker placed its partitions at the same time."""

PLACED_AT_ONCE: Final = METADATA_OPERATIONS_MAX - 1
"""Partitions in one transaction, each with one comparison; one more is about the topic."""

ROUND_S: Final = 5.0
"""How often the coordinator looks for partitions that no broker has placed; in memory, so that it costs little."""


def is_kept(topic: TopicRecord) -> bool:
    """Return whether the messages of a topic are in the log of one broker."""
    return topic.reliable and AckLevel.parse(topic.ack_level).is_in_one_log


def is_bound_to_log(topic: TopicRecord, record: PartitionRecord | None) -> bool:
    """Return whether only the broker that writes one log can own the partition. One that is `stored` now, and was
    `durable`, is until its owner has put everything into the object store."""
    if record is None or not topic.reliable or AckLevel.parse(topic.ack_level) is AckLevel.MEMORY:
        return False
    return has_ledgers(record) and not record.sequences


class Placement:
    """Places partitions, for one broker of a cluster. A broker alone places nothing."""

    def __init__(self, registry: Registry, store: MetadataStore, cluster: ClusterParts, clock: Clock) -> None:
        self._registry = registry
        self._store = store
        self._membership = cluster.membership
        self._owners = cluster.owners
        self._loads = cluster.loads
        self._clock = clock
        self._has_left = asyncio.Event()
        """Something may have to be placed: a broker has left, or this one is the coordinator since then."""
        self._membership.subscribe(MembershipListener(left=self._look, coordinating=self._look))

    def _look(self, _session: BrokerSession) -> None:
        self._has_left.set()

    def is_unplaced(self, topic: TopicRecord, index: int) -> bool:
        """Return whether a partition has no owner and may be given to any broker."""
        if self._membership.is_alone or self._owners.owner(topic.topic_id, index) is not None:
            return False
        return not is_bound_to_log(topic, self._owners.record(topic.topic_id, index))

    def unplaced(self, topic: TopicRecord) -> list[int]:
        return [index for index in range(topic.config().partition_count) if self.is_unplaced(topic, index)]

    async def place(self, name: TopicName) -> None:
        """Assign every unplaced partition of a topic, and return when `Owners` names their brokers.

        Raises what the store raises, NotFound if the topic was deleted, and Unavailable if it was created anew or other
        brokers change the records all the time. Cancelled: some are placed.
        """
        if self._membership.is_alone:
            return
        for _ in range(TRIES):
            record = self._registry.find_topic(name)
            if record is None or not self.unplaced(record):
                return
            former = await self._read(record.topic_id)
            if indexes := self.unplaced(record):
                await self._assign(name, record, indexes, former)
        raise Unavailable(f"the partitions of topic {name} are being placed by other brokers all the time: try again")

    async def place_quietly(self, name: TopicName) -> None:
        """Place the partitions of a topic, for a caller whose own work is done: what fails is left to later calls."""
        try:
            await self.place(name)
        except DanubeError as error:
            log.warning("partitions.not_placed", topic=str(name), error=error.message)

    async def run(self) -> None:
        """Run a round at an interval, and whenever a broker has left or this one has become the coordinator, until
        cancelled; some are placed then."""
        self._has_left.clear()
        while True:
            # Wait first: where brokers start together, the first one must not place everything on itself.
            await wait_at_most(self._has_left, ROUND_S, self._clock)
            self._has_left.clear()
            await self.round()

    async def round(self) -> None:
        """Place the partitions that no broker has placed, if this broker is the coordinator. What fails is left to the
        next round."""
        slices = Slices(self._clock)
        for name in self._registry.topics():
            if not self._membership.is_coordinator():
                return
            record = self._registry.find_topic(name)
            if record is not None and self._has_left_behind(record):
                await self.place_quietly(name)
            await slices.pause_if_spent()

    def _has_left_behind(self, topic: TopicRecord) -> bool:
        """Return whether a partition of the topic is unplaced and no broker may come back for it."""
        return any(
            not is_kept(topic) or (known := self._owners.record(topic.topic_id, index)) is None or not known.owner
            for index in self.unplaced(topic)
        )

    def next_owners(self, keys: Sequence[Key], *, with_store: bool = False) -> dict[Key, str]:
        """Return another living broker for each of these partitions of this one; none if there is no other. With
        `with_store`, only one that says it has the object store."""
        mine = self._membership.session.name
        others = [one for one in self._candidates() if one.name != mine]
        if with_store:
            fit = {one.name for one in self._membership.sessions() if self._says(one, STORE_OK)}
            others = [one for one in others if one.name in fit]
        indexes: dict[int, list[int]] = {}
        for topic_id, index in keys:
            indexes.setdefault(topic_id, []).append(index)
        topics = [one for name in self._registry.topics() if (one := self._registry.topic(name)).topic_id in indexes]
        return place(others, [Unplaced(one.topic_id, indexes[one.topic_id], self._elsewhere(one)) for one in topics])

    def why_unfit(self, session: BrokerSession) -> str:
        """Return why a living broker is given no partitions, and what helps, as the end of a sentence; empty if it is
        given some."""
        if self._is_leaving(session):
            return "is stopping: name another one (`danube brokers list`)"
        if self._membership.is_drained(session.name):
            return (
                f"is drained: let it take partitions with `danube brokers resume {session.name}`, or name another one"
            )
        if self._says(session, STORE_AWAY):
            return "has lost the object store: name another one (`danube brokers list`)"
        return ""

    def _is_leaving(self, session: BrokerSession) -> bool:
        load = self._loads.of(session.name)
        return load is not None and load.state == LEAVING and load.incarnation == session.incarnation

    def _says(self, session: BrokerSession, store: str) -> bool:
        load = self._loads.of(session.name)
        return load is not None and load.says(session, store)

    def takers(self) -> list[BrokerSession]:
        """Return the living brokers that are given partitions: those that neither leave nor are drained."""
        return [
            one
            for one in self._membership.sessions()
            if not self._is_leaving(one) and not self._membership.is_drained(one.name)
        ]

    def _candidates(self) -> list[Candidate]:
        """Return the brokers that are given partitions, with what they have to do; while there is none, nothing is
        placed. One that has lost the object store is given nothing, unless all have."""
        found = []
        sessions = self.takers()
        for session in [one for one in sessions if not self._says(one, STORE_AWAY)] or sessions:
            load = self._loads.of(session.name)
            traffic = 0.0 if load is None else load.bytes_per_s
            count = len(self._owners.of_broker(session.name))
            found.append(Candidate(session.name, session.zone, count, traffic))
        return found

    def _elsewhere(self, topic: TopicRecord) -> Counter[str]:
        """Return how many partitions of a topic each living broker has."""
        owners = (self._owners.owner(topic.topic_id, index) for index in range(topic.config().partition_count))
        return Counter(owner.name for owner in owners if owner is not None)

    async def _read(self, topic_id: int) -> dict[Key, StoredRecord]:
        """Read the records of a topic: the watch may not have told yet what other brokers have changed."""
        found: dict[Key, StoredRecord] = {}
        async for one in list_all(self._store, partitions_of(topic_id)):
            stored = StoredRecord(unpack(one.value, PartitionRecord), one.value, one.mod_revision)
            found[partition_of_key(one.key)] = stored
            self._owners.wrote(*partition_of_key(one.key), stored)
        return found

    async def _assign(
        self, name: TopicName, topic: TopicRecord, indexes: Sequence[int], former: Mapping[Key, StoredRecord]
    ) -> None:
        """Choose brokers for some partitions and write them, unless their records are not as in `former` any more."""
        found = await self._store.get(topic_key(name))
        if found is None:
            raise NotFound(f"topic {name} was deleted")
        if unpack(found.value, TopicRecord).topic_id != topic.topic_id:
            raise Unavailable(f"topic {name} was created anew: look it up again")
        chosen = place(self._candidates(), [Unplaced(topic.topic_id, indexes, self._elsewhere(topic))])
        if not chosen:
            drained = [one.name for one in self._membership.sessions() if self._membership.is_drained(one.name)]
            remedy = f"`danube brokers resume {drained[0]}`, or start another one" if drained else "try again"
            raise Unavailable(f"topic {name} cannot be placed: no living broker takes partitions; {remedy}")
        exists = Compare.mod_revision(topic_key(name), found.mod_revision)
        keys = list(chosen)
        for start in range(0, len(keys), PLACED_AT_ONCE):
            some = {key: chosen[key] for key in keys[start : start + PLACED_AT_ONCE]}
            if not await self._write(exists, some, former):
                return
        log.info("partitions.placed", topic=str(name), partitions=len(keys), brokers=sorted(set(chosen.values())))

    async def _write(self, exists: Compare, chosen: Mapping[Key, str], former: Mapping[Key, StoredRecord]) -> bool:
        """Write `assigned` of some partitions in one transaction; return whether their records were as they are
        known."""
        compares, puts, written = [exists], [], {}
        for key, broker in chosen.items():
            known = former.get(key)
            record = msgspec.structs.replace(known.record if known else PartitionRecord(), assigned=broker)
            value = pack_over(known.value, record) if known else pack(record)
            compares.append(Compare.mod_revision(partition_key(*key), known.revision if known else 0))
            puts.append(Put(partition_key(*key), value))
            written[key] = record, value
        result = await self._store.transact(compares, puts)
        if result.succeeded:
            for key, (record, value) in written.items():
                self._owners.wrote(*key, StoredRecord(record, value, result.revision))
        return result.succeeded
