"""Statistics of a topic added up over its partitions: what `danube topics stats`, `top` and `describe` show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeVar

from pydanube.model.statistics import ConsumerStatistics, PartitionStatistics, SubscriptionStatistics, TopicStatistics

StatisticsT = TypeVar("StatisticsT", SubscriptionStatistics, ConsumerStatistics, PartitionStatistics)

_LARGEST: Final = ("backlog_s", "producers")
"""The largest of all partitions counts: most producers send to every partition. Other numbers are added up."""
_SAME: Final = ("index", "priority", "active")


@dataclass(frozen=True, slots=True)
class Figures:
    """A topic as a whole. `total.subscriptions` are added up too, one for each name, in the order of their names."""

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


def added_up(found: TopicStatistics) -> Figures:
    partitions = sorted(found.partitions, key=lambda one: one.index)
    total = _sum(partitions) if partitions else PartitionStatistics(0)
    by_name: dict[str, list[SubscriptionStatistics]] = {}
    for partition in partitions:
        for one in partition.subscriptions:
            by_name.setdefault(one.name, []).append(one)
    subscriptions = [_subscription(by_name[name]) for name in sorted(by_name)]
    ill = [one.health for one in partitions if one.health != "ok"]
    total = replace(total, subscriptions=subscriptions, health="; ".join(dict.fromkeys(ill)) or "ok")
    return Figures(found.topic, found.reliable, partitions, total)


def _subscription(places: list[SubscriptionStatistics]) -> SubscriptionStatistics:
    by_name: dict[str, list[ConsumerStatistics]] = {}
    for one in places:
        for consumer in one.consumers:
            by_name.setdefault(consumer.name, []).append(consumer)
    consumers = [_consumer(by_name[name]) for name in sorted(by_name)]
    return replace(_sum(places), consumers=consumers)


def _consumer(places: list[ConsumerStatistics]) -> ConsumerStatistics:
    return replace(_sum(places), active=any(one.active for one in places))


def _sum(many: list[StatisticsT]) -> StatisticsT:
    """The first, with the numbers of all."""
    sums: dict[str, Any] = {}
    for field in fields(many[0]):
        values: Iterable[Any] = [getattr(one, field.name) for one in many]
        if field.name in _SAME or not isinstance(getattr(many[0], field.name), int | float):
            continue
        sums[field.name] = max(values) if field.name in _LARGEST else sum(values)
    return replace(many[0], **sums)


def as_dict(figures: Figures) -> dict[str, Any]:
    """For scripts: the sums, then each partition with everything in it."""
    total = asdict(figures.total)
    subscriptions = total.pop("subscriptions")
    for name in ("index", "start_offset", "end_offset"):
        del total[name]
    for one in subscriptions:
        del one["position"]
    return {
        "topic": figures.topic,
        "reliable": figures.reliable,
        "partitions": len(figures.partitions),
        "messages": figures.messages,
        **total,
        "subscriptions": subscriptions,
        "partition_statistics": [_partition_dict(one) for one in figures.partitions],
    }


def _partition_dict(partition: PartitionStatistics) -> dict[str, Any]:
    told = asdict(partition)
    return {"partition": told.pop("index"), "messages": partition.messages, **told}
