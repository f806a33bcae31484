"""Truncation: everything before an offset is deleted, cursors move up, and no offset is used again. Requests that are
under way while their topic is deleted and created again fail, and do not reach the new topic."""

from __future__ import annotations

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, HeldSearch, created, open_broker, open_client, open_topic, truncate
from cluster_harness import moving_cluster
from metadata_harness import FaultyStore

from pydanube.broker.registry.records import access_key, topic_key
from pydanube.core.access import ANONYMOUS, Action, AllowAll, Principal
from pydanube.model.errors import Denied, Invalid, NotFound, Refused, Unavailable
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.subscriptions import Seek, Settle
from pydanube.runtime.objects.memory import MemoryStore


async def positions(peer: BrokerClient, name: str) -> list[tuple[int, int]]:
    """Return position and lag of a subscription, by partition."""
    described = await peer.broker.subscriptions.describe(ANONYMOUS, TOPIC, name)
    return [(one.position, one.lag) for one in described.partitions]


async def fill(peer: BrokerClient, batches: int = 3, partition: int = 0) -> None:
    """Publish batches of ten messages."""
    producer = await peer.producer(partition=partition)
    for number in range(batches):
        await peer.publish(producer, [b"%d" % (10 * number + row) for row in range(10)])


@pytest.mark.parametrize("level", list(AckLevel))
async def test_what_lies_before_the_offset_is_gone_and_cursors_move_up(tmp_path, level):
    async with open_broker(tmp_path, objects=MemoryStore()) as broker:
        peer = await created(broker, ack_level=level)
        await fill(peer)
        for name, start in (("behind", EARLIEST), ("ahead", Position("offset", 20))):
            await broker.subscriptions.create(ANONYMOUS, TOPIC, name, SubscriptionType.SHARED, start)
        await broker.subscriptions.settle(
            ANONYMOUS, Settle(topic=TOPIC, subscription="behind", partition=0, ranges=[(17, 19)])
        )
        assert await truncate(broker, TOPIC, {0: 15}) == {0: 15}
        fetched = await peer.fetch()
        assert (fetched.start_offset, fetched.end_offset) == (15, 30)
        assert await positions(peer, "behind") == [(15, 13)]
        assert await positions(peer, "ahead") == [(20, 10)]
        collector = await peer.subscribe("behind", kind=SubscriptionType.SHARED)
        expected = [15, 16, *range(19, 30)]
        assert [offset for offset, _ in await collector.wait_for(len(expected))] == expected
        assert (
            await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="ahead", position=EARLIEST))
        ).positions == [(0, 15)]


async def test_it_survives_a_crash_and_offsets_are_not_used_again(tmp_path):
    async with open_topic(tmp_path, crash=True) as peer:
        await fill(peer)
        await peer.broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.EXCLUSIVE, EARLIEST)
        assert await truncate(peer.broker, TOPIC, {0: 30}) == {0: 30}
    async with open_client(tmp_path) as peer:
        assert await peer.read_all() == []
        assert await positions(peer, "billing") == [(30, 0)]
        assert (await peer.publish(await peer.producer(), [b"next"])).base_offset == 30
        assert await peer.read_all() == [(30, b"next")]


async def test_uploaded_history_is_deleted_too(tmp_path):
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects) as broker:
        peer = await created(broker)
        assert broker._tiers is not None
        for _ in range(3):
            await fill(peer, 1)
            await broker._tiers.uploader.round(everything=True)
        await truncate(broker, TOPIC, {0: 15})
        segments = (await broker.storage.segments(ANONYMOUS, TOPIC, 0, EARLIEST, 100)).segments
        assert [one.first_offset for one in segments] == [10, 20]
        assert (await peer.fetch()).start_offset == 15
    async with open_client(tmp_path, objects=objects) as peer:
        assert (await peer.fetch()).start_offset == 15
        assert [offset for offset, _ in await peer.read_all()] == [*range(10, 30)], "a fetch returns whole batches"


async def test_an_offset_past_the_end_is_refused_and_nothing_is_deleted(broker):
    peer = await created(broker, partitions=2)
    await fill(peer)
    with pytest.raises(Invalid, match=r"offset 10 is not in partition 1 of /default/orders, which ends at 0"):
        await truncate(broker, TOPIC, {0: 10, 1: 10})
    with pytest.raises(NotFound):
        await truncate(broker, TOPIC, {0: 10, 2: 0})
    with pytest.raises(Invalid):
        await truncate(broker, TOPIC, {0: -1})
    assert (await peer.fetch()).start_offset == 0
    assert await truncate(broker, TOPIC, {0: 10, 1: 0}) == {0: 10, 1: 0}
    assert await truncate(broker, TOPIC, {0: 5}) == {0: 10}, "the start never moves back"


async def test_a_topic_that_stores_nothing_is_refused(broker):
    await created(broker, reliable=False)
    with pytest.raises(Refused, match="stores nothing"):
        await truncate(broker, TOPIC, {0: 0})


class NoDeletion(AllowAll):
    def check(self, principal: Principal, action: Action, resource: str) -> None:
        if action is Action.DELETE:
            raise Denied(f"{principal} may not {action} {resource}")


async def test_it_needs_the_permission_to_delete(tmp_path):
    async with open_broker(tmp_path, authorizer=NoDeletion()) as broker:
        await BrokerClient(broker).create()
        with pytest.raises(Denied):
            await truncate(broker, TOPIC, {0: 0})


async def test_seeks_and_new_subscriptions_meanwhile_end_at_the_new_start(broker):
    """Whatever the order of the tasks, no subscription stands below the start afterwards."""
    peer = await created(broker, partitions=3)
    for partition in range(3):
        await fill(peer, partition=partition)
    subscriptions = broker.subscriptions
    await subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    for end in range(1, 30):
        await asyncio.gather(
            truncate(broker, TOPIC, dict.fromkeys(range(3), end)),
            *(
                subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST))
                for _ in range(3)
            ),
            subscriptions.create(ANONYMOUS, TOPIC, f"s{end}", SubscriptionType.SHARED, EARLIEST),
        )
        for name in ("billing", f"s{end}"):
            assert all(position >= end for position, _ in await positions(peer, name)), (name, end)


async def make_anew(client: BrokerClient) -> None:
    await client.broker.topics.delete(ANONYMOUS, TOPIC)
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
