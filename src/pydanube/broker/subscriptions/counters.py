"""Counters of a subscription and its consumers, and the statistics made of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.core.dispatch.dispatcher import Dispatcher
from pydanube.core.dispatch.members import Member
from pydanube.core.meters import Meter
from pydanube.model.statistics import ConsumerStatistics, SubscriptionStatistics


@dataclass(slots=True)
class DeliveryCounters:
    """What happened since the partition was opened, in messages unless the name says otherwise."""

    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    evicted: int = 0
    stale_acks: int = 0
    """Requests, acks and nacks, of an earlier seek generation."""
    meter: Meter = field(default_factory=Meter)
    acks: Meter = field(default_factory=Meter)

    def deliver(self, now_us: int, rows: int, size_bytes: int, redelivered: int) -> None:
        self.delivered += rows
        self.delivered_bytes += size_bytes
        self.redelivered += redelivered
        self.meter.mark(now_us, rows, size_bytes)

    def ack(self, now_us: int, messages: int) -> None:
        self.acked += messages
        self.acks.mark(now_us, messages, 0)


def subscription_statistics(
    name: str,
    dispatcher: Dispatcher,
    counters: DeliveryCounters,
    backlog: int,
    consumers: list[ConsumerStatistics],
    now_us: int,
) -> SubscriptionStatistics:
    messages_per_s, bytes_per_s = counters.meter.rates(now_us)
    counts = dispatcher.counts
    return SubscriptionStatistics(
        name=name,
        type=str(dispatcher.type),
        position=dispatcher.cursor.position,
        backlog=backlog,
        unacked=counts.unacked,
        waiting=counts.waiting,
        delayed=counts.delayed,
        held=counts.held_back,
        unmatched=counts.unmatched,
        blocked=counts.blocked,
        blocked_keys=counts.blocked_keys,
        delivered=counters.delivered,
        delivered_bytes=counters.delivered_bytes,
        acked=counters.acked,
        redelivered=counters.redelivered,
        dead_lettered=counters.dead_lettered,
        dropped=counters.dropped,
        expired=counters.expired,
        evicted=counters.evicted,
        stale_acks=counters.stale_acks,
        messages_per_s=messages_per_s,
        bytes_per_s=bytes_per_s,
        acks_per_s=counters.acks.rates(now_us)[0],
        consumers=consumers,
    )


def consumer_statistics(
    dispatcher: Dispatcher, member: Member, counters: DeliveryCounters, now_us: int
) -> ConsumerStatistics:
    messages_per_s, bytes_per_s = counters.meter.rates(now_us)
    return ConsumerStatistics(
        name=member.consumer,
        priority=member.priority,
        key_filters=list(member.key_filters),
        active=dispatcher.is_active(member),
        credit=max(0, member.messages),
        unacked=dispatcher.unacked_of(member),
        delivered=counters.delivered,
        delivered_bytes=counters.delivered_bytes,
        redelivered=counters.redelivered,
        messages_per_s=messages_per_s,
        bytes_per_s=bytes_per_s,
    )
