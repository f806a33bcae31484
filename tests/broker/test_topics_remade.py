"""Requests that are under way while their topic is deleted and created again fail, and do not reach the new topic."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, HeldSearch, open_topic
from cluster_harness import moving_cluster
from metadata_harness import FaultyStore

from pydanube.broker.registry.records import access_key, topic_key
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Unavailable
from pydanube.model.positions import Position


async def make_anew(client: BrokerClient) -> None:
    await client.broker.delete_topic(ANONYMOUS, TOPIC)
    await client.create()


async def position(client: BrokerClient) -> int:
    return (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0].position


async def test_a_subscription_whose_start_was_found_in_the_former_topic_is_not_created_in_the_new_one(
    client, broker, topic
):
    await client.publish(await client.producer(), [b"old"] * 100)
    (partition,) = broker._partitions
    search = HeldSearch(partition.stream)
    subscribing = asyncio.create_task(client.subscribe(start=Position("time", 1 << 60)))
    await search.has_found.wait()
    await make_anew(client)
    search.go_on.set()
    with pytest.raises(Unavailable, match="created anew"):
        await subscribing
    assert await broker.subscriptions.names(ANONYMOUS, TOPIC) == []
    await client.publish(await client.producer(), [b"new"])
    consumer = await client.subscribe()
    assert await consumer.wait_for(1) == [(0, b"new")]
    assert await position(client) == 0


@pytest.mark.parametrize("name", ["", "meter"])
async def test_a_producer_that_is_being_opened_when_its_topic_is_deleted_is_not_opened(tmp_path, name):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        await client.fetch()
        asked_who_holds_it = metadata.hold_read(access_key(client.broker._registry.topic(TOPIC).topic_id))
        opening = asyncio.create_task(client.producer(name))
        await asked_who_holds_it.asked.wait()
        await make_anew(client)
        asked_who_holds_it.go_on()
        with pytest.raises(Unavailable, match="created anew"):
            await opening
        assert (await client.publish(await client.producer(name), [b"new"])).base_offset == 0
        assert not client.broker._producers.count(1)


async def test_an_exclusive_producer_of_the_former_topic_does_not_take_the_new_one(tmp_path):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        await client.fetch()
        asked_who_holds_it = metadata.hold_read(access_key(client.broker._registry.topic(TOPIC).topic_id))
        opening = asyncio.create_task(client.producer("meter", access="exclusive"))
        await asked_who_holds_it.asked.wait()
        await make_anew(client)
        live = await client.producer("live")
        asked_who_holds_it.go_on()
        with pytest.raises(Unavailable, match="created anew"):
            await opening
        again = await client.come_back(live, "live")
        assert (await client.publish(again, [b"new"])).base_offset == 0


async def test_a_topic_of_whose_deletion_alone_a_broker_has_heard_is_asked_for_again(tmp_path):
    """It is created anew, which the next event of the watch will say."""
    async with moving_cluster(tmp_path, "a", "b") as cluster:
        topic_id = await cluster.create()
        owner = cluster.owners()[0]
        other = next(one for one in cluster.brokers.values() if one is not owner)
        asked_who_holds_it = owner.faults.hold_read(access_key(topic_id))
        opening = asyncio.create_task(owner.client.producer("meter"))
        await asked_who_holds_it.asked.wait()
        await owner.stop_following()
        await make_anew(other.client)
        owner.broker._registry._topic_table.keys.learn_deleted(
            topic_key(TOPIC), owner.broker._registry._topic_table.keys.revisions[topic_key(TOPIC)]
        )
        asked_who_holds_it.go_on()
        with pytest.raises(Unavailable, match="created anew"):
            await opening
