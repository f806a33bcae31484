"""Rates: publishes beyond one wait in order and none is lost; deliveries beyond one are delayed; others do not wait."""

import asyncio

import pytest
from broker_harness import TOPIC, BrokerClient, Collector, open_broker, open_client, open_topic

from pydanube.broker import Attachment, Broker
from pydanube.broker.partitions.rate_limits import Rate
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.runtime.clock import ManualClock


async def settle(broker: Broker) -> None:
    """Let the loop run everything that is ready, and the log's thread answer."""
    is_answered = False
    while not is_answered:
        is_answered = broker._writer.pending_bytes == 0
        for _ in range(50):
            await asyncio.sleep(0.0005)


async def pass_time(broker: Broker, clock: ManualClock, seconds: float) -> None:
    for _ in range(round(seconds * 20)):
        clock.advance(0.05)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await settle(broker)


def test_the_stricter_of_messages_and_bytes_applies():
    rate = Rate.of(10, 1000, 0.0)
    assert rate is not None and Rate.of(0, 0, 0.0) is None
    rate.take(11, 100, 0.0)
    assert rate.wait_s(0.0) == pytest.approx(1.0)
    rate.take(1, 5000, 0.0)
    assert rate.wait_s(0.0) == pytest.approx(5.0)


# -- publishing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reliable", [True, False])
@pytest.mark.parametrize("policy", [{"publish_messages_per_s": 10}, {"publish_bytes_per_s": 10 * 1160}])
async def test_publishes_past_the_rate_are_answered_later_in_order_and_none_is_lost(
    client, broker, clock, reliable, policy
):
    await client.create(reliable=reliable)
    consumer, producer = await client.subscribe(), await client.producer()
    await broker.policies.set(ANONYMOUS, TOPIC, policy)
    order: list[int] = []
    answers = [client.publish(producer, [b"x" * 1000], sequence=n) for n in range(50)]
    for answer in answers:
        answer.add_done_callback(lambda done: order.append(done.result().base_offset))
    await settle(broker)
    assert len(order) <= 2
    await pass_time(broker, clock, 2)
    assert 18 <= len(order) <= 23
    await pass_time(broker, clock, 4)
    assert order == list(range(50))
    assert [offset for offset, _ in await consumer.wait_for(50)] == list(range(50))
    (partition,) = broker._partitions
    assert 4 < partition.traffic.throttled_s < 6


async def test_a_batch_larger_than_the_rate_goes_and_the_next_one_waits_longer(client, broker, topic, clock):
    await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 10})
    producer = await client.producer()
    await client.publish(producer, [b"x"] * 51, sequence=0)
    late = client.publish(producer, [b"y"], sequence=51)
    await pass_time(broker, clock, 4.8)
    assert not late.done()
    await pass_time(broker, clock, 0.5)
    assert late.result().base_offset == 51


@pytest.mark.parametrize("change", [{"publish_messages_per_s": None}, {"publish_messages_per_s": 1_000_000}])
async def test_a_changed_rate_applies_at_once_to_waiting_publishes(client, broker, topic, clock, change):
    await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
    producer = await client.producer()
    answers = [client.publish(producer, [b"x"] * 100, sequence=n * 100) for n in range(20)]
    await pass_time(broker, clock, 1)
    assert not answers[-1].done()
    await broker.policies.set(ANONYMOUS, TOPIC, change)
    await pass_time(broker, clock, 0.2)
    assert [one.result().base_offset for one in answers] == list(range(0, 2000, 100))


async def test_the_rate_of_one_topic_does_not_delay_other_topics(tmp_path):
    async with open_broker(tmp_path, clock=ManualClock()) as broker:
        slow, other = BrokerClient(broker), BrokerClient(broker, TopicName.parse("/default/orders-dlq"))
        await slow.create()
        await other.create()
        await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
        producer = await slow.producer()
        waiting = [slow.publish(producer, [b"x"], sequence=n) for n in range(20)]
        quick = await other.producer()
        for n in range(20):
            assert (await other.publish(quick, [b"x"], sequence=n)).base_offset == n
        assert not waiting[-1].done()
        await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 0})
        await settle(broker)
        broker._partitions._clock.advance(1)
        await asyncio.gather(*waiting)


async def test_a_closing_broker_refuses_waiting_publishes_as_retryable(tmp_path):
    async with open_topic(tmp_path) as client:
        await client.broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
        producer = await client.producer()
        await client.publish(producer, [b"a"], sequence=0)
        late = client.publish(producer, [b"b"], sequence=1)
    with pytest.raises(Unavailable):
        await late
    async with open_client(tmp_path) as client:
        again = await client.come_back(producer)
        assert (await client.publish(again, [b"b"], sequence=1)).base_offset == 1


# -- delivering --------------------------------------------------------------------------------------------------------


async def test_a_dispatch_rate_delays_deliveries_and_discards_none(client, broker, topic, clock):
    await broker.policies.set(ANONYMOUS, TOPIC, {"dispatch_messages_per_s": 10})
    slow, producer = await client.subscribe(), await client.producer()
    for n in range(40):
        await client.publish(producer, [b"x"], sequence=n)
    assert len(slow.received) <= 3
    await pass_time(broker, clock, 2)
    assert 18 <= len(slow.received) <= 24
    await broker.policies.set(ANONYMOUS, TOPIC, {"dispatch_messages_per_s": None})
    assert [offset for offset, _ in await slow.wait_for(40)] == list(range(40))


async def test_a_slow_consumer_never_stops_producers_or_others(tmp_path):
    async with open_topic(tmp_path, tail_bytes=10_000) as client:
        stuck = Collector()
        await client.broker.subscriptions.subscribe(
            ANONYMOUS, TOPIC, 0, Attachment("stuck", "a", start=EARLIEST), stuck
        )
        quick, producer = await client.subscribe("quick"), await client.producer()
        async with asyncio.timeout(60):
            for n in range(300):
                await client.publish(producer, [b"x" * 1000], sequence=n)
            assert [offset for offset, _ in await quick.wait_for(300)] == list(range(300))
        assert not stuck.received
