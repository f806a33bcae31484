"""Topics that get more partitions while they are used."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_client

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Invalid, NotFound, Refused
from pydanube.model.failure import FailurePolicy
from pydanube.model.limits import PARTITIONS_MAX
from pydanube.model.positions import EARLIEST, LATEST
from pydanube.model.topics import SubscriptionType


async def partitions_of(broker) -> int:
    return len((await broker.topics.lookup(ANONYMOUS, TOPIC, False)).partitions)


async def test_a_topic_grows_and_subscriptions_begin_at_the_start_of_new_partitions(tmp_path):
    async with open_client(tmp_path, crash=True) as client:
        await client.create(partitions=2)
        await client.publish(await client.producer(partition=1), [b"old"])
        await client.broker.subscriptions.create(ANONYMOUS, TOPIC, "tail", SubscriptionType.EXCLUSIVE, LATEST)
        with pytest.raises(NotFound, match="there is no partition 2"):
            await client.producer(partition=2)
        await client.broker.topics.grow(ANONYMOUS, TOPIC, 4)
        assert await partitions_of(client.broker) == 4
        await client.publish(await client.producer(partition=3), [b"new"])
    async with open_client(tmp_path) as client:
        assert await partitions_of(client.broker) == 4, "it stays grown"
        new, old = await client.subscribe("tail", partition=3), await client.subscribe("tail", partition=1)
        assert await new.wait_for(1) == [(0, b"new")], "what came before the first consumer is not missed"
        await client.publish(await client.producer(partition=1), [b"next"])
        assert await old.wait_for(1) == [(1, b"next")]
        described = await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, "tail")
        assert [one.partition for one in described.partitions] == [0, 1, 2, 3]


async def test_producers_and_consumers_go_on_while_a_topic_grows(client, broker):
    await client.create(partitions=1)
    consumer, producer = await client.subscribe(), await client.producer()
    publishes = [client.publish(producer, [b"x"], sequence=n) for n in range(100)]
    for count in range(2, 12):
        await broker.topics.grow(ANONYMOUS, TOPIC, count)
    assert [one.base_offset for one in await asyncio.gather(*publishes)] == list(range(100))
    await consumer.wait_for(100)
    again = await client.come_back(producer, partition=10)
    assert (await client.publish(again, [b"y"], sequence=0)).base_offset == 0


async def test_partitions_cannot_be_removed_nor_added_to_a_non_partitioned_topic(client, broker):
    with pytest.raises(NotFound):
        await broker.topics.grow(ANONYMOUS, TOPIC, 4)
    await client.create(partitions=3)
    with pytest.raises(Refused, match="has 3 partitions, and none can be taken away"):
        await broker.topics.grow(ANONYMOUS, TOPIC, 2)
    with pytest.raises(Invalid, match=f"at most {PARTITIONS_MAX}"):
        await broker.topics.grow(ANONYMOUS, TOPIC, PARTITIONS_MAX + 1)
    await broker.topics.grow(ANONYMOUS, TOPIC, 3)
    assert await partitions_of(broker) == 3
    await broker.topics.delete(ANONYMOUS, TOPIC)
    await client.create()
    with pytest.raises(Refused, match="not partitioned"):
        await broker.topics.grow(ANONYMOUS, TOPIC, 2)


async def test_a_non_reliable_topic_grows_too(client, broker):
    await client.create(partitions=1, reliable=False)
    await client.subscribe()
    await broker.topics.grow(ANONYMOUS, TOPIC, 2)
    consumer = await client.subscribe(partition=1)
    await client.publish(await client.producer(partition=1), [b"x"])
    assert consumer.received == [(0, b"x")]


async def test_a_grown_topic_keeps_its_policies_and_its_exclusive_producer(client, broker):
    await client.create(partitions=1)
    await broker.policies.set(ANONYMOUS, TOPIC, {"message_bytes_max": 5})
    holder = await client.producer(access="exclusive")
    await broker.topics.grow(ANONYMOUS, TOPIC, 2)
    with pytest.raises(Refused):
        await client.producer(partition=1)
    again = await client.come_back(holder, partition=1, access="exclusive")
    with pytest.raises(Invalid, match="message_bytes_max"):
        await client.publish(again, [b"too long"])


@asynccontextmanager
async def being_opened(client: BrokerClient, partition: int):
    """Hold the opening of the partition after its log was read, for the length of the block; then let it finish."""
    opening, reached, go_on = client.broker._partitions._recovery, asyncio.Event(), asyncio.Event()
    recover = opening.recover

    async def slow(*arguments):
        found = await recover(*arguments)
        reached.set()
        await go_on.wait()
        return found

    opening.recover = slow
    opened = asyncio.create_task(client.fetch(partition=partition))
    await reached.wait()
    opening.recover = recover
    try:
        yield
    finally:
        go_on.set()
        await opened


async def start_after_retention(client: BrokerClient, partition: int) -> int:
    """Publish ten messages, let retention drop all that subscriptions have acked, and return the start offset."""
    await client.publish(await client.producer(partition=partition), [b"x"] * 10)
    await client.broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": 0})
    await client.broker._lifetimes.round()
    return (await client.fetch(partition=partition)).start_offset


async def test_a_subscription_that_is_deleted_while_a_partition_opens_keeps_nothing_there(client, broker):
    await client.create(partitions=1)
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.EXCLUSIVE, EARLIEST)
    await broker.topics.grow(ANONYMOUS, TOPIC, 2)
    async with being_opened(client, 1):
        await broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
    assert await start_after_retention(client, 1) == 10


async def test_a_subscription_that_is_created_while_a_partition_opens_misses_nothing_there(tmp_path):
    async with open_broker(tmp_path) as broker, AsyncExitStack() as until_created:
        client = await created(broker, partitions=1)
        known = await broker._partitions.get(TOPIC, 0)
        subscription_start = known.subscription_start

        async def grow_meanwhile(position):
            start = await subscription_start(position)
            await broker.topics.grow(ANONYMOUS, TOPIC, 2)
            await until_created.enter_async_context(being_opened(client, 1))
            return start

        known.subscription_start = grow_meanwhile
        await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.EXCLUSIVE, EARLIEST)
        await until_created.aclose()
        assert await start_after_retention(client, 1) == 0
        assert len(await (await client.subscribe("billing", partition=1)).wait_for(10)) == 10


async def test_a_failure_policy_that_is_set_while_a_partition_opens_applies_there(client, broker):
    await client.create(partitions=1)
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.EXCLUSIVE, EARLIEST)
    await broker.topics.grow(ANONYMOUS, TOPIC, 2)
    async with being_opened(client, 1):
        policy = FailurePolicy(ack_timeout_ms=7000)
        await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", policy)
    for partition in (0, 1):
        sink = await client.subscribe("billing", partition=partition)
        assert sink.consumer.ack_timeout_ms == 7000
