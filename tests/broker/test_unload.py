"""Unloading a topic: its partitions are closed and opened again, in the same process, and nothing is lost."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_client, open_topic
from metadata_harness import FaultyStore, puts
from tiering_harness import everything, filled, upload_all

from pydanube.broker.registry.records import ledgers_of, partitions_of
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import DanubeError, NotFound, NotOwner, Refused
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

LEVELS = pytest.mark.parametrize("ack_level", [AckLevel.DURABLE, AckLevel.WRITTEN])


@LEVELS
async def test_what_was_published_and_acked_is_there_afterwards(tmp_path, ack_level):
    async with open_client(tmp_path) as client:
        await client.create(ack_level=ack_level)
        first = await client.subscribe(kind=SubscriptionType.SHARED)
        producer = await client.producer("till")
        await client.publish(producer, [b"0", b"1", b"2"], sequence=0)
        await first.wait_for(3)
        first.consumer.ack([(1, 2)], False)  # the unload has to write it, as no caller waits for it
        epoch = producer.owner_epoch
        await client.broker.topics.unload(UnloadTopic(topic=TOPIC))
        assert list(client.broker._partitions) == []
        assert isinstance(first.error, NotOwner)
        with pytest.raises(NotOwner):
            await client.publish(producer, [b"3"], sequence=3)

        again = await client.come_back(producer, "till")
        assert (again.owner_epoch, again.producer_epoch) == (epoch + 1, producer.producer_epoch)
        repeated = await client.publish(again, [b"0", b"1", b"2"], sequence=0)
        assert (repeated.base_offset, repeated.duplicate) == (0, True)
        assert (await client.publish(again, [b"3", b"4"], sequence=3)).base_offset == 3, "without a gap"
        second = await client.subscribe(kind=SubscriptionType.SHARED)
        await second.wait_for(4)
        assert [offset for offset, _ in second.received] == [0, 2, 3, 4]
        assert await client.read_all() == [(number, b"%d" % number) for number in range(5)]
    async with open_broker(tmp_path) as broker:
        assert len(await BrokerClient(broker).read_all()) == 5


async def test_publishes_that_are_on_their_way_are_answered_before_it_is_closed(client, broker, topic):
    producer = await client.producer()
    await client.publish(producer, [b"x"])
    answers = [client.publish(producer, [b"x" * 100]) for _ in range(50)]
    unloading = asyncio.ensure_future(broker.topics.unload(UnloadTopic(topic=TOPIC)))
    late = asyncio.ensure_future(client.fetch(Position("offset", 0)))
    published = await asyncio.gather(*answers)
    assert [one.base_offset for one in published] == list(range(1, 51))
    await unloading
    assert (await late).end_offset == 51
    again = await client.come_back(producer)
    assert (await client.publish(again, [b"y"])).base_offset == 51


async def test_a_first_publish_that_waits_for_its_ledger_is_sent_again(tmp_path):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        producer = await client.producer()
        opening = metadata.hold(puts(ledgers_of(client.broker._registry.topic(TOPIC).topic_id)))
        answer = client.publish(producer, [b"x"])
        await opening.asked.wait()
        unloading = asyncio.ensure_future(client.broker.topics.unload(UnloadTopic(topic=TOPIC)))
        with pytest.raises(NotOwner):
            await answer
        opening.go_on()
        await unloading
        again = await client.come_back(producer)
        assert (await client.publish(again, [b"x"])).base_offset == 0
        assert await client.read_all() == [(0, b"x")]


async def test_a_caller_that_comes_while_it_is_being_closed_waits_and_opens_it_again(tmp_path):
    metadata = FaultyStore()
    async with open_broker(tmp_path, metadata=metadata) as broker:
        client = await created(broker)
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"x"])
        await consumer.wait_for(1)
        opening = metadata.hold(puts(ledgers_of(broker._registry.topic(TOPIC).topic_id)))
        consumer.consumer.ack([(0, 1)], False)  # opens the state ledger, which has to wait
        unloading = asyncio.ensure_future(broker.topics.unload(UnloadTopic(topic=TOPIC)))
        await opening.asked.wait()
        attaching = asyncio.ensure_future(client.subscribe())
        twice = asyncio.ensure_future(broker.topics.unload(UnloadTopic(topic=TOPIC)))
        await asyncio.sleep(0)
        assert not attaching.done() and list(broker._partitions) == []
        opening.go_on()
        await asyncio.gather(unloading, twice)
        position = (await attaching).consumer.position
        assert position == 1, "the ack is not lost"


async def test_a_change_of_a_subscription_after_the_end_is_refused_instead_of_lost(client, broker, topic):
    consumer = await client.subscribe()
    await client.publish(await client.producer(), [b"x", b"y"])
    await consumer.wait_for(2)
    await consumer.ack((0, 1))
    await broker.topics.unload(UnloadTopic(topic=TOPIC))
    outcome: list[DanubeError | None] = []
    consumer.consumer.ack([(1, 2)], False, outcome.append)
    await asyncio.sleep(0)
    assert isinstance(outcome[0], NotOwner)
    described = await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")
    assert described.partitions[0].position == 1


async def test_a_topic_can_be_deleted_while_it_is_unloaded(tmp_path):
    metadata = FaultyStore()
    async with open_broker(tmp_path, metadata=metadata) as broker:
        client = await created(broker)
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"x"])
        await consumer.wait_for(1)
        opening = metadata.hold(puts(ledgers_of(broker._registry.topic(TOPIC).topic_id)))
        consumer.consumer.ack([(0, 1)], False)
        unloading = asyncio.ensure_future(broker.topics.unload(UnloadTopic(topic=TOPIC)))
        await opening.asked.wait()
        deleting = asyncio.ensure_future(broker.topics.delete(ANONYMOUS, TOPIC))
        await until(lambda: broker._registry.find_topic(TOPIC) is None)
        opening.go_on()
        await asyncio.gather(unloading, deleting)
        with pytest.raises(NotFound):
            await broker.topics.unload(UnloadTopic(topic=TOPIC))
        await broker._writer.held([])  # after what the log was told to forget
        ledgers = broker._writer._engine.table.ledgers
        assert len(ledgers) == 2 and all(one.forgotten for one in ledgers.values())
        await client.create()
        assert await client.read_all() == []
    async with open_broker(tmp_path) as broker:
        assert await BrokerClient(broker).read_all() == []


async def test_a_change_of_the_metadata_in_progress_ends_before_it_is_opened_again(tmp_path):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        await client.publish(await client.producer(), [b"0", b"1"])
        await client.publish(await client.producer(), [b"2"])
        (partition,) = client.broker._partitions
        writing = metadata.hold(puts(partitions_of(client.broker._registry.topic(TOPIC).topic_id)))
        trimming = asyncio.ensure_future(partition.trim(2))
        await writing.asked.wait()
        unloading = asyncio.ensure_future(client.broker.topics.unload(UnloadTopic(topic=TOPIC)))
        reading = asyncio.ensure_future(client.read_all())
        finished, _ = await asyncio.wait([unloading, reading], timeout=0.2)
        assert not finished
        writing.go_on()
        await asyncio.gather(trimming, unloading)
        assert await reading == [(2, b"2")]
        with pytest.raises(NotOwner):
            await partition.trim(3)


async def test_history_in_object_storage_is_continued_after_it(tmp_path):
    objects = MemoryStore()
    async with open_broker(tmp_path, objects=objects) as broker:
        client = await created(broker)
        await filled(client, 5)
        await upload_all(broker)
        await filled(client, 5, first=50)
        before = await everything(client)
        await broker.topics.unload(UnloadTopic(topic=TOPIC))
        assert await everything(client) == before
        await filled(client, 5, first=100)
        await upload_all(broker)
        await broker.topics.unload(UnloadTopic(topic=TOPIC))
        rows = await client.read_all()
        assert [offset for offset, _ in rows] == list(range(len(rows))) and len(rows) > len(before)


async def test_all_partitions_and_a_non_reliable_topic_are_unloaded_and_a_memory_topic_is_not(client, broker):
    await client.create(partitions=5)
    consumers = [await client.subscribe(partition=index) for index in range(5)]
    for index in range(5):
        await client.publish(await client.producer(partition=index), [b"x"])
    await broker.topics.unload(UnloadTopic(topic=TOPIC))
    assert all(isinstance(one.error, NotOwner) for one in consumers)
    assert [len(await client.read_all(index)) for index in range(5)] == [1] * 5

    prices = await created(broker, TopicName.parse("/default/prices"), reliable=False)
    listener = await prices.subscribe()
    producer = await prices.producer()
    await prices.publish(producer, [b"x"], sequence=0)
    await broker.topics.unload(UnloadTopic(topic=prices.topic))
    assert isinstance(listener.error, NotOwner)
    listener = await prices.subscribe()
    await prices.publish(await prices.come_back(producer), [b"y"], sequence=1)
    await listener.wait_for(1)

    memory = await created(broker, TopicName.parse("/default/memory"), ack_level=AckLevel.MEMORY)
    await memory.publish(await memory.producer(), [b"x"])
    with pytest.raises(Refused, match="in memory"):
        await broker.topics.unload(UnloadTopic(topic=memory.topic))
    assert len(await memory.read_all()) == 1
    with pytest.raises(NotFound):
        await broker.topics.unload(UnloadTopic(topic=TopicName.parse("/default/nothing")))


async def test_a_topic_that_cannot_be_opened_again_at_once_opens_later(tmp_path):
    metadata = FaultyStore()
    async with open_topic(tmp_path, metadata=metadata) as client:
        await client.publish(await client.producer(), [b"x"])
        await client.broker.topics.unload(UnloadTopic(topic=TOPIC))
        metadata.refuse(puts(partitions_of(client.broker._registry.topic(TOPIC).topic_id)))
        with pytest.raises(DanubeError):
            await client.fetch()
        assert await client.read_all() == [(0, b"x")]
