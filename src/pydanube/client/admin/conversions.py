"""The model's nouns as they travel, and back."""

from __future__ import annotations

from datetime import datetime

from pydanube.codec.native import requests
from pydanube.model.gaps import NO_GAPS, Gaps
from pydanube.model.positions import Position
from pydanube.model.topics import (
    AckLevel,
    BrokerDescription,
    PartitionDescription,
    SubscriptionDescription,
    SubscriptionPartition,
    SubscriptionType,
    TopicConfig,
    TopicDescription,
)

AnyPosition = str | int | datetime | Position
"""What a user may write for a position: see `model.positions`."""


def wire_start(position: AnyPosition) -> requests.Start:
    parsed = Position.parse(position)
    return requests.Start(parsed.kind, parsed.value)


def topic_description(topic: requests.Topic) -> TopicDescription:
    return TopicDescription(
        name=topic.topic,
        topic_id=topic.topic_id,
        config=TopicConfig(topic.partitions, topic.reliable, AckLevel.parse(topic.ack_level)),
        partitions=[
            PartitionDescription(
                index=one.index,
                owner=one.owner,
                epoch=one.epoch,
                start_offset=one.start_offset,
                end_offset=one.end_offset,
                ledgers=one.ledgers,
                stored_bytes=one.stored_bytes,
                health=one.health,
                missing_offsets=one.missing_offsets,
                gaps=Gaps(one.gaps) if one.gaps else NO_GAPS,
            )
            for one in topic.partition_infos
        ],
        subscriptions=list(topic.subscriptions),
    )


def subscription_description(subscription: requests.Subscription) -> SubscriptionDescription:
    return SubscriptionDescription(
        topic=subscription.topic,
        name=subscription.name,
        subscription_id=subscription.subscription_id,
        type=SubscriptionType.parse(subscription.type),
        partitions=[
            SubscriptionPartition(
                partition=one.partition,
                position=one.position,
                lag=one.lag,
                acked_ahead=one.acked_ahead,
                unacked=one.unacked,
                consumer=one.consumer,
            )
            for one in subscription.partitions
        ],
        failure_policy=subscription.failure_policy,
    )


def broker_description(broker: requests.BrokerInfo) -> BrokerDescription:
    return BrokerDescription(
        version=broker.version,
        node=broker.node,
        cluster=broker.cluster,
        state=broker.state,
        topics=broker.topics,
        started_at=broker.started_at,
    )
