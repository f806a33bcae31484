"""Statistics as a native client gets them."""

from __future__ import annotations

import pytest
from native_peer import TOPIC, one_batch

from pydanube.codec.native.frames import FrameKind
from pydanube.model.errors import NotFound
from pydanube.operations import topics


async def test_a_client_is_told_what_was_counted_down_to_its_own_consumer(peer, topic):
    producer, consumer = await peer.open_producer(), await peer.subscribe("billing")
    batch = one_batch(producer, count=7)
    peer.publish(producer.handle, batch)
    await peer.receive(FrameKind.PUBLISHED)
    peer.credit(consumer.handle, 100, 1 << 20)
    await peer.receive(FrameKind.DELIVER)
    found = (await peer.request(topics.GetStatistics(topic=TOPIC), topics.StatisticsReport)).topic
    (partition,) = found.partitions
    (subscription,) = partition.subscriptions
    assert (found.topic, found.reliable) == (TOPIC, True)
    assert (partition.published, partition.published_bytes, partition.producers) == (7, len(batch), 1)
    assert (subscription.name, subscription.backlog, subscription.unacked) == ("billing", 7, 7)
    assert subscription.backlog_bytes == len(batch)
    assert subscription.backlog_s >= 0
    assert [(one.name, one.delivered) for one in subscription.consumers] == [("billing", 7)]


async def test_an_unknown_topic_is_refused_by_name(peer):
    with pytest.raises(NotFound, match=TOPIC):
        await peer.request(topics.GetStatistics(topic=TOPIC), topics.StatisticsReport)
