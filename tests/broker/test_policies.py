"""Policies are inherited, durable and applied to open partitions; limits count live producers and consumers."""

import asyncio
from dataclasses import replace

import pytest
from broker_harness import SETTINGS, TOPIC, BrokerClient, created, open_broker

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Full, Invalid, NotFound, Refused
from pydanube.model.names import TopicName
from pydanube.model.policies import DEFAULTS, BacklogAction, Policies
from pydanube.model.positions import LATEST
from pydanube.model.topics import SubscriptionType

SHARED = SubscriptionType.SHARED
OTHER = TopicName.parse("/default/orders-dlq")


async def a_topic(broker, **policies: int) -> BrokerClient:
    client = await created(broker)
    if policies:
        await broker.policies.set(ANONYMOUS, TOPIC, policies)
    return client


async def test_a_topic_inherits_from_its_namespace_and_that_from_the_broker(broker):
    await a_topic(broker)
    report = await broker.policies.get(ANONYMOUS, TOPIC)
    own, effective = report.own, report.effective
    assert own == Policies()
    broker_own = replace(
        DEFAULTS,
        message_bytes_max=SETTINGS.limits.message_bytes_max,
        deduplication_s=SETTINGS.producers.remembered_s,
    )
    assert effective == broker_own
    await broker.policies.set(ANONYMOUS, "default", {"producers_max": 7, "ttl_s": 60})
    report = await broker.policies.set(ANONYMOUS, TOPIC, {"producers_max": 3})
    assert report.own == Policies(producers_max=3)
    assert report.effective == replace(broker_own, producers_max=3, ttl_s=60)
    assert (await broker.policies.get(ANONYMOUS, "default")).effective == replace(broker_own, producers_max=7, ttl_s=60)
    report = await broker.policies.set(ANONYMOUS, TOPIC, {"producers_max": None})
    assert (report.own, report.effective.producers_max) == (Policies(), 7)


async def test_effective_policies_are_computed_once_and_again_after_a_change(broker):
    await a_topic(broker)
    policies_of = broker._partitions.policies_of
    first = policies_of(TOPIC)
    assert policies_of(TOPIC) is first
    await broker.policies.set(ANONYMOUS, "default", {"ttl_s": 60})
    assert policies_of(TOPIC) == replace(first, ttl_s=60)
    await broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 30})
    assert policies_of(TOPIC) == replace(first, ttl_s=30)
    await broker.topics.delete(ANONYMOUS, TOPIC)
    with pytest.raises(NotFound):
        policies_of(TOPIC)
    await BrokerClient(broker).create()
    assert policies_of(TOPIC) == replace(first, ttl_s=60)


async def test_policies_survive_a_restart_and_are_deleted_with_their_topic(tmp_path):
    async with open_broker(tmp_path, crash=True) as broker:
        await a_topic(broker, backlog_action=BacklogAction.EVICT, retention_s=-1)
        await broker.policies.set(ANONYMOUS, "default", {"consumers_max": 5})
    async with open_broker(tmp_path) as broker:
        report = await broker.policies.get(ANONYMOUS, TOPIC)
        own, effective = report.own, report.effective
        assert own == Policies(backlog_action=BacklogAction.EVICT, retention_s=-1)
        assert isinstance(own.backlog_action, BacklogAction)
        assert effective.consumers_max == 5
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await BrokerClient(broker).create()
        assert (await broker.policies.get(ANONYMOUS, TOPIC)).own == Policies()


async def test_names_are_compared_whole(broker):
    await a_topic(broker, producers_max=1)
    await broker.namespaces.create(ANONYMOUS, "default-2")
    neighbours = [BrokerClient(broker, OTHER), BrokerClient(broker, TopicName.parse("/default-2/orders"))]
    await broker.policies.set(ANONYMOUS, "default", {"subscriptions_max": 1})
    for neighbour in neighbours:
        await neighbour.create()
        await asyncio.gather(neighbour.producer(), neighbour.producer())
    assert (await broker.policies.get(ANONYMOUS, OTHER)).effective.producers_max == 0
    assert (await broker.policies.get(ANONYMOUS, "default-2")).effective.subscriptions_max == 0


async def test_an_unknown_policy_or_target_is_refused(broker):
    await a_topic(broker)
    with pytest.raises(Invalid, match="producer_max' is unknown"):
        await broker.policies.set(ANONYMOUS, TOPIC, {"producer_max": 1})
    with pytest.raises(Invalid, match="out of range"):
        await broker.policies.set(ANONYMOUS, TOPIC, {"producers_max": -1})
    for target in (OTHER, "nowhere"):
        with pytest.raises(NotFound):
            await broker.policies.set(ANONYMOUS, target, {"producers_max": 1})
        with pytest.raises(NotFound):
            await broker.policies.get(ANONYMOUS, target)
    assert (await broker.policies.get(ANONYMOUS, TOPIC)).own == Policies()


async def test_a_topic_that_is_being_opened_while_its_policies_change_is_opened(tmp_path):
    async with open_broker(tmp_path) as broker:
        await a_topic(broker)
    async with open_broker(tmp_path) as broker:
        fetching = asyncio.ensure_future(BrokerClient(broker).fetch())
        await broker.policies.set(ANONYMOUS, TOPIC, {"message_bytes_max": 10})
        await fetching
        with pytest.raises(Invalid, match="message_bytes_max"):
            await BrokerClient(broker).publish(await BrokerClient(broker).producer(), [b"x" * 11])


async def test_closed_producers_do_not_count_towards_the_limit(broker):
    client = await a_topic(broker, producers_max=2)
    for _ in range(5):
        opened = [await client.producer(), await client.producer("meter")]
        with pytest.raises(Full, match=r"has 2 producers.*producers_max is 2: close one, or raise"):
            await client.producer()
        await client.producer("meter")
        for producer in opened:
            producer.close()
            producer.close()
        (await client.producer("meter")).close()
    assert not broker._producers._groups, "nothing stays behind"


async def test_a_producer_of_many_partitions_counts_once(client, broker):
    await client.create(partitions=4)
    await broker.policies.set(ANONYMOUS, TOPIC, {"producers_max": 1})
    first = await client.producer()
    for index in range(1, 4):
        await client.come_back(first, partition=index)
    with pytest.raises(Full):
        await client.producer(partition=1)
    described = await broker.topics.describe(ANONYMOUS, TOPIC)
    assert broker._producers.count(described.topic_id) == 1
    assert [one.producers for one in broker._partitions] == [1, 1, 1, 1]


async def test_many_producers_opened_at_once_do_not_exceed_the_limit(broker):
    client = await a_topic(broker, producers_max=3)
    opened = await asyncio.gather(*[client.producer() for _ in range(10)], return_exceptions=True)
    assert sum(isinstance(one, Full) for one in opened) == 7


async def test_closed_consumers_do_not_count_towards_the_limit(broker):
    client = await a_topic(broker, consumers_max=2)
    for _ in range(3):
        a, b = await client.subscribe("s", "a", kind=SHARED), await client.subscribe("t", "a")
        with pytest.raises(Full, match=r"has 2 consumers.*consumers_max is 2: close one, or raise"):
            await client.subscribe("s", "b", kind=SHARED)
        b = await client.subscribe("t", "a")
        a.consumer.close()
        c = await client.subscribe("s", "b", kind=SHARED)
        for one in (b, c):
            one.consumer.close()
    with pytest.raises(Refused):
        await client.subscribe("t", "z", kind=SHARED)
    assert await broker.subscriptions.names(ANONYMOUS, TOPIC) == ["s", "t"]


async def test_a_consumer_that_is_refused_leaves_no_subscription(broker):
    client = await a_topic(broker, consumers_max=1)
    await client.subscribe()
    with pytest.raises(Full):
        await client.subscribe("other")
    assert await broker.subscriptions.names(ANONYMOUS, TOPIC) == ["billing"]


async def test_a_consumer_of_many_partitions_counts_once(client, broker):
    await client.create(partitions=3)
    await broker.policies.set(ANONYMOUS, TOPIC, {"consumers_max": 1})
    for index in range(3):
        await client.subscribe(partition=index)
    with pytest.raises(Full):
        await client.subscribe("other", partition=2)


async def test_subscriptions_are_limited_and_deleting_one_makes_room(broker):
    client = await a_topic(broker, subscriptions_max=2)
    await asyncio.gather(client.subscribe("a"), client.subscribe("b"))
    for call in (client.subscribe("c"), broker.subscriptions.create(ANONYMOUS, TOPIC, "c", SHARED, LATEST)):
        with pytest.raises(Full, match=r"has 2 subscriptions.*subscriptions_max is 2: delete one, or raise"):
            await call
    await client.subscribe("a")
    await broker.subscriptions.delete(ANONYMOUS, TOPIC, "a")
    created = await asyncio.gather(*[client.subscribe(name) for name in "cde"], return_exceptions=True)
    assert sum(isinstance(one, Full) for one in created) == 2


async def test_a_lower_limit_closes_no_producer_and_a_higher_one_applies_at_once(broker):
    client = await a_topic(broker)
    opened = [await client.producer() for _ in range(3)]
    await broker.policies.set(ANONYMOUS, "default", {"producers_max": 1})
    for producer in opened:
        await client.publish(producer, [b"x"])
    with pytest.raises(Full):
        await client.producer()
    await broker.policies.set(ANONYMOUS, TOPIC, {"producers_max": 4})
    await client.producer()


async def test_the_largest_message_follows_the_policy_up_to_the_limit_of_the_broker(tmp_path):
    async with open_broker(tmp_path, message_bytes_max=1000) as broker:
        client = await a_topic(broker, message_bytes_max=10)
        producer = await client.producer()
        with pytest.raises(Invalid, match="message_bytes_max"):
            await client.publish(producer, [b"x", b"x" * 11])
        await client.publish(producer, [b"x" * 10] * 5)
        await broker.policies.set(ANONYMOUS, TOPIC, {"message_bytes_max": None})
        await client.publish(producer, [b"x" * 1000])
        report = await broker.policies.set(ANONYMOUS, TOPIC, {"message_bytes_max": 5000})
        assert report.effective.message_bytes_max == 1000
        with pytest.raises(Invalid, match=r"limits\.message_bytes_max"):
            await client.publish(producer, [b"x" * 1001])


async def test_the_dispatch_rate_applies_to_existing_and_new_subscriptions(tmp_path):
    async with open_broker(tmp_path) as broker:
        client = await a_topic(broker)
        await client.subscribe("before")
        await broker.policies.set(ANONYMOUS, "default", {"dispatch_messages_per_s": 5})
        await client.subscribe("after")
        (partition,) = broker._partitions
        assert all(one._rate is not None for one in partition.subscriptions.values())
        await broker.policies.set(ANONYMOUS, TOPIC, {"dispatch_messages_per_s": 0})
        assert all(one._rate is None for one in partition.subscriptions.values())
    async with open_broker(tmp_path) as broker:
        await broker.policies.set(ANONYMOUS, TOPIC, {"dispatch_messages_per_s": None})
        await BrokerClient(broker).fetch()
        (partition,) = broker._partitions
        assert all(one._rate is not None for one in partition.subscriptions.values())
