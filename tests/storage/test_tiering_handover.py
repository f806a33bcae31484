"""Objects, log, cache, live: hand-over while everything happens at once, for subscriptions, readers and fetch."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic
from tiering_harness import (
    PER_BATCH,
    SMALL,
    WAL,
    FaultyObjectStore,
    client_of,
    everything,
    filled,
    keys,
    numbers_of,
    upload_all,
)

from pydanube.codec.batch import Batch, Codec
from pydanube.core.access import ANONYMOUS
from pydanube.model.positions import Position
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

BATCHES = 150


async def read_on(client: BrokerClient, until: int, bytes_max: int, pause_s: float = 0) -> list[int]:
    """As a reader does: from the beginning, each time where the last one ended."""
    found: list[int] = []
    offset = 0
    while offset < until:
        fetched = await client.fetch(Position("offset", offset), wait_ms=1000, bytes_max=bytes_max)
        for view in fetched.batches:
            batch = Batch.open(view, stamped=True)
            found += [int(payload[:8]) for payload in batch.payloads]
        offset = fetched.next_offset
        await asyncio.sleep(pause_s)
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
async def test_every_message_comes_once_and_in_order_while_all_happens_at_once(tmp_path: Path, codec: Codec):
    tiering = replace(SMALL, segment_bytes=1 << 17, cache_bytes=1 << 20)
    settings = {"wal": WAL, "objects": MemoryStore(), "tiering": tiering, "tail_bytes": 1 << 16}
    async with open_topic(tmp_path, **settings) as client:
        await filled(client, 10, codec=codec)

        async def tier() -> None:
            while True:
                await client.broker._tiers.uploader.round(everything=True)
                await client.broker._tiers.trim()

        tiering_task = asyncio.create_task(tier())
        shared = [await client.subscribe("shared", consumer=str(n), kind=SubscriptionType.SHARED) for n in range(3)]
        alone = await client.subscribe("alone")
        total = BATCHES * PER_BATCH
        readers = [
            asyncio.create_task(read_on(client, total, bytes_max, pause_s))
            for bytes_max, pause_s in ((1, 0), (1 << 14, 0.001), (1 << 17, 0.005), (1 << 20, 0.02))
        ]
        for batch in range(10, BATCHES):
            await filled(client, 1, first=batch, codec=codec)
        late = await client.subscribe("late")
        async with asyncio.timeout(200):
            for reader in readers:
                assert await reader == list(range(total))
            for consumer in (alone, late):
                assert numbers_of(await consumer.wait_for(total)) == list(range(total))
            await until(lambda: sum(len(one.received) for one in shared) >= total)
        assert sorted(n for one in shared for n in numbers_of(one.received)) == list(range(total))
        tiering_task.cancel()


async def test_many_subscriptions_at_different_speeds_share_what_is_read(tmp_path: Path):
    objects = FaultyObjectStore()
    tiering = replace(SMALL, cache_bytes=1 << 22)
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=tiering, tail_bytes=1) as client:
        await filled(client, 100)
        await upload_all(client.broker)
        consumers = [await client.subscribe(f"s{n}", credit=50 * (n + 1)) for n in range(10)]
        for n, consumer in enumerate(consumers):
            while len(consumer.received) < 10_000:
                consumer.consumer.credit(500 * (n + 1), 1 << 30)
                await consumer.wait_for(min(10_000, len(consumer.received) + 50))
        for consumer in consumers:
            assert numbers_of(consumer.received) == list(range(10_000))


async def test_messages_of_a_megabyte_come_back_byte_by_byte(tmp_path: Path):
    payloads = [random.Random(n).randbytes(1 << 20) for n in range(6)]
    settings = {"wal": WAL, "objects": MemoryStore(), "tiering": SMALL, "tail_bytes": 1, "fetch_bytes_max": 1 << 16}
    async with open_topic(tmp_path, **settings) as client:
        producer = await client.producer()
        for payload in payloads:
            await client.publish(producer, [payload])
        await upload_all(client.broker)
        assert [payload for _, payload in await client.read_all()] == payloads
        consumer = await client.subscribe()
        assert [payload for _, payload in await consumer.wait_for(6)] == payloads


async def test_retention_under_a_reader_leaves_it_its_place_or_the_new_start(tmp_path: Path):
    """What it has begun to read stays readable for the grace; what it asks for later begins where the topic does."""
    objects, clock = MemoryStore(), ManualClock()
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1, "clock": clock}
    async with open_broker(tmp_path, **settings) as broker:
        client = await created(broker)
        for batch in range(100):
            clock.advance(1)
            await filled(client, 1, first=batch)
        await upload_all(broker)
        (tier,) = broker._tiers.partitions.values()
        planned = await broker._tiers.catalog.find(tier.topic_id, 0, 0)
        assert planned is not None
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 50})
        await broker._lifetimes.round()
        fetched = await client.fetch(Position("offset", 10))
        assert Batch.trust(fetched.batches[0]).base_offset == fetched.start_offset == 4900
        await broker._tiers.collector.collect_garbage()
        assert await broker._tiers.history.read(planned, 0, 1 << 20), "planned before, within the grace"
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert planned.record.object not in await keys(objects)
        assert (await everything(client))[0] == 4900


async def test_a_reader_keeps_up_with_retention_that_runs_ahead_of_it(tmp_path: Path):
    """Every read begins at its offset, or at a later start of the topic: nothing in between is left out."""
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    settings = {"wal": WAL, "objects": MemoryStore(), "tiering": SMALL, "tail_bytes": 1}
    async with open_topic(tmp_path, **settings) as client:
        await filled(client, 20)
        partition = await client.broker._partitions.get(TOPIC, 0)
        ended = asyncio.Event()

        async def trim_and_upload() -> None:
            while not ended.is_set():
                await upload_all(client.broker)
                await partition.trim(partition.stream.end_offset - chance.randrange(100, 3000))

        async def write() -> None:
            for batch in range(20, 120):
                await filled(client, 1, first=batch)
            ended.set()

        async def read() -> None:
            offset = 0
            while offset < 12_000:
                before = partition.stream.start_offset
                views = await partition.stream.read(offset, chance.choice([1, 1 << 14, 1 << 18]))
                after = partition.stream.start_offset
                if views:
                    base = Batch.trust(views[0]).base_offset
                    assert base <= max(offset, after), f"seed={seed}: asked for {offset}, got {base}, begins at {after}"
                    assert before <= after
                    offset = Batch.trust(views[-1]).end_offset
                await asyncio.sleep(0)

        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            for work in (trim_and_upload(), write(), read(), read()):
                group.create_task(work)


async def test_topics_in_one_object_are_kept_apart(tmp_path: Path):
    async with open_broker(tmp_path, wal=WAL, objects=MemoryStore(), tiering=SMALL, tail_bytes=1) as broker:
        clients = [client_of(broker, f"t{n}") for n in range(8)]
        for number, client in enumerate(clients):
            await client.create()
            await filled(client, 1, first=number, size=0)
        await upload_all(broker)
        busy = client_of(broker, "busy")
        await busy.create()
        await filled(busy, 60)
        await upload_all(broker)
        for number, client in enumerate(clients):
            assert await everything(client) == list(range(number * 100, number * 100 + 100))
        await broker.topics.delete(ANONYMOUS, clients[0].topic)
        await broker._tiers.collector.collect_garbage()
        assert await everything(clients[1]) == list(range(100, 200))
