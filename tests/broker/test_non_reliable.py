"""Non-reliable topics: delivered now or not at all, by all four types, and never a byte on the disk."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, Collector, created, open_broker, open_client

from pydanube.broker import Attachment
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import NotFound, Refused
from pydanube.model.failure import FailurePolicy
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Advance, ListPending, ListUnsettled, Seek, Settle

SHARED, FAILOVER, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED


async def a_topic(broker, **config) -> BrokerClient:
    return await created(broker, reliable=False, **config)


def offsets(consumer: Collector) -> list[int]:
    return [offset for offset, _ in consumer.received]


async def test_a_publish_is_answered_and_delivered_before_the_call_returns(broker):
    client = await a_topic(broker)
    consumer, producer = await client.subscribe(), await client.producer()
    for n in range(3):
        answer = client.publish(producer, [b"a", b"b"], sequence=n * 2)
        assert answer.done() and answer.result().base_offset == n * 2
        assert len(consumer.received) == n * 2 + 2
    assert consumer.received == [(n, b"b" if n % 2 else b"a") for n in range(6)]


async def test_a_non_reliable_topic_writes_nothing_to_the_disk(tmp_path):
    def log() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "wal").iterdir()}

    async with open_broker(tmp_path) as broker:
        client = await a_topic(broker)
        consumer, producer = await client.subscribe(), await client.producer()
        revision = await broker._registry._store.revision()
        before = log()
        for n in range(100):
            await client.publish(producer, [b"x" * 100], sequence=n)
        await consumer.ack((0, 100))
        assert len(consumer.received) == 100
        assert broker._writer.pending_bytes == 0
        assert await broker._registry._store.revision() == revision, "no metadata per publish"
        assert log() == before
        described = await broker.topics.describe(ANONYMOUS, TOPIC)
        assert (described.partitions[0].ledgers, described.partitions[0].stored_bytes) == (0, 0)
    async with open_broker(tmp_path) as broker:
        assert await broker._registry.ledgers_of(TOPIC) == set()


async def test_messages_published_without_a_consumer_are_dropped_and_counted(broker):
    client = await a_topic(broker)
    producer = await client.producer()
    assert (await client.publish(producer, [b"a", b"b"])).base_offset == 0
    (partition,) = broker._partitions
    assert partition.traffic.unheard == 2
    consumer = await client.subscribe()
    assert (await client.publish(producer, [b"c"])).base_offset == 2
    assert consumer.received == [(2, b"c")], "and nobody gets it later"
    consumer.consumer.close()
    await client.publish(producer, [b"d"])
    assert partition.traffic.unheard == 3, "a subscription whose consumer has gone does not listen"
    assert partition.traffic.published == 4


async def test_a_consumer_without_credit_loses_messages_and_no_publish_waits(broker):
    client = await a_topic(broker)
    slow, quick = await client.subscribe("slow", credit=10), await client.subscribe("quick")
    producer = await client.producer()
    for n in range(100):
        assert client.publish(producer, [b"x"], sequence=n).done()
    assert offsets(slow) == list(range(10))
    assert offsets(quick) == list(range(100))
    (partition,) = broker._partitions
    assert partition.subscriptions["slow"].statistics().dropped == 90
    slow.consumer.credit(5, 1 << 20)
    assert len(slow.received) == 10, "room comes too late for what is gone"
    client.publish(producer, [b"x"], sequence=100)
    assert offsets(slow)[-1] == 100


async def test_the_four_subscription_types_dispatch_as_on_reliable_topics(broker):
    client = await a_topic(broker)
    exclusive = await client.subscribe("exclusive")
    shared = [await client.subscribe("shared", name, kind=SHARED) for name in "abc"]
    failover = [await client.subscribe("failover", name, kind=FAILOVER) for name in "ab"]
    keyed = [await client.subscribe("keyed", name, kind=KEY_SHARED) for name in "ab"]
    producer = await client.producer()
    keys = [f"key-{n % 12}" for n in range(36)]
    for key in keys:
        batch = encode([key.encode()], keys=[key], publish_times=1, producer_id=producer.producer_id)
        broker.batches.publish(ANONYMOUS, producer, memoryview(batch), lambda _: None)
    assert offsets(exclusive) == list(range(36))
    assert [len(one.received) for one in shared] == [12, 12, 12]
    assert sorted(offset for one in shared for offset in offsets(one)) == list(range(36))
    assert [len(one.received) for one in failover] == [36, 0]
    homes = [{payload for _, payload in one.received} for one in keyed]
    assert not homes[0] & homes[1], "a key has one home"
    assert sorted(offset for one in keyed for offset in offsets(one)) == list(range(36))
    for one in keyed:
        assert offsets(one) == sorted(offsets(one))


async def test_a_second_exclusive_consumer_is_refused_and_the_first_may_attach_again(broker):
    client = await a_topic(broker)
    first = await client.subscribe(consumer="a")
    with pytest.raises(Refused):
        await client.subscribe(consumer="b")
    again = await client.subscribe(consumer="a")
    assert isinstance(first.error, Refused)
    await client.publish(await client.producer(), [b"x"])
    assert offsets(again) == [0] and not first.received


async def test_acks_and_nacks_are_accepted_and_redeliver_nothing(broker):
    client = await a_topic(broker)
    consumer, producer = await client.subscribe(), await client.producer()
    await client.publish(producer, [b"a", b"b", b"c"])
    await consumer.ack((0, 1))
    await consumer.ack((0, 2), cumulative=True)
    consumer.consumer.nack([(2, 3)])
    again = await client.subscribe()
    await client.publish(producer, [b"d"])
    assert again.received == [(3, b"d")]
    place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "billing")).partitions[0]
    assert (place.lag, place.consumer) == (0, "a")


async def test_a_subscription_is_kept_and_offsets_begin_again_after_a_restart(tmp_path):
    epochs = []
    for start in range(2):
        async with open_client(tmp_path, crash=not start) as client:
            if not start:
                await client.create(reliable=False)
                producer = await client.producer("meter")
                await client.broker.subscriptions.create(ANONYMOUS, TOPIC, "shared", SHARED, LATEST)
                await client.publish(producer, [b"a"], sequence=0)
            assert await client.broker.subscriptions.names(ANONYMOUS, TOPIC) == ["shared"]
            consumer = await client.subscribe("shared", kind=SHARED)
            producer = await client.come_back(producer, "meter")
            answer = await client.publish(producer, [b"b"], sequence=1)
            epochs.append(answer.owner_epoch)
            assert offsets(consumer) == [1 - start]
            assert (await client.publish(producer, [b"b"], sequence=1)).duplicate, "a retry is delivered once"
            assert len(consumer.received) == 1
    assert epochs[0] < epochs[1]


async def test_what_needs_stored_messages_is_refused_with_what_to_do(broker):
    client = await a_topic(broker)
    await client.subscribe()
    subscriptions = broker.subscriptions
    for call in (
        client.fetch(),
        broker.topics.find_offset(ANONYMOUS, TOPIC, 0, EARLIEST),
        subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=EARLIEST)),
        subscriptions.advance(
            ANONYMOUS, Advance(topic=TOPIC, subscription="billing", partition=0, offset=0, expected=0)
        ),
        subscriptions.settle(ANONYMOUS, Settle(topic=TOPIC, subscription="billing", partition=-1, ranges=[])),
        subscriptions.unsettled(
            ListUnsettled(topic=TOPIC, subscription="billing", partition=0, messages_max=10, after=0)
        ),
        subscriptions.pending(ListPending(topic=TOPIC, subscription="billing", partition=0, messages_max=10, after=0)),
        subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", FailurePolicy(redeliveries_max=3)),
        client.subscribe("other", start=Position("offset", 0)),
    ):
        with pytest.raises(Refused, match=r"not reliable.*use|not reliable.*create a reliable topic"):
            await call
    assert await subscriptions.names(ANONYMOUS, TOPIC) == ["billing"]


async def test_partitions_are_separate_and_a_deleted_topic_closes_its_consumers(broker):
    client = await a_topic(broker, partitions=2)
    consumers = [await client.subscribe(partition=index) for index in range(2)]
    producers = [await client.producer(partition=index) for index in range(2)]
    for producer in producers:
        assert (await client.publish(producer, [b"x"])).base_offset == 0
    assert [offsets(one) for one in consumers] == [[0], [0]]
    await broker.topics.delete(ANONYMOUS, TOPIC)
    assert all(isinstance(one.error, NotFound) for one in consumers)
    with pytest.raises(NotFound):
        await client.publish(producers[0], [b"x"])


async def test_a_topic_that_is_created_by_its_first_publisher_is_reliable(broker):
    assert (await broker.topics.lookup(ANONYMOUS, TOPIC, True)).config.reliable


async def test_publishing_works_while_the_log_cannot_be_written(tmp_path):
    async with open_broker(tmp_path, pending_publish_bytes_max=1) as broker:
        client = await a_topic(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1000})
        producer = await client.producer()
        broker._writer.read_only = Refused("no space left")
        async with asyncio.timeout(60):
            await asyncio.gather(*[client.publish(producer, [b"x"] * 60, sequence=n * 60) for n in range(5)])
        sink = Collector()
        await broker.subscriptions.subscribe(ANONYMOUS, TOPIC, 0, Attachment("live", "a"), sink)
