"""From descriptions on the wire back to the model, for clients and for brokers that gather from other brokers."""

from __future__ import annotations

from pydanube.model.gaps import NO_GAPS, Gaps
from pydanube.model.topics import AckLevel, PartitionDescription, TopicConfig, TopicDescription

from .requests import Topic


def topic_description(topic: Topic) -> TopicDescription:
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
                is_known=one.is_known,
            )
            for one in topic.partition_infos
        ],
        subscriptions=list(topic.subscriptions),
        brokers=topic.brokers,
        version=topic.version,
    )
