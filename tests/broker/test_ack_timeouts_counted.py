"""What the broker does for consumers of the Danube gRPC API: it counts ack timeouts, bounds the delays of nacks, gives
messages up and limits what is unacknowledged. Most tests are on a clock that stands still until they move it."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, Collector, created, open_client, open_topic

from pydanube.broker import Attachment
from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Held, Invalid, NotFound, Refused
from pydanube.model.failure import ACK_TIMEOUT, DANUBE, FailurePolicy, Poison
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import ManualClock
from waiting import until

ALL = pytest.mark.parametrize("kind", list(SubscriptionType))
DLQ = TopicName.parse("/default/orders-dlq")
TIMED = FailurePolicy(redeliveries_max=1, ack_timeout_ms=30_000, delay_ms=1000, dead_letter_topic=str(DLQ))


async def pass_time(clock: ManualClock, seconds: float) -> None:
    """Move the clock in steps, and let what wakes up run after each."""
    for _ in range(int(seconds)):
        clock.advance(1)
        for _ in range(10):
            await asyncio.sleep(0)


def offsets(consumer: Collector) -> list[int]:
    return [offset for offset, _ in consumer.received]


def live(broker, name: str = "billing"):
    (partition,) = [one for one in broker._partitions if one.name == str(TOPIC)]
    return partition.subscriptions[name]


@ALL
async def test_the_broker_counts_ack_timeouts_for_consumers_that_ask_for_it(client, broker, topic, clock, kind):
    consumer = await client.subscribe(kind=kind, failure_policy=TIMED, ack_timeouts=True)
    producer = await client.producer()
    await client.publish(producer, [b"acked", b"late"], keys=["a", "b"])
    await consumer.wait_for(2)
    await consumer.ack((0, 1))
    await pass_time(clock, 29)
    assert offsets(consumer) == [0, 1]
    await pass_time(clock, 2)
    await consumer.wait_for(3)
    assert (offsets(consumer), consumer.redeliveries, consumer.reasons) == (
        [0, 1, 1],
        [0, 0, 1],
        [None, None, ACK_TIMEOUT],
    )
    await pass_time(clock, 30)
    await until(lambda: live(broker).cursor.position == 2)
    (letter,) = (await BrokerClient(broker, DLQ).fetch()).batches
    assert Batch.open(letter, stamped=True).attributes[0]["x-failure-reason"] == ACK_TIMEOUT
    assert clock.sleeping == 0 or not live(broker)._ack_timer.is_set, "nothing in flight: nothing is waited for"


async def test_no_timer_runs_for_each_message_and_acks_do_not_set_it_again(client, broker, topic, clock):
    consumer = await client.subscribe(failure_policy=DANUBE, ack_timeouts=True)
    producer = await client.producer()
    await client.publish(producer, [b"x"] * 100)
    await consumer.wait_for(100)
    waiting = live(broker)._ack_timer._waiting
    assert waiting is not None
    for offset in range(99):
        consumer.consumer.ack([(offset, offset + 1)], False)
    await pass_time(clock, 10)
    await client.publish(producer, [b"y"] * 100)
    await consumer.wait_for(200)
    assert live(broker)._ack_timer._waiting is waiting
    await pass_time(clock, 25)
    assert live(broker).dispatcher.failure_history([99, 100])[0] == [1, 0]


async def test_a_changed_ack_timeout_is_in_force_at_once_for_what_is_in_flight(client, broker, topic, clock):
    consumer = await client.subscribe(ack_timeouts=True)
    await client.publish(await client.producer(), [b"x"])
    await consumer.wait_for(1)
    await pass_time(clock, 40)
    assert offsets(consumer) == [0]
    change = broker.subscriptions.set_failure_policy
    await change(ANONYMOUS, TOPIC, "billing", FailurePolicy(ack_timeout_ms=3_600_000, delay_ms=0))
    await pass_time(clock, 10)
    assert offsets(consumer) == [0]
    await change(ANONYMOUS, TOPIC, "billing", FailurePolicy(ack_timeout_ms=45_000, delay_ms=0))
    await consumer.wait_for(2)
    assert consumer.reasons == [None, ACK_TIMEOUT]


async def test_a_shorter_ack_timeout_does_not_wait_for_the_timer_of_the_longer_one(client, broker, topic, clock):
    policy = FailurePolicy(ack_timeout_ms=3_600_000, delay_ms=0)
    consumer = await client.subscribe(ack_timeouts=True, failure_policy=policy)
    await client.publish(await client.producer(), [b"x"])
    await consumer.wait_for(1)
    await pass_time(clock, 1)
    policy = FailurePolicy(ack_timeout_ms=5_000, delay_ms=0)
    await broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", policy)
    await pass_time(clock, 3)
    assert offsets(consumer) == [0]
    await pass_time(clock, 1)
    await consumer.wait_for(2)


async def test_a_native_consumer_beside_one_with_counted_timeouts_keeps_its_messages(client, topic, clock):
    shared = SubscriptionType.SHARED
    native = await client.subscribe(consumer="native", kind=shared, failure_policy=DANUBE)
    timed = await client.subscribe(consumer="timed", kind=shared, ack_timeouts=True, credit=5)
    await client.publish(await client.producer(), [b"x"] * 10)
    await until(lambda: len(native.received) + len(timed.received) == 10)
    await pass_time(clock, 35)
    await until(lambda: len(native.received) == 10)
    assert sorted(offsets(native)) == list(range(10))
    assert native.redeliveries.count(1) == 5


async def test_a_bounded_nack_waits_between_the_backoff_and_the_maximum(client, topic, clock):
    policy = FailurePolicy(delay_ms=5_000, delay_max_ms=20_000)
    consumer = await client.subscribe(kind=SubscriptionType.SHARED, failure_policy=policy)
    await client.publish(await client.producer(), [b"x", b"y", b"z"])
    await consumer.wait_for(3)
    consumer.consumer.nack([(0, 1)], 0, bounded=True)
    consumer.consumer.nack([(1, 2)], 10**12, bounded=True)
    consumer.consumer.nack([(2, 3)], 0)
    await consumer.wait_for(4)
    assert offsets(consumer)[3:] == [2]
    await pass_time(clock, 4)
    assert len(consumer.received) == 4
    await pass_time(clock, 2)
    assert offsets(consumer)[4:] == [0]
    await pass_time(clock, 13)
    assert len(consumer.received) == 5
    await pass_time(clock, 2)
    assert offsets(consumer)[5:] == [1]


# -- giving up ---------------------------------------------------------------------------------------------------------


class Small(Collector):
    """A consumer that can never receive a message of more than ten bytes, like a client with a limit."""

    def deliver(self, batch, epoch, ranges, redeliveries, reasons) -> None:
        super().deliver(batch, epoch, ranges, redeliveries, reasons)
        for offset, payload in [one for one in self.received if len(one[1]) > 10]:
            self.received.remove((offset, payload))
            self.consumer.give_up([(offset, offset + 1)], f"a message of {len(payload)} bytes is too large")


async def attach_small(client: BrokerClient, kind: SubscriptionType, policy: FailurePolicy) -> Small:
    sink = Small()
    attachment = Attachment("billing", "a", kind, EARLIEST, failure_policy=policy, ack_timeouts=True)
    sink.consumer = await client.broker.subscriptions.subscribe(ANONYMOUS, TOPIC, 0, attachment, sink)
    sink.consumer.credit(1_000, 1 << 30)
    return sink


@ALL
async def test_a_message_that_is_given_up_while_it_is_delivered_is_dead_lettered_with_all_attributes(tmp_path, kind):
    async with open_topic(tmp_path, clock=ManualClock()) as client:
        consumer = await attach_small(client, kind, FailurePolicy(dead_letter_topic=str(DLQ)))
        producer = await client.producer("till")
        await client.publish(
            producer,
            [b"one", b"x" * 100, b"three"],
            keys=["a", "b", "c"],
            attributes=[{}, {"mine": "kept"}, {}],
            schema_id=0,
            producer_name="till",
        )
        await until(lambda: live(client.broker).counts.dead_lettered == 1)
        assert offsets(consumer) == [0, 2]
        await consumer.ack((0, 1), (2, 3))
        assert live(client.broker).cursor.position == 3
        (letter,) = (await BrokerClient(client.broker, DLQ).fetch()).batches
        dead = Batch.open(letter, stamped=True)
        assert (dead.payloads[0], dead.keys[0], dead.producer_name) == (b"x" * 100, "b", "till")
        assert dead.attributes[0] == {
            "mine": "kept",
            "x-original-topic": str(TOPIC),
            "x-original-subscription": "billing",
            "x-original-partition": "0",
            "x-original-topic-offset": "1",
            "x-original-producer-id": str(producer.producer_id),
            "x-original-broker-addr": "127.0.0.1:1",
            "x-poison-policy": "dead-letter",
            "x-delivery-attempt": "1",
            "x-failure-reason": "a message of 100 bytes is too large",
            "x-dead-letter-id": f"{TOPIC}/0/billing/1",
        }


@ALL
async def test_a_message_that_is_given_up_is_dropped_where_the_policy_says_so(tmp_path, kind):
    async with open_topic(tmp_path, clock=ManualClock()) as client:
        consumer = await attach_small(client, kind, FailurePolicy(poison=Poison.DROP))
        await client.publish(await client.producer(), [b"x" * 100, b"two", b"x" * 200, b"four"])
        await consumer.wait_for(2)
        assert offsets(consumer) == [1, 3]
        assert (live(client.broker).counts.dropped, live(client.broker).dispatcher.unacked) == (2, 2)


async def test_a_message_that_is_given_up_blocks_and_goes_on_when_the_policy_changes(tmp_path):
    async with open_topic(tmp_path, clock=ManualClock()) as client:
        consumer = await attach_small(client, SubscriptionType.EXCLUSIVE, FailurePolicy())
        producer = await client.producer()
        await client.publish(producer, [b"x" * 100])
        await client.publish(producer, [b"two"])
        assert (offsets(consumer), live(client.broker).dispatcher.counts.blocked) == ([], 1)
        drop = FailurePolicy(poison=Poison.DROP)
        await client.broker.subscriptions.set_failure_policy(ANONYMOUS, TOPIC, "billing", drop)
        await consumer.wait_for(1)
        assert (offsets(consumer), live(client.broker).counts.dropped) == ([1], 1)


# -- unacked messages --------------------------------------------------------------------------------------------------


@ALL
async def test_the_limit_of_unacked_messages_is_in_force_at_once_and_after_a_restart(tmp_path, kind):
    async with open_topic(tmp_path) as client:
        consumer = await client.subscribe(kind=kind)
        subscriptions = client.broker.subscriptions
        await subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 3)
        assert (await subscriptions.describe(ANONYMOUS, TOPIC, "billing")).unacked_max == 3
        await client.publish(await client.producer(), [b"x"] * 10, keys=[f"k{number}" for number in range(10)])
        await consumer.wait_for(3)
        assert offsets(consumer) == [0, 1, 2]
        await consumer.ack((1, 2))
        await consumer.wait_for(4)
        await subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 5)
        await consumer.wait_for(6)
        assert offsets(consumer) == [0, 1, 2, 3, 4, 5]
    async with open_client(tmp_path) as client:
        consumer = await client.subscribe(kind=kind)
        await consumer.wait_for(5)
        assert offsets(consumer) == [0, 2, 3, 4, 5]
        await client.broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", 0)
        await consumer.wait_for(9)


async def test_a_limit_that_cannot_be_is_refused(client, broker, topic):
    await client.subscribe()
    for wrong in (-1, 2**32):
        with pytest.raises(Invalid, match="out of range"):
            await broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "billing", wrong)
    with pytest.raises(NotFound):
        await broker.subscriptions.set_unacked_max(ANONYMOUS, TOPIC, "nothing", 1)
    other = await created(broker, TopicName.parse("/default/prices"), reliable=False)
    await other.subscribe()
    with pytest.raises(Refused, match="not reliable"):
        await broker.subscriptions.set_unacked_max(ANONYMOUS, other.topic, "billing", 1)


# -- takeover ----------------------------------------------------------------------------------------------------------


@ALL
async def test_the_same_name_takes_over_and_gets_the_unacked_messages_at_once(tmp_path, kind):
    async with open_topic(tmp_path, clock=ManualClock()) as client:
        first = await client.subscribe(kind=kind, ack_timeouts=True)
        await client.publish(await client.producer(), [b"x"] * 5)
        await first.wait_for(5)
        await first.ack((1, 3))
        second = await client.subscribe(kind=kind, ack_timeouts=True)
        assert isinstance(first.error, Refused) and "took over" in first.error.message
        await second.wait_for(3)
        assert (offsets(second), second.redeliveries) == ([0, 3, 4], [0, 0, 0])
        first.consumer.close()
        first.consumer.nack([(0, 5)], 0)
        assert second.error is None and live(client.broker).dispatcher.unacked == 3


async def test_another_name_is_held_off_an_exclusive_subscription_until_the_first_is_closed(client, topic):
    first = await client.subscribe(consumer="a")
    with pytest.raises(Held, match="'a'"):
        await client.subscribe(consumer="b")
    first.consumer.close()
    await client.subscribe(consumer="b")
