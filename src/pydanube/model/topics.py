"""What topics, partitions and subscriptions are: their types, their configuration and their description."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from .addresses import NO_ADDRESSES, BrokerAddresses
from .errors import Invalid
from .failure import NATIVE, FailurePolicy
from .gaps import NO_GAPS, Gaps
from .limits import PARTITIONS_MAX

AckLevelName = Literal["durable", "written", "memory"]
"""How users write an `AckLevel`."""

SubscriptionTypeName = Literal["exclusive", "shared", "failover", "key-shared"]
"""How users write a `SubscriptionType`."""


class AckLevel(IntEnum):
    """What has happened to a message when its publish is acknowledged."""

    MEMORY = 0
    """It is in the broker's memory and is lost with the process. For development and tests."""
    WRITTEN = 1
    """It is in the page cache: it survives a crash of the process, not of the machine."""
    DURABLE = 2
    """It is synced to disk (in a cluster: on a quorum)."""

    @classmethod
    def parse(cls, text: str) -> AckLevel:
        try:
            return cls[text.upper()]
        except (KeyError, AttributeError):
            raise Invalid(f"ack level {text!r} is unknown: use durable, written or memory") from None

    def __str__(self) -> str:
        return self.name.lower()


class SubscriptionType(IntEnum):
    """Numbers as in the Danube gRPC API."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @classmethod
    def parse(cls, text: str) -> SubscriptionType:
        try:
            return cls[text.upper().replace("-", "_")]
        except (KeyError, AttributeError):
            raise Invalid(
                f"subscription type {text!r} is unknown: use exclusive, shared, failover or key-shared"
            ) from None

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a topic was created with. `partitions` 0 means non-partitioned: one partition, with the topic's own name.

    A non-reliable topic stores nothing: its ack level is always MEMORY.
    """

    partitions: int = 0
    reliable: bool = True
    ack_level: AckLevel = AckLevel.DURABLE

    def __post_init__(self) -> None:
        if not 0 <= self.partitions <= PARTITIONS_MAX:
            raise Invalid(f"partitions={self.partitions} is out of range: use 0 (non-partitioned) to {PARTITIONS_MAX}")
        if not self.reliable:
            object.__setattr__(self, "ack_level", AckLevel.MEMORY)

    @property
    def partition_count(self) -> int:
        return max(1, self.partitions)


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition, described by its owner. Offsets in [start_offset, end_offset) can be read."""

    index: int
    owner: str
    epoch: int
    start_offset: int
    end_offset: int
    ledgers: int
    stored_bytes: int
    health: str = "ok"
    """"ok", or what is wrong and what to do about it."""
    missing_offsets: int = 0
    """Offsets in [start_offset, end_offset) without a message: a crash or a restore left them unused."""
    gaps: Gaps = NO_GAPS
    """The ranges of these offsets; if there are very many, only the largest."""

    @property
    def messages(self) -> int:
        return self.end_offset - self.start_offset - self.missing_offsets


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: int
    config: TopicConfig
    partitions: list[PartitionDescription] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)
    brokers: list[BrokerAddresses] = field(default_factory=list)
    """The addresses of the owners of the partitions, each once."""
    version: str = ""
    """Changes with everything about the topic that is set: policies, partitions, schema binding. See
    `Conflict`."""


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A broker. `started_at` is in microseconds since 1970."""

    version: str
    node: str
    cluster: str
    state: str
    """"ok", or why the broker is read-only or cannot do some of its work."""
    topics: int
    started_at: int
    addresses: BrokerAddresses = NO_ADDRESSES
    """Brokers of earlier releases tell none."""


@dataclass(frozen=True, slots=True)
class SubscriptionPartition:
    """The state of a subscription in one partition: everything below `position` is acked."""

    partition: int
    position: int
    lag: int
    acked_ahead: int
    """Messages acked past `position`, out of order."""
    unacked: int
    """Messages delivered and not yet acked."""
    consumer: str = ""
    """The names of the active consumers."""


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    topic: str
    name: str
    subscription_id: int
    type: SubscriptionType
    partitions: list[SubscriptionPartition] = field(default_factory=list)
    failure_policy: FailurePolicy = NATIVE
    unacked_max: int = 0
    """How many messages of each partition may be delivered and not acknowledged; 0: no limit."""
    version: str = ""
    """Changes with everything that is set about the subscription, not with its position."""
