"""The ack timeout of a message starts when the application receives it; without a timeout there is no cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from client_harness import TOPIC, publish
from flaky_wire import Wire
from hypothesis import given
from hypothesis import strategies as st

import pydanube
from pydanube import Client, Consumer, FailurePolicy, Invalid
from pydanube.client.consuming.acks import Acks, AckTimeouts
from pydanube.runtime.clock import ManualClock
from waiting import until

SOON = FailurePolicy(ack_timeout_ms=150, delay_ms=0, delay_max_ms=0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(url: str, clock: ManualClock) -> AsyncIterator[Client]:
    """A client for which no time passes, however long the machine takes, until the test says so."""
    async with Client(url, clock=clock) as client:
        yield client


def acks_of(consumer: Consumer) -> Acks:
    return consumer._sources._sources[TOPIC, 0].acks


async def expire(clock: ManualClock) -> None:
    """Let the running ack timeouts expire."""
    await asyncio.sleep(0)  # a timeout that has just begun is waited for by now
    clock.advance(SOON.ack_timeout_ms / 1_000 + 0.01)


async def test_a_message_that_is_not_acked_in_time_is_redelivered(client: Client, clock: ManualClock) -> None:
    await publish(client, 3)
    async with client.consumer(
        TOPIC, subscription="billing", type="shared", start="earliest", failure_policy=SOON
    ) as consumer:
        first, second, third = [await consumer.receive(timeout=60) for _ in range(3)]
        await consumer.ack(first)
        await consumer.ack(third)
        await expire(clock)
        again = await consumer.receive(timeout=60)
        assert (again.offset, again.redeliveries, again.failure_reason) == (second.offset, 1, "ack timeout")
        await consumer.ack(again)
        await consumer.flush()
        await expire(clock)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.1)


async def test_prefetched_messages_do_not_expire(client: Client, clock: ManualClock) -> None:
    await publish(client, 200)
    async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=SOON) as consumer:
        await consumer.ack(await consumer.receive(timeout=60))

        async def all_lie_here() -> bool:
            return (await client.describe_subscription(TOPIC, "billing")).partitions[0].unacked == 199

        await until(all_lie_here)
        await expire(clock)
        for offset in range(1, 200):
            message = await consumer.receive(timeout=60)
            assert (message.offset, message.redeliveries) == (offset, 0)
            await consumer.ack(message)


async def test_the_timeout_of_a_batch_starts_when_it_is_received(client: Client, clock: ManualClock) -> None:
    await publish(client, 5)
    async with client.consumer(
        TOPIC, subscription="billing", type="shared", start="earliest", failure_policy=SOON
    ) as consumer:
        batch = await consumer.receive_batch(timeout=60)
        assert len(batch) == 5
        await expire(clock)
        seen = 0
        while seen < 5:
            again = await consumer.receive_batch(timeout=60)
            assert list(again.failure_reasons) == ["ack timeout"] * len(again)
            await consumer.ack(again)
            seen += len(again)


async def test_without_a_timeout_messages_are_prepared_by_the_chunk(client: Client) -> None:
    await publish(client, 10)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        await consumer.ack(await consumer.receive(timeout=60))
        await consumer.ack(await consumer.receive(timeout=60))
        acks = acks_of(consumer)
        assert acks.timeouts is None
        assert acks.end == 2  # the range that grows


async def test_the_timeout_can_be_changed_while_the_consumer_runs(client: Client, clock: ManualClock) -> None:
    await publish(client, 4)
    async with client.consumer(TOPIC, subscription="billing", type="shared", start="earliest") as consumer:
        await consumer.ack(await consumer.receive(timeout=60))
        await client.set_failure_policy(TOPIC, "billing", SOON)
        await until(lambda: acks_of(consumer).timeouts is not None)
        second = await consumer.receive(timeout=60)
        for offset in (2, 3):
            message = await consumer.receive(timeout=60)
            assert message.offset == offset
            await consumer.ack(message)
        await expire(clock)
        again = await consumer.receive(timeout=60)
        assert (again.offset, again.failure_reason) == (second.offset, "ack timeout")
        await client.set_failure_policy(TOPIC, "billing", FailurePolicy())
        await until(lambda: acks_of(consumer).timeouts is None)
        await expire(clock)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.1)
        await consumer.ack(again)


async def test_a_consumer_may_have_a_timeout_of_its_own(client: Client, clock: ManualClock) -> None:
    await publish(client, 1)
    async with client.consumer(
        TOPIC, subscription="billing", start="earliest", ack_timeout=0.1, failure_policy=FailurePolicy(delay_ms=0)
    ) as consumer:
        await consumer.receive(timeout=60)
        await expire(clock)
        assert (await consumer.receive(timeout=60)).failure_reason == "ack timeout"
    async with client.consumer(TOPIC, subscription="billing", ack_timeout=0) as consumer:
        assert acks_of(consumer).timeouts is None
    with pytest.raises(Invalid, match="ack_timeout"):
        client.consumer(TOPIC, subscription="billing", ack_timeout=-1)


async def test_a_lost_connection_ends_the_running_timeouts(wire: Wire) -> None:
    async with pydanube.connect(wire.url) as client:
        await publish(client, 1)
        late = FailurePolicy(ack_timeout_ms=600_000)  # none expires while a slow machine connects again
        async with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=late) as consumer:
            await consumer.receive(timeout=60)
            wire.cut()
            await until(lambda: not acks_of(consumer).timeouts)
            again = await consumer.receive(timeout=60)
            assert (again.offset, again.redeliveries) == (0, 0)
            await consumer.ack(again)


def test_in_the_blocking_client_the_timeout_of_each_message_starts_when_it_is_returned() -> None:
    with pydanube.testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send_many([b"%d" % number for number in range(20)])
        with client.consumer(TOPIC, subscription="billing", start="earliest", failure_policy=SOON) as consumer:
            assert consumer.receive(timeout=60).offset == 0
            assert len(acks_of(consumer._inner).timeouts or ()) == 1
            seen = []
            for message in consumer:
                consumer.ack(message)
                seen.append(message)
                if len({one.offset for one in seen}) == 20:
                    break
            assert [one.offset for one in seen if not one.redeliveries] == list(range(1, 20))
            assert [one.failure_reason for one in seen if one.offset == 0] == ["ack timeout"]


# -- by itself -------------------------------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 20), st.integers(1, 5)),
        st.tuples(st.just("settle"), st.integers(0, 20), st.integers(1, 30)),
        st.tuples(st.just("pass"), st.integers(1, 4), st.just(0)),
    )
)


@given(STEPS)
def test_every_timeout_is_stopped_or_expires_once_and_in_order(steps: list[tuple[str, int, int]]) -> None:
    time, firsts = Time(), []
    timeouts = AckTimeouts(5.0, time, lambda: firsts.append(time.now))
    model: dict[int, float] = {}
    for step, number, length in steps:
        if step == "take":
            assert len(firsts) == 0 or not model or len(timeouts) > 0
            timeouts.start(range(number, number + length))
            model |= dict.fromkeys(range(number, number + length), time.now)
        elif step == "settle":
            timeouts.stop(number, number + length)
            model = {offset: at for offset, at in model.items() if not number <= offset < number + length}
        else:
            time.now += number
            due = timeouts.take_expired()
            assert set(due) == {offset for offset, at in model.items() if at + 5.0 <= time.now}
            assert all(model[one] <= model[next_one] for one, next_one in pairwise(due))
            model = {offset: at for offset, at in model.items() if offset not in due}
        assert len(timeouts) == len(model)
        wait = timeouts.next_expiry_s()
        assert wait == (max(0.0, min(model.values()) + 5.0 - time.now) if model else None)


def test_every_ack_and_nack_stops_a_timeout() -> None:
    acks = Acks(lambda: None, lambda: None)
    acks.add(0, 3)
    timeouts = AckTimeouts(5.0, Time(), lambda: None)
    acks.set_timeouts(timeouts)
    timeouts.start(range(3, 9))
    for offset in (3, 4, 5):
        acks.add(offset, offset + 1)
        assert acks.end == -1
    acks.nack([(6, 7)], -1, "")
    assert timeouts.take_expired() == [] and len(timeouts) == 2
    acks.add_cumulative(9)
    assert len(timeouts) == 0
    assert acks.take() == (1, [(0, 6)], 9)
