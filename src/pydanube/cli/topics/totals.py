"""Statistics of a topic summed over its partitions, for `danube topics stats`, `top` and `describe`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar

from pydanube.model.statistics import ConsumerStatistics, PartitionStatistics, SubscriptionStatistics, TopicStatistics

StatisticsT = TypeVar("StatisticsT", SubscriptionStatistics, ConsumerStatistics, PartitionStatistics)

_MAXIMUM_FIELDS: Final = ("backlog_s", "producers")
"""Fields whose total is the maximum over partitions: most producers publish to every partition. Others are summed."""
_UNSUMMED_FIELDS: Final = ("index", "priority", "active")


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """The statistics of a topic. `total.subscriptions` has the sums of each subscription, sorted by name."""

    topic: str
    reliable: bool
    partitions: list[PartitionStatistics]
    total: PartitionStatistics

    @property
    def subscriptions(self) -> list[SubscriptionStatistics]:
        return self.total.subscriptions

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.partitions)

    def subscription(self, name: str) -> SubscriptionStatistics | None:
        return next((one for one in self.subscriptions if one.name == name), None)


def sum_topic(found: TopicStatistics) -> TopicTotals:
    partitions = sorted(found.partitions, key=lambda one: one.index)
    total = _sum_fields(partitions) if partitions else PartitionStatistics(0)
    by_name: dict[str, list[SubscriptionStatistics]] = {}
    for partition in partitions:
        for one in partition.subscriptions:
            by_name.setdefault(one.name, []).append(one)
    subscriptions = [_sum_subscription(by_name[name]) for name in sorted(by_name)]
    ill = [one.health for one in partitions if one.health != "ok"]
    total = replace(total, subscriptions=subscriptions, health="; ".join(dict.fromkeys(ill)) or "ok")
    return TopicTotals(found.topic, found.reliable, partitions, total)


def _sum_subscription(per_partition: list[SubscriptionStatistics]) -> SubscriptionStatistics:
    by_name: dict[str, list[ConsumerStatistics]] = {}
    for one in per_partition:
        for consumer in one.consumers:
            by_name.setdefault(consumer.name, []).append(consumer)
    consumers = [_sum_consumer(by_name[name]) for name in sorted(by_name)]
    return replace(_sum_fields(per_partition), consumers=consumers)


def _sum_consumer(per_partition: list[ConsumerStatistics]) -> ConsumerStatistics:
    return replace(_sum_fields(per_partition), active=any(one.active for one in per_partition))


def _sum_fields(many: list[StatisticsT]) -> StatisticsT:
    """Return the first record with its numbers replaced by the sums over `many`."""
    sums: dict[str, Any] = {}
    for field in fields(many[0]):
        values: Iterable[Any] = [getattr(one, field.name) for one in many]
        if field.name in _UNSUMMED_FIELDS or not isinstance(getattr(many[0], field.name), int | float):
            continue
        sums[field.name] = max(values) if field.name in _MAXIMUM_FIELDS else sum(values)
    return replace(many[0], **sums)
