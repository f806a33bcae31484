"""What the objects of the client say about themselves: what they are for, their state, and never much."""

from __future__ import annotations

import pytest

import pydanube
from pydanube import testing

TOPIC = "/default/orders"


async def test_a_client_names_its_broker_and_its_state(url: str) -> None:
    client = pydanube.connect(url)
    assert repr(client) == f"<Client {url} not open>"
    async with client:
        assert repr(client) == f"<Client {url} open>"
    assert repr(client) == f"<Client {url} closed>"


async def test_a_producer_names_its_topic_and_what_waits(client: pydanube.Client) -> None:
    producer = await client.producer(TOPIC, name="till-3")
    assert repr(producer) == "<Producer /default/orders name='till-3' open>"
    producer.send_nowait(b"x")
    assert repr(producer) == "<Producer /default/orders name='till-3' open, 1 messages unanswered>"
    await producer.flush()
    async with client.producer(TOPIC, name="till-3") as other:
        await other.send(b"x")
        with pytest.raises(pydanube.StaleEpoch):
            await producer.send(b"x")
    assert repr(producer) == "<Producer /default/orders name='till-3' fenced>"
    await producer.close()
    assert repr(client.producer(TOPIC)) == "<Producer /default/orders not open>"


async def test_a_consumer_names_its_subscription_and_some_topics(client: pydanube.Client) -> None:
    topics = [f"/default/t{number}" for number in range(5)]
    consumer = client.consumer(topics, subscription="billing", name="till-1", create_topic=True)
    topics_shown = "/default/t0, /default/t1, /default/t2 and 2 more"
    assert repr(consumer) == f"<Consumer subscription='billing' name='till-1' of {topics_shown} not open>"
    async with consumer:
        assert repr(consumer) == (
            f"<Consumer subscription='billing' type=exclusive name='till-1' of {topics_shown} open>"
        )
    pattern = client.consumer("/default/x*", subscription="billing", type="shared", name="n")
    assert repr(pattern) == "<Consumer subscription='billing' type=shared name='n' of /default/x* not open>"


async def test_a_reader_says_where_it_is(client: pydanube.Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    reader = client.reader(TOPIC, partition=1, start=0)
    assert repr(reader) == "<Reader /default/orders partition=1 not open>"
    async with reader:
        assert repr(reader) == "<Reader /default/orders partition=1 next_offset=0 open>"


async def test_messages_batches_and_receipts_are_short_however_large_they_are(client: pydanube.Client) -> None:
    async with client.producer(TOPIC) as producer:
        receipts = await producer.send_many([b"x" * 1_000_000] * 3, keys=["k" * 1_000] * 3)
        receipt = await producer.send(b"small")
    assert repr(receipt) == "Receipt(topic='/default/orders', partition=0, offset=3, duplicate=False)"
    assert repr(receipts).startswith("Receipts(topic='/default/orders', count=3, partition 0 [0, ")
    many = type(receipts)(TOPIC, list(receipts.runs) * 1_000)
    assert len(repr(many)) < 250 and "more runs" in repr(many)
    async with client.reader(TOPIC, start="earliest", end="latest") as reader:
        batch = await reader.receive_batch(timeout=60)
        assert repr(batch).startswith("ReceivedBatch(topic='/default/orders', partition=0, offsets=0..")
        large = batch[0]
        assert repr(large) == (
            f"Message(topic='/default/orders', partition=0, offset=0, key='{'k' * 40}'... (1000 characters), "
            f"payload=b'{'x' * 40}'... (1000000 bytes))"
        )
    async with client.reader(TOPIC, start=3, end="latest") as reader:
        [small] = [message async for message in reader]
    assert repr(small) == "Message(topic='/default/orders', partition=0, offset=3, payload=b'small')"


async def test_the_others_name_what_they_work_on(client: pydanube.Client) -> None:
    assert repr(client.dead_letters("/default/dlq")) == "<DeadLetters /default/dlq>"
    stager = client.stager("totals", run="1", batch_id=7)
    assert repr(stager) == "<Stager query='totals' batch_id=7 task=0 not open>"
    await client.create_topic(TOPIC)
    await client.create_subscription(TOPIC, "billing", start="earliest")
    async with client.producer(TOPIC) as producer:
        await producer.send(b"x")
    [peeked] = await client.peek(TOPIC, "billing", 1)
    assert repr(peeked) == (
        f"PeekedMessage(topic='/default/orders', partition=0, offset=0, payload=b'x', state={peeked.state!r})"
    )


def test_the_blocking_ones_say_the_same() -> None:
    with testing.broker_thread() as url, pydanube.connect_blocking(url) as client:
        assert repr(client) == f"<BlockingClient {url} open>"
        with client.producer(TOPIC) as producer:
            assert repr(producer) == "<BlockingProducer /default/orders open>"
        assert repr(producer) == "<BlockingProducer /default/orders closed>"
        with client.consumer(TOPIC, subscription="billing", name="n") as consumer:
            assert repr(consumer) == (
                "<BlockingConsumer subscription='billing' type=exclusive name='n' of /default/orders open>"
            )
        assert repr(client.reader(TOPIC)) == "<BlockingReader /default/orders partition=0 not open>"
        assert repr(client.dead_letters(TOPIC)) == "<BlockingDeadLetters /default/orders>"
