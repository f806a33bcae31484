"""What a subscription and its consumers have been through, counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.window import DeliveryWindow
from pydanube.core.meters import Meter
from pydanube.model.statistics import ConsumerStatistics, SubscriptionStatistics


@dataclass(slots=True)
class DeliveryCounters:
    """What happened since the partition was opened."""

    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    expired: int = 0
    evicted: int = 0
    stale_acks: int = 0
    meter: Meter = field(default_factory=Meter)
    acks: Meter = field(default_factory=Meter)

    def deliver(self, now_us: int, rows: int, size_bytes: int, redelivered: int) -> None:
        self.delivered += rows
        self.delivered_bytes += size_bytes
        self.redelivered += redelivered
        self.meter.mark(now_us, rows, size_bytes)

    def end(self, messages: int, why: Literal["expired", "evicted"]) -> None:
        """So many were settled although nobody acked them."""
        if why == "expired":
            self.expired += messages
        else:
            self.evicted += messages

    def ack(self, now_us: int, messages: int) -> None:
        self.acked += messages
        self.acks.mark(now_us, messages, 0)


def describe_window(window: DeliveryWindow, counts: DeliveryCounters, now_us: int) -> SubscriptionStatistics:
    messages_per_s, bytes_per_s = counts.meter.rates(now_us)
    return SubscriptionStatistics(
        name="",
        type=str(window.type),
        position=window.cursor.position,
        backlog=0,
        unacked=window.unacked,
        waiting=window.failures.waiting,
        delayed=window.delayed,
        held=window.policy.held,
        unmatched=window.policy.unmatched,
        blocked=window.failures.blocked,
        blocked_keys=window.policy.blocked_keys,
        delivered=counts.delivered,
        delivered_bytes=counts.delivered_bytes,
        acked=counts.acked,
        redelivered=counts.redelivered,
        dead_lettered=counts.dead_lettered,
        dropped=counts.dropped,
        expired=counts.expired,
        evicted=counts.evicted,
        stale_acks=counts.stale_acks,
        messages_per_s=messages_per_s,
        bytes_per_s=bytes_per_s,
        acks_per_s=counts.acks.rates(now_us)[0],
    )


def describe_member(
    window: DeliveryWindow, member: Member, counts: DeliveryCounters, now_us: int
) -> ConsumerStatistics:
    messages_per_s, bytes_per_s = counts.meter.rates(now_us)
    return ConsumerStatistics(
        name=member.consumer,
        priority=member.priority,
        key_filters=list(member.key_filters),
        active=window.policy.is_active(member),
        credit=max(0, member.messages),
        unacked=window.unacked_of(member),
        delivered=counts.delivered,
        delivered_bytes=counts.delivered_bytes,
        redelivered=counts.redelivered,
        messages_per_s=messages_per_s,
        bytes_per_s=bytes_per_s,
    )
