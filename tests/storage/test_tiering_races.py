"""Things that happen at once: reading and retention, uploading and deleting, merging and collecting; jumping clocks."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, Door, open_broker
from tiering_harness import PER_BATCH, SMALL, WAL, Moody, everything, filled, keys, upload_all

from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import NotFound
from pydanube.model.positions import Position
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore

AT_ONCE = replace(SMALL, grace_s=0)


class Slow(MemoryStore):
    """Others get their turn in the middle of every call."""

    async def get(self, key, start=0, end=None):
        await asyncio.sleep(0)
        data = await super().get(key, start, end)
        await asyncio.sleep(0)
        return data


async def read_on(door: Door, chance: random.Random, until_offset: int) -> int:
    """Read to the end with fetches of any size: offsets follow each other, but for what retention took."""
    offset, read = 0, 0
    while offset < until_offset:
        fetched = await door.fetch(Position("offset", offset), bytes_max=chance.randrange(1, 100_000))
        for view in fetched.batches:
            batch = Batch.open(view)
            base = batch.header.base_offset
            assert base <= offset or offset < fetched.start_offset, f"a hole at {offset}, then {base}"
            assert int(bytes(batch.payloads[0])[:8]) == base
            offset = base + PER_BATCH
            read += 1
        await asyncio.sleep(0)
    return read


async def test_readers_pass_over_what_retention_takes_and_over_nothing_else(tmp_path: Path):
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    objects = Slow()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=AT_ONCE, tail_bytes=1) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 150)
        await upload_all(broker)
        partition = await broker._partitions.get(TOPIC, 0)

        async def retain() -> None:
            start = 0
            while start < 14_000:
                start += chance.randrange(1, 600)
                await partition.trim(start)
                await broker.tiers.collector.collect_garbage()
                for _ in range(chance.randrange(30)):
                    await asyncio.sleep(0)

        reads = await asyncio.gather(*(read_on(door, chance, 15_000) for _ in range(5)), retain())
        assert all(reads[:5])


async def test_readers_do_not_notice_that_segments_are_merged_and_their_objects_deleted(tmp_path: Path):
    chance = random.Random(5)
    objects = Slow()
    tiny = replace(AT_ONCE, segment_bytes=1 << 20)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiny, tail_bytes=1) as broker:
        door = Door(broker)
        await door.create()
        for number in range(60):
            await filled(door, 1, first=number)
            await upload_all(broker)
        before = len(await keys(objects))

        async def merge() -> None:
            while await broker.tiers.merger.round():
                await broker.tiers.collector.collect_garbage()

        *reads, _ = await asyncio.gather(*(read_on(door, chance, 6000) for _ in range(5)), merge())
        assert reads == [60] * 5
        assert len(await keys(objects)) < before
        assert await everything(door) == list(range(6000))


@pytest.mark.parametrize("again", [False, True])
async def test_a_topic_that_is_deleted_while_it_is_uploaded_leaves_nothing(tmp_path: Path, again: bool):
    objects, clock = Moody(), ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 10)
        objects.mood = "late"
        uploading = asyncio.create_task(broker.tiers.uploader.round(everything=True))
        await objects.waiting.wait()
        objects.mood = "fine"
        await broker.delete_topic(ANONYMOUS, TOPIC)
        if again:
            await door.create()
            await filled(door, 3)
        objects.answer.set()
        await uploading
        assert len(await keys(objects)) == 1
        assert await broker.tiers.catalog.topics() == []
        assert broker.tiers.uploader.failure is None
        await upload_all(broker)
        clock.advance(10**9)
        await broker.tiers._collect(orphans=True)
        assert len(await keys(objects)) == again
        if again:
            assert await everything(door) == list(range(300))
        else:
            with pytest.raises(NotFound):
                await everything(door)


async def test_a_clock_that_is_set_back_does_not_keep_messages_from_the_store(tmp_path: Path):
    clock = ManualClock()
    waiting = replace(SMALL, segment_age_s=600)
    async with open_broker(tmp_path, wal=WAL, objects=MemoryStore(), tiering=waiting, clock=clock) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 1)
        assert await broker.tiers.uploader.round() == 0
        clock._now_us -= 30 * 24 * 3600 * 10**6
        clock.advance(601)
        assert await broker.tiers.uploader.round() == 1
        clock._now_us += 365 * 24 * 3600 * 10**6
        await filled(door, 1, first=1)
        assert await broker.tiers.uploader.round() == 0, "a jump ahead makes nothing older"
        clock._now_us -= 300 * 24 * 3600 * 10**6
        clock.advance(601)
        assert await broker.tiers.uploader.round() == 1
        assert await everything(door) == list(range(200))
        times = [one.record for one in await broker.tiers.catalog.after(1, 0, 0, 10)]
        assert times[0].last_time <= times[1].first_time, "times rise with offsets"
