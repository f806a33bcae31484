"""Delivery in turns, by the dispatch rate, and when several consumers detach together."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, open_topic

from pydanube.broker import close_calls
from pydanube.broker.subscriptions import scheduling
from pydanube.broker.subscriptions.delivery_batches import GATHER_BYTES_MIN, rows_allowed, views_to_send
from pydanube.broker.subscriptions.scheduling import WorkBudget
from pydanube.broker.subscriptions.subscription import LiveSubscription
from pydanube.codec.batch import Batch, Codec, encode
from pydanube.core.dispatch.members import Member
from pydanube.core.dispatch.policy import Assignment
from pydanube.model.failure import FailurePolicy
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import ManualClock
from waiting import until

SHARED = SubscriptionType.SHARED


async def published(client: BrokerClient, payloads: list[bytes], batch: int = 1, **columns) -> None:
    producer = await client.producer()
    for first in range(0, len(payloads), batch):
        some = {name: values[first : first + batch] for name, values in columns.items()}
        await client.publish(producer, payloads[first : first + batch], **some)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def offsets(consumer) -> list[int]:
    return [offset for offset, _ in consumer.received]


def live(broker) -> LiveSubscription:
    (partition,) = broker._partitions.of(TOPIC)
    return partition.subscriptions["billing"]


# -- turns -------------------------------------------------------------------------------------------------------------


async def test_a_turn_ends_and_the_next_one_is_scheduled():
    done, budgets = [], []

    def go_on() -> None:
        assert budgets[0].begin()
        assert not budgets[0].begin(), "a turn is under way"
        done.append("turn")
        budgets[0].spend(scheduling.BATCHES_MAX, 0)
        assert budgets[0].is_spent
        budgets[0].end()

    budgets.append(WorkBudget(go_on))
    go_on()
    budgets[0].continue_later()
    assert not budgets[0].begin(), "the next turn is scheduled"
    asyncio.get_running_loop().call_soon(done.append, "others")
    await asyncio.sleep(0)
    assert done == ["turn", "turn", "others"]


async def test_many_batches_are_delivered_in_turns_and_in_order(client, topic):
    await published(client, numbered(400))
    consumer = await client.subscribe(credit=0)
    consumer.consumer.credit(1000, 1 << 20)
    assert len(consumer.received) <= scheduling.BATCHES_MAX
    await consumer.wait_for(400)
    assert offsets(consumer) == list(range(400))


@pytest.mark.parametrize("kind", [SHARED, SubscriptionType.KEY_SHARED])
async def test_messages_due_at_the_same_time_are_delivered_in_turns(tmp_path: Path, kind: SubscriptionType):
    count, clock = 30_000, ManualClock()
    async with open_topic(tmp_path, clock=clock) as client:
        due = [clock.now_us() + 1_000_000] * count
        await published(client, [b"x"] * count, batch=10_000, deliver_at=due)
        consumer = await client.subscribe(kind=kind)
        await until(lambda: live(client.broker).dispatcher.counts.delayed == count)
        clock.advance(2)
        await consumer.wait_for(1)
        assert len(consumer.received) <= scheduling.MESSAGES_MAX
        await consumer.wait_for(count)
        assert offsets(consumer) == list(range(count))


async def test_acks_between_turns_do_not_disturb_delivery(client, topic):
    await published(client, numbered(300))
    consumer = await client.subscribe(kind=SHARED, credit=0)
    consumer.consumer.credit(10_000, 1 << 20)
    while len(consumer.received) < 300:
        await consumer.ack(*[(offset, offset + 1) for offset in offsets(consumer)])
    assert offsets(consumer) == list(range(300))


# -- consumers that detach together ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SHARED, SubscriptionType.KEY_SHARED])
async def test_messages_of_consumers_that_detach_together_go_to_none_of_them(client, broker, topic, kind):
    going = [await client.subscribe(consumer=f"c{number}", kind=kind) for number in range(5)]
    stays = await client.subscribe(consumer="stays", kind=kind)
    await published(client, numbered(60), batch=20, keys=[f"k{number}" for number in range(60)])
    await until(lambda: sum(len(one.received) for one in (*going, stays)) == 60)
    had = [len(one.received) for one in going]
    assert all(had)
    for close in close_calls(one.consumer for one in going):
        close()
    await stays.wait_for(60)
    assert [len(one.received) for one in going] == had
    assert sorted(offsets(stays)) == list(range(60))
    assert live(broker).consumer_names == ["stays"]


# -- rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_a_large_batch_is_delivered_in_parts_as_the_rate_allows(client, broker, topic, clock, kind):
    consumer = await client.subscribe(kind=kind)
    live(broker).set_dispatch_rate(10, 0)
    await published(client, numbered(1000), batch=1000, keys=[f"k{number % 7}" for number in range(1000)])
    seen = []
    for _ in range(5):
        for _ in range(10):
            clock.advance(0.1)
            for _ in range(5):
                await asyncio.sleep(0)
        seen.append(len(consumer.received))
    gained = [later - earlier for earlier, later in pairwise(seen)]
    assert all(8 <= one <= 12 for one in gained), seen
    assert offsets(consumer) == list(range(len(consumer.received)))


async def test_a_rate_in_bytes_divides_batches_too(client, broker, topic, clock):
    consumer = await client.subscribe()
    live(broker).set_dispatch_rate(0, 10_000)
    await published(client, [b"x" * 100] * 1000, batch=1000)
    assert len(consumer.received) < 100
    for _ in range(20):
        clock.advance(0.1)
        for _ in range(5):
            await asyncio.sleep(0)
    assert 100 < len(consumer.received) < 300


async def test_with_a_rate_shared_consumers_get_the_same_number_of_messages(client, broker, topic, clock):
    first, second = [await client.subscribe(consumer=name, kind=SHARED) for name in "ab"]
    live(broker).set_dispatch_rate(10, 0)
    await published(client, numbered(1000), batch=1000)
    for _ in range(20):
        clock.advance(0.1)
        for _ in range(5):
            await asyncio.sleep(0)
    assert abs(len(first.received) - len(second.received)) <= 1
    assert len(first.received) >= 9


@pytest.mark.parametrize("codec", list(Codec))
def test_a_byte_limit_limits_rows_only_if_rows_are_copied(codec: Codec):
    view = encode([b"%d" % number * 50 for number in range(10_000)], publish_times=1, codec=codec)
    batch = Batch.trust(memoryview(view))
    assert len(view) >= GATHER_BYTES_MIN
    for size_bytes in (1, len(view) // 100, len(view) // 2, 2 * len(view)):
        rows = rows_allowed((None, size_bytes), batch)
        if rows is None:
            continue
        ((sent, _),) = views_to_send(batch, 0, [Assignment(Member("a"), [(0, rows)])])
        assert len(sent) < len(view)
    assert rows_allowed((7, None), batch) == 7
    assert rows_allowed((7, 1), batch) == 1
    assert rows_allowed((None, 2 * len(view)), batch) is None


# -- reading -----------------------------------------------------------------------------------------------------------


class HeldReads:
    """A stream whose reads wait for `answer`; the first of them may then find nothing."""

    def __init__(self, stream, finds_nothing: bool = False) -> None:
        self._stream = stream
        self._finds_nothing = finds_nothing
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def read_cached(self, offset: int, bytes_max: int):
        return None

    async def read(self, offset: int, bytes_max: int):
        is_first = not self.answer.is_set()
        self.asked.set()
        await self.answer.wait()
        return [] if is_first and self._finds_nothing else await self._stream.read(offset, bytes_max)


async def test_a_read_that_finds_nothing_skips_no_message_that_became_ready_below_it(client, broker, topic):
    consumer = await client.subscribe(kind=SHARED, failure_policy=FailurePolicy(delay_ms=0))
    await published(client, numbered(5), batch=5)
    await consumer.wait_for(5)
    held = live(broker)._stream = HeldReads(live(broker)._stream, finds_nothing=True)
    await published(client, numbered(5), batch=5)
    await held.asked.wait()
    consumer.consumer.nack([(1, 2)], delay_ms=0)
    assert live(broker).dispatcher.offset_to_read == 1
    held.answer.set()
    await consumer.wait_for(11)
    assert offsets(consumer) == [0, 1, 2, 3, 4, 1, 5, 6, 7, 8, 9]
    assert live(broker).cursor.position == 0


async def test_a_read_for_one_consumer_is_delivered_although_another_is_paused(client, broker, topic):
    await published(client, numbered(10), batch=5)
    full = await client.subscribe(consumer="full", kind=SHARED, credit=0)
    held = live(broker)._stream = HeldReads(live(broker)._stream)
    reading = await client.subscribe(consumer="reading", kind=SHARED)
    await held.asked.wait()
    full.consumer.pause()
    held.answer.set()
    await reading.wait_for(10)
    assert offsets(reading) == list(range(10))
