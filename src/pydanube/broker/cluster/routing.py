"""Says where a partition is served: here, by another broker, or nowhere until a lost broker is back."""

from __future__ import annotations

from contextvars import ContextVar

from pydanube.broker.registry.records import TopicRecord
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.cluster import BrokerSession
from pydanube.model.errors import NotOwner, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import utc_text
from pydanube.model.topics import PartitionDescription

from .parts import ClusterParts
from .placing import Placement

_is_client_inside: ContextVar[bool] = ContextVar("is_client_inside", default=False)
"""Whether this task answers a client inside the network of the brokers."""


def answer_inside(is_inside: bool) -> None:
    """Note, for the task that calls this, whether the client that it answers is inside the network of the brokers."""
    _is_client_inside.set(is_inside)


def client_addresses(session: BrokerSession) -> BrokerAddresses:
    """Return the addresses of a broker that the client is told which this task answers."""
    return session.addresses_for(_is_client_inside.get())


class Routing:
    """Finds the owners of partitions. Asking never takes a partition."""

    def __init__(self, cluster: ClusterParts, placement: Placement) -> None:
        self._cluster = cluster
        self._membership = cluster.membership
        self._owners = cluster.owners
        self._placement = placement

    def is_own(self, topic_id: int, index: int) -> bool:
        """Return whether this broker owns the partition or is about to take it."""
        return self._cluster.is_own(topic_id, index)

    def owners_of(self, topic: TopicRecord) -> list[BrokerSession | None]:
        """Return the owner of each partition of a topic."""
        if self._membership.is_alone:
            return [self._membership.session] * topic.config().partition_count
        return [self._owners.owner(topic.topic_id, index) for index in range(topic.config().partition_count)]

    def check_own(self, name: TopicName, topic: TopicRecord, index: int) -> None:
        """Return if this broker owns the partition or shall take it. Raises NotOwner with the owner's address, or
        Unavailable if the partition waits for a broker that is away."""
        if self._membership.is_alone:
            return
        owner = self._owners.owner(topic.topic_id, index)
        if owner is None:
            raise Unavailable(self.waits_for(name, topic, index))
        if owner.name != self._membership.session.name:
            partition = name.partition(index) if topic.partitions else str(name)
            raise NotOwner(
                f"{partition} belongs to broker {owner.name!r}: ask it at {client_addresses(owner).native}",
                client_addresses(owner).native,
            )

    def describe(self, name: TopicName, topic: TopicRecord) -> list[PartitionDescription]:
        """Return the owner of each partition of a topic. Offsets and sizes are left out: only the owner knows them."""
        described = []
        for index, owner in enumerate(self.owners_of(topic)):
            record = self._owners.record(topic.topic_id, index)
            epoch = 0 if record is None else record.epoch
            address = "" if owner is None else client_addresses(owner).native
            health = "ok" if owner is not None else self.waits_for(name, topic, index)
            described.append(PartitionDescription(index, address, epoch, 0, 0, 0, 0, health, is_known=False))
        return described

    def health(self, name: TopicName, topic: TopicRecord) -> str:
        """Return 'ok' if every partition of a topic has a living owner; otherwise what the first without one waits for,
        and how many others have none."""
        without = [index for index, owner in enumerate(self.owners_of(topic)) if owner is None]
        if not without:
            return "ok"
        others = len(without) - 1
        more = f"; so {'does' if others == 1 else 'do'} {others} more of its partitions" if others else ""
        return self.waits_for(name, topic, without[0]) + more

    def brokers(self) -> list[BrokerAddresses]:
        """Return the addresses of every living broker, so that clients learn them all."""
        return [client_addresses(one) for one in self._membership.sessions()]

    def waits_for(self, name: TopicName, topic: TopicRecord, index: int) -> str:
        """Return why a partition without a living owner is not served, and what helps."""
        partition = name.partition(index) if topic.partitions else str(name)
        record = self._owners.record(topic.topic_id, index)
        if record is None or self._placement.is_unplaced(topic, index):
            return f"{partition} has no broker yet: try again"
        broker = record.owner or record.assigned
        if not broker:
            return f"{partition} waits for the broker that writes the log {record.log}: start that broker again"
        since_us = self._membership.away_since(broker)
        since = f", which is away since {utc_text(since_us)}" if since_us else ", which is away"
        return (
            f"{partition} waits for broker {broker!r}{since}: its log holds messages of the partition; start that "
            f"broker again, with its data directory, or see `danube topics takeover`"
        )
