"""A producer counts once at its topic, whatever failures it went through, and not at all once it is closed."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import TOPIC, connection_of

from pydanube import Client, Full, Refused, StaleEpoch, Unavailable
from pydanube.codec.native import requests
from pydanube.runtime.clock import ManualClock
from waiting import until


async def producers(client: Client, topic: str = TOPIC) -> list[int]:
    return [one.producers for one in (await client.topic_statistics(topic)).partitions]


async def full_topic(client: Client, partitions: int = 0) -> None:
    """Create a topic whose partitions take one message each, and which allows one producer."""
    await client.create_topic(TOPIC, partitions=partitions)
    await client.create_subscription(TOPIC, "billing")
    await client.set_policies(TOPIC, backlog_messages_max=1, producers_max=1)


@pytest.mark.parametrize(
    "claim", [{}, {"name": "till-1"}, {"access": "exclusive"}, {"name": "till-1", "access": "exclusive"}]
)
async def test_refused_sends_leave_one_producer_and_none_after_closing(client: Client, claim: dict[str, str]) -> None:
    await full_topic(client)
    async with client.producer(TOPIC, timeout=0.5, **claim) as producer:  # type: ignore[arg-type]
        await producer.send(b"fits")
        for _ in range(3):
            with pytest.raises((Full, Unavailable)):  # the latter when its last try is on the wire
                await producer.send(b"does not")
            assert await producers(client) == [1]
        await client.clear_backlog(TOPIC, "billing")
        assert (await producer.send(b"fits again")).offset == 1
        assert await producers(client) == [1]
    assert await producers(client) == [0]
    async with client.producer(TOPIC) as producer:
        assert await producers(client) == [1]


async def test_the_same_over_several_partitions(client: Client) -> None:
    await full_topic(client, partitions=3)
    async with client.producer(TOPIC, timeout=0.5) as producer:
        for _ in range(4):
            await asyncio.gather(*(producer.send(b"%d" % one) for one in range(12)), return_exceptions=True)
            assert max(await producers(client)) == 1
        await client.clear_backlog(TOPIC, "billing")
        await producer.send_many([b"%d" % one for one in range(3)])
    assert await producers(client) == [0, 0, 0]


async def test_one_that_was_fenced_gives_its_handles_back(client: Client) -> None:
    await client.create_topic(TOPIC, partitions=2)
    async with client.producer(TOPIC, name="till-1") as former:
        await former.send(b"mine")
        async with client.producer(TOPIC, name="till-1") as successor:
            with pytest.raises(StaleEpoch):
                await former.send(b"not mine any more")
            await successor.send(b"mine")
            assert await producers(client) == [1, 1]
    assert await producers(client) == [0, 0]


async def test_a_producer_that_a_rate_kept_waiting_for_too_long_hears_of_it(client, topic):
    await client.set_policies(TOPIC, publish_messages_per_s=1)
    async with client.producer(TOPIC, timeout=0.5) as producer:
        await producer.send_many([b"%d" % one for one in range(20)])
        with pytest.raises(Unavailable, match=r"no answer .* publish_messages_per_s .*topics policies /default/orders"):
            await producer.send(b"one too many")


@pytest.mark.parametrize("claim", [{"name": "till-1"}, {"access": "exclusive"}])
async def test_one_that_goes_on_under_a_new_epoch_is_not_fenced_by_it(url: str, claim: dict[str, str]) -> None:
    """What it gave up still waits at the broker, which refuses it as what a fenced producer sent."""
    clock = ManualClock()
    async with Client(url, clock=clock) as client, client.producer(TOPIC, timeout=3, **claim) as producer:  # type: ignore[arg-type]
        await client.set_policies(TOPIC, publish_messages_per_s=1)
        await producer.send_many([b"%d" % one for one in range(100)])
        given_up = asyncio.create_task(producer.send(b"has to wait"))
        await until(lambda: bool(connection_of(client)._publishes))
        clock.advance(3.1)
        with pytest.raises(Unavailable, match=r"3 s.*publish_messages_per_s"):
            await given_up
        epoch = producer._identity.producer_epoch
        under_the_next = asyncio.create_task(producer.send(b"has to wait, too"))
        await until(lambda: under_the_next.done() or producer._identity.producer_epoch > epoch)
        await client.set_policies(TOPIC, publish_messages_per_s=None)
        assert (await under_the_next).offset == 100
        assert (await producer.send(b"need not wait")).offset == 101


async def test_a_producer_that_is_given_up_while_it_opens_leaves_nothing_behind(client, topic):
    await client.set_policies(TOPIC, producers_max=1)
    for _ in range(5):
        opening = asyncio.create_task(client.producer(TOPIC).open())
        await until_asked(client)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

    async def nobody() -> bool:
        return await producers(client) == [0]

    await until(nobody)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"one")


async def test_a_consumer_that_is_given_up_while_it_attaches_leaves_nothing_behind(client, topic):
    await client.create_subscription(TOPIC, "billing", start="earliest")
    for _ in range(5):
        opening = asyncio.create_task(client.consumer(TOPIC, subscription="billing").open())
        await until_asked(client)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

    async def nobody() -> bool:
        return not (await client.describe_subscription(TOPIC, "billing")).partitions[0].consumer

    await until(nobody)


async def test_a_producer_that_is_closed_while_it_opens_leaves_the_topic_to_others(client, topic):
    producer = client.producer(TOPIC, access="exclusive")
    opening = asyncio.create_task(producer.open())
    await until_asked(client)
    await producer.close()
    with pytest.raises(Refused, match="this producer was closed while it was being opened"):
        await opening
    assert await producers(client) == [0]
    async with client.producer(TOPIC) as another:
        assert (await another.send(b"one")).offset == 0


async def test_a_consumer_that_is_closed_while_it_attaches_leaves_the_subscription_to_others(client, topic):
    consumer = client.consumer(TOPIC, subscription="billing")
    opening = asyncio.create_task(consumer.open())
    await until_asked(client)
    await consumer.close()
    with pytest.raises(Refused, match="this consumer was closed while it was being opened"):
        await opening
    async with client.consumer(TOPIC, subscription="billing") as another, client.producer(TOPIC) as producer:
        await producer.send(b"one")
        assert (await another.receive(timeout=60)).payload == b"one"


async def until_asked(client: Client) -> None:
    """Run the event loop turn by turn until a handle was requested."""
    opening = (requests.ProducerOpened, requests.ConsumerOpened)
    await until(lambda: any(getattr(one, "kind", None) in opening for one in connection_of(client)._asked.values()))
