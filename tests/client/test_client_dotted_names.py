"""Topics, namespaces and subscriptions with dots in their names, through a real broker and its restart."""

from __future__ import annotations

from pathlib import Path

import pytest

import pydanube

TOPIC = "/shop.eu/orders.v1"
LETTERS = "/shop.eu/orders.v1.dlq"
POLICY = pydanube.FailurePolicy(
    redeliveries_max=0, delay_ms=0, poison=pydanube.Poison.DEAD_LETTER, dead_letter_topic=LETTERS
)


async def test_dots_in_names_survive_a_restart_with_everything_that_hangs_on_them(tmp_path: Path) -> None:
    async with pydanube.testing.broker(tmp_path / "data") as url, pydanube.connect(url) as client:
        for namespace in ("shop.eu", "shop"):
            await client.create_namespace(namespace)
        await client.create_topic(TOPIC, partitions=2)
        await client.create_topic("/shop/orders.v1")
        await client.set_policies("shop.eu", producers_max=7)
        await client.create_subscription(TOPIC, "billing.v2", start="earliest", failure_policy=POLICY)
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"%d" % number for number in range(10)], keys=[str(n) for n in range(10)])
        await client.upload_storage(TOPIC)

    async with pydanube.testing.broker(tmp_path / "data") as url, pydanube.connect(url) as client:
        assert await client.list_namespaces() == ["default", "shop", "shop.eu"]
        assert await client.list_topics("shop") == ["/shop/orders.v1"]
        assert await client.list_topics("shop.eu") == [TOPIC, LETTERS]  # the policy made it
        assert (await client.policies("shop.eu")).own.producers_max == 7
        assert (await client.policies("shop")).own.producers_max != 7
        assert await client.list_subscriptions(TOPIC) == ["billing.v2"]
        async with client.consumer(TOPIC, subscription="billing.v2") as consumer:
            received = [await consumer.receive(timeout=60) for _ in range(10)]
            assert {message.topic for message in received} == {TOPIC}
            for message in received[1:]:
                await consumer.ack(message)
            async with client.consumer(LETTERS, subscription="watch", start="earliest", create_topic=True) as watch:
                await consumer.nack(received[0], reason="because")
                letter = await watch.receive(timeout=60)
        place = f"{TOPIC}/{received[0].partition}/billing.v2/{received[0].offset}"
        assert letter.attributes["x-dead-letter-id"] == place
        [found] = [one async for one in client.dead_letters(LETTERS)]
        assert (found.original_topic, found.original_subscription) == (TOPIC, "billing.v2")
        await client.delete_subscription(TOPIC, "billing.v2")
        await client.delete_topic(LETTERS)
        await client.delete_topic(TOPIC)
        await client.delete_namespace("shop.eu")
        assert await client.list_topics() == ["/shop/orders.v1"]


async def test_a_dot_in_a_pattern_stands_for_itself(client: pydanube.Client) -> None:
    for topic in ("/default/orders.v1", "/default/orders.v1.eu", "/default/orders-v1", "/default/ordersxv1"):
        await client.create_topic(topic)
    async with client.consumer("/default/orders.v*", subscription="all") as consumer:
        assert consumer.topics == ["/default/orders.v1", "/default/orders.v1.eu"]
    async with client.consumer("/default/orders?v1", subscription="one") as consumer:
        assert consumer.topics == ["/default/orders-v1", "/default/orders.v1", "/default/ordersxv1"]


@pytest.mark.parametrize("topic", ["/default/.orders", "/default/orders.", "/default/orders..v1", "/../orders"])
async def test_a_misplaced_dot_is_refused_by_name(client: pydanube.Client, topic: str) -> None:
    with pytest.raises(pydanube.Invalid, match="single dots between them"):
        await client.create_topic(topic)


async def test_the_names_of_partitions_stay_reserved(client: pydanube.Client) -> None:
    with pytest.raises(pydanube.Invalid, match="-part-"):
        await client.create_topic("/default/orders.v1-part-0")
