"""Statistics of all topics at once, from what is in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker_harness import TOPIC, open_broker, open_client, open_topic
from tiering_harness import SMALL, WAL, upload_all

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS, Principal
from pydanube.core.access_rules import AccessRules
from pydanube.model.errors import NotFound
from pydanube.model.names import TopicName
from pydanube.model.statistics import TopicSummary
from pydanube.model.topics import SubscriptionType, TopicConfig
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.stream import LoggedStream

pytestmark = pytest.mark.usefixtures("clock")


async def summaries(broker: Broker, namespace: str | None = None) -> list[TopicSummary]:
    return [one async for chunk in broker.statistics.all(ANONYMOUS, namespace) for one in chunk]


async def test_every_topic_is_told_in_order_with_what_it_was_created_with(client, clock):
    await client.broker.create_namespace(ANONYMOUS, "a-b")
    for name, config in {
        "/default/b": TopicConfig(partitions=3),
        "/default/a": TopicConfig(reliable=False),
        "/a-b/z": TopicConfig(),
    }.items():
        await client.broker.create_topic(ANONYMOUS, TopicName.parse(name), config)
    found = await summaries(client.broker)
    assert [(one.topic, one.partitions, one.reliable, one.ack_level) for one in found] == [
        ("/a-b/z", 0, True, "durable"),
        ("/default/a", 0, False, "memory"),
        ("/default/b", 3, True, "durable"),
    ]
    assert all(one.created_at == clock.now_us() for one in found)
    assert [one.topic for one in await summaries(client.broker, "a-b")] == ["/a-b/z"]
    with pytest.raises(NotFound, match="'nowhere'"):
        client.broker.statistics.all(ANONYMOUS, "nowhere")


async def test_the_numbers_are_sums_over_the_open_partitions(client):
    await client.create(partitions=3)
    await client.subscription("billing", SubscriptionType.SHARED)
    for index in (0, 2):
        await client.fill(await client.producer(partition=index), 10, rows=10, every_s=1, size=1_000)
    sinks = [await client.subscribe("billing", "a", partition=index, kind=SubscriptionType.SHARED) for index in (0, 2)]
    await sinks[0].wait_for(100)
    await sinks[0].ack((0, 40))
    (found,) = await summaries(client.broker)
    assert (found.open_partitions, found.subscription_count, found.producers) == (3, 1, 1)
    assert (found.published, found.messages) == (200, 200)
    exact = await client.broker.statistics.topic(ANONYMOUS, TOPIC)
    assert found.published_bytes == sum(one.published_bytes for one in exact.partitions)
    assert found.stored_bytes == sum(one.stored_bytes for one in exact.partitions)
    (billing,) = found.subscriptions
    assert (billing.name, billing.type, billing.consumers) == ("billing", "shared", 1)
    assert (billing.backlog, billing.delivered, billing.acked, billing.unacked) == (160, 200, 40, 160)
    per_partition = [one.subscriptions[0] for one in exact.partitions]
    assert billing.backlog_bytes == sum(one.backlog_bytes for one in per_partition)
    assert billing.backlog_s == max(one.backlog_s for one in per_partition) == 16


async def test_no_partition_is_opened_and_nothing_is_read(tmp_path: Path, clock: ManualClock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=2)
        await client.subscription()
        await client.fill(await client.producer(), 100, every_s=10, size=1_000)
        await client.settle((0, 505))
    clock.advance(1_000)
    async with open_client(tmp_path, clock=clock, tail_bytes=0) as client:
        (found,) = await summaries(client.broker)
        assert (found.partitions, found.open_partitions, found.subscription_count) == (2, 0, 1)
        assert (found.subscriptions, found.messages) == ([], 0)
        assert list(client.broker._partitions) == []
        exact = (await client.counted()).backlog_s  # opens the partitions
        for partition in client.broker._partitions:
            setattr(partition.stream, "read", None)  # noqa: B010 - reading this stream fails
        (found,) = await summaries(client.broker)
        (billing,) = found.subscriptions
        assert (found.open_partitions, found.published, billing.backlog) == (2, 0, 495)
        assert billing.backlog_s == pytest.approx(exact, rel=0.01)


async def test_the_age_of_what_only_objects_hold_comes_from_the_catalog(tmp_path: Path, clock: ManualClock):
    objects = MemoryStore()
    options: dict[str, Any] = {"clock": clock, "objects": objects, "wal": WAL, "tiering": SMALL}
    async with open_topic(tmp_path, **options) as client:
        await client.subscription()
        producer = await client.producer()
        for _ in range(12):
            await client.fill(producer, 1, rows=300, every_s=60, size=300)
            await upload_all(client.broker)
        await client.settle((0, 905))
    async with open_client(tmp_path, **options, tail_bytes=0) as client:
        exact = (await client.counted()).backlog_s
        partition = await client.broker._partitions.get(TOPIC, 0)
        assert isinstance(partition.stream, LoggedStream)
        in_log = [client.broker._writer.ledger(one) for one in partition.stream.ledger_ids]
        assert all(one is None or one.first_offset > 905 for one in in_log), "the log has it no more"
        (found,) = await summaries(client.broker)
        assert exact == 9 * 60
        assert found.subscriptions[0].backlog_s == pytest.approx(exact, abs=60)


async def test_a_total_falls_only_when_the_topic_is_unloaded(client):
    await client.create(partitions=2)
    for index in (0, 1):
        await client.fill(await client.producer(partition=index), 5)
    assert (await summaries(client.broker))[0].published == 100
    await client.broker.topics.unload(UnloadTopic(topic=TOPIC))
    (found,) = await summaries(client.broker)
    assert (found.published, found.open_partitions) == (0, 0)
    await client.fill(await client.producer(partition=1), 1)
    assert (await summaries(client.broker))[0].published == 10


class BusyClock(ManualClock):
    """A clock on which every look takes a millisecond."""

    def monotonic(self) -> float:
        self._monotonic += 0.001
        return self._monotonic


async def test_other_tasks_run_between_the_chunks_and_within_a_large_topic(tmp_path: Path):
    async with open_client(tmp_path, clock=BusyClock()) as client:
        await client.create(partitions=20)
        for index in range(20):
            await client.producer(partition=index)
        for number in range(50):
            await client.broker.create_topic(ANONYMOUS, TopicName("default", f"small-{number:02}"), TopicConfig())
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        await asyncio.sleep(0)
        chunks, listed, seen = list[int](), list[str](), list[int]()
        async for chunk in client.broker.statistics.all(ANONYMOUS):
            chunks.append(len(chunk))
            listed += [one.topic for one in chunk]
            seen.append(turns)
        other.cancel()
        assert listed == sorted(listed) and len(listed) == 51
        assert len(chunks) >= 15 and seen == sorted(set(seen)), "others ran between any two chunks"
        assert seen[0] >= 8, "and while the partitions of the first topic were summed"


async def test_topics_deleted_and_created_between_chunks_do_no_harm(tmp_path: Path):
    async with open_broker(tmp_path, clock=BusyClock()) as broker:
        for number in range(20):
            await broker.create_topic(ANONYMOUS, TopicName("default", f"t-{number:02}"), TopicConfig())
        listed: list[str] = []
        async for chunk in broker.statistics.all(ANONYMOUS):
            if not listed:
                await broker.delete_topic(ANONYMOUS, TopicName("default", "t-15"))
                await broker.create_topic(ANONYMOUS, TopicName("default", "new"), TopicConfig())
            listed += [one.topic for one in chunk]
        assert set(listed) >= {f"/default/t-{number:02}" for number in range(20) if number != 15}
        assert "/default/t-15" not in listed and len(set(listed)) == len(listed)


async def test_who_may_not_describe_the_broker_is_told_nothing(tmp_path: Path):
    root = Principal("root")
    rules = AccessRules([root.id])
    async with open_broker(tmp_path, authorizer=rules) as broker:
        await broker.create_topic(root, TopicName.parse("/default/orders"), TopicConfig())
        assert [one async for one in broker.statistics.all(ANONYMOUS)] == []
        assert await summaries(broker, "default") == []
        assert [one async for one in broker.statistics.all(root)] != []
