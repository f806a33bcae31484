"""How long topics and subscriptions have been unused, here and at the other brokers that own partitions of a topic.

The owner of partition 0 decides. It counts for itself, and asks the other owners before it ends anything:

```
 unused here for long enough ─► ask the other owners ─► all say: unused ─► ask them again to hold the topic ─► end it
                                    └─ one says less, does not answer, or is away: it counts as in use
```

Invariants
    how long something is unused is counted in memory, and a restart begins that count again
    a broker that holds a topic hands out no partition of it, so nothing is published there before it is deleted
    the deletion begins within HELD_SECONDS / 4 of asking, and a held topic is served again after HELD_SECONDS
"""

from __future__ import annotations

from typing import Final

from pydanube.broker.cluster.gathering import Gathering
from pydanube.broker.cluster.parts import ClusterParts
from pydanube.broker.partitions.open_partitions import Partitions
from pydanube.broker.registry.records import SubscriptionRecord, TopicRecord
from pydanube.broker.registry.registry import Registry
from pydanube.broker.topics.topic_deletion import TopicDeletion
from pydanube.model.names import TopicName
from pydanube.model.policies import Policies
from pydanube.operations.topics import AskTopicUse, TopicUse
from pydanube.runtime.clock import MICROSECONDS, Clock

HELD_SECONDS: Final = 20.0
"""How long an owner holds a topic back that is about to be deleted; longer than a transaction of the metadata takes."""


class UnusedTopics:
    """Counts for how long the topics and subscriptions of this broker are unused."""

    def __init__(
        self, registry: Registry, partitions: Partitions, deletion: TopicDeletion, clock: Clock, cluster: ClusterParts
    ) -> None:
        self._registry = registry
        self._partitions = partitions
        self._deletion = deletion
        self._clock = clock
        self._cluster = cluster
        self._gathering = Gathering(cluster)
        self._started_us = clock.now_us()
        self._used_us: dict[int, int] = {}
        """When a topic was last seen in use, by topic id."""

    def policies(self, topic: TopicName, record: TopicRecord) -> Policies:
        """Return the effective policies; an open partition has them at hand, which is faster than looking them up."""
        partitions = self._partitions.open_of(record.topic_id)
        return partitions[0].policies if partitions else self._partitions.policies_of(topic)

    def keep(self, live: set[int]) -> None:
        """Forget what was counted for other topics than these, given by their ids."""
        self._used_us = {topic_id: one for topic_id, one in self._used_us.items() if topic_id in live}

    # -- here ----------------------------------------------------------------------------------------------------------

    def is_topic_unused(self, topic: TopicName, record: TopicRecord) -> bool:
        """Return whether the topic is unused here for as long as its policy says."""
        after_s = self.policies(topic, record).inactive_topic_s or 0
        return after_s > 0 and self.topic_us(topic, record) >= after_s * MICROSECONDS

    def topic_us(self, topic: TopicName, record: TopicRecord) -> int:
        """Return for how long the topic is unused here, in microseconds; 0: it is in use."""
        now = self._clock.now_us()
        if self._deletion.in_use(topic):
            self._used_us[record.topic_id] = now
            return 0
        used = max(
            self._started_us,
            record.created_at,
            self._used_us.get(record.topic_id, 0),
            *(one.traffic.last_us for one in self._partitions.open_of(record.topic_id)),
        )
        return max(0, now - used)

    def is_subscription_unused(
        self, topic: TopicName, record: TopicRecord, name: str, subscription: SubscriptionRecord
    ) -> bool:
        """Return whether the subscription is unused here for as long as the policy of its topic says."""
        after_s = self.policies(topic, record).inactive_subscription_s or 0
        return after_s > 0 and self.subscription_us(record, name, subscription) >= after_s * MICROSECONDS

    def subscription_us(self, record: TopicRecord, name: str, subscription: SubscriptionRecord) -> int:
        """Return for how long the subscription is unused here, in microseconds; 0: it has a consumer."""
        attached = [
            live
            for partition in self._partitions.open_of(record.topic_id)
            if (live := partition.subscriptions.get(name)) is not None
        ]
        if any(live.consumers for live in attached):
            return 0
        used = max([self._started_us, subscription.created_at, *(live.last_active_us for live in attached)])
        return max(0, self._clock.now_us() - used)

    # -- elsewhere -----------------------------------------------------------------------------------------------------

    def answer(self, request: AskTopicUse) -> int:
        """Return what another broker asks for; a topic or subscription that is not known here counts as in use."""
        topic = request.topic
        record = self._registry.find_topic(topic)
        if record is None or record.topic_id != request.topic_id:
            return 0
        if request.subscription:
            subscription = self._registry.subscriptions(topic).get(request.subscription)
            return 0 if subscription is None else self.subscription_us(record, request.subscription, subscription)
        if request.hold and self.is_topic_unused(topic, record):
            self._partitions.hold(record.topic_id, HELD_SECONDS)
        return self.topic_us(topic, record)

    async def is_topic_unused_elsewhere(self, topic: TopicName, record: TopicRecord, hold: bool = False) -> bool:
        """Return whether the other owners say that the topic is unused. With `hold`, those that do hold it back."""
        after_s = self.policies(topic, record).inactive_topic_s or 0
        return await self._ask(record, AskTopicUse(topic=topic, topic_id=record.topic_id, hold=hold), after_s)

    async def is_subscription_unused_elsewhere(self, topic: TopicName, record: TopicRecord, name: str) -> bool:
        """Return whether the other owners say that the subscription is unused. A consumer that comes at one of them
        before the subscription is deleted is told of that."""
        after_s = self.policies(topic, record).inactive_subscription_s or 0
        return await self._ask(record, AskTopicUse(topic=topic, topic_id=record.topic_id, subscription=name), after_s)

    async def _ask(self, record: TopicRecord, request: AskTopicUse, after_s: int) -> bool:
        routing, placement = self._partitions.routing, self._partitions.placement
        names = set[str]()
        for index, owner in enumerate(routing.owners_of(record)):
            if owner is not None:
                names.add(owner.name)
            elif not placement.is_unplaced(record, index):
                return False  # its broker is away
        names.discard(self._cluster.membership.session.name)
        answers = await self._gathering.ask(dict.fromkeys(sorted(names), request), TopicUse)
        return all(isinstance(one, TopicUse) and one.unused_us >= after_s * MICROSECONDS for one in answers.values())
