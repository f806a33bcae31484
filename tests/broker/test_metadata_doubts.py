"""Metadata that fails, and has done what was asked, or half of it, all the same: what the broker takes for true is what
is there, and it goes on from that."""

import asyncio

import msgspec
import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_client, open_topic
from metadata_harness import FaultyStore, deletes, puts
from tiering_harness import PER_BATCH, SMALL, WAL, everything, filled, keys, upload_all

from pydanube.broker.registry import records
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import pack, unpack
from pydanube.metadata.store import Delete, Put, list_all
from pydanube.model.errors import AlreadyExists, NotFound, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.retry import LONGEST_SECONDS

TIERED = {"wal": WAL, "tiering": SMALL, "tail_bytes": 1}


@pytest.fixture
def metadata() -> FaultyStore:
    return FaultyStore()


async def exists(broker) -> bool:
    return str(TOPIC) in await broker.topics.names(ANONYMOUS)


async def delete(broker) -> None:
    await broker.topics.delete(ANONYMOUS, TOPIC)


# -- topics that are deleted -------------------------------------------------------------------------------------------


async def left_of(topic_id: int, store) -> list[str]:
    """Return the metadata keys of partitions, ledgers, subscriptions and producers of this topic, and of its
    deletion."""
    prefixes = (
        records.partitions_of,
        records.ledgers_of,
        records.subscriptions_of,
        records.producers_of,
        records.access_key,
        records.deleted_key,
    )
    return [one.key for prefix in prefixes async for one in list_all(store, prefix(topic_id))]


async def a_used_topic(broker) -> tuple[BrokerClient, int]:
    """Create a topic with partitions, messages and named producers; return a client of it, and its id."""
    client = await created(broker, partitions=2)
    for partition in range(2):
        await client.publish(await client.producer("meter", partition), [b"1"])
    (await client.producer("keeper", access="exclusive")).close()
    return client, broker._registry.topic(TOPIC).topic_id


@pytest.mark.parametrize("where", ["partitions", "ledgers", "subscriptions", "producers", "access", "deleted"])
async def test_a_topic_whose_deletion_is_cut_short_is_gone_and_the_next_start_removes_the_rest(
    tmp_path, metadata, where
):
    async with open_broker(tmp_path, metadata=metadata) as broker:
        client, topic_id = await a_used_topic(broker)
        producer, consumer = await client.producer(), await client.subscribe()
        await consumer.wait_for(1)
        await consumer.ack((0, 1))
        metadata.refuse_all(deletes(f"/{where}/"))
        await delete(broker)
        assert await left_of(topic_id, metadata), "cut short"
        assert not await exists(broker)
        with pytest.raises(NotFound, match="deleted with its topic"):
            await client.publish(producer, [b"2"])
        assert isinstance(consumer.error, NotFound)
        await client.create()
        assert await client.read_all() == []
        await client.publish(await client.producer(), [b"anew"])
    async with open_broker(tmp_path) as broker:
        assert await left_of(topic_id, broker._registry._store) == []
        assert await BrokerClient(broker).read_all() == [(0, b"anew")]


async def test_a_topic_that_is_deleted_undisturbed_leaves_nothing_behind(broker):
    _, topic_id = await a_used_topic(broker)
    await delete(broker)
    assert await left_of(topic_id, broker._registry._store) == []


async def test_a_topic_whose_objects_could_not_be_forgotten_is_gone_and_they_go_later(tmp_path, metadata, clock):
    objects = MemoryStore(clock=clock)
    async with open_broker(tmp_path, metadata=metadata, objects=objects, clock=clock, **TIERED) as broker:
        client = await created(broker)
        await filled(client, 2)
        await upload_all(broker)
        topic_id = broker._registry.topic(TOPIC).topic_id
        metadata.refuse(deletes("/segments/"))
        await delete(broker)
        assert not await exists(broker)
        assert len(await keys(objects)) == 1
        assert await left_of(topic_id, metadata) == [records.deleted_key(topic_id)]
    async with open_broker(tmp_path, metadata=metadata, objects=objects, clock=clock, **TIERED) as broker:
        await broker._tiers.forget_deleted_topics()
        clock.advance(SMALL.grace_s)
        await broker._tiers._collect(orphans=False)
        assert await keys(objects) == []
        assert await left_of(topic_id, metadata) == []


async def test_segments_of_a_topic_that_the_metadata_lost_are_kept(tmp_path, metadata, clock):
    objects = MemoryStore(clock=clock)
    async with open_broker(tmp_path, metadata=metadata, objects=objects, clock=clock, **TIERED) as broker:
        client = await created(broker)
        await filled(client, 2)
        await upload_all(broker)
        topic_id = broker._registry.topic(TOPIC).topic_id
        lost = await metadata.get(records.topic_key(TOPIC))
        await metadata.transact([], [Delete(records.topic_key(TOPIC))])
        for _ in range(2):
            await broker._tiers._collect(orphans=True)
            clock.advance(SMALL.grace_s)
        assert len(await keys(objects)) == 1
        assert await broker._tiers.catalog.topics() == [topic_id]
        await metadata.transact([], [Put(lost.key, lost.value)])
        assert len(await everything(client)) == 2 * PER_BATCH


async def test_a_deleted_topic_with_uploaded_segments_leaves_no_key_behind(tmp_path, metadata, clock):
    objects = MemoryStore(clock=clock)
    async with open_broker(tmp_path, metadata=metadata, objects=objects, clock=clock, **TIERED) as broker:
        client = await created(broker)
        await filled(client, 2)
        await upload_all(broker)
        topic_id = broker._registry.topic(TOPIC).topic_id
        await delete(broker)
        assert await left_of(topic_id, metadata) == []
        assert await broker._tiers.catalog.topics() == []


async def test_a_deletion_that_failed_and_yet_happened_has_happened(tmp_path, metadata):
    async with open_topic(tmp_path, metadata=metadata) as client:
        producer, consumer = await client.producer(), await client.subscribe()
        metadata.lose_answer(deletes(records.topic_key(TOPIC)))
        await delete(client.broker)
        assert not await exists(client.broker)
        with pytest.raises(NotFound, match="deleted with its topic"):
            await client.publish(producer, [b"2"])
        assert isinstance(consumer.error, NotFound)
    async with open_broker(tmp_path) as broker:
        assert not await exists(broker)


async def test_a_topic_whose_deletion_failed_is_there_and_works(tmp_path, metadata):
    async with open_topic(tmp_path, metadata=metadata) as client:
        producer, consumer = await client.producer(), await client.subscribe()
        metadata.refuse(deletes(records.topic_key(TOPIC)))
        with pytest.raises(Unavailable):
            await delete(client.broker)
        assert await exists(client.broker)
        await client.publish(producer, [b"1"])
        assert await consumer.wait_for(1) == [(0, b"1")]
        await consumer.ack((0, 1))
    async with open_broker(tmp_path) as broker:
        described = await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")
        assert described.partitions[0].position == 1


@pytest.mark.parametrize("happens", [False, True])
async def test_while_nobody_can_tell_whether_a_topic_was_deleted_nobody_finds_it(tmp_path, metadata, clock, happens):
    async with open_topic(tmp_path, metadata=metadata, clock=clock) as client:
        producer = await client.producer()
        the_topic = deletes(records.topic_key(TOPIC))
        in_doubt = metadata.hold_answer(the_topic, fails=True) if happens else metadata.hold_refusal(the_topic)
        deleting = asyncio.create_task(delete(client.broker))
        await in_doubt.asked.wait()
        unreadable = metadata.refuse_reads()
        in_doubt.go_on()
        for _ in range(3):
            await unreadable.asked.wait()
            unreadable.asked.clear()
            assert not await exists(client.broker) and not deleting.done()
            clock.advance(LONGEST_SECONDS)
        unreadable.end()
        if happens:
            await deleting
            with pytest.raises(NotFound):
                await client.publish(producer, [b"1"])
        else:
            with pytest.raises(Unavailable):
                await deleting
            await client.publish(producer, [b"1"])
        assert await exists(client.broker) is not happens


# -- what is created, changed and removed ------------------------------------------------------------------------------


async def create(broker, what: str) -> None:
    match what:
        case "namespace":
            await broker.namespaces.create(ANONYMOUS, "sales")
        case "topic":
            await broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
        case "subscription":
            await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.EXCLUSIVE, EARLIEST)


async def kinds_in(broker) -> list[str]:
    """Return the kinds of objects that exist, in the order in which they can be created."""
    namespaces = await broker.namespaces.names(ANONYMOUS)
    topics = await broker.topics.names(ANONYMOUS)
    subscriptions = await broker.subscriptions.names(ANONYMOUS, TOPIC) if topics else []
    return ["namespace"] * ("sales" in namespaces) + ["topic"] * len(topics) + ["subscription"] * len(subscriptions)


@pytest.mark.parametrize("happens", [False, True])
async def test_what_is_created_although_the_metadata_failed_is_there_and_what_is_not_can_be_created(
    tmp_path, metadata, happens
):
    kinds = ["namespace", "topic", "subscription"]
    async with open_broker(tmp_path, metadata=metadata) as broker:
        for what in kinds:
            if happens:
                metadata.lose_answer(puts(f"/{what}s/"))
                await create(broker, what)
            else:
                metadata.refuse(puts(f"/{what}s/"))
                with pytest.raises(Unavailable):
                    await create(broker, what)
                assert what not in await kinds_in(broker)
                await create(broker, what)
            with pytest.raises(AlreadyExists):
                await create(broker, what)
        client = BrokerClient(broker)
        await client.publish(await client.producer(), [b"1"])
        assert await (await client.subscribe()).wait_for(1) == [(0, b"1")]
    async with open_broker(tmp_path) as broker:
        assert await kinds_in(broker) == kinds


@pytest.mark.parametrize("happens", [False, True])
async def test_a_subscription_is_deleted_if_the_metadata_says_so_whatever_it_said_before(tmp_path, metadata, happens):
    async with open_topic(tmp_path, metadata=metadata) as client:
        consumer = await client.subscribe()
        if happens:
            metadata.lose_answer(deletes("/subscriptions/"))
            await client.broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
            assert isinstance(consumer.error, NotFound)
        else:
            metadata.refuse(deletes("/subscriptions/"))
            with pytest.raises(Unavailable):
                await client.broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing")
            await client.publish(await client.producer(), [b"1"])
            assert await consumer.wait_for(1) == [(0, b"1")]
        left = await client.broker.subscriptions.names(ANONYMOUS, TOPIC)
        assert left == ([] if happens else ["billing"])
    async with open_broker(tmp_path) as broker:
        assert await broker.subscriptions.names(ANONYMOUS, TOPIC) == left


async def test_a_policy_that_was_set_although_the_metadata_failed_counts_at_once(tmp_path, metadata):
    async with open_topic(tmp_path, metadata=metadata) as client:
        producer = await client.producer()
        metadata.lose_answer(puts(records.topic_key(TOPIC)))
        await client.broker.policies.set(ANONYMOUS, TOPIC, {"backlog_messages_max": 7})
        await client.publish(producer, [b"1"])
        (partition,) = client.broker._partitions
        assert partition.policies.backlog_messages_max == 7


# -- partitions --------------------------------------------------------------------------------------------------------


async def test_a_partition_goes_on_after_offsets_were_reserved_although_the_metadata_failed(tmp_path, metadata):
    async with open_client(tmp_path, metadata=metadata, offset_block=10) as client:
        await client.create(ack_level=AckLevel.WRITTEN)
        producer = await client.producer()
        for base in (0, 10, 20):
            metadata.lose_answer(puts("/partitions/"))
            with pytest.raises(Unavailable):
                await client.publish(producer, [b"x"] * 10)
            assert (await client.publish(producer, [b"x"] * 10)).base_offset == base


async def test_retention_goes_on_after_the_start_was_moved_although_the_metadata_failed(tmp_path, metadata, clock):
    async with open_topic(tmp_path, metadata=metadata, clock=clock) as client:
        await client.policies(retention_s=60)
        producer = await client.producer()
        await client.fill(producer, 1)
        metadata.lose_answer(puts("/partitions/"))
        await client.pass_time(100)
        assert await client.start() == 0
        (partition,) = client.broker._partitions
        partition.log_failed(set(partition.stream.ledger_ids), Unavailable("the log gave up a file"))
        assert (await client.publish(producer, [b"in a new ledger"])).base_offset == 10
        await client.pass_time(1)
        assert await client.start() == 10


async def test_a_partition_that_another_took_meanwhile_is_not_taken_back_by_a_look(tmp_path, metadata, clock):
    async with open_topic(tmp_path, metadata=metadata, clock=clock) as client:
        await client.policies(retention_s=60)
        await client.fill(await client.producer(), 1)
        metadata.lose_answer(puts("/partitions/"))
        await client.pass_time(100)
        key = records.partition_key(client.broker._registry.topic(TOPIC).topic_id, 0)
        record = unpack((await metadata.get(key)).value, records.PartitionRecord)
        taken = pack(msgspec.structs.replace(record, epoch=record.epoch + 1, owner="another"))
        await metadata.transact([], [Put(key, taken)])
        await client.pass_time(1)
        assert (await metadata.get(key)).value == taken
        assert not client.broker._partitions.of(TOPIC), "the partition is closed at once"


# -- uploads -----------------------------------------------------------------------------------------------------------


async def listed(broker) -> list:
    """Return the segments of the topic in the catalog."""
    return await broker._tiers.catalog.after(broker._registry.topic(TOPIC).topic_id, 0, 0, 1000)


@pytest.mark.parametrize("more", [0, 5])
async def test_an_upload_that_is_listed_although_the_metadata_failed_counts_and_uploads_go_on_behind_it(
    tmp_path, metadata, clock, more
):
    objects = MemoryStore(clock=clock)
    async with open_broker(tmp_path, metadata=metadata, objects=objects, clock=clock, **TIERED) as broker:
        client = await created(broker)
        await filled(client, 2, size=1000)
        metadata.lose_answer(puts("/segments/"))
        await upload_all(broker)
        assert broker._tiers.uploader.failure is not None
        assert len(await listed(broker)) == len(await keys(objects)) == 1
        await filled(client, more, first=2, size=1000)
        await upload_all(broker)
        assert broker._tiers.uploader.failure is None
        await filled(client, 3, first=2 + more, size=1000)
        await upload_all(broker)
        segments = await listed(broker)
        edges = [one.end_offset for one in segments]
        assert [one.first_offset for one in segments] == [0, *edges[:-1]] and edges[-1] == (5 + more) * 100
        assert await everything(client) == list(range((5 + more) * 100))
        assert len(await keys(objects)) == len(segments) + 1, "what was uploaded twice"
        clock.advance(SMALL.grace_s)
        await broker._tiers._collect(orphans=True)
        assert set(await keys(objects)) == {one.record.object for one in segments}
    async with open_broker(tmp_path, objects=objects, clock=clock, **TIERED) as broker:
        assert await everything(BrokerClient(broker)) == list(range((5 + more) * 100))


async def test_what_is_listed_unnoticed_is_counted_in_what_later_objects_know_of_producers(tmp_path, metadata):
    async with open_broker(tmp_path, metadata=metadata, objects=MemoryStore(), **TIERED) as broker:
        client = await created(broker)
        producers = [await client.producer(), await client.producer()]
        await client.publish(producers[0], [b"unnoticed"], sequence=0)
        metadata.lose_answer(puts("/segments/"))
        await upload_all(broker)
        await upload_all(broker)
        await client.publish(producers[1], [b"behind it"], sequence=0)
        await upload_all(broker)
        known = await broker._tiers.history.producers((await listed(broker))[-1])
        assert [one.producer_id for one in known] == [one.producer_id for one in producers]


async def test_an_upload_that_is_not_listed_because_the_metadata_failed_is_made_again(tmp_path, metadata, clock):
    objects = MemoryStore(clock=clock)
    async with open_broker(tmp_path, metadata=metadata, objects=objects, clock=clock, **TIERED) as broker:
        client = await created(broker)
        await filled(client, 2, size=1000)
        metadata.refuse(puts("/segments/"))
        await upload_all(broker)
        assert await listed(broker) == []
        await upload_all(broker)
        assert [(one.first_offset, one.end_offset) for one in await listed(broker)] == [(0, 200)]
        assert await everything(client) == list(range(200))


async def test_a_subscription_that_could_not_be_deleted_stands_where_it_stood(tmp_path, metadata):
    async with open_topic(tmp_path) as client:
        consumer = await client.subscribe()
        await client.publish(await client.producer(), [b"x"] * 10)
        await consumer.wait_for(10)
        await consumer.ack((0, 10))
    async with open_broker(tmp_path, metadata=metadata) as broker:
        refused = metadata.hold_refusal(deletes("/subscriptions/"))
        deleting = asyncio.create_task(broker.subscriptions.delete(ANONYMOUS, TOPIC, "billing"))
        await refused.asked.wait()
        await BrokerClient(broker).fetch()  # which opens the partition
        refused.go_on()
        with pytest.raises(Unavailable):
            await deleting
        described = await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")
        assert described.partitions[0].position == 10


async def test_a_start_that_could_not_be_moved_hides_nothing(tmp_path, clock, metadata):
    async with open_topic(tmp_path, clock=clock, metadata=metadata) as client:
        await client.policies(retention_s=60)
        await client.fill(await client.producer(), 10, every_s=10)
        metadata.refuse(puts("/partitions/"))
        await client.broker._lifetimes.round()
        assert await client.broker.topics.find_offset(ANONYMOUS, TOPIC, 0, EARLIEST) == 0
        await client.broker._lifetimes.round()
        assert await client.broker.topics.find_offset(ANONYMOUS, TOPIC, 0, EARLIEST) > 0


async def test_partitions_that_cannot_be_opened_leave_others_their_turn(tmp_path, clock, metadata):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=20)
        topic_id = client.broker._registry.topic(TOPIC).topic_id
        await client.broker.topics.create(ANONYMOUS, TopicName.parse("/default/other"), TopicConfig())
    async with open_broker(tmp_path, clock=clock, metadata=metadata) as broker:
        metadata.refuse_all(puts(records.partitions_of(topic_id)))
        await broker._lifetimes.round()
        assert [partition.name for partition in broker._partitions] == ["/default/other"]


async def test_partitions_that_never_open_leave_those_behind_them_their_turn(tmp_path, clock, metadata):
    async with open_broker(tmp_path, clock=clock) as broker:
        await BrokerClient(broker).create(partitions=8)
        topic_id = broker._registry.topic(TOPIC).topic_id
    async with open_broker(tmp_path, clock=clock, metadata=metadata) as broker:
        for index in range(4):
            metadata.refuse_all(puts(records.partition_key(topic_id, index)))
        for _ in range(2):
            await broker._lifetimes.round()
        assert sorted(partition.index for partition in broker._partitions) == [4, 5, 6, 7]
