"""What a RESPONSE holds: one struct for each kind of answer. See `requests` for who asks."""

from __future__ import annotations

import msgspec

from pydanube.model.failure import FailurePolicy
from pydanube.model.pending import PendingMessage
from pydanube.model.policies import Policies
from pydanube.model.staging import StagedQuery
from pydanube.model.statistics import TopicStatistics
from pydanube.model.storage import (
    PartitionUsage,
    SegmentDescription,
    StorageCollected,
    StoragePlace,
    StorageStatus,
    StorageUpload,
    StorageVerified,
)

from .frames import GENERATION_UNKNOWN


class Done(msgspec.Struct):
    """It was done. Nothing more to say."""


class Names(msgspec.Struct):
    names: list[str]


class PartitionRoute(msgspec.Struct, omit_defaults=True):
    index: int
    owner: str
    """host:port of the owner's native door"""
    epoch: int = 0


class Route(msgspec.Struct, omit_defaults=True):
    topic: str
    topic_id: int
    partitioned: bool
    reliable: bool
    ack_level: str
    partitions: list[PartitionRoute]


class PartitionInfo(msgspec.Struct, omit_defaults=True):
    """`model.topics.PartitionDescription` on the wire."""

    index: int
    owner: str
    epoch: int
    start_offset: int
    end_offset: int
    ledgers: int = 0
    stored_bytes: int = 0
    health: str = "ok"
    missing_offsets: int = 0
    """How many of the offsets [start_offset, end_offset) hold no message."""
    gaps: list[tuple[int, int]] = []
    """[start, end) of where they lie, in order; of very many the largest."""


class Topic(msgspec.Struct, omit_defaults=True):
    """`model.topics.TopicDescription` on the wire."""

    topic: str
    topic_id: int
    partitions: int
    reliable: bool
    ack_level: str
    partition_infos: list[PartitionInfo] = []
    subscriptions: list[str] = []


class ProducerOpened(msgspec.Struct, omit_defaults=True):
    handle: int
    producer_id: int
    producer_epoch: int
    owner_epoch: int = 0


class ConsumerOpened(msgspec.Struct, omit_defaults=True):
    """`position` is the lowest offset not acked; `created` tells whether `start` counted."""

    handle: int
    subscription_id: int
    position: int
    created: bool = False
    owner_epoch: int = 0
    ack_timeout_ms: int = 0
    type: str = ""
    """Of the subscription."""
    moves: int = 0
    """The same number as `generation`, for clients of earlier releases: they forget their acks when it is another one
    under the same owner epoch."""
    generation: int = GENERATION_UNKNOWN
    """The seek generation of the deliveries that follow. Brokers of earlier releases tell none."""


class SubscriptionPlace(msgspec.Struct, omit_defaults=True):
    """`model.topics.SubscriptionPartition` on the wire."""

    partition: int
    position: int
    lag: int
    acked_ahead: int = 0
    unacked: int = 0
    consumer: str = ""


class Subscription(msgspec.Struct, omit_defaults=True):
    topic: str
    name: str
    subscription_id: int
    type: str
    partitions: list[SubscriptionPlace] = []
    failure_policy: FailurePolicy = FailurePolicy()


class Offset(msgspec.Struct):
    offset: int


class BrokerInfo(msgspec.Struct, omit_defaults=True):
    version: str
    node: str
    cluster: str
    state: str
    """"ok", or why it is read-only or cannot do some of its work"""
    topics: int = 0
    started_at: int = 0
    """microseconds since 1970"""


class OffsetRanges(msgspec.Struct):
    """[start, end) each, in order."""

    ranges: list[tuple[int, int]]


class Settled(msgspec.Struct, omit_defaults=True):
    """How many messages were not settled before."""

    messages: int = 0


class Positions(msgspec.Struct):
    """Where a subscription stands: partition and offset."""

    positions: list[tuple[int, int]] = []


class PendingMessages(msgspec.Struct):
    """In order. `type` is the subscription's, and `now_us` the broker's time, in microseconds since 1970."""

    messages: list[PendingMessage]
    type: str
    now_us: int


class PolicyReport(msgspec.Struct):
    """What is set on the target itself, and what counts there."""

    own: Policies
    effective: Policies


class StatisticsReport(msgspec.Struct):
    topic: TopicStatistics


class StorageUsed(msgspec.Struct, omit_defaults=True):
    """`model.storage.StorageUsage`, or a part of it: with `next`, more is to be asked for from there.

    A partition may come in several parts, whose segments, bytes and messages are added up.
    """

    status: StorageStatus
    partitions: list[PartitionUsage] = []
    next: StoragePlace | None = None


class SegmentList(msgspec.Struct, omit_defaults=True):
    """In order. With `next_offset`, more is to be asked for from there; -1 is the end."""

    segments: list[SegmentDescription] = []
    next_offset: int = -1
    topic_id: int = 0
    store: str = ""
    """The URL of the object store, without credentials: whoever reads there brings his own."""


class StorageUploading(msgspec.Struct):
    upload: StorageUpload


class StorageStep(msgspec.Struct, omit_defaults=True):
    """What one step of a verification found; with `next`, it goes on there."""

    verified: StorageVerified
    next: StoragePlace | None = None


class GarbageCollected(msgspec.Struct, omit_defaults=True):
    """What one step of a collection did; with `next`, it goes on after that object."""

    collected: StorageCollected
    next: str = ""


class Staged(msgspec.Struct, omit_defaults=True):
    """A stage is synced, and seen by nobody: `stage` is what a commit names it by."""

    stage: str


class StagesCommitted(msgspec.Struct, omit_defaults=True):
    """The decision stands. `repeated`: it had been made before, and this changed nothing.

    `applied`: every partition has its messages; otherwise they follow by themselves.
    """

    repeated: bool = False
    applied: bool = True


class StagedQueries(msgspec.Struct):
    """`next`: where the next page begins; empty after the last."""

    queries: list[StagedQuery]
    next: str = ""
