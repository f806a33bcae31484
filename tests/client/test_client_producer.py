"""Publishing to a real broker."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from random import Random

import pytest
from client_harness import TOPIC, stored

import pydanube
from pydanube import Client, Full, Invalid, NotFound, Receipt, Refused, StaleEpoch
from pydanube.client.producing.partitioning import Partitioner
from pydanube.model.limits import MESSAGE_BYTES_MAX


async def test_a_send_returns_where_the_message_is(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        assert await producer.send(b"one") == Receipt(TOPIC, 0, 0)
        assert await producer.send(b"two") == Receipt(TOPIC, 0, 1)
    assert await stored(client) == [b"one", b"two"]


async def test_everything_about_a_message_arrives(client: Client) -> None:
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    async with client.producer(TOPIC, name="till-7") as producer:
        await producer.send(b"\x00\xff", key="k\u00e4se", attributes={"a": "b", "\u00fc": ""}, publish_time=moment)
        await producer.send(b"", attributes={})
    async with client.reader(TOPIC, start="earliest") as reader:
        first, second = await reader.receive(5), await reader.receive(5)
    assert (first.payload, first.key, first.attributes) == (b"\x00\xff", "k\u00e4se", {"a": "b", "\u00fc": ""})
    assert first.publish_time == moment
    assert first.producer == "till-7"
    assert (first.topic, first.partition, first.offset, first.redeliveries) == (TOPIC, 0, 0, 0)
    assert (first.schema_id, first.schema_version) == (0, 0)
    assert (second.payload, second.key, second.attributes) == (b"", None, {})
    assert abs((second.publish_time - second.append_time).total_seconds()) < 10
    assert "offset=0" in repr(first)


async def test_many_are_sent_in_one_batch_and_each_has_its_receipt(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        receipts = await producer.send_many([b"%d" % number for number in range(500)])
        assert len(receipts.runs) == 1
        assert [receipt.offset for receipt in receipts] == list(range(500))
        assert len(await producer.send_many([])) == 0
    assert await stored(client) == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("count", [40, 400])
async def test_a_list_may_change_while_its_messages_wait_for_room(client: Client, count: int) -> None:
    payloads = [b"%d" % number * (1 + number % 7) for number in range(count)]
    given = list(payloads)
    async with client.producer(TOPIC, batch_messages=100, queue_messages=100) as producer:
        await producer.queue_many([b"first"] * 80)
        queueing = asyncio.ensure_future(producer.queue_many(given))
        await asyncio.sleep(0)
        assert not queueing.done()
        given.sort(key=len)
        del given[::2]
        await queueing
        await producer.flush()
    assert (await stored(client))[80:] == payloads


async def test_attributes_are_those_that_were_given_whatever_becomes_of_the_dict(client: Client) -> None:
    mutable = {"a": "b"}
    async with client.producer(TOPIC) as producer:
        producer.send_nowait(b"one", attributes=mutable)
        await producer.queue_many([b"two", b"three"], attributes=[mutable, None])
        mutable["a"] = 5  # type: ignore[assignment]
        await producer.flush()
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        assert [message.attributes async for message in reader] == [{"a": "b"}, {"a": "b"}, {}]


async def test_many_more_than_a_batch_are_cut_and_pipelined(client: Client) -> None:
    payloads = [b"%07d" % number for number in range(5_000)]
    async with client.producer(TOPIC, batch_messages=100, queue_messages=500) as producer:
        receipts = await producer.send_many(payloads)
    assert [receipt.offset for receipt in receipts] == list(range(5_000))
    assert await stored(client) == payloads


async def test_one_key_goes_to_one_partition_in_order(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    keys = [f"user-{number % 7}" for number in range(210)]
    payloads = [f"{key}/{number}".encode() for number, key in enumerate(keys)]
    async with client.producer(TOPIC) as producer:
        receipts = await producer.send_many(payloads, keys=keys)
        single = await producer.send(b"user-3/last", key="user-3")
    partitioner = Partitioner(3)
    assert [receipt.partition for receipt in receipts] == [partitioner.of_key(key) for key in keys]
    assert single.partition == partitioner.of_key("user-3")
    for partition in range(3):
        found = await stored(client, partition=partition)
        for key in set(keys):
            numbers = [
                payload for payload in found if payload.startswith(f"{key}/".encode()) and b"last" not in payload
            ]
            assert numbers == [payload for payload in payloads if payload in numbers]
        where = {
            receipt.offset: payload
            for receipt, payload in zip(receipts, payloads, strict=True)
            if receipt.partition == partition
        }
        assert all(found[offset] == payload for offset, payload in where.items())


async def test_without_a_key_partitions_take_turns(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=3)
    async with client.producer(TOPIC) as producer:
        where = [(await producer.send(b"x")).partition for _ in range(9)]
    assert sorted(where) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(set(where[:3])) == 3


async def test_sends_that_arrive_together_share_a_batch(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        receipts = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(1_000)))
        assert [receipt.offset for receipt in receipts] == list(range(1_000))
        async with client.reader(TOPIC, start="earliest") as reader:
            assert len(await reader.receive_batch(5)) == 1_000


async def test_what_arrives_while_a_batch_is_on_its_way_goes_together_in_the_next(client: Client) -> None:
    async with client.producer(TOPIC, linger_ms=10_000) as producer:
        first = asyncio.get_running_loop().create_task(producer.send(b"first"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # on the wire by now
        rest = [asyncio.get_running_loop().create_task(producer.send(b"%d" % number)) for number in range(50)]
        await asyncio.gather(first, *rest)
        async with client.reader(TOPIC, start="earliest") as reader:
            assert [len(await reader.receive_batch(5)), len(await reader.receive_batch(5))] == [1, 50]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
async def test_compressed_batches_arrive_as_they_were(client: Client, compression: str) -> None:
    payloads = [b"abc" * 200 + b"%d" % number for number in range(300)]
    async with client.producer(TOPIC, compression=compression) as producer:
        await producer.send_many(payloads, keys=[f"k{number % 5}" for number in range(300)])
    assert await stored(client) == payloads
    assert (await client.partitions(TOPIC))[0].stored_bytes < 100_000


async def test_queued_messages_are_published_and_flush_waits_for_them(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        for number in range(1_000):
            producer.send_nowait(b"%d" % number)
        await producer.queue_many([b"many"] * 500)
        await producer.flush()
        assert (await client.partitions(TOPIC))[0].end_offset == 1_500
        await producer.flush()


async def test_a_message_with_a_wrong_publish_time_takes_no_place_in_the_queue(client: Client) -> None:
    async with client.producer(TOPIC, queue_messages=1) as producer:
        for _ in range(3):
            with pytest.raises(Invalid, match="use a datetime"):
                producer.send_nowait(b"x", publish_time="yesterday")
        producer.send_nowait(b"x")
        await producer.flush()


async def test_a_full_queue_raises_full_and_has_room_again_after_flush(client: Client) -> None:
    async with client.producer(TOPIC, queue_messages=10) as producer:
        for _ in range(10):
            producer.send_nowait(b"x")
        with pytest.raises(Full, match="queue"):
            producer.send_nowait(b"one too many")
        await producer.flush()
        producer.send_nowait(b"x")
    assert len(await stored(client)) == 11


async def test_send_waits_where_send_nowait_would_raise(client: Client) -> None:
    async with client.producer(TOPIC, queue_messages=5, queue_bytes=1_000_000) as producer:
        receipts = await asyncio.gather(*(producer.send(b"x" * 10) for _ in range(100)))
    assert sorted(receipt.offset for receipt in receipts) == list(range(100))


async def test_leaving_the_block_publishes_what_is_queued(client: Client) -> None:
    async with client.producer(TOPIC, linger_ms=60_000) as producer:
        await asyncio.gather(producer.send(b"a"), return_exceptions=True)
        producer.send_nowait(b"b")
    assert await stored(client) == [b"a", b"b"]


async def test_a_failure_inside_the_block_is_not_hidden_and_the_queue_is_still_published(client: Client) -> None:
    async def fail() -> None:
        async with client.producer(TOPIC) as producer:
            producer.send_nowait(b"queued")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await stored(client) == [b"queued"]


async def test_a_large_message_goes_through_and_a_larger_one_is_refused_at_once(client: Client) -> None:
    async with client.producer(TOPIC, batch_bytes=1_000, queue_bytes=1_000) as producer:
        receipt = await producer.send(bytes(MESSAGE_BYTES_MAX), key="large")
        with pytest.raises(Invalid, match="too large"):
            await producer.send(bytes(MESSAGE_BYTES_MAX + 1))
        assert (await producer.send(b"after")).offset == receipt.offset + 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": "text"},
        {"payload": None},
        {"payload": b"", "key": b"bytes"},
        {"payload": b"", "key": "\ud800"},
        {"payload": b"", "attributes": {"a": 1}},
        {"payload": b"", "attributes": [("a", "b")]},
    ],
)
async def test_what_cannot_be_a_message_is_refused_by_every_way_of_sending(
    client: Client, wrong: dict[str, object]
) -> None:
    async with client.producer(TOPIC) as producer:
        with pytest.raises(Invalid):
            await producer.send(**wrong)  # type: ignore[arg-type]
        with pytest.raises(Invalid):
            producer.send_nowait(**wrong)  # type: ignore[arg-type]
        assert (await producer.send(b"fine")).offset == 0


async def test_a_topic_is_created_on_first_publish_unless_that_is_turned_off(client: Client) -> None:
    with pytest.raises(NotFound, match="orders"):
        async with client.producer(TOPIC, create_topic=False):
            pass
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x")
    assert await client.list_topics() == [TOPIC]


async def test_two_producers_have_identities_of_their_own(client: Client) -> None:
    async with client.producer(TOPIC) as one, client.producer(TOPIC) as two:
        await asyncio.gather(*(one.send(b"1") for _ in range(50)), *(two.send(b"2") for _ in range(50)))
    assert sorted(await stored(client)) == [b"1"] * 50 + [b"2"] * 50


async def test_a_name_resumes_an_identity_and_fences_the_older_holder(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    old = await client.producer(TOPIC, name="till")
    await old.send_many([b"old"] * 4, keys=["a", "b", "c", "d"])
    async with client.producer(TOPIC, name="till") as new:
        await new.send_many([b"new"] * 4, keys=["a", "b", "c", "d"])
        for key in "abcd":
            with pytest.raises(StaleEpoch):
                await old.send(b"too late", key=key)
        with pytest.raises(StaleEpoch):
            old.send_nowait(b"too late")
        await new.send(b"still here", key="a")
    await old.close()
    everything = await stored(client, partition=0) + await stored(client, partition=1)
    assert sorted(everything) == [b"new"] * 4 + [b"old"] * 4 + [b"still here"]


async def test_a_refused_batch_fails_alone_and_the_next_ones_are_published(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """The broker's own limit is lower than the client's: it refuses what the client let through."""
    async with (
        pydanube.testing.broker(tmp_path, limits_message_bytes_max="1KiB") as url,
        pydanube.connect(url) as client,
        client.producer(TOPIC, batch_messages=1) as producer,
    ):
        sizes = [10, 5_000, 20, 30, 5_000, 40]
        sends = [producer.send(bytes(size)) for size in sizes]
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [isinstance(result, Invalid) for result in results] == [size > 1_000 for size in sizes]
        assert [len(payload) for payload in await stored(client)] == [10, 20, 30, 40]
        producer.send_nowait(bytes(5_000))
        producer.send_nowait(b"after")
        with pytest.raises(Invalid, match="1 queued message"):
            await producer.flush()
        await producer.flush()
        assert (await producer.send(b"on it goes")).offset == 5


async def test_a_deleted_topic_fails_the_send_and_the_producer_recovers_when_it_is_back(client, topic):
    async with client.producer(TOPIC) as producer:
        await producer.send(b"before")
        await client.delete_topic(TOPIC)
        with pytest.raises(pydanube.DanubeError):
            await producer.send(b"nowhere to go")
        await client.create_topic(TOPIC)
        assert (await producer.send(b"again")).offset == 0
    assert await stored(client) == [b"again"]


async def test_a_cancelled_send_leaves_the_producer_in_order(client: Client) -> None:
    async with client.producer(TOPIC) as producer:
        task = asyncio.get_running_loop().create_task(producer.send(b"perhaps"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await producer.send(b"surely")
    assert (await stored(client))[-1] == b"surely"


async def test_a_closed_or_unopened_producer_says_so(client: Client) -> None:
    producer = client.producer(TOPIC)
    with pytest.raises(Refused, match="not open"):
        await producer.send(b"x")
    async with producer:
        await producer.send(b"x")
    with pytest.raises(Refused, match="closed"):
        await producer.send(b"x")
    with pytest.raises(Refused, match="opened before"):
        await producer.open()
    await producer.close()


@pytest.mark.parametrize("topic", ["orders", "/default", "/default/a/b", "", "/default/a b"])
async def test_a_topic_that_is_no_full_name_is_refused(client: Client, topic: str) -> None:
    with pytest.raises(Invalid):
        client.producer(topic)


async def test_an_unknown_option_value_is_refused_by_name(client: Client) -> None:
    with pytest.raises(Invalid, match="snappy"):
        client.producer(TOPIC, compression="snappy")
    with pytest.raises(Invalid, match="batch_bytes"):
        client.producer(TOPIC, batch_bytes=0)


async def test_closing_the_client_closes_what_is_still_open(url: str) -> None:
    client = await pydanube.connect(url)
    producer = await client.producer(TOPIC)
    producer.send_nowait(b"queued")
    await client.close()
    with pytest.raises(Refused):
        producer.send_nowait(b"x")
    async with pydanube.connect(url) as other:
        assert await stored(other) == [b"queued"]


async def test_refusals_on_many_partitions_at_once_lose_and_double_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Every refusal changes the identity of the producer, while other messages are in flight and more are added."""
    random = Random(3)
    async with (
        pydanube.testing.broker(tmp_path, limits_message_bytes_max="1KiB") as url,
        pydanube.connect(url) as client,
    ):
        await client.create_topic(TOPIC, partitions=4)
        async with client.producer(TOPIC, batch_messages=3, name="till") as producer:
            fine: dict[int, list[bytes]] = {key: [] for key in range(8)}

            async def send(key: int) -> None:
                for number in range(60):
                    payload = b"%d/%d" % (key, number)
                    if random.random() < 0.05:
                        payload = payload.ljust(2_000)
                    try:
                        await producer.send(payload, key=f"key-{key}")
                        fine[key].append(payload)
                    except Invalid:
                        pass  # too large itself, or in one batch with such a message
                    if random.random() < 0.2:
                        await asyncio.sleep(random.random() * 0.003)

            await asyncio.gather(*(send(key) for key in range(8)))
        everything = [payload for partition in range(4) for payload in await stored(client, partition=partition)]
    for key, payloads in fine.items():
        assert [payload for payload in everything if payload.startswith(b"%d/" % key)] == payloads
        assert len(payloads) > 30


async def test_many_producers_share_a_small_publish_window(tmp_path) -> None:  # type: ignore[no-untyped-def]
    async with (
        pydanube.testing.broker(tmp_path, limits_publish_window_bytes="64KiB") as url,
        pydanube.connect(url) as client,
        AsyncExitStack() as stack,
    ):
        topics = [f"/default/t{number}" for number in range(20)]
        producers = [await stack.enter_async_context(client.producer(topic, batch_messages=20)) for topic in topics]
        payloads = [b"%d" % number + bytes(500) for number in range(400)]
        for producer in producers:
            await producer.queue_many(payloads)
        await asyncio.gather(*(producer.flush() for producer in producers))
        await producers[0].send(bytes(1 << 20))  # larger than the window: it goes alone
        for topic in topics[1:]:
            assert await stored(client, topic) == payloads
