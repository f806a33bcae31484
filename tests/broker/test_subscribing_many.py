"""Subscriptions on many topics at once: they do not wait for each other, and each is created once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_harness import TIERING, BrokerClient, open_broker
from metadata_harness import FaultyStore, puts

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Full, NotFound
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.waits import SharedLock


async def create(client: BrokerClient, name: str = "billing") -> None:
    await client.broker.subscriptions.create(ANONYMOUS, client.topic, name, SubscriptionType.SHARED, EARLIEST)


async def clients(broker, count: int) -> list[BrokerClient]:
    made = [BrokerClient(broker, TopicName.parse(f"/default/t{number}")) for number in range(count)]
    for client in made:
        await client.create()
    return made


async def test_a_subscription_whose_commit_takes_long_does_not_delay_subscriptions_of_other_topics(
    tmp_path: Path,
) -> None:
    metadata = FaultyStore()
    async with open_broker(tmp_path, metadata=metadata) as broker, asyncio.timeout(60):
        slow, *others = await clients(broker, 20)
        commit = metadata.hold(puts("/subscriptions/"))
        waiting = asyncio.ensure_future(create(slow))
        await commit.asked.wait()
        await asyncio.gather(*map(create, others))
        assert not waiting.done()
        # Another caller that asks for the same subscription waits for it, and so does a deletion of the topic.
        attached = asyncio.ensure_future(slow.subscribe("billing", "late"))
        deleting = asyncio.ensure_future(broker.topics.delete(ANONYMOUS, slow.topic))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not attached.done() and not deleting.done()
        commit.go_on()
        await waiting
        await asyncio.gather(attached, deleting, return_exceptions=True)
        with pytest.raises(NotFound):
            await create(slow)
        names = [await broker.subscriptions.names(ANONYMOUS, one.topic) for one in others]
        assert names == [["billing"]] * len(others)


async def test_ids_are_unique_when_many_subscriptions_are_created_at_once(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker:
        made = await clients(broker, 50)
        await asyncio.gather(*(create(client, name) for client in made for name in ("a", "b")))
    async with open_broker(tmp_path) as broker:
        ids = [
            (await broker.subscriptions.describe(ANONYMOUS, client.topic, name)).subscription_id
            for client in made
            for name in ("a", "b")
        ]
        assert len(set(ids)) == 100


async def test_the_limit_of_a_topic_holds_when_many_are_created_at_once(broker):
    (client,) = await clients(broker, 1)
    await broker.policies.set(ANONYMOUS, client.topic, {"subscriptions_max": 3})
    outcomes = await asyncio.gather(*(create(client, f"s{number}") for number in range(10)), return_exceptions=True)
    assert sum(isinstance(one, Full) for one in outcomes) == 7
    assert len(await broker.subscriptions.names(ANONYMOUS, client.topic)) == 3


async def test_a_new_partition_knows_the_ledgers_it_opened(tmp_path: Path) -> None:
    async with MemoryStore() as objects:
        async with open_broker(tmp_path, objects=objects, tiering=TIERING) as broker:
            (client,) = await clients(broker, 1)
            await client.publish(await client.producer(), [b"one"])
            partition = broker._partitions.open_of(broker._registry.topic(client.topic).topic_id)[0]
            assert [one.kind for _, one in await partition._ownership.ledgers()] == ["data"]
        async with open_broker(tmp_path, objects=objects, tiering=TIERING) as broker:
            assert await BrokerClient(broker, client.topic).read_all() == [(0, b"one")]


# -- the lock ----------------------------------------------------------------------------------------------------------


async def test_a_shared_lock_is_held_by_many_readers_or_one_writer_in_the_order_of_requests() -> None:
    lock, seen = SharedLock(), []
    go_on = asyncio.Event()

    async def together(name: str) -> None:
        async with lock.shared():
            seen.append(name)
            await go_on.wait()
            seen.append(f"{name} ends")

    async def alone() -> None:
        async with lock:
            seen.append("alone")
            await asyncio.sleep(0)
            seen.append("alone ends")

    tasks = [asyncio.ensure_future(one) for one in (together("a"), together("b"), alone(), together("c"))]
    for _ in range(10):
        await asyncio.sleep(0)
    assert seen == ["a", "b"], "c came after the one that wants it alone"
    go_on.set()
    await asyncio.gather(*tasks)
    assert seen == ["a", "b", "a ends", "b ends", "alone", "alone ends", "c", "c ends"]


async def test_a_caller_that_is_cancelled_while_it_waits_for_a_shared_lock_does_not_keep_it() -> None:
    lock = SharedLock()

    async def alone() -> None:
        async with lock:
            pass

    async with lock.shared():
        waiting = asyncio.ensure_future(alone())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(20), lock.shared():
            pass
    async with asyncio.timeout(20), lock:
        pass
