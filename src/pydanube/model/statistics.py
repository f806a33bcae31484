"""What can be counted about topics, subscriptions and consumers. Totals count from the partition's opening on.

Rates are per second, averaged over the last ten or so.
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
    """False for a failover consumer that stands by."""
    credit: int = 0
    """Messages it has room for."""
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
    """Messages not acked."""
    backlog_bytes: int = 0
    """About: from the average size of a message."""
    backlog_s: float = 0.0
    """Age of the oldest message not acked."""
    unacked: int = 0
    """Delivered and not acked."""
    waiting: int = 0
    """Failed, and to come again later."""
    delayed: int = 0
    """Not to be delivered before a time that their producer chose."""
    held: int = 0
    """Read, and held back: their key is not settled, or their consumer has no room."""
    unmatched: int = 0
    """No consumer's key filter accepts them."""
    blocked: int = 0
    """Exhausted, and in the way."""
    blocked_keys: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    """Lost to a poison policy, or on a non-reliable topic to a consumer without room."""
    expired: int = 0
    """Settled by their time to live."""
    evicted: int = 0
    """Settled by the backlog quota."""
    stale_acks: int = 0
    """Acks and nacks that were ignored because a seek came after the delivery; one may be of many messages."""
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
    """Published to a non-reliable topic while nobody listened."""
    throttled_s: float = 0.0
    """How long publishes waited for the publish rate."""
    subscriptions: list[SubscriptionStatistics] = field(default_factory=list)
    health: str = "ok"
    missing_offsets: int = 0
    """Offsets in [start_offset, end_offset) that hold no message: a crash or a restore left them unused."""

    @property
    def messages(self) -> int:
        """How many are stored."""
        return self.end_offset - self.start_offset - self.missing_offsets


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    topic: str
    reliable: bool
    partitions: list[PartitionStatistics] = field(default_factory=list)
