"""The ack level of a topic: the default in a cluster and alone, and changing it between durable and stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, BrokerClient, open_broker, open_topic
from cluster_harness import Node, World
from tiering_harness import FaultyObjectStore, upload_all

from pydanube.broker import Broker
from pydanube.broker.partitions.stored_partition import StoredPartition
from pydanube.broker.registry import records
from pydanube.broker.registry.records import PartitionRecord
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import unpack
from pydanube.model.errors import AlreadyExists, Refused, Unavailable
from pydanube.model.names import TopicAddress, TopicName
from pydanube.model.topics import AckLevel, TopicConfig
from pydanube.operations.topics import SetAckLevel
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

SINCE_US = 1_790_000_000_000_000


def level_of(broker: Broker, topic: TopicName = TOPIC) -> AckLevel:
    return broker._registry.topic(topic).config().ack_level


def open_level(node: Node) -> list[AckLevel]:
    return [one.ack_level for one in node.partitions.of(TOPIC) if isinstance(one, StoredPartition)]


async def record_of(world: World, node: Node) -> PartitionRecord:
    found = await world.store.get(records.partition_key(node.broker._registry.topic(TOPIC).topic_id, 0))
    return unpack(found.value, PartitionRecord)


async def publish(node: Node, *payloads: bytes) -> list[int]:
    producer = await node.client.producer()
    offsets = [(await node.client.publish(producer, [one])).base_offset for one in payloads]
    producer.close()
    return offsets


async def payloads(node: Node) -> list[bytes]:
    return [payload for _, payload in await node.client.read_all()]


async def lose(world: World, node: Node, name: str) -> None:
    await world.sessions.end(name, SINCE_US)
    await node.stop()


# -- the default -------------------------------------------------------------------------------------------------------


async def create_each_way(broker: Broker) -> list[AckLevel]:
    """Create topics without an ack level, by request, by a first lookup and by a gRPC producer; return their levels."""
    names = [TopicName.parse(f"/default/{one}") for one in ("asked", "looked-up", "addressed")]
    await broker.topics.create(ANONYMOUS, names[0], TopicConfig(), choose_level=True)
    await broker.topics.lookup(ANONYMOUS, names[1], create=True)
    await broker.addresses.ensure(ANONYMOUS, TopicAddress.parse(str(names[2])), reliable=True)
    return [level_of(broker, one) for one in names]


async def test_in_a_cluster_new_topics_are_stored(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True, ack_level=None)
    assert await create_each_way(a.broker) == [AckLevel.STORED] * 3


async def test_on_a_broker_alone_new_topics_are_durable(tmp_path):
    async with open_broker(tmp_path, objects=MemoryStore(), ack_level=None) as broker:
        assert await create_each_way(broker) == [AckLevel.DURABLE] * 3


@pytest.mark.parametrize("objects", [None, FaultyObjectStore("careless")])
async def test_where_the_store_cannot_keep_stored_topics_new_ones_are_durable(world, objects):
    world.objects = objects
    a = await world.start("a", follows=True, ack_level=None)
    assert await create_each_way(a.broker) == [AckLevel.DURABLE] * 3


async def test_a_level_that_was_chosen_is_not_changed(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True, ack_level=AckLevel.WRITTEN)
    await a.client.create(ack_level=AckLevel.DURABLE)
    assert level_of(a.broker) is AckLevel.DURABLE
    with pytest.raises(AlreadyExists):
        await a.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(), choose_level=True)
    other = TopicName.parse("/default/other")
    await a.broker.topics.lookup(ANONYMOUS, other, create=True)
    assert level_of(a.broker, other) is AckLevel.WRITTEN


async def test_a_topic_that_is_not_reliable_has_no_level_to_choose(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True, ack_level=None)
    await a.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(reliable=False), choose_level=True)
    assert level_of(a.broker) is AckLevel.MEMORY


# -- changing it -------------------------------------------------------------------------------------------------------


async def test_a_durable_topic_becomes_stored_and_survives_the_loss_of_its_broker(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0", b"1")
    await upload_all(a.broker)
    await publish(a, b"2", b"3")
    sink = await a.client.subscribe()
    await sink.wait_for(4)
    await sink.ack((0, 3))
    assert (await record_of(world, a)).log == "log-a"
    await a.broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(AckLevel.STORED)))
    assert open_level(a) == [AckLevel.STORED]
    assert (await record_of(world, a)).log == ""
    assert await publish(a, b"4") == [4]
    assert await payloads(a) == [b"0", b"1", b"2", b"3", b"4"]
    b = await world.start("b", follows=True)
    await lose(world, a, "a")
    assert await payloads(b) == [b"0", b"1", b"2", b"3", b"4"]
    assert await publish(b, b"5") == [5]
    sink = await b.client.subscribe()
    assert (await sink.wait_for(3))[0] == (3, b"3")
    a = await world.start("a", follows=True)  # its log has ledgers that the topic does not need any more


async def test_the_log_is_needed_until_everything_of_it_is_in_the_object_store(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0", b"1")
    b = await world.start("b", follows=True)
    await world.sessions.end("a", SINCE_US)  # before a has changed anything
    await a.stop()
    await b.broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(AckLevel.STORED), own_only=True))
    assert level_of(b.broker) is AckLevel.STORED
    with pytest.raises(Unavailable, match="waits for broker 'a'"):
        await b.client.fetch()
    a = await world.start("a", follows=True)
    assert await payloads(a) == [b"0", b"1"]
    assert (await record_of(world, a)).log == ""
    await lose(world, a, "a")
    assert await payloads(b) == [b"0", b"1"]


async def test_a_stored_topic_becomes_durable_and_then_waits_for_its_broker(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.STORED)
    await publish(a, b"0", b"1")
    sink = await a.client.subscribe()
    await sink.wait_for(2)
    await sink.ack((0, 1))
    await a.broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(AckLevel.DURABLE)))
    assert open_level(a) == [AckLevel.DURABLE]
    record = await record_of(world, a)
    assert (record.sequences, record.log) == ([], "")
    assert await publish(a, b"2") == [2]
    assert (await record_of(world, a)).log == "log-a"
    sink = await a.client.subscribe()
    assert (await sink.wait_for(2))[0] == (1, b"1")
    b = await world.start("b", follows=True)
    await lose(world, a, "a")
    with pytest.raises(Unavailable, match="waits for broker 'a'"):
        await b.client.fetch()
    a = await world.start("a", follows=True)
    assert await payloads(a) == [b"0", b"1", b"2"]
    assert (await a.broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0].missing_offsets == 0


async def test_the_level_goes_back_and_forth_without_loss_and_retries_are_recognised(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    producer = await a.client.producer("billing")
    for number in range(6):
        await a.client.publish(producer, [b"%d" % number], sequence=number)
        level = AckLevel.STORED if number % 2 == 0 else AckLevel.DURABLE
        await a.broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(level)))
        producer = await a.client.come_back(producer, "billing")
        again = await a.client.publish(producer, [b"%d" % number], sequence=number)
        assert (again.base_offset, again.duplicate) == (number, True)
    assert await payloads(a) == [b"%d" % number for number in range(6)]


async def test_other_owners_follow_the_change(world):
    world.objects = MemoryStore()
    a = await world.start("a", follows=True)
    await a.client.create(ack_level=AckLevel.DURABLE)
    await publish(a, b"0")
    b = await world.start("b", follows=True)
    await b.broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(AckLevel.STORED), own_only=True))
    await until(lambda: level_of(a.broker) is AckLevel.STORED and not open_level(a))
    assert await publish(a, b"1") == [1]
    assert open_level(a) == [AckLevel.STORED]


async def test_a_broker_alone_changes_the_level_too(tmp_path):
    objects = MemoryStore()
    async with open_topic(tmp_path, objects=objects, crash=True) as client:
        await client.publish(await client.producer(), [b"0"])
        await client.broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(AckLevel.STORED)))
        await client.publish(await client.producer(), [b"1"])
    async with open_broker(tmp_path, objects=objects) as broker:
        assert await BrokerClient(broker).read_all() == [(0, b"0"), (1, b"1")]


@pytest.mark.parametrize(
    ("config", "level", "reason"),
    [
        ({"ack_level": AckLevel.DURABLE}, AckLevel.MEMORY, "cannot become memory: use durable or stored"),
        ({"ack_level": AckLevel.DURABLE}, AckLevel.WRITTEN, "cannot become written: use durable or stored"),
        ({"ack_level": AckLevel.WRITTEN}, AckLevel.STORED, "is written, and only durable and stored can be changed"),
        ({"ack_level": AckLevel.MEMORY}, AckLevel.STORED, "is memory, and only durable and stored can be changed"),
        ({"reliable": False}, AckLevel.STORED, "is not reliable and stores nothing"),
    ],
)
async def test_other_levels_are_refused_and_nothing_changes(
    tmp_path: Path, config: dict[str, Any], level: AckLevel, reason: str
) -> None:
    async with open_broker(tmp_path, objects=MemoryStore()) as broker:
        await BrokerClient(broker).create(**config)
        before = level_of(broker)
        with pytest.raises(Refused, match=reason):
            await broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(level)))
        assert level_of(broker) is before


@pytest.mark.parametrize(
    ("objects", "reason"), [(None, "no object storage; set storage.url"), (FaultyObjectStore("careless"), "stored")]
)
async def test_a_level_that_the_store_cannot_keep_is_refused_and_nothing_changes(
    tmp_path: Path, objects: ObjectStore | None, reason: str
) -> None:
    async with open_broker(tmp_path, objects=objects) as broker:
        await BrokerClient(broker).create()
        with pytest.raises(Refused, match=reason):
            await broker.topics.set_ack_level(SetAckLevel(topic=TOPIC, ack_level=str(AckLevel.STORED)))
        assert level_of(broker) is AckLevel.DURABLE
