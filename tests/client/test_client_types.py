"""A consumer that says nothing of the subscription's type takes it as it is; what does not fit the type is refused."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from pydanube import Client, Invalid, Refused

TOPIC = "/default/orders"


@pytest.mark.parametrize("kind", ["exclusive", "shared", "failover", "key-shared"])
async def test_a_consumer_takes_the_type_of_an_existing_subscription(client, topic, kind):
    await client.create_subscription(TOPIC, "billing", type=kind)
    consumer = client.consumer(TOPIC, subscription="billing")
    assert consumer.type is None
    async with consumer:
        assert str(consumer.type) == kind
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
        message = await consumer.receive(timeout=60)
        if kind in ("shared", "key-shared"):
            with pytest.raises(Refused, match=f"a {kind} subscription has no cumulative ack"):
                await consumer.ack_cumulative(message)
        else:
            await consumer.ack_cumulative(message)


async def test_a_new_subscription_is_exclusive(client, topic):
    async with client.consumer(TOPIC, subscription="billing") as consumer:
        assert str(consumer.type) == "exclusive"
    assert str((await client.describe_subscription(TOPIC, "billing")).type) == "exclusive"


async def test_a_type_that_is_given_has_to_be_the_right_one(client, topic):
    await client.create_subscription(TOPIC, "billing", type="key-shared")
    with pytest.raises(Refused, match="is key-shared, not exclusive"):
        await client.consumer(TOPIC, subscription="billing", type="exclusive")


async def test_each_topic_of_a_consumer_may_have_its_own(client: Client) -> None:
    for topic, kind in (("/default/a", "shared"), ("/default/b", "exclusive")):
        await client.create_topic(topic)
        await client.create_subscription(topic, "billing", type=kind)
        async with client.producer(topic) as producer:
            await producer.send(b"0")
    async with client.consumer(["/default/a", "/default/b"], subscription="billing") as consumer:
        for _ in range(2):
            message = await consumer.receive(timeout=60)
            if message.topic == "/default/b":
                await consumer.ack_cumulative(message)
            else:
                with pytest.raises(Refused, match="shared"):
                    await consumer.ack_cumulative(message)
    assert (await client.describe_subscription("/default/b", "billing")).partitions[0].lag == 0


@pytest.mark.parametrize("option", [{"priority": 1}, {"key_filters": ["eu-*"]}])
@pytest.mark.parametrize("kind", ["exclusive", "shared", None])
async def test_what_belongs_to_another_type_is_refused_and_creates_nothing(client, topic, kind, option):
    with pytest.raises(Invalid, match=r"failover|key-shared"):
        await client.consumer(TOPIC, subscription="billing", type=kind, **option)
    assert await client.list_subscriptions(TOPIC) == []
    await client.create_subscription(TOPIC, "billing", type=kind or "exclusive")
    with pytest.raises(Invalid, match=f"this one is {kind or 'exclusive'}"):
        await client.consumer(TOPIC, subscription="billing", **option)


@pytest.mark.parametrize(("kind", "option"), [("failover", {"priority": 1}), ("key-shared", {"key_filters": "eu-*"})])
async def test_what_fits_the_existing_subscription_needs_no_type(client, topic, kind, option):
    await client.create_subscription(TOPIC, "billing", type=kind)
    async with client.consumer(TOPIC, subscription="billing", **option) as consumer:
        assert str(consumer.type) == kind


@pytest.mark.parametrize("priority", [-1, 2**31, 1.5])
async def test_a_priority_out_of_range_is_refused(client: Client, priority: Any) -> None:
    with pytest.raises(Invalid, match="priority"):
        client.consumer(TOPIC, subscription="billing", type="failover", priority=priority)


async def test_whoever_tries_again_after_refusals_hears_that_he_is_cancelled(client: Client) -> None:
    """Also in the very moment in which the refusal of one partition ends the attaching to the others."""
    await client.create_topic(TOPIC, partitions=3)

    async def try_again() -> None:
        for _ in range(50):
            with suppress(Refused):
                await client.consumer(TOPIC, subscription="billing", name="second")

    async with client.consumer(TOPIC, subscription="billing", name="first"):
        for turns in range(100):
            task = asyncio.create_task(try_again())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=60)
            assert task.cancelled(), f"cancelled after {turns} turns of the loop, and went on"
