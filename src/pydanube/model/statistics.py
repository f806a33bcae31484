"""Statistics of topics, subscriptions and consumers. Totals count from the time when the broker opened the partition.

Rates are per second, averaged over about the last ten seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """One consumer of one partition."""

    name: str
    priority: int = 0
    key_filters: list[str] = field(default_factory=list)
    active: bool = True
    """False for a standby consumer of a failover subscription."""
    credit: int = 0
    """How many more messages may be delivered to it (flow control)."""
    unacked: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscription of one partition."""

    name: str
    type: str
    position: int
    backlog: int
    """Messages that are not acked."""
    backlog_bytes: int = 0
    """Estimated from the average size of a message."""
    backlog_s: float = 0.0
    """Age of the oldest message that is not acked."""
    unacked: int = 0
    """Messages delivered and not acked."""
    waiting: int = 0
    """Failed messages that wait for their redelivery."""
    delayed: int = 0
    """Messages whose producer asked for a later delivery."""
    held: int = 0
    """Messages that wait because an earlier message of their key is not settled, or their consumer has no credit."""
    unmatched: int = 0
    """Messages that no consumer's key filter accepts."""
    blocked: int = 0
    """Messages that failed too often and block the subscription or their key."""
    blocked_keys: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    """Dropped by the poison policy or, on a non-reliable topic, because the consumer had no credit."""
    expired: int = 0
    """Settled by their time to live."""
    evicted: int = 0
    """Settled by the backlog quota."""
    stale_acks: int = 0
    """Acks and nacks ignored because of a seek after the delivery; one of them may name many messages."""
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    acks_per_s: float = 0.0
    consumers: list[ConsumerStatistics] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PartitionStatistics:
    index: int
    start_offset: int = 0
    end_offset: int = 0
    stored_bytes: int = 0
    producers: int = 0
    published: int = 0
    published_bytes: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    unheard: int = 0
    """Published to a non-reliable topic without consumers."""
    throttled_s: float = 0.0
    """How long publishes waited because of the publish rate."""
    subscriptions: list[SubscriptionStatistics] = field(default_factory=list)
    health: str = "ok"
    missing_offsets: int = 0
    """Offsets in [start_offset, end_offset) without a message: a crash or a restore left them unused."""
    schema_warnings: int = 0
    """Batches that did not fit the schema of the topic and were stored all the same, because its policy is `warn`."""

    @property
    def messages(self) -> int:
        """How many messages are stored."""
        return self.end_offset - self.start_offset - self.missing_offsets


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    topic: str
    reliable: bool
    partitions: list[PartitionStatistics] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SubscriptionSummary:
    """One subscription, summed over the open partitions of its topic. The fields mean what they mean in
    `SubscriptionStatistics`."""

    name: str
    type: str
    consumers: int = 0
    """Attached consumers; one that is attached to several partitions counts once."""
    backlog: int = 0
    backlog_bytes: int = 0
    backlog_s: float = 0.0
    """Estimated age of the oldest message that is not acked, of the partition where it is oldest."""
    unacked: int = 0
    waiting: int = 0
    delayed: int = 0
    held: int = 0
    unmatched: int = 0
    blocked: int = 0
    blocked_keys: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    evicted: int = 0
    stale_acks: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    acks_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """What the broker has in memory about one topic, summed over its open partitions. Nothing is opened or read for it.

    The totals (published, delivered and the like) count from 0 since the partitions were opened; those of a topic are
    opened one by one when they are used, and closed all at once. So a total falls only when the topic was unloaded or
    the broker was restarted: it is a counter with that reset.
    """

    topic: str
    reliable: bool
    ack_level: str
    partitions: int
    """As in `TopicConfig`: 0 means non-partitioned."""
    created_at: int
    """In microseconds since 1970."""
    open_partitions: int = 0
    """How many partitions are open. Of the others only the metadata is in memory: they are not in the sums."""
    subscription_count: int = 0
    """How many subscriptions the topic has, also if none of its partitions is open."""
    producers: int = 0
    """Connected producers, of the partition that has most: most producers publish to every partition."""
    messages: int = 0
    stored_bytes: int = 0
    published: int = 0
    published_bytes: int = 0
    messages_per_s: float = 0.0
    bytes_per_s: float = 0.0
    unheard: int = 0
    throttled_s: float = 0.0
    schema_warnings: int = 0
    subscriptions: list[SubscriptionSummary] = field(default_factory=list)
    """Sorted by name. Empty if no partition is open, or if an answer would be too large with them."""
    health: str = "ok"
    """"ok", what is wrong with a partition, or which brokers did not answer: what those counted is missing in the
    sums."""

    @property
    def backlog(self) -> int:
        """The backlog of the subscription with the largest one."""
        return max((one.backlog for one in self.subscriptions), default=0)

    @property
    def backlog_bytes(self) -> int:
        """The backlog in bytes of the subscription with the largest one."""
        return max((one.backlog_bytes for one in self.subscriptions), default=0)

    @property
    def backlog_s(self) -> float:
        """The age of the oldest message that some subscription has not acked."""
        return max((one.backlog_s for one in self.subscriptions), default=0.0)
