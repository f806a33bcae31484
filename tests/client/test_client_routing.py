"""Where messages go (by key, in turn, to one partition, by a function), when, and what more partitions change."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import pydanube
from pydanube import Client, Invalid, NotFound, Refused, StaleEpoch
from pydanube.client.producing.message_intake import delivery_time_us
from pydanube.client.producing.partitioning import ANY_PARTITION, Partitioner
from pydanube.codec.batch import Batch
from pydanube.runtime.clock import ManualClock
from waiting import until

TOPIC = "/default/orders"


@pytest.mark.parametrize(
    ("key", "of_2", "of_3", "of_4", "of_10"),
    [
        ("user-1", 0, 2, 0, 8),
        ("user-2", 1, 2, 1, 1),
        ("order-42", 0, 2, 0, 4),
        ("", 1, 2, 1, 7),
        ("Zürich", 0, 1, 0, 0),
        ("東京", 1, 2, 3, 9),
        ("a" * 100, 1, 1, 1, 7),
    ],
)
def test_every_danube_client_sends_a_key_to_this_partition(
    key: str, of_2: int, of_3: int, of_4: int, of_10: int
) -> None:
    assert [Partitioner(count).of(key, b"") for count in (2, 3, 4, 10)] == [of_2, of_3, of_4, of_10]


def test_who_chooses() -> None:
    assert Partitioner(3).of(None, b"") == ANY_PARTITION
    assert Partitioner(3, partition_by="round-robin").of("user-1", b"") == ANY_PARTITION
    assert Partitioner(3, partition_by=2).of("user-1", b"") == 2
    assert (
        Partitioner(3, partition_by=lambda key, payload, partitions: len(payload) % partitions).of(None, b"four") == 1
    )
    assert Partitioner(2).grown(10).of("user-1", b"") == 8


async def test_messages_without_a_key_and_round_robin_take_turns(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    async with client.producer(TOPIC) as producer:
        assert Counter([(await producer.send(b"x")).partition for _ in range(9)]) == {0: 3, 1: 3, 2: 3}
    async with client.producer(TOPIC, partition_by="round-robin") as producer:
        assert Counter([(await producer.send(b"x", key="same")).partition for _ in range(9)]) == {0: 3, 1: 3, 2: 3}


async def test_a_fixed_partition_gets_everything(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    async with client.producer(TOPIC, partition_by=1) as producer:
        assert (await producer.send(b"0")).partition == 1
        assert (await producer.send(b"1", key="user-1")).partition == 1
        many = await producer.send_many([b"2", b"3", b"4"])
        assert [(one.partition, one.offset) for one in many] == [(1, 2), (1, 3), (1, 4)]
        producer.send_nowait(b"5")
        await producer.flush()
    ends = [one.end_offset for one in await client.partitions(TOPIC)]
    assert ends == [0, 6, 0]
    with pytest.raises(NotFound, match="no partition 3"):
        async with client.producer(TOPIC, partition_by=3):
            pass


async def test_a_function_chooses(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=4)
    asked: list[tuple[str | None, bytes, int]] = []

    def choose(key: str | None, payload: bytes, partitions: int) -> int:
        asked.append((key, payload, partitions))
        return int(payload)

    async with client.producer(TOPIC, partition_by=choose) as producer:
        assert (await producer.send(b"3", key="k")).partition == 3
        many = await producer.send_many([b"2", b"0", b"2"])
        assert [one.partition for one in many] == [2, 0, 2]
        assert asked == [("k", b"3", 4), (None, b"2", 4), (None, b"0", 4), (None, b"2", 4)]
        with pytest.raises(Invalid, match="chose 7"):
            await producer.send(b"7")
        with pytest.raises(ValueError, match="nonsense"):
            await producer.send(b"nonsense")
        assert producer._buffer.messages == 0  # what was refused holds no room


@pytest.mark.parametrize("wrong", ["random", -1, True, 1.5, None])
async def test_another_choice_is_refused(client: Client, wrong: Any) -> None:
    with pytest.raises(Invalid, match="partition_by"):
        client.producer(TOPIC, partition_by=wrong)


async def test_producers_and_consumers_notice_new_partitions(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=1)
    async with (
        client.producer(TOPIC, refresh_seconds=0.05) as producer,
        client.consumer(TOPIC, subscription="billing", refresh_seconds=0.05) as consumer,
    ):
        await producer.send(b"before", key="user-1")
        assert (await consumer.receive(timeout=60)).payload == b"before"
        await client.grow_topic(TOPIC, 3)
        await until(lambda: producer._partitioner.count == 3)
        receipt = await producer.send(b"after", key="user-1")
        assert receipt.partition == 2
        message = await consumer.receive(timeout=60)  # from the beginning of the new partition
        assert (message.payload, message.partition, message.offset) == (b"after", 2, 0)
        await consumer.ack(message)
    described = await client.describe_subscription(TOPIC, "billing")
    assert [one.position for one in described.partitions] == [0, 0, 1]


async def test_a_flush_hurries_only_the_partitions_that_were_there_when_it_began(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=1)
    await client.create_subscription(TOPIC, "billing")
    await client.set_policies(TOPIC, backlog_messages_max=1)
    async with client.producer(TOPIC, refresh_seconds=0.02) as producer:
        await producer.send(b"fits")
        producer.send_nowait(b"has to wait")
        flushing = asyncio.create_task(producer.flush())
        await client.grow_topic(TOPIC, 2)
        await until(lambda: producer._partitioner.count == 2)
        assert not flushing.done()
        await client.clear_backlog(TOPIC, "billing")
        await flushing
        assert [one.flushing for one in producer._partitions] == [0, 0], "messages linger in both, as usual"


async def test_more_partitions_under_a_pattern_are_noticed_too(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=1)
    async with client.consumer("/default/ord*", subscription="billing", refresh_seconds=0.05) as consumer:
        await client.grow_topic(TOPIC, 2)
        async with client.producer(TOPIC, partition_by=1) as producer:
            await producer.send(b"x")
        assert (await consumer.receive(timeout=60)).partition == 1


async def test_an_exclusive_producer_fences_the_others_and_they_get_stale_epoch(client, topic):
    async with client.producer(TOPIC) as shared:
        await shared.send(b"0")
        async with client.producer(TOPIC, access="exclusive") as first:
            await first.send(b"1")
            with pytest.raises(StaleEpoch):
                await shared.send(b"never")
            with pytest.raises(Refused, match="exclusive"):
                async with client.producer(TOPIC):
                    pass
            async with client.producer(TOPIC, access="exclusive") as second:
                await second.send(b"2")
                first.send_nowait(b"never")
                with pytest.raises(StaleEpoch):
                    await first.flush()
                with pytest.raises(StaleEpoch):
                    await first.send(b"never")
                await second.send(b"3")
    async with client.producer(TOPIC) as shared:
        assert (await shared.send(b"4")).offset == 4
    with pytest.raises(Invalid, match="access"):
        client.producer(TOPIC, access="alone")  # type: ignore[arg-type]


# -- delays ----------------------------------------------------------------------------------------------------------


def test_a_delivery_time_is_a_time_or_a_delay() -> None:
    clock = ManualClock(now_us=1_000_000_000)
    assert delivery_time_us(None, None, clock) == 0
    assert delivery_time_us(None, 0, clock) == 0
    assert delivery_time_us(None, 1.5, clock) == 1_001_500_000
    assert delivery_time_us(None, timedelta(milliseconds=2), clock) == 1_000_002_000
    assert delivery_time_us(datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), None, clock) == 7_000_000


@pytest.mark.parametrize(
    ("at", "after"),
    [(datetime.now(UTC), 1), (5, None), (None, -1), (None, "1"), (None, float("nan")), (None, float("inf"))],
)
def test_any_other_is_refused(at: Any, after: Any) -> None:
    with pytest.raises(Invalid, match="deliver_a"):
        delivery_time_us(at, after, ManualClock())


@pytest.mark.parametrize(
    ("at", "after"),
    [
        (None, 11 * 366 * 24 * 3600),
        (None, 1e300),
        (None, timedelta(days=11 * 366)),
        (datetime(9999, 1, 1, tzinfo=UTC), None),
    ],
)
def test_what_is_further_ahead_than_ten_years_is_refused(at: Any, after: Any) -> None:
    with pytest.raises(Invalid, match="more than 10 years ahead"):
        delivery_time_us(at, after, ManualClock())
    assert delivery_time_us(None, timedelta(days=10 * 365), ManualClock(now_us=0)) > 0


async def test_delays_are_a_column_of_the_batch(client: Client) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    later_us = round(later.timestamp() * 1_000_000)
    await client.create_topic(TOPIC)
    async with client.producer(TOPIC) as producer:
        producer.send_nowait(b"now")
        producer.send_nowait(b"later", deliver_at=later)
        producer.send_nowait(b"now, too")
        await producer.flush()
        await producer.send_many([b"a", b"b"], deliver_at=later)
        with pytest.raises(Invalid, match="exclude"):
            await producer.send(b"x", deliver_at=later, deliver_after=1)
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        times: list[int] = []
        async for batch in reader.batches():
            stored: Batch = batch._batch
            column = stored.deliver_at
            times += [0] * len(batch) if column is None else column.tolist()
    assert times == [0, later_us, 0, later_us, later_us]


async def test_a_delayed_message_waits_on_shared_and_not_on_exclusive(client, topic):
    async with (
        client.producer(TOPIC) as producer,
        client.consumer(TOPIC, subscription="queue", type="shared") as shared,
        client.consumer(TOPIC, subscription="log") as exclusive,
    ):
        await producer.send(b"later", deliver_after=timedelta(seconds=2))
        await producer.send(b"now")
        assert [(await exclusive.receive(timeout=60)).payload for _ in range(2)] == [b"later", b"now"]
        assert [(await shared.receive(timeout=60)).payload for _ in range(2)] == [b"now", b"later"]


def test_the_blocking_producer_has_it_all() -> None:
    with pydanube.testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        client.create_topic(TOPIC, partitions=2)
        with client.producer(TOPIC, partition_by=1, access="exclusive") as producer:
            assert producer.send(b"0", deliver_after=0.01).partition == 1
            producer.send_nowait(b"1", deliver_after=0.01)
            producer.flush()
        with client.consumer(TOPIC, subscription="queue", type="shared", start="earliest") as consumer:
            assert {consumer.receive(timeout=60).payload for _ in range(2)} == {b"0", b"1"}
