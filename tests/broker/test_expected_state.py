"""Changes that are made only while an object has the version that the caller expects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, BrokerClient, open_broker
from metadata_harness import FaultyStore, deletes, puts

from pydanube.broker import Broker
from pydanube.broker.registry import records
from pydanube.broker.registry.records import NamespaceRecord, SubscriptionRecord, TopicRecord
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import pack, version_of
from pydanube.metadata.store import MetadataStore, Put
from pydanube.model.errors import Conflict, NotFound, Unavailable
from pydanube.model.failure import FailurePolicy, Poison
from pydanube.model.policies import Policies
from pydanube.model.positions import EARLIEST
from pydanube.model.schemas import Binding, Compatibility, SchemaDefinition, SchemaFormat
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.operations.subscriptions import Seek

DROP = FailurePolicy(redeliveries_max=1, poison=Poison.DROP)
NAMESPACE = "shop"
Change = Callable[[Broker, str], Awaitable[Any]]


async def prepare(broker: Broker) -> None:
    """Create a namespace, a partitioned topic with a subscription, and a subject."""
    await broker.namespaces.create(ANONYMOUS, NAMESPACE)
    await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=1))
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    await broker.schemas.register(ANONYMOUS, "orders", SchemaDefinition(SchemaFormat.STRING, ""))


async def topic_version(broker: Broker) -> str:
    return (await broker.policies.get(ANONYMOUS, TOPIC)).version


async def namespace_version(broker: Broker) -> str:
    return (await broker.policies.get(ANONYMOUS, NAMESPACE)).version


async def subscription_version(broker: Broker) -> str:
    return (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).version


async def subject_version(broker: Broker) -> str:
    return await broker.schemas.compatibility_version(ANONYMOUS, "orders")


async def default_version(broker: Broker) -> str:
    return await broker.schemas.compatibility_version(ANONYMOUS)


CHANGES: dict[str, tuple[Callable[[Broker], Awaitable[str]], Change, Change]] = {
    # what            its version, a change that expects a version, another change
    "topic policies": (
        topic_version,
        lambda broker, version: broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 5}, version),
        lambda broker, _: broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 6}),
    ),
    "topic growth": (
        topic_version,
        lambda broker, version: broker.topics.grow(ANONYMOUS, TOPIC, 3, version),
        lambda broker, _: broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 6}),
    ),
    "binding": (
        topic_version,
        lambda broker, version: broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders"), version),
        lambda broker, _: broker.topics.grow(ANONYMOUS, TOPIC, 2),
    ),
    "topic deletion": (
        topic_version,
        lambda broker, version: broker.topics.delete(ANONYMOUS, TOPIC, version),
        lambda broker, _: broker.schemas.bind(ANONYMOUS, TOPIC, Binding("orders")),
    ),
    "namespace policies": (
        namespace_version,
        lambda broker, version: broker.policies.set(ANONYMOUS, NAMESPACE, {"ttl_s": 5}, version),
        lambda broker, _: broker.policies.set(ANONYMOUS, NAMESPACE, {"ttl_s": 6}),
    ),
    "namespace deletion": (
        namespace_version,
        lambda broker, version: broker.namespaces.delete(ANONYMOUS, NAMESPACE, version),
        lambda broker, _: broker.policies.set(ANONYMOUS, NAMESPACE, {"ttl_s": 6}),
    ),
    "failure policy": (
        subscription_version,
        lambda broker, version: broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", DROP, version),
        lambda broker, _: broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 7),
    ),
    "unacked max": (
        subscription_version,
        lambda broker, version: broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 8, version),
        lambda broker, _: broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 7),
    ),
    "subscription deletion": (
        subscription_version,
        lambda broker, version: broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing", version),
        lambda broker, _: broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 7),
    ),
    "compatibility": (
        subject_version,
        lambda broker, version: broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.FULL, version),
        lambda broker, _: broker.schemas.set_compatibility(ANONYMOUS, "orders", Compatibility.NONE),
    ),
    "default compatibility": (
        default_version,
        lambda broker, version: broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.FULL, version),
        lambda broker, _: broker.schemas.set_compatibility(ANONYMOUS, None, Compatibility.NONE),
    ),
}

each_change = pytest.mark.parametrize("name", CHANGES)


@each_change
async def test_a_change_is_made_if_the_object_is_as_expected(tmp_path: Path, name: str):
    version_of, change, _ = CHANGES[name]
    async with open_broker(tmp_path) as broker:
        await prepare(broker)
        before = await version_of(broker)
        await change(broker, before)
        if name.endswith("deletion"):
            with pytest.raises(NotFound):
                await version_of(broker)
        else:
            assert await version_of(broker) != before


@each_change
async def test_nothing_is_changed_if_it_is_not(tmp_path: Path, name: str):
    version_of, change, other = CHANGES[name]
    async with open_broker(tmp_path) as broker:
        await prepare(broker)
        read = await version_of(broker)
        await other(broker, "")
        now = await version_of(broker)
        assert now != read
        for stale in (read, "0123456789abcdef", "*", "x" * 1_000):
            with pytest.raises(Conflict, match="read it again"):
                await change(broker, stale)
        assert await version_of(broker) == now
    async with open_broker(tmp_path) as broker:
        assert await version_of(broker) == now, "the version is that of what is stored, also after a restart"
        await change(broker, now)


@each_change
async def test_of_two_changes_at_once_one_is_refused(tmp_path: Path, name: str):
    version_of, change, _ = CHANGES[name]
    async with open_broker(tmp_path) as broker:
        await prepare(broker)
        read = await version_of(broker)
        outcomes = await asyncio.gather(*(change(broker, read) for _ in range(2)), return_exceptions=True)
        refused = [one for one in outcomes if isinstance(one, Exception)]
        assert len(refused) == 1
        assert isinstance(refused[0], Conflict | NotFound)


async def write_elsewhere(store: MetadataStore, key: str, record: records.msgspec.Struct) -> None:
    """Write a record as another broker of the same metadata would."""
    assert (await store.transact([], [Put(key, pack(record))])).succeeded


@pytest.mark.parametrize("name", ["topic policies", "topic deletion", "namespace policies", "failure policy"])
async def test_the_transaction_that_writes_compares(tmp_path: Path, name: str):
    version_of, change, _ = CHANGES[name]
    store = FaultyStore()
    async with open_broker(tmp_path, metadata=store) as broker:
        await prepare(broker)
        topic = broker._registry.topic(TOPIC)
        prefix, key, record = {
            "topic": ("/topics/", records.topic_key(TOPIC), TopicRecord(topic.topic_id, 1, policies=Policies(ttl_s=9))),
            "namespace": ("/namespaces/", records.namespace_key(NAMESPACE), NamespaceRecord(1)),
            "failure": (
                "/subscriptions/",
                records.subscription_key(topic.topic_id, "billing"),
                SubscriptionRecord(1, unacked_max=3),
            ),
        }[name.split()[0]]
        read = await version_of(broker)
        held = store.hold(deletes(prefix) if name.endswith("deletion") else puts(prefix))
        changing = asyncio.create_task(change(broker, read))
        await held.asked.wait()
        await write_elsewhere(store._real, key, record)
        held.go_on()
        with pytest.raises(Conflict, match="read it again"):
            await changing
        stored = await store.get(key)
        assert stored is not None and stored.value == pack(record)
        with pytest.raises(Conflict):
            await change(broker, read)


async def test_a_lost_answer_of_the_store_is_looked_up(tmp_path: Path):
    store = FaultyStore()
    async with open_broker(tmp_path, metadata=store) as broker:
        await prepare(broker)
        store.lose_answer(puts("/topics/"))
        report = await broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 5}, await topic_version(broker))
        assert report.own.ttl_s == 5
        store.refuse(puts("/topics/"))
        with pytest.raises(Unavailable):
            await broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 6}, report.version)
        assert (await broker.policies.set(ANONYMOUS, TOPIC, {"ttl_s": 6}, report.version)).own.ttl_s == 6


async def test_a_topic_made_anew_has_another_version(broker):
    await prepare(broker)
    read, subscription = await topic_version(broker), await subscription_version(broker)
    await broker.topics.delete(ANONYMOUS, TOPIC)
    await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=1))
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
    with pytest.raises(Conflict):
        await broker.topics.delete(ANONYMOUS, TOPIC, read)
    with pytest.raises(Conflict):
        await broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing", subscription)


async def test_descriptions_have_the_version_and_messages_do_not_change_it(broker):
    await prepare(broker)
    read = await topic_version(broker), await subscription_version(broker)
    client = BrokerClient(broker)
    await client.publish(await client.producer(), [b"a"] * 3)
    await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST))
    described = await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")
    assert ((await broker.topics.describe(ANONYMOUS, TOPIC)).version, described.version) == read


async def test_a_subject_that_does_not_exist_has_no_version(broker):
    assert await broker.schemas.compatibility_version(ANONYMOUS, "nothing") == ""
    with pytest.raises(Conflict):
        await broker.schemas.set_compatibility(ANONYMOUS, "nothing", Compatibility.FULL, "0123456789abcdef")
    assert await broker.schemas.subjects(ANONYMOUS) == []


def test_a_version_has_the_text_it_had_when_it_was_released() -> None:
    assert version_of(TopicRecord(7, 3, True, str(AckLevel.DURABLE), 1)) == "b76255caea64b413"
    assert version_of(SubscriptionRecord(9, unacked_max=3)) == "7fafb4c41f6dc450"
