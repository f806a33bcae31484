"""Key-shared over a real log, with many messages: batches are assigned together, acks are processed together."""

import asyncio
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from broker_harness import TOPIC, BrokerClient, Collector, open_broker, open_client

from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Full
from pydanube.model.positions import LATEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import Seek
from waiting import until

KEY_SHARED = SubscriptionType.KEY_SHARED
COUNT, BATCH = 2_000, 50
KEYS = [f"key-{n * 7919 % 101}" for n in range(COUNT)]


async def filled(client: BrokerClient, producers: int = 1) -> None:
    await client.create()
    made = [await client.producer(f"p{number}") for number in range(producers)]
    for start in range(0, COUNT, BATCH):
        keys = KEYS[start : start + BATCH]
        await client.publish(made[start // BATCH % producers], [key.encode() for key in keys], keys=keys)


async def alone(client: BrokerClient):
    """Return the only consumer of the subscription, after it received everything."""
    await filled(client)
    consumer = await client.subscribe("keyed", "a", kind=KEY_SHARED)
    await consumer.wait_for(COUNT)
    return consumer


def table(collector, part: slice = slice(None)) -> np.ndarray:
    """Return the consumer's messages as an ACK request names them: an array of ranges."""
    offsets = np.array([offset for offset, _ in collector.received[part]], np.int64)
    return np.stack((offsets, offsets + 1), axis=1)


async def position(broker) -> int:
    (place,) = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "keyed")).partitions
    return place.position


class DeliveryRecorder:
    """Records how many messages come in one delivery, and when their batches were appended."""

    def __init__(self, collector) -> None:
        self.rows: list[int] = []
        self.times: dict[int, int] = {}
        self._deliver = collector.deliver
        collector.deliver = self.deliver

    def deliver(self, batch, epoch, ranges, redeliveries, reasons) -> None:
        opened = Batch.open(batch, stamped=True)
        self.rows.append(opened.count)
        self.times |= dict(zip(opened.offsets.tolist(), opened.append_times.tolist(), strict=True))
        self._deliver(batch, epoch, ranges, redeliveries, reasons)


async def share_everything(client: BrokerClient, names: str) -> tuple[list[Collector], list[DeliveryRecorder]]:
    """Return consumers, one for each letter, between which all messages were divided, with what they were sent.

    Everything is available at the moment from which they are served: they have credit before, and wait at the end.
    """
    consumers = [await client.subscribe("keyed", name, start=LATEST, kind=KEY_SHARED) for name in names]
    recorders = [DeliveryRecorder(one) for one in consumers]
    await client.broker.subscriptions.seek(
        ANONYMOUS, Seek(topic=TOPIC, subscription="keyed", position=Position("offset", 0))
    )
    await until(lambda: sum(len(one.received) for one in consumers) >= COUNT)
    assert all(one.received for one in consumers), "each has some of the keys"
    return consumers, recorders


async def test_batches_that_are_available_are_assigned_together_and_keep_their_order_and_times(client):
    await filled(client)
    consumers, recorders = await share_everything(client, "abcd")
    stored = {}
    for view in (await client.fetch(bytes_max=1 << 20)).batches:
        opened = Batch.open(view, stamped=True)
        stored |= dict.fromkeys(opened.offsets.tolist(), opened.append_time)
    for one, recorded in zip(consumers, recorders, strict=True):
        assert recorded.rows == [len(one.received)], "one delivery, with the rows of all batches"
        assert recorded.times == {offset: stored[offset] for offset, _ in one.received}
        assert all(low < high for (low, _), (high, _) in pairwise(one.received))
        assert all(KEYS[offset].encode() == payload for offset, payload in one.received)
    owners = [{payload for _, payload in one.received} for one in consumers]
    assert sum(map(len, owners)) == len(set(KEYS)), "no key went to two consumers"


async def test_batches_of_several_producers_keep_their_order(client):
    await filled(client, producers=2)
    consumers, _ = await share_everything(client, "ab")
    for one in consumers:
        by_key: dict[bytes, list[int]] = {}
        for offset, payload in one.received:
            by_key.setdefault(payload, []).append(offset)
        assert all(offsets == sorted(offsets) for offsets in by_key.values())


async def test_acks_that_arrive_together_are_processed_together_and_each_is_confirmed(tmp_path: Path):
    async with open_client(tmp_path) as client:
        await filled(client)
        consumers, _ = await share_everything(client, "ab")
        answers = []
        for one in consumers:
            done = asyncio.get_running_loop().create_future()
            one.consumer.ack(table(one), False, done.set_result)
            answers.append(done)
        assert await asyncio.gather(*answers) == [None, None]
        assert await position(client.broker) == COUNT
    async with open_broker(tmp_path) as broker:
        assert await position(broker) == COUNT


@pytest.mark.parametrize("end", ["close", "taken over", "connection lost"])
async def test_messages_acked_before_a_consumer_detached_are_not_redelivered(client, end):
    await filled(client)
    first = await client.subscribe("keyed", "a", kind=KEY_SHARED)
    await first.wait_for(COUNT)
    acked = table(first)[::2]
    if end == "taken over":
        coming = asyncio.ensure_future(client.subscribe("keyed", "a", kind=KEY_SHARED))
        first.consumer.ack(acked, cumulative=False)
        second = await coming
    else:
        second = await client.subscribe("keyed", "b", kind=KEY_SHARED)
        first.consumer.ack(acked, cumulative=False)
        first.consumer.close()
    await second.wait_for(COUNT // 2)
    await asyncio.sleep(0)
    assert sorted(offset for offset, _ in second.received) == list(range(1, COUNT, 2))


async def test_a_nack_directly_after_an_ack_of_the_same_messages_is_ignored(broker):
    consumer = await alone(BrokerClient(broker))
    consumer.consumer.ack(table(consumer), cumulative=False)
    consumer.consumer.nack([(0, 10)], delay_ms=0)
    await asyncio.sleep(0)
    assert len(consumer.received) == COUNT
    assert await position(broker) == COUNT


async def test_acks_before_a_seek_do_not_count_after_it(broker):
    consumer = await alone(BrokerClient(broker))
    consumer.consumer.ack(table(consumer), cumulative=False)
    await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="keyed", position=Position("offset", 0)))
    assert await position(broker) == 0
    await consumer.wait_for(2 * COUNT)


async def confirmed(collector, ranges) -> None:
    done = asyncio.get_running_loop().create_future()
    collector.consumer.ack(ranges, False, done.set_result)
    if (error := await done) is not None:
        raise error


async def test_an_ack_that_is_confirmed_confirms_all_before_it(tmp_path: Path):
    async with open_broker(tmp_path, crash=True) as broker:
        consumer = await alone(BrokerClient(broker))
        consumer.consumer.ack(table(consumer, slice(1000)), cumulative=False)
        await confirmed(consumer, [])
        consumer.consumer.ack(table(consumer, slice(1000, 1500)), cumulative=False)
        await confirmed(consumer, [(1500, 1501)])
    async with open_broker(tmp_path) as broker:
        assert await position(broker) == 1501


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, KEY_SHARED])
async def test_after_a_seek_an_ack_of_everything_again_and_again_costs_no_more_than_one(client, broker, kind):
    await filled(client)
    consumer = await client.subscribe("keyed", "a", kind=kind)
    await consumer.wait_for(COUNT)
    await broker.subscriptions.seek(ANONYMOUS, Seek(topic=TOPIC, subscription="keyed", position=Position("offset", 0)))
    await consumer.wait_for(2 * COUNT)
    async with asyncio.timeout(60):
        await confirmed(consumer, np.array([(0, 2**62)] * 65_000, np.int64))
    assert await position(broker) == COUNT


class TestStateThatFitsNoRecord:
    """Thousands of gaps between acks on many subscriptions: the snapshot would be larger than a record may be."""

    @staticmethod
    def limit(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr("pydanube.broker.partitions.state_ledger.RECORD_BODY_BYTES_MAX", size)

    async def test_acks_are_refused_and_none_is_confirmed_that_a_crash_would_undo(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        async with open_broker(tmp_path) as broker:
            consumer = await alone(BrokerClient(broker))
            await confirmed(consumer, table(consumer)[1::2])
        self.limit(monkeypatch, 500)
        async with open_broker(tmp_path, crash=True) as broker:
            consumer = await BrokerClient(broker).subscribe("keyed", "a", kind=KEY_SHARED)
            ledgers = len((await broker._registry.known_ledgers()).needed)
            for offset in (0, 2, 4):
                with pytest.raises(Full, match="the state of the partition has"):
                    await confirmed(consumer, [(offset, offset + 1)])
            assert len((await broker._registry.known_ledgers()).needed) == ledgers, "no try leaves a ledger behind"
        monkeypatch.undo()
        async with open_broker(tmp_path, crash=True) as broker:
            assert await position(broker) == 0
            consumer = await BrokerClient(broker).subscribe("keyed", "a", kind=KEY_SHARED)
            await confirmed(consumer, [(0, 1)])
        async with open_broker(tmp_path) as broker:
            assert await position(broker) == 2

    async def test_an_open_ledger_is_continued_without_a_snapshot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("pydanube.broker.partitions.state_ledger.DELTAS_PER_SNAPSHOT", 3)
        async with open_broker(tmp_path, crash=True) as broker:
            consumer = await alone(BrokerClient(broker))
            await confirmed(consumer, table(consumer)[1::2])
            self.limit(monkeypatch, 500)
            for offset in range(0, 20, 2):
                await confirmed(consumer, [(offset, offset + 1)])
        monkeypatch.undo()
        async with open_broker(tmp_path) as broker:
            assert await position(broker) == 20

    async def test_a_change_too_large_for_a_record_is_refused_and_in_the_next_ledger(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        async with open_broker(tmp_path, crash=True) as broker:
            consumer = await alone(BrokerClient(broker))
            await confirmed(consumer, [(1, 2)])
            self.limit(monkeypatch, 500)
            with pytest.raises(Full, match="the state of the partition has"):
                await confirmed(consumer, table(consumer)[3::2])
            monkeypatch.undo()
            await confirmed(consumer, [(0, 1)])
        async with open_broker(tmp_path) as broker:
            (place,) = (await broker.subscriptions.describe(ANONYMOUS, TOPIC, "keyed")).partitions
            assert place.position == 2
            assert place.acked_ahead == len(range(3, COUNT, 2))
