"""The records of consumers of the Danube gRPC API, which outlive connections and restarts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, TOPIC, BrokerClient, open_broker

from pydanube.broker import Broker
from pydanube.broker.registry import consumers as consumers_module
from pydanube.broker.registry import records
from pydanube.broker.registry.consumers import UNUSED_US, USE_NOTED_US, consumer_id
from pydanube.broker.registry.records import ConsumerRecord
from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import list_all
from pydanube.model.positions import LATEST
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import MICROSECONDS, ManualClock, SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.store_ownership import StoreOwner

GOLDEN_KEY = "/consumers/0000000000000003/0000000000000007/59fc13d9dd68cc23"


def record(topic_id: int = 3, subscription_id: int = 7, consumer: str = "one", used_at: int = 0) -> ConsumerRecord:
    address = "/default/orders"
    return ConsumerRecord(
        topic_id, subscription_id, address, address, 0, "billing", consumer, 3, ["eu-*"], used_at=used_at
    )


def test_id_key_and_value_never_change() -> None:
    number = consumer_id("/default/orders", "billing", "one")
    assert records.consumer_key(3, 7, number) == GOLDEN_KEY
    assert records.consumer_of_key(GOLDEN_KEY) == number
    assert pack(record()).hex() == GOLDEN
    assert unpack(bytes.fromhex(GOLDEN), ConsumerRecord) == record()


GOLDEN = (
    "89a8746f7069635f696403af737562736372697074696f6e5f696407a761646472657373af2f64656661756c742f6f7264657273"
    "a5746f706963af2f64656661756c742f6f7264657273a9706172746974696f6e00ac737562736372697074696f6ea762696c6c696e67"
    "a8636f6e73756d6572a36f6e65a47479706503ab6b65795f66696c746572739"
    "1a465752d2a"
)


async def subscribed(broker: Broker, consumer: str = "one") -> ConsumerRecord:
    """Create topic and subscription if they do not exist, and return the record of a consumer."""
    if broker._registry.find_topic(TOPIC) is None:
        await BrokerClient(broker).create()
    if "billing" not in broker._registry.subscriptions(TOPIC):
        await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.KEY_SHARED, LATEST)
    topic_id = broker._registry.topic(TOPIC).topic_id
    subscription_id = broker._registry.subscription(TOPIC, "billing").subscription_id
    return record(topic_id, subscription_id, consumer, broker._registry.consumers._clock.now_us())


async def test_an_id_leads_to_its_consumer_after_a_restart(tmp_path: Path) -> None:
    async with open_broker(tmp_path, crash=True) as broker:
        one = await subscribed(broker)
        number = await broker._registry.consumers.save(one)
        assert await broker._registry.consumers.save(one) == number
    async with open_broker(tmp_path) as broker:
        assert broker._registry.consumers.find(number) == one
        assert broker._registry.is_current(one)
        assert broker._registry.consumers.find(number + 1) is None


async def test_records_end_with_their_subscription_and_their_topic(broker):
    known = broker._registry.consumers
    number = await known.save(await subscribed(broker))
    await broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
    assert known.find(number) is None
    assert not [one async for one in list_all(broker._store, records.CONSUMERS)]
    assert await known.save(await subscribed(broker)) == number
    await broker.topics.delete(ANONYMOUS, TOPIC)
    assert known.find(number) is None
    assert not [one async for one in list_all(broker._store, records.CONSUMERS)]


async def test_a_record_of_a_deleted_subscription_is_removed_at_the_next_start(tmp_path: Path) -> None:
    async with open_broker(tmp_path, crash=True) as broker:
        one = await subscribed(broker)
        await broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
        number = await broker._registry.consumers.save(one)  # it was deleted while the consumer subscribed
        assert not broker._registry.is_current(one)
    async with open_broker(tmp_path) as broker:
        assert broker._registry.consumers.find(number) is None


async def test_a_record_is_removed_after_long_disuse(broker, clock):
    known = broker._registry.consumers
    unused, used, live = [await known.save(await subscribed(broker, name)) for name in ("a", "b", "c")]
    known.live.add(live)
    clock.advance(USE_NOTED_US / MICROSECONDS + 1)
    await known.note_use(used)
    clock.advance((UNUSED_US - USE_NOTED_US) / MICROSECONDS)
    await broker._lifetimes.round()
    assert known.find(unused) is None
    assert known.find(used) is not None and known.find(live) is not None


async def test_a_subscription_keeps_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers_module, "CONSUMERS_MAX", 3)
    clock = ManualClock()
    async with open_broker(tmp_path, clock=clock) as broker:
        known, numbers = broker._registry.consumers, []
        for name in "abcde":
            clock.advance(1)
            numbers.append(await known.save(await subscribed(broker, name)))
            known.live.add(numbers[0])
        assert [known.find(one) is not None for one in numbers] == [True, False, False, True, True]


async def test_consumers_are_restored_from_a_manifest(tmp_path: Path) -> None:
    objects, clock = MemoryStore(), SystemClock()
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    tiering = replace(TIERING, segment_age_s=0)
    async with open_broker(tmp_path / "before", objects=objects, tiering=tiering) as broker:
        one = await subscribed(broker)
        number = await broker._registry.consumers.save(one)
        assert broker._tiers is not None
        await broker._tiers.manifests.write()
    async with await EmbeddedStore.open(tmp_path / "after" / "metadata.db", clock) as store:
        await rebuild(objects, store, clock, StoreOwner("cluster"))
    async with open_broker(tmp_path / "after", objects=objects, tiering=tiering) as broker:
        assert broker._registry.consumers.find(number) == one
