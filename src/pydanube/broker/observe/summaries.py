"""Sums what the open partitions of a topic have counted, without opening or reading anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from operator import add, attrgetter
from typing import Any, Final

from pydanube.broker.partitions.backlog_quota import backlog_bytes
from pydanube.broker.partitions.partition import Partition
from pydanube.broker.registry.records import TopicRecord
from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.model.names import TopicName
from pydanube.model.statistics import SubscriptionStatistics, SubscriptionSummary, TopicSummary
from pydanube.runtime.clock import MICROSECONDS
from pydanube.runtime.long_work import Slices

_NOT_SUMMED: Final = ("name", "type", "consumers", "backlog_bytes", "backlog_s")
_SUMMED: Final = tuple(one.name for one in fields(SubscriptionSummary) if one.name not in _NOT_SUMMED)
_ADDED: Final = (
    "open_partitions",
    "messages",
    "stored_bytes",
    "published",
    "published_bytes",
    "messages_per_s",
    "bytes_per_s",
    "unheard",
    "throttled_s",
    "schema_warnings",
)
_values_of: Final[Callable[[SubscriptionStatistics], tuple[Any, ...]]] = attrgetter(*_SUMMED)


async def summarize(
    name: TopicName,
    record: TopicRecord,
    subscription_count: int,
    partitions: Sequence[Partition],
    now_us: int,
    slices: Slices,
) -> TopicSummary:
    """Return the summary of a topic with these open partitions. Pauses where that takes long."""
    sums: dict[str, Any] = dict.fromkeys(
        ("messages", "stored_bytes", "published", "published_bytes", "unheard", "schema_warnings"), 0
    )
    producers, throttled_s, messages_per_s, bytes_per_s = 0, 0.0, 0.0, 0.0
    health = "ok"
    live: dict[str, list[tuple[Partition, LiveSubscription]]] = {}
    for partition in partitions:
        about, traffic = partition.describe(""), partition.traffic
        health = about.health if health == "ok" else health
        rates = traffic.meter.rates(now_us)
        sums["messages"] += about.messages
        sums["stored_bytes"] += about.stored_bytes
        sums["published"] += traffic.published
        sums["published_bytes"] += traffic.published_bytes
        sums["unheard"] += traffic.unheard
        sums["schema_warnings"] += partition.intake.warned if partition.intake is not None else 0
        producers = max(producers, partition.producers)
        throttled_s += traffic.throttled_s
        messages_per_s += rates[0]
        bytes_per_s += rates[1]
        for one in partition.subscriptions.values():
            live.setdefault(one.name, []).append((partition, one))
        await slices.pause_if_spent()
    return TopicSummary(
        topic=str(name),
        reliable=record.reliable,
        ack_level=record.ack_level,
        partitions=record.partitions,
        created_at=record.created_at,
        open_partitions=len(partitions),
        subscription_count=subscription_count,
        producers=producers,
        throttled_s=throttled_s,
        messages_per_s=messages_per_s,
        bytes_per_s=bytes_per_s,
        health=health,
        subscriptions=[await _subscription(live[one], now_us, slices) for one in sorted(live)],
        **sums,
    )


def merge_summaries(own: TopicSummary, other: TopicSummary) -> TopicSummary:
    """Return the sums of what two brokers have counted of one topic."""
    subscriptions = {one.name: one for one in own.subscriptions}
    for one in other.subscriptions:
        known = subscriptions.get(one.name)
        subscriptions[one.name] = one if known is None else _merge_subscriptions(known, one)
    return replace(
        own,
        **{name: getattr(own, name) + getattr(other, name) for name in _ADDED},
        producers=max(own.producers, other.producers),
        health=other.health if own.health == "ok" else own.health,
        subscriptions=[subscriptions[name] for name in sorted(subscriptions)],
    )


def _merge_subscriptions(own: SubscriptionSummary, other: SubscriptionSummary) -> SubscriptionSummary:
    """Return the sums of one subscription on two brokers. Most consumers are attached to every partition."""
    return replace(
        own,
        **{name: getattr(own, name) + getattr(other, name) for name in (*_SUMMED, "backlog_bytes")},
        consumers=max(own.consumers, other.consumers),
        backlog_s=max(own.backlog_s, other.backlog_s),
    )


async def _subscription(
    live: Sequence[tuple[Partition, LiveSubscription]], now_us: int, slices: Slices
) -> SubscriptionSummary:
    """Sum one subscription over its partitions."""
    sums: tuple[Any, ...] | None = None
    consumers, backlog_s, size = set[str](), 0.0, 0
    for partition, one in live:
        counted = one.statistics(with_consumers=False)
        values = _values_of(counted)
        sums = values if sums is None else tuple(map(add, sums, values))
        if counted.backlog:
            stream = partition.stream
            backlog_s = max(backlog_s, _age_s(partition, counted.position, now_us))
            size += backlog_bytes(partition.sizes, stream.gaps, one.cursor, stream.end_offset)
        consumers.update(one.consumer_names)
        await slices.pause_if_spent()
    assert sums is not None, "a subscription is on at least one partition"
    first = live[0][1]
    summed = dict(zip(_SUMMED, sums, strict=True))
    return SubscriptionSummary(
        first.name, str(first.type), len(consumers), backlog_bytes=size, backlog_s=backlog_s, **summed
    )


def _age_s(partition: Partition, offset: int, now_us: int) -> float:
    """Return about how many seconds ago the message at `offset` was appended."""
    appended_us = partition.append_times.at(max(offset, partition.stream.start_offset))
    return max(0, now_us - appended_us) / MICROSECONDS if appended_us else 0.0
