"""Readers, which read by offset without a subscription; and administration."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from client_harness import TOPIC, publish

import pydanube
from pydanube import AlreadyExists, Client, Consumer, Invalid, NotFound, Reader, Refused, testing
from pydanube.model.limits import MIB
from pydanube.model.topics import AckLevel, SubscriptionType, TopicConfig
from waiting import until


class TestReader:
    async def test_reads_from_an_offset_in_the_middle_of_a_batch(self, client: Client) -> None:
        await publish(client, 50, batch=10)
        async with client.reader(TOPIC, start=17, end="latest") as reader:
            messages = [message async for message in reader]
        assert [message.offset for message in messages] == list(range(17, 50))
        assert messages[0].payload == b"17"
        assert messages[0].topic == TOPIC

    async def test_stops_before_an_offset_in_the_middle_of_a_batch(self, client: Client) -> None:
        await publish(client, 50, batch=10)
        async with client.reader(TOPIC, start="earliest", end=23) as reader:
            assert [message.offset async for message in reader] == list(range(23))
            with pytest.raises(Refused, match="end"):
                await reader.receive()

    async def test_of_an_empty_range_ends_at_once(self, client: Client) -> None:
        await publish(client, 5, batch=10)
        async with client.reader(TOPIC, start="latest", end="latest") as reader:
            assert [message async for message in reader] == []
            assert [batch async for batch in reader.batches()] == []

    async def test_waits_for_new_messages_without_an_end(self, client: Client) -> None:
        await publish(client, 5, batch=10)
        async with client.reader(TOPIC, start="latest") as reader:
            waiting = asyncio.get_running_loop().create_task(reader.receive(timeout=60))
            await asyncio.sleep(0)
            await publish(client, 1, batch=10)
            assert (await waiting).offset == 5
            with pytest.raises(TimeoutError):
                await reader.receive(timeout=0.02)

    async def test_reads_batches(self, client: Client) -> None:
        await publish(client, 95, batch=10)
        async with client.reader(TOPIC, start=3, end="latest") as reader:
            sizes = [len(batch) async for batch in reader.batches()]
        assert sizes == [7, *[10] * 8, 5]

    async def test_reads_much_more_than_it_prefetches(self, client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send_many([bytes(1_000)] * 3_000)
        async with client.reader(TOPIC, start="earliest", end="latest", fetch_bytes=10_000) as reader:
            assert [message.offset async for message in reader] == list(range(3_000))

    async def test_of_one_partition_sees_that_partition_only(self, client: Client) -> None:
        await client.create_topic(TOPIC, partitions=2)
        async with client.producer(TOPIC) as producer:
            receipts = await producer.send_many([b"x"] * 20, keys=[f"k{number}" for number in range(20)])
        for partition in (0, 1):
            async with client.reader(TOPIC, partition=partition, start="earliest", end="latest") as reader:
                count = sum([1 async for _ in reader])
            assert count == sum(receipt.partition == partition for receipt in receipts)

    async def test_starts_at_a_time(self, client: Client) -> None:
        await publish(client, 5, batch=10)
        middle = datetime.now(UTC) + timedelta(milliseconds=1)
        await until(lambda: datetime.now(UTC) > middle)
        await publish(client, 5, batch=10)
        async with client.reader(TOPIC, start=middle, end="latest") as reader:
            assert [message.offset async for message in reader] == list(range(5, 10))
        assert await client.find_offset(TOPIC, 0, middle) == 5
        assert await client.find_offset(TOPIC, 0, middle.isoformat()) == 5

    async def test_is_opened_by_the_first_receive(self, client: Client) -> None:
        await publish(client, 5, batch=10)
        reader = client.reader(TOPIC, start="earliest", end="latest")
        assert [message.offset async for message in reader] == list(range(5))
        await reader.close()
        other = client.reader(TOPIC, start="earliest")
        assert (await other.receive_batch(timeout=60)).offsets[0] == 0
        # closed with the client

    @pytest.mark.parametrize("start", ["earliest", 3])
    async def test_of_a_missing_partition_is_refused_at_once(self, client: Client, start: str | int) -> None:
        await client.create_topic(TOPIC, partitions=2)
        with pytest.raises(NotFound, match="no partition 5: it has 2"):
            await client.reader(TOPIC, partition=5, start=start)

    async def test_of_a_topic_that_was_recreated_with_more_partitions(self, url: str, client: Client) -> None:
        await publish(client, 1, batch=10)
        async with pydanube.connect(url) as other:
            await other.delete_topic(TOPIC)
            await other.create_topic(TOPIC, partitions=6)
        async with client.reader(TOPIC, partition=5, start="earliest", end="latest") as reader:
            assert [message async for message in reader] == []

    async def test_of_a_topic_that_is_recreated_does_not_continue_in_the_new_one(self, client: Client) -> None:
        await publish(client, 100, batch=10)
        async with client.reader(TOPIC, start="earliest", fetch_bytes=1) as reader:
            assert (await reader.receive(timeout=60)).offset == 0
            await until(lambda: reader.next_offset == 30)  # three batches of 10: it waits until there is room
            await client.delete_topic(TOPIC)
            await publish(client, 100, batch=10)
            assert [(await reader.receive(timeout=60)).offset for _ in range(29)] == list(range(1, 30))
            with pytest.raises(NotFound, match="was deleted and made anew since"):
                await reader.receive(timeout=60)

    async def test_of_a_topic_that_was_recreated_before_it_was_opened(self, url: str, client: Client) -> None:
        """The client knows the former topic still."""
        await publish(client, 5, batch=10)
        async with pydanube.connect(url) as other:
            await other.delete_topic(TOPIC)
            await publish(other, 3, batch=10)
        async with client.reader(TOPIC, start="earliest", end="latest") as reader:
            assert [message.offset async for message in reader] == [0, 1, 2]

    async def test_of_a_missing_topic_is_refused_by_name(self, client: Client) -> None:
        with pytest.raises(NotFound, match="nowhere"):
            async with client.reader("/default/nowhere"):
                pass
        await client.create_topic(TOPIC)
        for wrong in ({"partition": -1}, {"fetch_bytes": 0}, {"start": "soon"}, {"end": -1}):
            with pytest.raises(Invalid):
                client.reader(TOPIC, **wrong)  # type: ignore[arg-type]


async def polled(stream: Reader | Consumer) -> pydanube.Message:
    """Receive with a timeout of 0 only. Each call lets the event loop run once, so this ends."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await stream.receive(timeout=0)
            except TimeoutError:
                continue


class TestTimeouts:
    async def test_of_zero_return_what_is_in_the_queue(self, client: Client) -> None:
        await publish(client, 300, batch=10)
        reader = client.reader(TOPIC, start="earliest")
        assert (await polled(reader)).offset == 0
        async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
            assert (await polled(consumer)).offset == 0
            await until(lambda: not consumer._queue.empty)
            for stream in (reader, consumer):
                stream._paused_at = 0.0  # long ago: the loop is due a turn
                stream._pause_due = True
                batch = await stream.receive_batch(timeout=0)
                assert batch.offsets[0] == 1
                await until(lambda queue=stream._queue: bool(queue._batches))  # type: ignore[misc]
                stream._pause_due = True
                assert (await stream.receive(timeout=0)).offset == batch.offsets[-1] + 1

    async def test_of_zero_return_what_arrives_in_this_turn_of_the_loop(self, client: Client) -> None:
        await publish(client, 20, batch=10)
        async with client.reader(TOPIC, start="earliest") as reader:
            await until(lambda: len(reader._queue._batches) == 2)
            held = list(reader._queue._batches)
            reader._queue._batches.clear()
            asyncio.get_running_loop().call_soon(reader._queue.put, held[0])
            assert (await reader.receive(timeout=0)).offset == 0

    async def test_name_the_seconds_waited(self, client: Client) -> None:
        await publish(client, 1, batch=10)
        async with client.reader(TOPIC) as reader:
            with pytest.raises(TimeoutError, match=r"no message within 0\.01 s"):
                await reader.receive(timeout=0.01)
            with pytest.raises(TimeoutError, match="no message within 0 s"):
                await reader.receive_batch(timeout=0)
            for wrong in (-1, -0.001, float("nan"), "5"):
                with pytest.raises(Invalid, match="timeout"):
                    await reader.receive(wrong)  # type: ignore[arg-type]
                with pytest.raises(Invalid, match="timeout"):
                    await reader.receive_batch(wrong)  # type: ignore[arg-type]


class TestAdministration:
    async def test_topics(self, client: Client) -> None:
        await client.create_topic(TOPIC, partitions=3)
        await client.create_topic("/default/plain", ack_level="written")
        assert await client.list_topics() == ["/default/orders", "/default/plain"]
        described = await client.describe_topic(TOPIC)
        assert (described.name, described.config) == (TOPIC, TopicConfig(3, True, AckLevel.DURABLE))
        assert [partition.index for partition in await client.partitions(TOPIC)] == [0, 1, 2]
        plain = await client.describe_topic("/default/plain")
        assert plain.config == TopicConfig(0, True, AckLevel.WRITTEN)
        assert [(one.start_offset, one.end_offset, one.health) for one in plain.partitions] == [(0, 0, "ok")]
        with pytest.raises(AlreadyExists, match="orders"):
            await client.create_topic(TOPIC)
        await client.delete_topic(TOPIC)
        with pytest.raises(NotFound, match="orders"):
            await client.delete_topic(TOPIC)
        with pytest.raises(NotFound):
            await client.describe_topic(TOPIC)
        for wrong in ({"partitions": -1}, {"partitions": "3"}, {"partitions": 3.0}, {"ack_level": "often"}):
            with pytest.raises(Invalid, match=r"partitions|ack level"):
                await client.create_topic(TOPIC, **wrong)  # type: ignore[arg-type]

    async def test_namespaces(self, client: Client) -> None:
        await client.create_namespace("shop")
        assert await client.list_namespaces() == ["default", "shop"]
        await client.create_topic("/shop/orders")
        assert await client.list_topics("shop") == ["/shop/orders"]
        assert await client.list_topics("default") == []
        with pytest.raises(Refused):
            await client.delete_namespace("shop")
        await client.delete_topic("/shop/orders")
        await client.delete_namespace("shop")
        assert await client.list_namespaces() == ["default"]
        with pytest.raises(Invalid):
            await client.create_namespace("a/b")

    async def test_subscriptions(self, client: Client) -> None:
        await publish(client, 10, batch=10)
        await client.create_subscription(TOPIC, "billing", start="earliest")
        with pytest.raises(AlreadyExists):
            await client.create_subscription(TOPIC, "billing")
        assert await client.list_subscriptions(TOPIC) == ["billing"]
        described = await client.describe_subscription(TOPIC, "billing")
        assert (described.topic, described.name, described.type) == (TOPIC, "billing", SubscriptionType.EXCLUSIVE)
        assert [(one.position, one.lag) for one in described.partitions] == [(0, 10)]
        await client.seek(TOPIC, "billing", 4, partition=0)
        assert (await client.describe_subscription(TOPIC, "billing")).partitions[0].position == 4
        async with client.consumer(TOPIC, subscription="billing") as consumer:
            assert (await consumer.receive(timeout=60)).offset == 4
        await client.delete_subscription(TOPIC, "billing")
        assert await client.list_subscriptions(TOPIC) == []
        with pytest.raises(NotFound):
            await client.describe_subscription(TOPIC, "billing")

    async def test_offsets_and_the_broker(self, client: Client) -> None:
        await publish(client, 10, batch=10)
        assert await client.find_offset(TOPIC, position="earliest") == 0
        assert await client.find_offset(TOPIC) == 10
        broker = await client.describe_broker()
        assert (broker.version, broker.state) == (pydanube.__version__, "ok")

    async def test_a_client_that_is_not_open_says_so(self, url: str) -> None:
        client = pydanube.connect(url)
        with pytest.raises(Refused, match="not open"):
            await client.list_topics()
        async with client:
            assert await client.list_topics() == []
        with pytest.raises(Refused, match="closed"):
            await client.list_topics()
        uses = (client.producer, lambda topic: client.consumer(topic, subscription="billing"), client.reader)
        for use in uses:
            with pytest.raises(Refused, match="closed"):
                use(TOPIC)


async def test_a_fetch_larger_than_a_frame_is_answered_in_several() -> None:
    """Each of these batches is followed by 56 bytes that align the next one: that adds up."""
    async with (
        testing.broker(limits_fetch_bytes_max="32MiB", cache_tail_bytes="64MiB", topics_ack_level="written") as url,
        pydanube.connect(url) as client,
    ):
        async with client.producer(TOPIC, batch_messages=1) as producer:
            for _ in range(23):
                await producer.queue_many([b"x" * 1408] * 1000)
        async with client.reader(TOPIC, start="earliest", end="latest", fetch_bytes=32 * MIB) as reader:
            assert sum([len(batch) async for batch in reader.batches()]) == 23_000
