"""What a cluster is made of: its brokers, as each of them registered when its session began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

import msgspec

from .addresses import NO_ADDRESSES, BrokerAddresses
from .levels import FIRST


@dataclass(frozen=True, slots=True)
class BrokerSession:
    """A living broker. None of this changes while its session lives."""

    name: str
    """Unique in its cluster."""
    incarnation: int
    """A number that no other session of the cluster has or had."""
    addresses: BrokerAddresses
    """Where clients reach it."""
    inside: BrokerAddresses = NO_ADDRESSES
    """Where clients and brokers within its own network reach it; without any, `addresses` are for all."""
    log: str = ""
    """The id of the log that it writes."""
    zone: str = ""
    """The zone (rack, data centre) that it is in; partitions of a topic are spread over zones."""
    version: str = ""
    """The release of pydanube that it runs."""
    formats: tuple[str, ...] = ()
    """The stored formats that it reads and writes."""
    started_at: int = 0
    """In microseconds since 1970."""
    level: int = FIRST
    """The newest feature level of the metadata that it knows; releases before feature levels say none."""
    proof: str = field(default="", repr=False)
    """What only those know that can read the metadata, which clients cannot: a broker shows it where it does what no
    client may, also without authentication. Empty: an earlier release."""

    def addresses_for(self, is_inside: bool) -> BrokerAddresses:
        """Return the addresses that a client is told, which is inside the network of the brokers or not."""
        return self.inside if is_inside and self.inside.native else self.addresses

    @property
    def peer_address(self) -> str:
        """The native address that other brokers connect to."""
        return self.inside.native or self.addresses.native


PROOF_BYTES: Final = 16
"""Random bytes of a session's proof."""

Network = IPv4Network | IPv6Network


def is_inside(client: str, networks: Sequence[Network]) -> bool:
    """Return whether a client's IP address lies in one of these networks."""
    if not networks:
        return False
    try:
        address = ip_address(client.partition("%")[0])
    except ValueError:  # such as the path of a Unix socket
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)


AWAY: Final = "away"
"""The state of a broker that has no session."""

DRAINING: Final = "draining"
"""The state of a broker that gives its partitions away and is given none, because it is drained."""

DRAINED: Final = "drained"
"""The state of such a broker once it has none."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker of a cluster, as the brokers that live see it."""

    name: str
    state: str
    """"ok", what is wrong with it, or "away": it has no session."""
    incarnation: int = 0
    """The number of its session; 0 while it is away, and always of a broker that is no part of a cluster."""
    since: int = 0
    """When its session began, or since when it is away, in microseconds since 1970; 0 if that is not known."""
    addresses: BrokerAddresses = NO_ADDRESSES
    zone: str = ""
    version: str = ""
    partitions: int = 0
    """How many partitions it owns or is about to take. Of a broker that is away: how many wait for it."""
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    """What is published to it."""


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """A cluster, or a broker that is no part of one."""

    cluster: str
    coordinator: str
    """The name of the broker that does what only one should do; empty while none is chosen."""
    topics: int
    brokers: list[BrokerStatus] = field(default_factory=list)
    """By name; those that are away too."""
    unplaced: int = 0
    """How many partitions have no broker yet."""


@dataclass(frozen=True, slots=True)
class BrokerLevel:
    """What a living broker knows of feature levels."""

    name: str
    level: int
    """The newest level that it knows."""
    version: str = ""
    """The release of pydanube that it runs."""


@dataclass(frozen=True, slots=True)
class UpgradeDescription:
    """How far the upgrade of a cluster is, or of a broker alone."""

    level: int
    """The feature level that is in force."""
    highest: int
    """The newest level that all living brokers know: to this one it can be raised."""
    brokers: list[BrokerLevel] = field(default_factory=list)
    """The living brokers, by name."""

    @property
    def behind(self) -> list[BrokerLevel]:
        """The brokers that know less than another one does."""
        newest = max((one.level for one in self.brokers), default=self.highest)
        return [one for one in self.brokers if one.level < newest]


class PartitionMoved(msgspec.Struct, frozen=True):
    """A partition that was given to another broker."""

    partition: int
    source: str
    """The broker that had it."""
    target: str
    """The broker that takes it."""


class StuckPartition(msgspec.Struct, frozen=True):
    """A partition that a broker which is drained cannot give away now."""

    topic: str
    partition: int
    reason: str


class DrainState(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a broker that is drained has given its partitions away."""

    broker: str
    partitions: int = 0
    """How many it still has; 0: it can be stopped, and removed."""
    stuck: int = 0
    """How many of them it cannot give away now."""
    examples: list[StuckPartition] = []
    """Some of these, with the reason."""
