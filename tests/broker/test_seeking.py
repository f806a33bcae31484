"""Seeks: to offsets that are being trimmed, across reconnects and restarts, and which acks count afterwards."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, open_client, open_topic
from metadata_harness import FaultyStore, puts

from pydanube.core.access import ANONYMOUS
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.subscriptions import DescribeSubscription, Seek
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore


async def position(client: BrokerClient, name: str = "billing") -> int:
    return (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, name)).partitions[0].position


@pytest.mark.parametrize("where", [EARLIEST, Position("offset", 20), Position("time", 1)], ids=str)
async def test_a_seek_to_offsets_that_retention_is_trimming_goes_behind_them(tmp_path, where):
    clock, metadata = ManualClock(), FaultyStore()
    async with open_topic(tmp_path, clock=clock, metadata=metadata, tail_bytes=1) as client:
        await client.policies(retention_s=60)
        await client.subscription()
        await client.fill(await client.producer(), 10, every_s=10)  # at 0, 10, ... 90 s; now it is 100 s
        await client.settle((0, 100))
        moving = metadata.hold(puts("/partitions/"))
        round_ = asyncio.create_task(client.broker._lifetimes.round())
        await moving.asked.wait()
        assert await client.seek(where) == [(0, 40)]
        moving.go_on()
        await round_
        assert await client.start() == 40
        consumer = await client.subscribe()
        assert [offset for offset, _ in await consumer.wait_for(60)] == list(range(40, 100))


async def test_acks_that_a_consumer_sends_after_a_reconnect_count_despite_an_earlier_seek(client, broker, topic):
    await client.publish(await client.producer(), [b"x"] * 10)
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST))
    consumer = await client.subscribe(kind=SubscriptionType.SHARED)
    await consumer.wait_for(10)
    consumer.consumer.close()  # its connection breaks, and it comes back with acks that it could not send
    again = await client.subscribe(kind=SubscriptionType.SHARED, credit=0)
    assert again.consumer.generation == consumer.consumer.generation > 0
    await again.ack((0, 7))
    assert await position(client) == 7


async def test_a_consumer_that_was_detached_during_a_seek_gets_the_new_generation(client, broker, topic):
    await client.publish(await client.producer(), [b"x"] * 10)
    consumer = await client.subscribe()
    await consumer.wait_for(10)
    consumer.consumer.close()
    before = consumer.consumer.generation
    await broker.subscriptions.seek(
        ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", 3))
    )
    again = await client.subscribe()
    assert again.consumer.owner_epoch == consumer.consumer.owner_epoch
    assert again.consumer.generation > before == 0


# -- generations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SubscriptionType)
@pytest.mark.parametrize("ack_level", AckLevel)
async def test_acks_and_nacks_of_deliveries_before_a_seek_are_answered_and_ignored(tmp_path, kind, ack_level):
    async with open_client(tmp_path, objects=MemoryStore()) as client:
        await client.create(ack_level=ack_level)
        await client.publish(await client.producer(), [b"x"] * 20)
        consumer = await client.subscribe(kind=kind)
        await consumer.wait_for(20)
        await client.broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST))
        await consumer.wait_for(40)  # the replay: the same consumer has them again
        assert consumer.generation == consumer.consumer.generation > 0
        await consumer.ack((0, 20), generation=0)
        if kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            await consumer.ack((0, 15), cumulative=True, generation=0)
        await consumer.ack(*[(offset, offset + 1) for offset in range(0, 20, 2)], generation=0)
        consumer.consumer.nack([(0, 20)], reason="too late", generation=0)
        assert await position(client) == 0
        ((_, live),) = await client.broker.subscriptions._on_partitions(
            DescribeSubscription(topic=TOPIC, subscription="billing"), [0]
        )
        assert (live.dispatcher.unacked, live.dispatcher.counts.failed) == (20, 0)
        assert live.statistics().stale_acks >= 3
        await consumer.ack((0, 7), generation=consumer.generation)
        assert await position(client) == 7


async def test_a_client_of_an_earlier_release_acks_what_is_in_flight_to_it_after_a_seek(client, broker, topic):
    await client.publish(await client.producer(), [b"x"] * 20)
    consumer = await client.subscribe(kind=SubscriptionType.SHARED)
    await consumer.wait_for(20)
    await broker.subscriptions.seek(
        ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", 10))
    )
    await consumer.wait_for(30)
    await consumer.ack((0, 15))
    assert await position(client) == 15


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("snapshots", [False, True])
async def test_a_generation_survives_a_restart_and_is_never_used_twice(tmp_path, crash, snapshots):
    given = []
    for start in range(3):
        async with open_client(tmp_path, crash=crash) as client:
            if not start:
                await client.create()
                await client.publish(await client.producer(), [b"x"] * 10)
                await client.broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
            consumer = await client.subscribe(kind=SubscriptionType.SHARED)
            assert consumer.consumer.generation == (given[-1] if given else 0)
            for offset in (3, 0):
                await client.broker.subscriptions.seek(
                    ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", offset))
                )
                given.append(consumer.consumer.generation)
            if snapshots:
                ((partition, _),) = await client.broker.subscriptions._on_partitions(
                    DescribeSubscription(topic=TOPIC, subscription="billing"), [0]
                )
                partition.state.snapshot()
            await consumer.ack((1, 2), generation=consumer.consumer.generation)
    assert given == sorted(set(given))


async def test_a_generation_that_a_crash_lost_is_not_used_by_another_seek(tmp_path):
    async with open_topic(tmp_path, crash=True) as client:
        await client.publish(await client.producer(), [b"x"] * 10)
        consumer = await client.subscribe()
        await consumer.ack((0, 1), generation=0)
        ((_, live),) = await client.broker.subscriptions._on_partitions(
            DescribeSubscription(topic=TOPIC, subscription="billing"), [0]
        )
        live._context.state.change = lambda *_: None  # what would have been synced is lost with the process
        live.seek(0, lambda error: None)
        forgotten = consumer.consumer.generation
    async with open_client(tmp_path) as client:
        consumer = await client.subscribe()
        assert consumer.consumer.generation == 0
        await client.broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST))
        assert consumer.consumer.generation > forgotten
