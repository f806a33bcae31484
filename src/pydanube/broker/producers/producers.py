"""Producers: their identities, which of them are live, and exclusive access to a topic.

An identity is a number and an epoch. Opening a name again raises the name's epoch and fences the producer that used it
before. Each request for an identity has a number, its `opener`: one that is repeated, or carried out late, changes
nothing. A producer with exclusive access takes the whole topic under a higher access epoch, and all producers before it
are fenced for good: the access epoch is in the metadata, and in every identity that is given out.

Producers of the Danube gRPC API are identified by a hash of topic, name and principal (`shared_id`) and have neither
epoch nor sequence: all that one principal has under one name share one identity, also after a restart, and fence
nobody. A native producer of the same name is another one.

An id, and a name, belong to the principal that opened them first, if callers are authenticated (registry.producer_ids).

In a cluster the partitions of a topic may have several owners, each with live producers of its own. Whoever fences asks
the others to fence theirs before it answers, and whoever admits asks them which producers they have, where a limit or
exclusive access may matter. An owner that lives and does not answer makes the open fail: Unavailable.

Invariants
    a fenced producer stores nothing after the open that fenced it has returned, here or after a restart
    while an exclusive producer is live, no other producer of the topic is
    a producer whose connection is closed is not live
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal

from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.records import AccessRecord, ProducerRecord, TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.security.audit_operations import AuditSession, open_session
from pydanube.codec.native.requests import CountProducers, Done, FenceProducers, ProducerCount
from pydanube.core.access import ANONYMOUS, Action, Authorizer, Principal
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import DanubeError, Denied, Full, Invalid, Refused, StaleEpoch, Unavailable
from pydanube.model.limits import PRODUCER_NAME_BYTES_MAX
from pydanube.model.names import TopicName
from pydanube.model.replies import REQUEST_PRODUCER
from pydanube.runtime.tasks import ignore

Access = Literal["shared", "exclusive"]

SHARED_PRODUCER: Final = 1 << 62
"""A producer id with this bit set, and not the next higher one (`core.staging.STAGED_PRODUCER`), is a `shared_id`. Ids
of native producers come from a counter, which never gets so far."""


def shared_id(address: str, name: str, owner: str = "") -> int:
    """Return the id of all producers of the Danube gRPC API that the principal `owner` has under this name at this
    address, a topic or a partition."""
    text = f"{address}\0{name}\0{owner}" if owner else f"{address}\0{name}"
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=b"danube-producer").digest()
    return SHARED_PRODUCER | int.from_bytes(digest, "big") >> 2


class Producer:
    """The right to publish to one partition, under one identity."""

    __slots__ = (
        "_group",
        "access_epoch",
        "fenced",
        "forwards",
        "is_closed",
        "is_own",
        "is_proven",
        "namespace",
        "owner_epoch",
        "partition",
        "principal",
        "producer_epoch",
        "producer_id",
        "session",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: Partition,
        identity: ProducerRecord,
        group: TopicProducers,
        access_epoch: int = 0,
        principal: Principal = ANONYMOUS,
    ) -> None:
        """`access_epoch`: that of the topic when the producer was opened. `principal` opened it, and is checked again
        when the rules of access change."""
        self.topic = topic
        self.namespace = topic[1:].partition("/")[0]
        self.is_closed = False
        self.principal = principal
        self.access_epoch = access_epoch
        self.partition = partition
        self.producer_id = identity.producer_id
        self.producer_epoch = identity.epoch
        self.owner_epoch = partition.epoch
        self.fenced: DanubeError | None = None
        self.forwards = False
        """Whether it publishes batches of any producers, which another broker forwards."""
        self.is_own = False
        """Whether this broker makes its batches itself, so that their bytes need no check."""
        self.is_proven = False
        """Whether that is surely another broker, also without authentication."""
        self.session: AuditSession | None = None
        """Counts what is published, for the audit; None: that is not recorded."""
        self._group = group

    def close(self) -> None:
        """Stop being live. What the producer stored is remembered for deduplication all the same."""
        self.is_closed = True
        self._group.remove(self)


class TopicProducers:
    """The live producers of one topic."""

    def __init__(self, topic_id: int, on_empty: Callable[[], object]) -> None:
        self.topic_id = topic_id
        self.changing = asyncio.Lock()  # one open at a time: each must see which producers the one before fenced
        self._on_empty = on_empty
        self._opening = 0
        self.taken_epoch = 0
        """The highest access epoch that another broker has told of since a producer is being opened, or is live."""
        self._live: dict[int, list[Producer]] = {}
        self._holder: int | None = None

    def __iter__(self) -> Iterator[Producer]:
        return iter([producer for handles in self._live.values() for producer in handles])

    def __len__(self) -> int:
        """Return the number of producers; one that publishes to several partitions counts once."""
        return len(self._live)

    def of(self, producer_id: int) -> list[Producer]:
        """Return the handles of one producer, one per partition; none if it is not live."""
        return list(self._live.get(producer_id, ()))

    @property
    def ids(self) -> list[int]:
        return list(self._live)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Keep the group registered while a producer is being opened."""
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1
            self._report_if_empty()

    @property
    def holder(self) -> int | None:
        """The id of the live producer with exclusive access; None if there is none."""
        return self._holder

    def hold(self, producer_id: int) -> None:
        assert self._live.keys() <= {producer_id}
        self._holder = producer_id

    def add(self, producer: Producer) -> None:
        self._live.setdefault(producer.producer_id, []).append(producer)
        producer.partition.producers += 1

    def remove(self, producer: Producer) -> None:
        handles = self._live.get(producer.producer_id, [])
        if producer not in handles:
            return
        handles.remove(producer)
        producer.partition.producers -= 1
        if producer.session is not None:
            producer.session.end(producer.fenced)
        if not handles:
            del self._live[producer.producer_id]
            if self._holder == producer.producer_id:
                self._holder = None
            self._report_if_empty()

    def _report_if_empty(self) -> None:
        if not self._live and not self._opening:
            self._on_empty()

    def fence(self, producer: Producer, error: StaleEpoch | Denied) -> None:
        producer.fenced = error
        self.remove(producer)


class Producers:
    """Opens producers, and keeps the live ones of every topic."""

    def __init__(
        self, registry: Registry, partitions: Partitions, cluster: ClusterParts, authorizer: Authorizer
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._cluster = cluster
        self._authorizer = authorizer
        self._groups: dict[int, TopicProducers] = {}

    def count(self, topic_id: int) -> int:
        """Return the number of live producers of a topic."""
        group = self._groups.get(topic_id)
        return len(group) if group is not None else 0

    def is_held(self, topic_id: int) -> bool:
        """Return whether a live producer has exclusive access to the topic."""
        group = self._groups.get(topic_id)
        return group is not None and group.holder is not None

    def __iter__(self) -> Iterator[Producer]:
        """Return the live producers of all topics, as they are now."""
        return iter([producer for group in self._groups.values() for producer in group])

    async def open(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        name: str,
        producer_id: int,
        producer_epoch: int,
        access: Access,
        opener: int,
    ) -> Producer:
        """Open a producer; see codec.native.requests.OpenProducer. Cancelled: others may have been fenced all the same.

        Raises Denied for an id or a name that belongs to another principal. A name is given to a principal that may
        administer the topic.
        """
        if len(name.encode()) > PRODUCER_NAME_BYTES_MAX:
            raise Invalid(f"a producer's name has at most {PRODUCER_NAME_BYTES_MAX} bytes")
        owned = await self._partitions.get(topic, partition)
        topic_id = self._registry.topic(topic).topic_id
        group = self._groups.setdefault(topic_id, TopicProducers(topic_id, partial(self._groups.pop, topic_id, None)))
        with group.opening():
            async with self._registry.named(topic), group.changing:
                record = await self._registry.access(topic)
                returning: ProducerRecord | None = None
                if producer_id:
                    returning = ProducerRecord(producer_id, producer_epoch, opener=opener, owner=principal.owner_id)
                    returning = await self._check_returning(topic, name, returning, record)
                identity = await self._admit(
                    group, topic, name, returning, record, access == "exclusive", opener, principal
                )
                if access == "exclusive":
                    record = await self._check_taken(topic, identity)
                await self._registry.ask_whether_current(topic, topic_id)  # else what it acks would be gone
                self._partitions.check_served(topic, topic_id, owned)
                if group.taken_epoch > record.epoch:
                    raise Unavailable(f"another producer has just taken topic {topic}: open again")
                self._authorizer.check(principal, Action.PRODUCE, str(topic))  # the rules may have changed meanwhile
                producer = Producer(str(topic), owned, identity, group, record.epoch, principal)
                producer.session = open_session(Action.PRODUCE, producer.topic, partition)
                group.add(producer)
                if access == "exclusive":
                    group.hold(identity.producer_id)
                return producer

    async def open_shared(
        self,
        principal: Principal,
        topic: TopicName,
        partition: int,
        name: str,
        producer_id: int,
        exclusive: bool = False,
    ) -> Producer:
        """Return the producer that all clients share which use this `shared_id`; open it if it is not open.

        `exclusive`: as long as it is open, the topic has no other producer; raises Refused if it has others already.
        Nobody is fenced. The caller closes the producer once none of its clients is left.
        """
        if not 1 <= len(name.encode()) <= PRODUCER_NAME_BYTES_MAX:
            raise Invalid(f"a producer's name has 1 to {PRODUCER_NAME_BYTES_MAX} bytes")
        owned = await self._partitions.get(topic, partition)
        topic_id = self._registry.topic(topic).topic_id
        group = self._groups.setdefault(topic_id, TopicProducers(topic_id, partial(self._groups.pop, topic_id, None)))
        with group.opening():
            async with self._registry.named(topic), group.changing:
                access = await self._registry.access(topic)
                others = await self._elsewhere(topic, topic_id, access, exclusive)
                await self._registry.ask_whether_current(topic, topic_id)  # else what it acks would be gone
                self._partitions.check_served(topic, topic_id, owned)
                identity = ProducerRecord(producer_id)
                self._check_allowed(group, topic, identity, True, others)
                if group.taken_epoch > access.epoch:
                    raise Unavailable(f"another producer has just taken topic {topic}: open again")
                if exclusive and {*group.ids, *others.ids} - {producer_id}:
                    raise Refused(
                        f"topic {topic} has other producers, and {name!r} asks for exclusive access: close them first"
                    )
                self._authorizer.check(principal, Action.PRODUCE, str(topic))
                found = [one for one in group.of(producer_id) if one.partition is owned]
                producer = found[0] if found else Producer(str(topic), owned, identity, group, access.epoch, principal)
                if not found:
                    producer.session = open_session(Action.PRODUCE, producer.topic, partition)
                    group.add(producer)
                producer.principal = principal  # it may have other groups than when it opened the producer
                if exclusive:
                    group.hold(producer_id)
                return producer

    async def open_forwarder(
        self, principal: Principal, topic: TopicName, partition: int, is_proven: bool = False
    ) -> Producer:
        """Return a handle that publishes batches of any producers. It counts as none of the topic's producers, fences
        nobody and is not fenced: the producers of its batches were admitted by the broker that forwards them."""
        owned = await self._partitions.get(topic, partition)
        producer = Producer(str(topic), owned, ProducerRecord(0), TopicProducers(0, ignore), principal=principal)
        producer.forwards, producer.is_proven = True, is_proven
        return producer

    async def open_for_requests(self, topic: TopicName, partition: int) -> Producer:
        """Return a handle that publishes requests of any callers, each of which is checked when it publishes. It counts
        as none of the topic's producers, fences nobody and is not fenced."""
        owned = await self._partitions.get(topic, partition)
        producer = Producer(str(topic), owned, ProducerRecord(REQUEST_PRODUCER), TopicProducers(0, ignore))
        producer.is_own = True
        return producer

    async def _admit(
        self,
        group: TopicProducers,
        topic: TopicName,
        name: str,
        returning: ProducerRecord | None,
        access: AccessRecord,
        exclusive: bool,
        opener: int,
        principal: Principal,
    ) -> ProducerRecord:
        """Return the identity of a producer that is opened, after fencing the producers that it replaces. If the open
        is refused, nothing has changed. `returning` is the identity that the client already has."""
        if not exclusive:
            known = returning or (await self._registry.named_producer(topic, name) if name else None)
            others = await self._elsewhere(topic, group.topic_id, access)
            self._check_allowed(group, topic, known, returning is not None, others)
        takes_access = exclusive and not _is_same_opener(opener, access.opener)
        epoch, owner = access.epoch + takes_access, principal.owner_id
        takes = bool(name) and self._authorizer.allows(principal, Action.ADMINISTER, str(topic))
        identity = returning
        if identity is None and name:
            identity = await self._registry.resume_producer(topic, group.topic_id, name, epoch, opener, owner, takes)
        elif identity is None:
            identity = await self._registry.new_producer(epoch, owner)
        if exclusive and not (group.holder == identity.producer_id and access.is_held_by(identity)):
            await self._registry.take_access(topic, group.topic_id, identity, opener)
            why = f"another producer has taken topic {topic} under a higher epoch: this one is fenced"
            self._fence(group, group.topic_id, list(group), partial(_is_another, identity), why)
            await self._fence_elsewhere(topic, group.topic_id, identity, access.epoch + 1)
        elif returning is None and name:
            why = f"producer {name!r} was opened again under a higher epoch: this one is fenced"
            self._fence(group, group.topic_id, group.of(identity.producer_id), partial(_is_older, identity), why)
            await self._fence_elsewhere(topic, group.topic_id, identity, 0)
        return identity

    # -- other brokers -------------------------------------------------------------------------------------------------

    def live(self, topic_id: int) -> ProducerCount:
        """Return the live producers of a topic at this broker."""
        group = self._groups.get(topic_id)
        return ProducerCount() if group is None else ProducerCount(group.ids, group.holder or 0)

    async def live_everywhere(self, topic: TopicName, record: TopicRecord) -> set[int]:
        """Return the ids of the producers that a topic has at all brokers. Raises Unavailable if an owner of one of its
        partitions is away or does not answer."""
        placement = self._partitions.placement
        for index, owner in enumerate(self._partitions.routing.owners_of(record)):
            if owner is None and not placement.is_unplaced(record, index):
                raise Unavailable(f"partition {index} of {topic} waits for its broker, which is away")
        found = set(self.live(record.topic_id).ids)
        for other in self._other_owners(topic, record.topic_id):
            request = CountProducers(topic=str(topic), topic_id=record.topic_id)
            found.update((await self._cluster.peers.request(other.name, request, ProducerCount)).ids)
        return found

    def access_taken(self, topic_id: int, access: AccessRecord) -> None:
        """Fence the producers of a topic that another one has replaced, perhaps at another broker. Producers that were
        opened under this access epoch stay."""
        group = self._groups.get(topic_id)
        if group is None:
            return
        group.taken_epoch = max(group.taken_epoch, access.epoch)
        kept = {(access.producer_id, access.producer_epoch)}
        kept |= {(one.producer_id, one.producer_epoch) for one in group if one.access_epoch >= access.epoch}
        why = "another producer has taken the topic under a higher epoch: this one is fenced"
        self._fence_at(topic_id, lambda producer_id, epoch: (producer_id, epoch) not in kept, why)

    def producer_resumed(self, topic_id: int, identity: ProducerRecord) -> None:
        """Fence the producers whose name was opened again under a higher epoch, perhaps at another broker."""
        if identity.epoch:
            why = "the producer was opened again under a higher epoch: this one is fenced"
            self._fence_at(topic_id, partial(_is_older, identity), why)

    def _fence_at(self, topic_id: int, is_replaced: Callable[[int, int], bool], why: str) -> None:
        group = self._groups.get(topic_id)
        if group is not None:
            self._fence(group, topic_id, list(group), is_replaced, why)

    def _other_owners(self, topic: TopicName, topic_id: int) -> list[BrokerSession]:
        return self._cluster.other_owners(topic_id, self._registry.topic(topic).config().partition_count)

    async def _elsewhere(
        self, topic: TopicName, topic_id: int, access: AccessRecord, exclusive: bool = False
    ) -> ProducerCount:
        """Return the producers that the topic has at other brokers, if a limit or exclusive access may matter."""
        if not (access.epoch or exclusive or self._partitions.policies_of(topic).producers_max):
            return ProducerCount()
        found = ProducerCount()
        for owner in self._other_owners(topic, topic_id):
            request = CountProducers(topic=str(topic), topic_id=topic_id)
            one = await self._cluster.peers.request(owner.name, request, ProducerCount)
            found = ProducerCount([*found.ids, *one.ids], one.holder or found.holder)
        return found

    async def _fence_elsewhere(
        self, topic: TopicName, topic_id: int, identity: ProducerRecord, access_epoch: int
    ) -> None:
        """Have the other owners of the topic fence what `identity` replaces. Raises Unavailable if one that lives does
        not answer: then the open has failed, and can be repeated."""
        for owner in self._other_owners(topic, topic_id):
            request = FenceProducers(
                topic=str(topic),
                topic_id=topic_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                access_epoch=access_epoch,
            )
            await self._cluster.peers.request(owner.name, request, Done)

    async def _check_taken(self, topic: TopicName, identity: ProducerRecord) -> AccessRecord:
        """Return the access record that names this producer. Raises StaleEpoch if another one took the topic
        meanwhile, at another broker."""
        record = await self._registry.access(topic)
        if not record.is_held_by(identity):
            raise StaleEpoch(f"another producer has taken topic {topic} under a higher epoch: this one is fenced")
        return record

    def _fence(
        self,
        group: TopicProducers,
        topic_id: int,
        live: list[Producer],
        is_replaced: Callable[[int, int], bool],
        why: str,
    ) -> None:
        """Fence the replaced ones of the `live` producers, and refuse batches of replaced producers that still wait."""
        error = StaleEpoch(why)
        for producer in live:
            if is_replaced(producer.producer_id, producer.producer_epoch):
                group.fence(producer, error)
        for partition in self._partitions.open_of(topic_id):
            partition.refuse_fenced(is_replaced, error)

    async def _check_returning(
        self, topic: TopicName, name: str, identity: ProducerRecord, access: AccessRecord
    ) -> ProducerRecord:
        """Check the identity that a client presents and return its current one, which may have a newer epoch: the
        answer to an earlier open by the same client may be lost. Raises StaleEpoch if the producer is fenced."""
        known = await self._registry.check_producer(topic, name, identity)
        if identity.epoch < known.epoch:
            if not _is_same_opener(identity.opener, known.opener):
                raise StaleEpoch(f"producer {name!r} was opened again under a higher epoch: this one is fenced")
            identity = known
        is_holder = access.is_held_by(identity) or _is_same_opener(identity.opener, access.opener)
        if known.access_epoch < access.epoch and not is_holder:
            raise StaleEpoch(f"another producer had topic {topic} for itself meanwhile: this one is fenced")
        return identity

    def revoke(self, producer: Producer) -> None:
        """Fence a producer whose principal may not publish to the topic any more. Batches in flight are finished."""
        why = (
            f"{producer.principal.id} may not produce to {producer.topic} any more: ask for a role that may, then open"
        )
        producer._group.fence(producer, Denied(why))

    def _check_allowed(
        self,
        group: TopicProducers,
        topic: TopicName,
        known: ProducerRecord | None,
        returning: bool,
        others: ProducerCount,
    ) -> None:
        """Raise Refused or Full if exclusive access or the limit of producers does not allow one more."""
        known_id = known.producer_id if known is not None else 0
        holder = group.holder or others.holder
        if holder and not (returning and holder == known_id):
            raise Refused(
                f"topic {topic} has a producer with exclusive access: wait until it is closed, or open with exclusive "
                f"access and fence it"
            )
        limit = self._partitions.policies_of(topic).producers_max
        live = len(group) if not others.ids else len({*group.ids, *others.ids})
        if limit and live >= limit and not group.of(known_id) and known_id not in others.ids:
            raise Full(
                f"topic {topic} has {live} producers, and its policy producers_max is {limit}: close one, or "
                f"raise it with `danube topics policies {topic} --set producers_max=N`"
            )


def _is_same_opener(opener: int, other: int) -> bool:
    return opener == other != 0


def _is_another(identity: ProducerRecord, producer_id: int, producer_epoch: int) -> bool:
    return (producer_id, producer_epoch) != (identity.producer_id, identity.epoch)


def _is_older(identity: ProducerRecord, producer_id: int, producer_epoch: int) -> bool:
    return producer_id == identity.producer_id and producer_epoch < identity.epoch
