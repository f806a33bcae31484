"""What topics, partitions and subscriptions are: their types, their configuration and their description."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from .addresses import NO_ADDRESSES, BrokerAddresses
from .errors import Invalid
from .failure import FailurePolicy
from .gaps import NO_GAPS, Gaps
from .limits import PARTITIONS_MAX
from .notebook import description_html
from .text import Word

AckLevelName = Literal["durable", "stored", "written", "memory"]
"""How users write an `AckLevel`."""

SubscriptionTypeName = Literal["exclusive", "shared", "failover", "key-shared"]
"""How users write a `SubscriptionType`."""


class AckLevel(Word):
    """What has happened to a message when its publish is acknowledged."""

    MEMORY = 0
    """It is in the broker's memory and is lost with the process. For development and tests."""
    WRITTEN = 1
    """It is in the page cache: it survives a crash of the process, not of the machine."""
    DURABLE = 2
    """It is synced to the disk of one broker."""
    STORED = 3
    """It is in the object store, where any broker finds it: it survives the loss of its broker."""

    @property
    def survives(self) -> str:
        """Which losses an acknowledged message survives, in one line."""
        return _SURVIVES[self]

    @property
    def when_broker_is_lost(self) -> str:
        """What becomes of the partitions of a broker of a cluster that is lost, in one line."""
        return _WHEN_LOST[self]

    @property
    def is_in_one_log(self) -> bool:
        """Whether messages are in the log of one broker, so that only that broker has them before they are uploaded."""
        return self in (AckLevel.WRITTEN, AckLevel.DURABLE)

    @property
    def is_dense(self) -> bool:
        """Whether what was acknowledged always comes back, so that offsets have no gaps."""
        return self >= AckLevel.DURABLE


_SURVIVES: Final = {
    AckLevel.MEMORY: "nothing: it is lost with the broker's process",
    AckLevel.WRITTEN: "a crash of the broker's process; not of its machine, nor the loss of its disk before the upload",
    AckLevel.DURABLE: "a crash of the broker's machine; not the loss of its disk before the upload",
    AckLevel.STORED: "the loss of the broker with its disk",
}

_WAITS: Final = "its partitions wait for it, or are taken over without what was not uploaded (danube topics takeover)"
_WHEN_LOST: Final = {
    AckLevel.MEMORY: "other brokers go on when its session is over, empty",
    AckLevel.WRITTEN: _WAITS,
    AckLevel.DURABLE: _WAITS,
    AckLevel.STORED: "other brokers go on when its session is over; nothing is lost",
}


class SubscriptionType(Word):
    """Numbers as in the Danube gRPC API."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


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


class PartitionDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """A partition, described by its owner. Offsets in [start_offset, end_offset) can be read."""

    index: int
    owner: str
    epoch: int
    start_offset: int
    end_offset: int
    ledgers: int = 0
    stored_bytes: int = 0
    health: str = "ok"
    """"ok", or what is wrong and what to do about it."""
    missing_offsets: int = 0
    """Offsets in [start_offset, end_offset) without a message: a crash or a restore left them unused."""
    gaps: Gaps = NO_GAPS
    """The ranges of these offsets; if there are very many, only the largest."""
    is_known: bool = True
    """Whether the owner has told offsets and sizes; if not, all of them are 0, and `health` says why."""

    @property
    def messages(self) -> int:
        return self.end_offset - self.start_offset - self.missing_offsets

    _repr_html_ = description_html


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    topic_id: int
    config: TopicConfig
    partitions: list[PartitionDescription] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)
    brokers: list[BrokerAddresses] = field(default_factory=list)
    """The addresses of every living broker of the cluster, the owners of the partitions among them."""
    version: str = ""
    """Changes with everything about the topic that is set: policies, partitions, schema binding. See
    `Conflict`."""

    _repr_html_ = description_html


class BrokerDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    """A broker. `started_at` is in microseconds since 1970."""

    version: str
    node: str
    cluster: str
    state: str
    """"ok", or why the broker is read-only or cannot do some of its work."""
    topics: int = 0
    started_at: int = 0
    addresses: BrokerAddresses = NO_ADDRESSES
    """Brokers of earlier releases tell none."""

    _repr_html_ = description_html


class SubscriptionPartition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a subscription in one partition: everything below `position` is acked."""

    partition: int
    position: int
    lag: int
    acked_ahead: int = 0
    """Messages acked past `position`, out of order."""
    unacked: int = 0
    """Messages delivered and not yet acked."""
    consumer: str = ""
    """The names of the active consumers."""
    health: str = "ok"
    """"ok", or why nothing is known: the owner of the partition does not answer."""


class SubscriptionDescription(msgspec.Struct, frozen=True, omit_defaults=True):
    topic: str
    name: str
    subscription_id: int
    type_name: Annotated[str, msgspec.Meta(extra_json_schema={"enum": [str(one) for one in SubscriptionType]})] = (
        msgspec.field(name="type")
    )
    partitions: list[SubscriptionPartition] = []
    failure_policy: FailurePolicy = FailurePolicy()
    unacked_max: int = 0
    """How many messages of each partition may be delivered and not acknowledged; 0: no limit."""
    version: str = ""
    """Changes with everything that is set about the subscription, not with its position."""

    @property
    def type(self) -> SubscriptionType:
        return SubscriptionType.parse(self.type_name)

    _repr_html_ = description_html
