"""Every subscription type over a real log: delivery, redelivery, and what is left after a restart."""

import asyncio
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic

from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Refused
from pydanube.model.failure import ACK_TIMEOUT, Backoff, FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST, LATEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Advance, Seek, Settle
from pydanube.runtime.clock import ManualClock
from waiting import until

SHARED, FAILOVER, KEY_SHARED = SubscriptionType.SHARED, SubscriptionType.FAILOVER, SubscriptionType.KEY_SHARED
AT_ONCE = FailurePolicy(delay_ms=0, backoff=Backoff.FIXED)
DLQ = TopicName.parse("/default/orders-dlq")


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def offsets(collector) -> list[int]:
    return [offset for offset, _ in collector.received]


async def published(client: BrokerClient, payloads: list[bytes], batch: int = 0, **columns) -> None:
    producer = await client.producer()
    size = batch or len(payloads)
    for start in range(0, len(payloads), size):
        part = {name: column[start : start + size] for name, column in columns.items()}
        await client.publish(producer, payloads[start : start + size], **part)


@pytest.mark.parametrize("batch", [1, 5, 7, 36])
async def test_of_36_messages_each_of_three_shared_consumers_gets_12(client, topic, batch):
    consumers = [await client.subscribe("work", name, kind=SHARED) for name in "abc"]
    await published(client, numbered(36), batch)
    for consumer in consumers:
        await consumer.wait_for(12)
    assert [len(one.received) for one in consumers] == [12, 12, 12]
    assert sorted(offset for one in consumers for offset in offsets(one)) == list(range(36))


async def test_a_large_batch_is_divided_into_exact_slices(client, topic):
    consumers = [await client.subscribe("work", name, kind=SHARED) for name in "abcd"]
    payloads = [b"%05d" % n * 20 for n in range(1000)]
    await published(client, payloads)
    for consumer in consumers:
        assert [payloads[offset] for offset in offsets(consumer)] == [one for _, one in consumer.received]
        assert len(consumer.received) == 250


async def test_when_a_shared_consumer_detaches_its_messages_go_to_the_others_and_count_as_no_failure(client, topic):
    one, two = [await client.subscribe("work", name, kind=SHARED) for name in "ab"]
    await published(client, numbered(10))
    await one.ack((0, 2))
    one.consumer.close()
    await two.wait_for(8)
    assert sorted(offsets(two)) == list(range(2, 10))
    assert set(two.redeliveries) == {0}


async def test_a_cumulative_ack_is_refused_on_shared(client, topic):
    consumer = await client.subscribe("work", kind=SHARED)
    await published(client, numbered(3))
    answers = []
    consumer.consumer.ack([(0, 3)], True, answers.append)
    assert isinstance(answers[0], Refused)
    assert consumer.error is None


async def test_a_standby_takes_over_with_the_unacked_messages_first_and_in_order(client, topic):
    active = await client.subscribe("pair", "b", kind=FAILOVER)
    standby = await client.subscribe("pair", "c", kind=FAILOVER)
    await published(client, numbered(6), batch=2)
    assert offsets(active) == list(range(6))
    assert standby.received == []
    await active.ack((0, 2), (3, 4))
    active.consumer.close()
    await published(client, numbered(2, 6))
    assert offsets(standby) == [2, 4, 5, 6, 7]


async def test_priority_comes_before_the_name(client, topic):
    await client.subscribe("pair", "a", kind=FAILOVER, priority=1)
    second = await client.subscribe("pair", "z", kind=FAILOVER, priority=0)
    await published(client, numbered(1))
    assert offsets(second) == [0]


async def test_partitions_spread_their_active_consumers(client, broker):
    await client.create(partitions=4)
    for index in range(4):
        for name in "ab":
            await client.subscribe("pair", name, partition=index, kind=FAILOVER)
    places = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "pair")).partitions
    assert [place.consumer for place in places] == ["a", "b", "a", "b"]


async def test_a_key_stays_with_its_consumer_in_order(client, topic):
    consumers = [await client.subscribe("keyed", name, kind=KEY_SHARED) for name in "abc"]
    keys = [f"key-{n * 7 % 25}" for n in range(500)]
    await published(client, [key.encode() for key in keys], batch=60, keys=keys)
    owners = {}
    for consumer in consumers:
        assert offsets(consumer) == sorted(offsets(consumer))
        for _, key in consumer.received:
            assert owners.setdefault(key, consumer) is consumer
    assert sum(len(one.received) for one in consumers) == 500
    assert all(one.received for one in consumers)


async def test_key_filters_select_keys_and_messages_that_no_filter_accepts_wait(client, broker, topic):
    eu = await client.subscribe("keyed", "a", kind=KEY_SHARED, key_filters=["eu-*"])
    us = await client.subscribe("keyed", "b", kind=KEY_SHARED, key_filters=["us-?", "ca-*"])
    keys = ["eu-1", "us-1", "ca-9", "asia-1", "us-10", "eu-2"]
    await published(client, [key.encode() for key in keys], keys=keys)
    assert [payload for _, payload in eu.received] == [b"eu-1", b"eu-2"]
    assert [payload for _, payload in us.received] == [b"us-1", b"ca-9"]
    (partition,) = (await broker.statistics.topic(ANONYMOUS, TOPIC)).partitions
    assert partition.subscriptions[0].unmatched == 2
    late = await client.subscribe("keyed", "c", kind=KEY_SHARED)
    await late.wait_for(2)
    assert [payload for _, payload in late.received] == [b"asia-1", b"us-10"]


async def test_a_nacked_message_is_redelivered_after_its_delay_with_count_and_reason(client, topic, clock):
    consumer = await client.subscribe("work", kind=SHARED)
    await published(client, numbered(3))
    consumer.consumer.nack([(1, 2)], reason="no stock")
    await asyncio.sleep(0)
    clock.advance(0.9)
    await asyncio.sleep(0)
    assert len(consumer.received) == 3
    clock.advance(0.2)
    await consumer.wait_for(4)
    assert (offsets(consumer)[3], consumer.redeliveries[3], consumer.reasons[3]) == (1, 1, "no stock")
    consumer.consumer.nack([(1, 2)], timeout=True)
    await asyncio.sleep(0)
    clock.advance(2.1)
    await consumer.wait_for(5)
    assert (consumer.redeliveries[4], consumer.reasons[4]) == (2, ACK_TIMEOUT)


async def test_an_exhausted_message_is_dropped_and_counted(tmp_path: Path):
    policy = FailurePolicy(redeliveries_max=1, delay_ms=0, poison=Poison.DROP)
    async with open_topic(tmp_path) as client:
        consumer = await client.subscribe("work", kind=SHARED, failure_policy=policy)
        await published(client, numbered(2))
        consumer.consumer.nack([(0, 1)])
        await consumer.wait_for(3)
        consumer.consumer.nack([(0, 1)])
        place = (await client.broker.subscriptions.describe(ANONYMOUS, TOPIC, "work")).partitions[0]
        assert (place.position, place.lag) == (1, 1)
        (partition,) = (await client.broker.statistics.topic(ANONYMOUS, TOPIC)).partitions
        assert partition.subscriptions[0].dropped == 1


async def test_an_exhausted_message_blocks_until_the_policy_changes(client, broker, topic):
    policy = FailurePolicy(redeliveries_max=0, poison=Poison.BLOCK)
    consumer = await client.subscribe("work", kind=SHARED, failure_policy=policy)
    await published(client, numbered(1))
    consumer.consumer.nack([(0, 1)])
    await published(client, numbered(2, 1))
    assert offsets(consumer) == [0]
    await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "work", AT_ONCE)
    await consumer.wait_for(4)
    assert offsets(consumer) == [0, 0, 1, 2]


async def test_a_blocked_key_stops_only_itself(client, broker, topic):
    policy = FailurePolicy(redeliveries_max=0, poison=Poison.BLOCK)
    consumer = await client.subscribe("keyed", kind=KEY_SHARED, failure_policy=policy)
    await published(client, [b"a0"], keys=["a"])
    consumer.consumer.nack([(0, 1)])
    await published(client, [b"a1", b"b0", b"a2", b"b1"], keys=["a", "b", "a", "b"])
    assert [payload for _, payload in consumer.received] == [b"a0", b"b0", b"b1"]
    await broker.subscriptions.settle(
        ANONYMOUS, Settle(topic=TOPIC, subscription="keyed", partition=0, ranges=[(0, 1)])
    )
    await consumer.wait_for(5)
    assert [payload for _, payload in consumer.received[3:]] == [b"a1", b"a2"]


async def test_a_dead_letter_keeps_payload_key_and_attributes_and_names_its_origin(tmp_path: Path):
    policy = FailurePolicy(
        redeliveries_max=1, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/orders-dlq"
    )
    async with open_topic(tmp_path) as client:
        consumer = await client.subscribe("work", kind=SHARED, failure_policy=policy)
        await published(client, [b"good", b"bad"], keys=["g", "b"], attributes=[{}, {"trace": "7"}])
        await consumer.ack((0, 1))
        consumer.consumer.nack([(1, 2)], reason="first")
        await consumer.wait_for(3)
        consumer.consumer.nack([(1, 2)], reason="no such customer")
        await until(lambda: client.broker._registry.find_topic(DLQ) is not None)
        letters = await BrokerClient(client.broker, DLQ).fetch(wait_ms=5000)
        batch = Batch.open(letters.batches[0], stamped=True)
        assert (batch.payloads, batch.keys) == ([b"bad"], ["b"])
        attributes = batch.attributes[0]
        assert attributes["trace"] == "7"
        assert attributes["x-original-topic"] == "/default/orders"
        assert attributes["x-original-topic-offset"] == "1"
        assert attributes["x-delivery-attempt"] == "2"
        assert attributes["x-failure-reason"] == "no such customer"
        await until(lambda: next(iter(client.broker._partitions.of(TOPIC))).subscriptions["work"].cursor.position == 2)


async def test_on_shared_a_delayed_message_does_not_delay_the_messages_after_it(client, topic, clock):
    consumer = await client.subscribe("work", kind=SHARED)
    later = clock.now_us() + 5_000_000
    await published(client, numbered(3), deliver_at=[0, later, 0])
    assert offsets(consumer) == [0, 2]
    await asyncio.sleep(0)
    clock.advance(4.9)
    await asyncio.sleep(0)
    assert offsets(consumer) == [0, 2]
    clock.advance(0.1)
    await consumer.wait_for(3)
    assert offsets(consumer) == [0, 2, 1]


async def test_a_delay_survives_a_restart(tmp_path: Path):
    clock = ManualClock()
    async with open_topic(tmp_path, clock=clock, crash=True) as client:
        consumer = await client.subscribe("work", kind=SHARED)
        await published(client, numbered(3), deliver_at=[0, clock.now_us() + 5_000_000, 0])
        await consumer.ack((0, 1), (2, 3))
    async with open_broker(tmp_path, clock=clock) as broker:
        consumer = await BrokerClient(broker).subscribe("work", kind=SHARED)
        await asyncio.sleep(0)
        assert consumer.received == []
        clock.advance(5)
        await consumer.wait_for(1)
        assert offsets(consumer) == [1]


async def test_exclusive_ignores_delays_and_keeps_order(client, topic, clock):
    consumer = await client.subscribe()
    await published(client, numbered(3), deliver_at=[0, clock.now_us() + 5_000_000, 0])
    assert offsets(consumer) == [0, 1, 2]


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_acks_survive_a_crash_and_the_rest_is_redelivered_uncounted(tmp_path: Path, kind: SubscriptionType):
    async with open_topic(tmp_path, crash=True) as client:
        consumer = await client.subscribe("s", kind=kind)
        await published(client, numbered(10), keys=[str(n % 3) for n in range(10)])
        await consumer.ack((0, 1), (4, 7))
    async with open_broker(tmp_path) as broker:
        consumer = await BrokerClient(broker).subscribe("s", kind=kind)
        await consumer.wait_for(6)
        assert offsets(consumer) == [1, 2, 3, 7, 8, 9]
        assert set(consumer.redeliveries) == {0}


async def test_a_subscription_has_its_position_from_the_moment_it_exists(tmp_path: Path):
    async with open_topic(tmp_path, crash=True) as client:
        await published(client, numbered(2))
        await client.broker.subscriptions.create(ANONYMOUS, TOPIC, "s", SHARED, LATEST)
        await published(client, numbered(2, 2))
    async with open_broker(tmp_path) as broker:
        consumer = await BrokerClient(broker).subscribe("s", kind=SHARED)
        await consumer.wait_for(2)
        assert offsets(consumer) == [2, 3]


async def test_advance_compares_and_sets_the_position_and_changes_the_lag(client, broker, topic):
    await broker.subscriptions.create(ANONYMOUS, TOPIC, "engine", SubscriptionType.EXCLUSIVE, EARLIEST)
    await published(client, numbered(10))
    await broker.subscriptions.advance(
        ANONYMOUS, Advance(topic=TOPIC, subscription="engine", partition=0, offset=6, expected=0)
    )
    with pytest.raises(Refused, match="stands at 6, not at 0"):
        await broker.subscriptions.advance(
            ANONYMOUS, Advance(topic=TOPIC, subscription="engine", partition=0, offset=8, expected=0)
        )
    place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "engine")).partitions[0]
    assert (place.position, place.lag) == (6, 4)


async def test_a_dispatch_rate_delays_messages_and_loses_none(client, broker, topic, clock):
    consumer = await client.subscribe()
    await published(client, [b"first"])
    (partition,) = broker._partitions.of(TOPIC)
    partition.subscriptions["billing"].set_dispatch_rate(10, 0)
    await published(client, numbered(50), batch=5)
    assert len(consumer.received) < 20
    for _ in range(60):
        await asyncio.sleep(0)
        clock.advance(0.1)
        await asyncio.sleep(0)
    await consumer.wait_for(51)
    assert offsets(consumer) == list(range(51))


async def test_seeking_back_redelivers_to_attached_consumers(client, broker, topic):
    consumer = await client.subscribe("s", kind=KEY_SHARED)
    await published(client, numbered(4), keys=list("abab"))
    await consumer.ack((0, 4))
    await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="s", position=Position("offset", 2)))
    await consumer.wait_for(6)
    assert offsets(consumer) == [0, 1, 2, 3, 2, 3]


async def test_a_late_nack_does_not_count_for_a_message_that_another_consumer_has_now(client, broker, topic):
    first = await client.subscribe("work", "a", kind=SHARED, credit=0)
    second = await client.subscribe("work", "b", kind=SHARED)
    await published(client, numbered(1))
    assert offsets(second) == [0]
    first.consumer.nack([(0, 1)])
    (partition,) = (await broker.statistics.topic(ANONYMOUS, TOPIC)).partitions
    assert (partition.subscriptions[0].waiting, partition.subscriptions[0].unacked) == (0, 1)


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
async def test_credit_in_bytes_is_exact_for_messages_of_different_sizes(client, topic, kind):
    consumers = [await client.subscribe("s", name, kind=kind) for name in "ab"]
    members = [one.consumer._member for one in consumers]
    before = [member.bytes for member in members]
    payloads = [b"x" * (20_000 if n % 7 == 0 else 10) for n in range(200)]
    await published(client, payloads, batch=50, keys=[str(n % 9) for n in range(200)])
    for consumer, member, had in zip(consumers, members, before, strict=True):
        assert had - member.bytes == consumer.bytes


async def test_a_dead_letter_topic_must_be_reliable_and_another_topic(broker):
    await BrokerClient(broker).create()
    await BrokerClient(broker, TopicName.parse("/default/lossy")).create(reliable=False)
    for target, why in [
        ("/default/orders", "its own dead letter topic"),
        ("/default/lossy", "is not reliable"),
        ("/nowhere/dlq", "namespace 'nowhere' does not exist"),
    ]:
        policy = FailurePolicy(redeliveries_max=1, poison=Poison.DEAD_LETTER, dead_letter_topic=target)
        with pytest.raises(Refused, match=why):
            await broker.subscriptions.create(ANONYMOUS, TOPIC, "s", SHARED, LATEST, policy)


async def test_key_shared_orders_a_key_by_delivery_time_also_for_messages_due_together(client, topic, clock):
    consumer = await client.subscribe("s", kind=KEY_SHARED)
    now = clock.now_us()
    await published(
        client, numbered(4), keys=["k"] * 4, deliver_at=[now + 4_000_000, now + 2_000_000, 0, now + 3_000_000]
    )
    assert offsets(consumer) == [2]
    await asyncio.sleep(0)
    clock.advance(10)
    await consumer.wait_for(4)
    assert offsets(consumer) == [2, 1, 3, 0]


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_an_ack_of_what_was_delivered_before_a_seek_does_not_undo_it(client, broker, topic, kind):
    consumer = await client.subscribe("s", kind=kind, credit=10)
    await published(client, numbered(10), keys=[str(n) for n in range(10)])
    await consumer.wait_for(10)
    await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="s", position=EARLIEST))
    await consumer.ack((0, 5))
    consumer.consumer.credit(100, 1 << 20)
    await consumer.wait_for(20)
    await consumer.ack((0, 3))
    place = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "s")).partitions[0]
    assert place.position == 3


async def test_a_deleted_subscription_sends_no_dead_letters_any_more(broker, clock):
    letters = await created(broker, DLQ)
    await broker.policies.set(ANONYMOUS, DLQ, {"backlog_messages_max": 1})
    await letters.subscribe("reading")
    await published(letters, [b"full"])
    client = await created(broker)
    policy = FailurePolicy(
        redeliveries_max=0, delay_ms=0, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/orders-dlq"
    )
    consumer = await client.subscribe("work", kind=SHARED, failure_policy=policy)
    await published(client, numbered(20))
    consumer.consumer.nack([(0, 20)])
    (partition,) = broker._partitions.of(TOPIC)
    await until(lambda: partition.subscriptions["work"].dispatcher.counts.waiting > 0)
    await broker.subscriptions.delete(ANONYMOUS, TOPIC, "work")
    await broker.policies.set(ANONYMOUS, DLQ, {"backlog_messages_max": 0})
    clock.advance(100)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(await letters.read_all()) == 1


async def test_a_dead_letter_of_a_message_with_the_maximum_of_attributes_keeps_those_that_fit(tmp_path: Path):
    policy = FailurePolicy(redeliveries_max=0, poison=Poison.DEAD_LETTER, dead_letter_topic="/default/orders-dlq")
    async with open_topic(tmp_path) as client:
        consumer = await client.subscribe("work", kind=SHARED, failure_policy=policy)
        await published(client, [b"bad"], attributes=[{f"a{n}": "" for n in range(1000)}])
        consumer.consumer.nack([(0, 1)])
        await until(lambda: client.broker._registry.find_topic(DLQ) is not None)
        letters = await BrokerClient(client.broker, DLQ).fetch(wait_ms=5000)
        attributes = Batch.open(letters.batches[0], stamped=True).attributes[0]
        assert len(attributes) == 1000
        assert int(attributes["x-attributes-dropped"]) == 1000 - sum(name.startswith("a") for name in attributes)
