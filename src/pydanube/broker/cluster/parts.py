"""What a broker knows of its cluster, in one value that is handed to everything that needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pydanube.model.addresses import NO_ADDRESSES, BrokerAddresses
from pydanube.model.cluster import BrokerSession

from .loads import Loads
from .membership import Membership, SoleMembership
from .owners import Owners, SoleOwners
from .peers import NoPeers, Peers


@dataclass(frozen=True, slots=True)
class ClusterParts:
    membership: Membership
    owners: Owners
    peers: Peers
    loads: Loads = field(default_factory=Loads)

    def other_owner(self, topic_id: int, index: int) -> BrokerSession | None:
        """Return the living broker that owns the partition, if that is another one than this; None: the partition is
        this broker's, or has no living owner at this moment."""
        if self.membership.is_alone:
            return None
        owner = self.owners.owner(topic_id, index)
        return None if owner is None or owner.name == self.membership.session.name else owner

    def is_own(self, topic_id: int, index: int) -> bool:
        """Return whether this broker owns the partition or is about to take it."""
        if self.membership.is_alone:
            return True
        owner = self.owners.owner(topic_id, index)
        return owner is not None and owner.name == self.membership.session.name

    def other_owners(self, topic_id: int, partitions: int) -> list[BrokerSession]:
        """Return the other living brokers that own partitions of a topic, each once, by name."""
        found = (self.other_owner(topic_id, index) for index in range(partitions))
        return [one for _, one in sorted({one.name: one for one in found if one is not None}.items())]


def sole_cluster(
    name: str,
    addresses: Callable[[], BrokerAddresses],
    log: str = "",
    inside: Callable[[], BrokerAddresses] = lambda: NO_ADDRESSES,
) -> ClusterParts:
    """Return the parts of a broker that is no part of a cluster. `addresses` returns those that clients are told,
    `inside` those for clients in its own network."""
    membership = SoleMembership(name, log, addresses, inside)
    return ClusterParts(membership, SoleOwners(membership), NoPeers())
