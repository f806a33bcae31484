"""Things that happen at once: reading and retention, uploading and deleting, merging and collecting; jumping clocks."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic
from tiering_harness import PER_BATCH, SMALL, WAL, FaultyObjectStore, client_of, everything, filled, keys, upload_all

from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import NotFound
from pydanube.model.positions import Position
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore

AT_ONCE = replace(SMALL, grace_s=0)


class Slow(MemoryStore):
    """A store that lets other tasks run in the middle of every call."""

    async def get(self, key, start=0, end=None):
        await asyncio.sleep(0)
        data = await super().get(key, start, end)
        await asyncio.sleep(0)
        return data


async def read_on(client: BrokerClient, chance: random.Random, until_offset: int) -> int:
    """Read to the end with fetches of any size: offsets follow each other, but for what retention took."""
    offset, read = 0, 0
    while offset < until_offset:
        fetched = await client.fetch(Position("offset", offset), bytes_max=chance.randrange(1, 100_000))
        for view in fetched.batches:
            batch = Batch.open(view)
            base = batch.header.base_offset
            assert base <= offset or offset < fetched.start_offset, f"a hole at {offset}, then {base}"
            assert int(bytes(batch.payloads[0])[:8]) == base
            offset = base + PER_BATCH
            read += 1
        await asyncio.sleep(0)
    return read


async def crumbled(broker, client: BrokerClient, segments: int) -> None:
    """Make a history of batches that were uploaded one by one."""
    for number in range(segments):
        await filled(client, 1, first=number)
        await upload_all(broker)


async def test_readers_pass_over_what_retention_takes_and_over_nothing_else(tmp_path: Path):
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    objects = Slow()
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=AT_ONCE, tail_bytes=1) as client:
        await filled(client, 150)
        await upload_all(client.broker)
        partition = await client.broker._partitions.get(TOPIC, 0)

        async def retain() -> None:
            start = 0
            while start < 14_000:
                start += chance.randrange(1, 600)
                await partition.trim(start)
                await client.broker._tiers.collector.collect_garbage()
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)

        reads = await asyncio.gather(*(read_on(client, chance, 15_000) for _ in range(5)), retain())
        assert all(reads[:5])


async def test_readers_do_not_notice_that_segments_are_merged_and_their_objects_deleted(tmp_path: Path):
    chance = random.Random(5)
    objects = Slow()
    tiny = replace(AT_ONCE, segment_bytes=1 << 20)
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=tiny, tail_bytes=1) as client:
        await crumbled(client.broker, client, 60)
        before = len(await keys(objects))

        async def merge() -> None:
            while await client.broker._tiers.merger.round():
                await client.broker._tiers.collector.collect_garbage()

        *reads, _ = await asyncio.gather(*(read_on(client, chance, 6000) for _ in range(5)), merge())
        assert reads == [60] * 5
        assert len(await keys(objects)) < before
        assert await everything(client) == list(range(6000))


@pytest.mark.parametrize("again", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_uploaded_leaves_nothing(tmp_path: Path, again: bool):
    objects, clock = FaultyObjectStore(), ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as broker:
        client = await created(broker)
        await filled(client, 10)
        objects.fault = "late"
        uploading = asyncio.create_task(broker._tiers.uploader.round(everything=True))
        await objects.waiting.wait()
        objects.fault = "none"
        await broker.topics.delete(ANONYMOUS, TOPIC)
        if again:
            await client.create()
            await filled(client, 3)
        objects.answer.set()
        await uploading
        assert len(await keys(objects)) == 1
        assert await broker._tiers.catalog.topics() == []
        assert broker._tiers.uploader.failure is None
        await upload_all(broker)
        clock.advance(10**9)
        await broker._tiers._collect(orphans=True)
        assert len(await keys(objects)) == again
        if again:
            assert await everything(client) == list(range(300))
        else:
            with pytest.raises(NotFound):
                await everything(client)


async def test_an_object_that_others_wait_for_is_not_collected_before_they_are_in_the_catalog(tmp_path: Path):
    objects, shared = MemoryStore(), replace(AT_ONCE, shared_below_bytes=1 << 20)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=shared, clock=ManualClock()) as broker:
        gone, stays = client_of(broker, "gone"), client_of(broker, "stays")
        for client in (gone, stays):
            await client.create()
            await filled(client, 2)
        _, second = broker._tiers.partitions.values()
        commit = second.commit

        async def delete_the_first_meanwhile(*arguments) -> None:
            await broker.topics.delete(ANONYMOUS, gone.topic)
            assert (await broker._tiers.collector.collect_garbage()).waiting == 1
            await commit(*arguments)

        second.commit = delete_the_first_meanwhile
        await broker._tiers.uploader.round(everything=True)
        for _ in range(2):
            await broker._tiers.collector.collect_garbage()
            assert len(await keys(objects)) == 1
        await broker.topics.delete(ANONYMOUS, stays.topic)
        assert (await broker._tiers.collector.collect_garbage()).deleted == 1
        assert await keys(objects) == []


@pytest.mark.parametrize("merging", [False, True])
async def test_what_retention_passes_on_its_way_into_the_catalog_does_not_stay_there(tmp_path: Path, merging: bool):
    objects, clock = FaultyObjectStore(), ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as broker:
        client = await created(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 10})
        await (crumbled(broker, client, 20) if merging else filled(client, 20))
        objects.fault = "late"
        round_ = broker._tiers.merger.round() if merging else broker._tiers.uploader.round(everything=True)
        on_its_way = asyncio.create_task(round_)
        await objects.waiting.wait()
        objects.fault = "none"
        clock.advance(100)
        await broker._lifetimes.round()
        objects.answer.set()
        assert await on_its_way
        await broker._lifetimes.round()
        assert await broker._tiers.catalog.topics() == []
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert await keys(objects) == []
        await filled(client, 1, first=20)
        await upload_all(broker)
        assert await everything(client) == list(range(2000, 2100))


async def test_a_merge_and_retention_do_not_change_the_catalog_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    objects, clock = FaultyObjectStore(), ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as broker:
        client = await created(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 10})
        await crumbled(broker, client, 20)
        (tier,) = broker._tiers.partitions.values()
        rewrite, remove, replacing = tier.rewrite, broker._tiers.catalog.remove, asyncio.Event()

        async def rewrite_and_tell(*arguments):
            replacing.set()
            return await rewrite(*arguments)

        async def remove_once_it_is_merged(*arguments):
            objects.answer.set()
            await replacing.wait()
            return await remove(*arguments)

        objects.fault = "late"
        merging = asyncio.create_task(broker._tiers.merger.round())
        await objects.waiting.wait()
        objects.fault = "none"
        clock.advance(100)
        with monkeypatch.context() as held:
            held.setattr(tier, "rewrite", rewrite_and_tell)
            held.setattr(broker._tiers.catalog, "remove", remove_once_it_is_merged)
            await broker._lifetimes.round()
        assert await merging
        await broker._lifetimes.round()
        assert await broker._tiers.catalog.topics() == []
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert await keys(objects) == []


async def test_a_clock_that_is_set_back_does_not_keep_messages_from_the_store(tmp_path: Path):
    clock = ManualClock()
    waiting = replace(SMALL, segment_age_s=600)
    async with open_broker(tmp_path, wal=WAL, objects=MemoryStore(), tiering=waiting, clock=clock) as broker:
        client = await created(broker)
        await filled(client, 1)
        assert await broker._tiers.uploader.round() == 0
        clock._now_us -= 30 * 24 * 3600 * 10**6
        clock.advance(601)
        assert await broker._tiers.uploader.round() == 1
        clock._now_us += 365 * 24 * 3600 * 10**6
        await filled(client, 1, first=1)
        assert await broker._tiers.uploader.round() == 0, "a jump ahead makes nothing older"
        clock._now_us -= 300 * 24 * 3600 * 10**6
        clock.advance(601)
        assert await broker._tiers.uploader.round() == 1
        assert await everything(client) == list(range(200))
        times = [one.record for one in await broker._tiers.catalog.after(1, 0, 0, 10)]
        assert times[0].last_time <= times[1].first_time, "times rise with offsets"
