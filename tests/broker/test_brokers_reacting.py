"""Open partitions of one broker, when another broker changes the topic, its subscriptions, policies or producers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created
from cluster_harness import MemberBroker, open_brokers

from pydanube.broker.registry import records
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.store import list_all
from pydanube.model.errors import AlreadyExists, Invalid, NotFound, StaleEpoch
from pydanube.model.failure import FailurePolicy
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.schemas import Binding, SchemaDefinition, SchemaFormat, ValidationPolicy
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.operations.topics import UnloadTopic

SHARED = SubscriptionType.SHARED


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[list[MemberBroker]]:
    async with open_brokers(tmp_path, "owner", "other") as opened:
        yield opened


@pytest.fixture
async def client(brokers: list[MemberBroker]) -> BrokerClient:
    """A client of the owner, whose topic has an open partition."""
    client = await created(brokers[0].broker)
    producer = await client.producer()
    await client.publish(producer, [b"first"])
    producer.close()
    await brokers[1].catch_up()
    return client


async def test_policies_that_another_broker_sets_apply_to_open_partitions(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    producer = await client.producer()
    await other.broker.policies.set(ANONYMOUS, TOPIC, {"message_bytes_max": 3})
    await owner.catch_up()
    with pytest.raises(Invalid):
        await client.publish(producer, [b"longer"])
    await other.broker.policies.set(ANONYMOUS, TOPIC, {"message_bytes_max": None})
    await owner.catch_up()
    await client.publish(producer, [b"longer"])
    await other.broker.policies.set(ANONYMOUS, "default", {"message_bytes_max": 3})
    await owner.catch_up()
    with pytest.raises(Invalid):
        await client.publish(producer, [b"longer"])


async def test_a_binding_that_another_broker_made_is_checked(brokers: list[MemberBroker], client: BrokerClient) -> None:
    owner, other = brokers
    producer = await client.producer()
    await other.broker.schemas.register(ANONYMOUS, "orders", SchemaDefinition(SchemaFormat.NUMBER, ""))
    await other.broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders", ValidationPolicy.ENFORCE))
    await owner.catch_up()
    with pytest.raises(Invalid):
        await client.publish(producer, [b"no number, and no schema"])
    await other.broker.schemas.unbind(ANONYMOUS, TOPIC)
    await owner.catch_up()
    await client.publish(producer, [b"anything"])


async def test_a_subscription_that_another_broker_created_is_delivered_from_its_start(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    record = other.registry.topic(TOPIC)
    await other.registry.create_subscription(TOPIC, record.topic_id, "billing", SHARED, [0])
    await owner.catch_up()
    (partition,) = owner.broker._partitions.open_of(record.topic_id)
    assert partition.subscriptions["billing"].cursor.position == 0
    consumer = await client.subscribe("billing", kind=SHARED)
    assert await consumer.wait_for(1) == [(0, b"first")]


async def test_limits_and_failure_policies_of_another_broker_apply_at_once(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    consumer = await client.subscribe("billing", kind=SHARED)
    await other.catch_up()
    await other.broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 5)
    policy = FailurePolicy(ack_timeout_ms=60_000, redeliveries_max=3)
    await other.broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", policy)
    await owner.catch_up()
    (partition,) = owner.broker._partitions.open_of(owner.registry.topic(TOPIC).topic_id)
    live = partition.subscriptions["billing"]
    assert live.dispatcher.unacked_max == 5
    assert live.dispatcher.failure_policy == policy
    assert consumer.ack_timeout_ms == 60_000, "the consumer is told"


async def test_consumers_of_a_subscription_that_another_broker_deleted_are_closed(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    consumer = await client.subscribe("billing", kind=SHARED)
    await other.catch_up()
    await other.broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
    await owner.catch_up()
    assert isinstance(consumer.error, NotFound)
    (partition,) = owner.broker._partitions.open_of(owner.registry.topic(TOPIC).topic_id)
    assert not partition.subscriptions
    again = await client.subscribe("billing", kind=SHARED)
    assert await again.wait_for(1) == [(0, b"first")], "one that is created anew begins anew"


async def test_a_topic_that_another_broker_deleted_is_closed_and_its_log_is_freed(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    producer = await client.producer()
    topic_id = owner.registry.topic(TOPIC).topic_id
    keys = [one.key async for one in list_all(owner.store.view, records.ledgers_of(topic_id))]
    ledgers = {records.ledger_of_key(key)[1] for key in keys}
    assert ledgers & await owner.broker._writer.held(list(ledgers))
    await other.broker.topics.delete(ANONYMOUS, TOPIC)
    await owner.catch_up()
    assert owner.broker._partitions.open_of(topic_id) == []
    with pytest.raises(NotFound):
        await client.publish(producer, [b"late"])
    with pytest.raises(NotFound):
        await client.fetch()
    table = owner.broker._writer._engine.table.ledgers
    await owner.broker._writer.held([])  # a round trip to the log's thread
    assert all(table[one].forgotten for one in ledgers if one in table)
    await client.create()
    assert (await client.fetch()).batches == [], "the topic of the same name is another one"


async def test_ledgers_of_a_partition_that_is_not_open_are_freed_too(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    topic_id = owner.registry.topic(TOPIC).topic_id
    await owner.broker.topics.unload(UnloadTopic(topic=TOPIC))
    await other.broker.topics.delete(ANONYMOUS, TOPIC)
    await owner.catch_up()
    assert owner.broker._partitions.open_of(topic_id) == []
    await owner.broker._writer.held([])
    ledgers = owner.broker._writer._engine.table.ledgers
    assert ledgers
    assert all(one.forgotten for one in ledgers.values())


async def test_exclusive_access_taken_at_another_broker_fences_the_producers_here(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    before = await client.producer()
    owner.store.hold()
    holder = await other.registry.new_producer(1)
    topic_id = owner.registry.topic(TOPIC).topic_id
    await other.registry.take_access(TOPIC, topic_id, holder, 0)
    after = await client.producer()  # opened under the new access epoch, before that is heard
    owner.store.release()
    await owner.catch_up()
    with pytest.raises(StaleEpoch):
        await client.publish(before, [b"fenced"])
    await client.publish(after, [b"not fenced"])


async def test_a_name_opened_at_another_broker_fences_its_older_producer_here(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    old, unconcerned = await client.producer("writer"), await client.producer("another")
    await other.registry.resume_producer(TOPIC, owner.registry.topic(TOPIC).topic_id, "writer", 0, 0)
    await owner.catch_up()
    with pytest.raises(StaleEpoch):
        await client.publish(old, [b"fenced"])
    await client.publish(unconcerned, [b"not fenced"])


async def test_what_another_broker_created_is_found_before_it_is_heard_of(brokers: list[MemberBroker]) -> None:
    a, b = (one.broker for one in brokers)
    brokers[1].store.hold()
    grown = TopicName.parse("/shop/grown")
    await a.namespaces.create(ANONYMOUS, "shop")
    await a.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    await a.topics.create(ANONYMOUS, grown, TopicConfig(1))
    assert await b.topics.names(ANONYMOUS, "shop") == []
    with pytest.raises(AlreadyExists):
        await b.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    assert (await b.topics.lookup(ANONYMOUS, grown, create=True)).config.partitions == 1
    await a.topics.grow(ANONYMOUS, grown, 3)
    assert (await b.fetch(ANONYMOUS, grown, 2, EARLIEST, 1000, 0)).batches == []
    with pytest.raises(NotFound, match="there is no partition 3"):
        await b.fetch(ANONYMOUS, grown, 3, EARLIEST, 1000, 0)
    await a.subscriptions.create(ANONYMOUS, TOPIC, "billing", SHARED, EARLIEST)
    assert (await b.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).version
    assert await b.subscriptions.names(ANONYMOUS, TOPIC) == ["billing"]
    assert (await b.policies.get(ANONYMOUS, grown)).effective.producers_max == 0
    await b.topics.delete(ANONYMOUS, TOPIC)
    with pytest.raises(NotFound):
        await b.topics.delete(ANONYMOUS, TopicName.parse("/default/never"))


async def test_a_subscription_that_another_broker_deleted_can_be_created_before_that_is_heard_of(
    brokers: list[MemberBroker], client: BrokerClient
) -> None:
    owner, other = brokers
    consumer = await client.subscribe("billing", kind=SHARED)
    await consumer.wait_for(1)
    await consumer.ack((0, 1))
    await other.catch_up()
    owner.store.hold()
    await other.broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
    await owner.broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SHARED, EARLIEST)
    assert isinstance(consumer.error, NotFound)
    again = await client.subscribe("billing", kind=SHARED)
    assert await again.wait_for(1) == [(0, b"first")], "one that is created anew begins anew"
    owner.store.release()
    await owner.catch_up()
    assert again.error is None, "the deletion that is heard late is of the former subscription"
    with pytest.raises(AlreadyExists):
        await owner.broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SHARED, EARLIEST)
