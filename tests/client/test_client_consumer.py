"""Receiving from a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from client_harness import TOPIC, numbered, position, publish, take

import pydanube
from pydanube import Client, Consumer, Invalid, NotFound, Refused
from pydanube.client.connection.connection import Connection
from pydanube.client.consuming.messages import Message
from pydanube.client.consuming.partition_sources import REQUESTS_AT_ONCE
from pydanube.codec.native.requests import Request
from waiting import until


async def nothing_more(consumer: Consumer) -> bool:
    try:
        await consumer.receive(timeout=0.05)
    except TimeoutError:
        return True
    return False


async def position_is(client: Client, wanted: int) -> bool:
    return await position(client) == wanted


async def test_messages_are_iterated_in_order_and_acked(client: Client) -> None:
    await publish(client, *numbered(1_000), batch=37)
    seen: list[bytes] = []
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        async for message in consumer:
            seen.append(message.payload)
            await consumer.ack(message)
            if len(seen) == 1_000:
                break
    assert seen == numbered(1_000)
    assert await position(client) == 1_000


async def test_a_new_subscription_starts_at_latest(client: Client) -> None:
    await publish(client, b"before")
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        await publish(client, b"after")
        assert (await consumer.receive(timeout=60)).payload == b"after"


async def test_a_subscription_is_durable_on_entering_the_block(client, topic):
    async with client.consumer(TOPIC, subscription="billing"):
        pass
    await publish(client, b"while nobody listens")
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        assert (await consumer.receive(timeout=60)).payload == b"while nobody listens"


async def test_start_is_used_only_when_the_subscription_is_created(client: Client) -> None:
    await publish(client, *numbered(3))
    async with client.consumer(TOPIC, subscription="billing", start=1) as consumer:
        assert [message.offset for message in await take(consumer, 2)] == [1, 2]
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        assert (await consumer.receive(timeout=60)).offset == 1


async def test_a_subscription_can_start_at_a_time(client: Client) -> None:
    await publish(client, b"old")
    middle = datetime.now(UTC) + timedelta(milliseconds=1)
    await until(lambda: datetime.now(UTC) > middle)
    await publish(client, b"new")
    async with client.consumer(TOPIC, subscription="billing", start=middle) as consumer:
        assert (await consumer.receive(timeout=60)).payload == b"new"


async def test_only_messages_that_were_not_acked_are_redelivered(client: Client) -> None:
    await publish(client, *numbered(10))
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 10)
        for index in (0, 1, 2, 5, 7, 8):
            await consumer.ack(messages[index])
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        again = await take(consumer, 4)
        assert [message.offset for message in again] == [3, 4, 6, 9]
        assert [message.payload for message in again] == [b"3", b"4", b"6", b"9"]
        assert await nothing_more(consumer)


async def test_acks_are_durable_after_flush(client: Client) -> None:
    await publish(client, *numbered(100))
    async with client.consumer(TOPIC, subscription="billing", start="earliest", ack_linger_ms=60_000) as consumer:
        for message in await take(consumer, 60):
            await consumer.ack(message)
        assert await position(client) == 0  # gathered, not sent
        await consumer.flush()
        assert await position(client) == 60
        await consumer.flush()


async def test_acks_are_sent_automatically_after_the_linger_time(client: Client) -> None:
    await publish(client, *numbered(10))
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        for message in await take(consumer, 10):
            await consumer.ack(message)
        await until(lambda: position_is(client, 10))


async def test_batches_are_received_and_acked_whole(client: Client) -> None:
    await publish(client, *numbered(100), batch=40)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        batch = await consumer.receive_batch(timeout=60)
        assert (len(batch), batch.topic, batch.partition) == (40, TOPIC, 0)
        assert batch.payloads == numbered(40)
        assert batch.offsets.tolist() == list(range(40))
        assert batch.keys == [None] * 40
        assert batch.attributes == [{}] * 40
        assert list(batch.redeliveries) == [0] * 40
        assert len(batch.publish_times) == 40
        assert [message.offset for message in batch] == list(range(40))
        assert batch[-1].payload == b"39"
        await consumer.ack(batch)
        await consumer.flush()
        assert await position(client) == 40


async def test_receive_batch_after_receive_returns_the_rest_of_the_batch(client: Client) -> None:
    await publish(client, *numbered(500))
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        first = await take(consumer, 200)
        rest = await consumer.receive_batch(timeout=60)
        assert [message.offset for message in first] == list(range(200))
        assert rest.offsets.tolist() == list(range(200, 500))
        assert rest.payloads == numbered(300, 200)
        await consumer.ack(rest)
        await consumer.flush()
        described = await client.describe_subscription(TOPIC, "billing")
        assert (described.partitions[0].position, described.partitions[0].acked_ahead) == (0, 300)
        await consumer.ack_cumulative(first[-1])
        await consumer.flush()
        assert await position(client) == 500


async def test_a_batch_with_acked_messages_is_redelivered_without_them(client: Client) -> None:
    """The broker sends the stored batch and says which rows are meant."""
    async with client.producer(TOPIC) as producer:
        await producer.send_many(
            numbered(10), keys=[f"k{number}" for number in range(10)], attributes=[{"n": str(n)} for n in range(10)]
        )
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 10)
        for index in (1, 2, 3, 8):
            await consumer.ack(messages[index])
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        batch = await consumer.receive_batch(timeout=60)
        wanted = [0, 4, 5, 6, 7, 9]
        assert batch.offsets.tolist() == wanted
        assert batch.payloads == [b"%d" % number for number in wanted]
        assert batch.keys == [f"k{number}" for number in wanted]
        assert batch.attributes == [{"n": str(number)} for number in wanted]
        assert [message.attributes["n"] for message in batch] == [str(number) for number in wanted]
        assert batch.to_arrow().column("offset").to_pylist() == wanted
        assert batch.offset_ranges() == [(0, 1), (4, 8), (9, 10)]
        await consumer.ack(batch)
        await consumer.flush()
        assert await position(client) == 10


async def test_a_cumulative_ack_includes_everything_before(client: Client) -> None:
    await publish(client, *numbered(100), batch=30)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 50)
        await consumer.ack_cumulative(messages[41])
        await consumer.flush()
        assert await position(client) == 42
        await consumer.receive_batch(timeout=60)
        batch = await consumer.receive_batch(timeout=60)
        await consumer.ack_cumulative(batch)
        await consumer.flush()
        assert await position(client) == batch.offsets[-1] + 1


async def test_arrow_batches_have_the_columns_of_the_contract(client: Client) -> None:
    async with client.producer(TOPIC, name="till") as producer:
        await producer.send_many([b"a", b"b"], keys=["x", None], attributes=[{"k": "v"}, None])
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        table = (await consumer.receive_batch(timeout=60)).to_arrow()
    assert table.column("payload").to_pylist() == [b"a", b"b"]
    assert table.column("key").to_pylist() == ["x", None]
    assert table.column("attributes").to_pylist() == [[("k", "v")], []]
    assert table.column("producer").to_pylist() == ["till", "till"]


async def test_one_queue_over_all_partitions(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=4)
    keys = [f"user-{number % 20}" for number in range(400)]
    async with client.producer(TOPIC) as producer:
        await producer.send_many(numbered(400), keys=keys)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 400)
        for message in messages:
            await consumer.ack(message)
    assert sorted(int(message.payload) for message in messages) == list(range(400))
    assert {message.partition for message in messages} == {0, 1, 2, 3}
    for partition in range(4):
        offsets = [message.offset for message in messages if message.partition == partition]
        assert offsets == list(range(len(offsets)))
        assert await position(client, partition=partition) == len(offsets)


async def test_several_topics_through_one_consumer(client: Client) -> None:
    for topic in ("/default/a", "/default/b"):
        await publish(client, topic.encode(), topic=topic)
    async with client.consumer(["/default/a", "/default/b"], subscription="billing", start="earliest") as consumer:
        messages = await take(consumer, 2)
        assert {(message.topic, message.payload) for message in messages} == {
            ("/default/a", b"/default/a"),
            ("/default/b", b"/default/b"),
        }
        assert consumer.topics == ["/default/a", "/default/b"]


async def test_a_pattern_finds_topics_now_and_later(client: Client) -> None:
    await publish(client, b"first", topic="/default/orders-eu")
    await publish(client, b"no", topic="/default/returns")
    async with client.consumer(
        "/default/orders-*", subscription="billing", start="earliest", refresh_seconds=0.02
    ) as consumer:
        assert (await consumer.receive(timeout=60)).payload == b"first"
        assert consumer.topics == ["/default/orders-eu"]
        await publish(client, b"second", topic="/default/orders-us")
        message = await consumer.receive(timeout=60)
        assert (message.topic, message.payload) == ("/default/orders-us", b"second")
        await client.delete_topic("/default/orders-eu")
        await publish(client, b"third", topic="/default/orders-us")
        assert (await consumer.receive(timeout=60)).payload == b"third"
        await until(lambda: consumer.topics == ["/default/orders-us"])


async def test_a_pattern_over_many_topics_attaches_to_them_concurrently(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [f"/default/many-{number:03}" for number in range(200)]
    for topic in topics:
        await client.create_topic(topic)
    unanswered: Counter[str] = Counter()
    most: Counter[str] = Counter()
    request = Connection.request

    async def counted(self: Connection, asked: Request, *rest: object, **named: object) -> object:
        kind = type(asked).__name__
        unanswered[kind] += 1
        most[kind] = max(most[kind], unanswered[kind])
        try:
            return await request(self, asked, *rest, **named)  # type: ignore[arg-type]
        finally:
            unanswered[kind] -= 1

    monkeypatch.setattr(Connection, "request", counted)
    async with client.consumer("/default/many-*", subscription="billing") as consumer:
        assert consumer.topics == topics
        assert most["Lookup"] == most["Subscribe"] == REQUESTS_AT_ONCE
        for topic in (topics[0], topics[-1]):
            await publish(client, topic.encode(), topic=topic)
        received = {(await consumer.receive(timeout=60)).payload.decode() for _ in range(2)}
        assert received == {topics[0], topics[-1]}


async def test_a_pattern_that_matches_nothing_waits(client: Client) -> None:
    async with client.consumer("/default/x-*", subscription="billing", refresh_seconds=0.02) as consumer:
        await publish(client, b"here", topic="/default/x-1")
        assert (await consumer.receive(timeout=60)).payload == b"here"


async def test_seek_starts_over(client: Client) -> None:
    await publish(client, *numbered(20), batch=7)
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        old = await take(consumer, 10)
        for message in old:
            await consumer.ack(message)
        await consumer.seek("earliest")
        assert await position(client) == 0
        await consumer.ack(old[3])  # of before the seek: means nothing now
        assert [message.offset for message in await take(consumer, 5)] == [0, 1, 2, 3, 4]
        await consumer.seek(15)
        assert [message.offset for message in await take(consumer, 5)] == [15, 16, 17, 18, 19]
        await consumer.seek("latest")
        await publish(client, b"new")
        message = await consumer.receive(timeout=60)
        assert message.payload == b"new"
        await consumer.ack(message)
        await consumer.flush()
        assert await position(client) == 21


async def test_a_seek_that_is_refused_leaves_the_consumer_receiving(client: Client) -> None:
    await publish(client, *numbered(3))
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        with pytest.raises(Invalid):
            await consumer.seek(1_000)
        with pytest.raises(Invalid, match="position"):
            await consumer.seek("yesterday")
        assert [message.offset for message in await take(consumer, 3)] == [0, 1, 2]


async def test_an_exclusive_subscription_takes_one_consumer(client, topic):
    async with client.consumer(TOPIC, subscription="billing"):
        with pytest.raises(Refused, match="exclusive"):
            async with client.consumer(TOPIC, subscription="billing"):
                pass
    async with client.consumer(TOPIC, subscription="billing"):
        pass


async def test_the_same_name_takes_over_and_the_older_consumer_fails(client: Client) -> None:
    await publish(client, *numbered(5))
    async with client.consumer(TOPIC, subscription="billing", start="earliest", name="me") as old:
        assert (await old.receive(timeout=60)).offset == 0
        waiting = asyncio.get_running_loop().create_task(nothing_more(old))
        async with client.consumer(TOPIC, subscription="billing", name="me") as new:
            assert [message.offset for message in await take(new, 5)] == [0, 1, 2, 3, 4]
            with pytest.raises(Refused, match="took over"):
                await take(old, 10)
            with pytest.raises(Refused, match="took over"):
                await old.receive_batch()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_a_deleted_topic_ends_the_consumer(client, topic):
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        waiting = asyncio.get_running_loop().create_task(consumer.receive())
        await asyncio.sleep(0)
        await client.delete_topic(TOPIC)
        with pytest.raises(pydanube.DanubeError):
            await asyncio.wait_for(waiting, 60)


async def test_a_topic_that_does_not_exist_is_named(client: Client) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        async with client.consumer("/default/nowhere", subscription="billing"):
            pass
    async with client.consumer("/default/nowhere", subscription="billing", create_topic=True):
        pass


async def test_a_subscription_keeps_its_type_and_an_unknown_one_is_refused(client, topic):
    await client.create_subscription(TOPIC, "billing", type="shared")
    with pytest.raises(Refused, match="shared"):
        async with client.consumer(TOPIC, subscription="billing", type="exclusive"):
            pass
    with pytest.raises(Invalid, match="sharde"):
        client.consumer(TOPIC, subscription="billing", type="sharde")


@pytest.mark.parametrize(
    "wrong", [{"topic": []}, {"topic": "orders"}, {"topic": "orders-*"}, {"subscription": "a b"}, {"start": "soon"}]
)
async def test_invalid_options_are_refused(client: Client, wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        client.consumer(**{"topic": TOPIC, "subscription": "billing", **wrong})  # type: ignore[arg-type]


async def test_only_what_was_received_can_be_acked(client: Client) -> None:
    await publish(client, b"x")
    async with (
        client.consumer(TOPIC, subscription="billing", start="earliest") as consumer,
        client.reader(TOPIC, start="earliest") as reader,
    ):
        read = await reader.receive(timeout=60)
        for wrong in (read, b"x", None, 7):
            with pytest.raises(Invalid, match="received"):
                await consumer.ack(wrong)  # type: ignore[arg-type]
            with pytest.raises(Invalid, match="received"):
                await consumer.ack_cumulative(wrong)  # type: ignore[arg-type]


async def test_receive_times_out_and_loses_nothing(client, topic):
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout=0.02)
        with pytest.raises(TimeoutError):
            await consumer.receive_batch(timeout=0)
        await publish(client, *numbered(3))
        assert [message.offset for message in await take(consumer, 3)] == [0, 1, 2]


async def test_a_cancelled_receive_loses_nothing(client, topic):
    async with client.consumer(TOPIC, subscription="billing") as consumer, client.producer(TOPIC) as producer:
        seen: list[int] = []
        for number in range(50):
            task = asyncio.get_running_loop().create_task(consumer.receive())
            await asyncio.sleep(0)
            await producer.send(b"x")
            if number % 2:
                task.cancel()
            done = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(done, Message):
                seen.append(done.offset)
        while len(seen) < 50:
            seen.append((await consumer.receive(timeout=60)).offset)
        assert seen == list(range(50))


async def test_several_tasks_may_share_a_consumer(client, topic):
    seen: list[int] = []

    async def work(consumer: Consumer) -> None:
        async for message in consumer:
            seen.append(message.offset)
            await consumer.ack(message)
            await asyncio.sleep(0)

    async with client.consumer(TOPIC, subscription="billing") as consumer:
        workers = [asyncio.get_running_loop().create_task(work(consumer)) for _ in range(4)]
        await publish(client, *numbered(500), batch=50)
        await until(lambda: len(seen) == 500)
        await consumer.close()
        await asyncio.gather(*workers)  # the iteration ends when the consumer is closed
    assert sorted(seen) == list(range(500))
    assert await position(client) == 500


async def test_a_consumer_that_is_not_open_says_so(client, topic):
    consumer = client.consumer(TOPIC, subscription="billing")
    with pytest.raises(Refused, match="not open"):
        await consumer.receive()
    async with consumer:
        pass
    with pytest.raises(Refused, match="closed"):
        await consumer.receive()
    assert [message async for message in consumer] == []


async def test_a_loop_over_messages_lets_other_tasks_run(client: Client) -> None:
    await publish(client, *numbered(20_000), batch=1_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        task = asyncio.get_running_loop().create_task(other())
        seen = 0
        async for _ in consumer:
            seen += 1
            if seen == 1:
                turns = 0
            if seen == 9_000:
                break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert turns >= 1


async def test_a_closed_client_has_left_no_task_and_no_timer_behind() -> None:
    with pydanube.testing.broker_thread() as url:
        before = asyncio.all_tasks()
        async with pydanube.connect(url) as client:
            await publish(client, *numbered(10))
            async with (
                client.producer(TOPIC) as producer,
                client.consumer("/default/*", subscription="billing", start="earliest") as consumer,
                client.reader(TOPIC, start="earliest") as reader,
            ):
                await producer.send(b"x")
                await consumer.ack(await consumer.receive(timeout=60))
                await reader.receive(timeout=60)
        assert asyncio.all_tasks() == before
        scheduled = [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
        assert not [timer for timer in scheduled if "pydanube.client" in repr(timer)]


async def test_a_list_of_messages_is_not_acked_at_once_and_the_error_says_what_is(client: Client) -> None:
    await publish(client, *numbered(2))
    async with client.consumer(TOPIC, subscription="billing", start="earliest") as consumer:
        with pytest.raises(Invalid, match="take one message or one batch"):
            await consumer.ack(await take(consumer, 2))  # type: ignore[arg-type]
