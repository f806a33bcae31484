"""Stores that fail, hang, lose connections, answer late or lie: uploads recover, publishes go on, nothing is lost."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import created, open_broker, open_client, open_topic
from tiering_harness import SMALL, WAL, FaultyObjectStore, client_of, everything, filled, keys, upload_all

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt, Unavailable
from pydanube.runtime.clock import ManualClock

IMPATIENT = replace(SMALL, store_timeout_s=0.1, upload_interval_s=0.01)


async def catalog_covers(broker, end: int) -> None:
    """The segments follow each other without a gap or an overlap."""
    offset = 0
    (tier,) = broker._tiers.partitions.values()
    async for page in broker._tiers.catalog.pages(tier.topic_id, 0):
        for segment in page:
            assert segment.first_offset == offset
            offset = segment.end_offset
    assert offset == end


@pytest.mark.parametrize("fault", ["away", "crashing", "put and failed", "put twice", "hanging"])
async def test_uploads_recover_by_themselves_while_publishes_go_on(tmp_path: Path, fault: str):
    objects = FaultyObjectStore()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=IMPATIENT, tail_bytes=1) as broker:
        client = await created(broker)
        await filled(client, 20)
        objects.fault = fault
        await broker._tiers.uploader.round(everything=True)
        if fault != "put twice":
            assert broker._tiers.uploader.failure is not None
        await filled(client, 25, first=20)  # what is tried again is more than what was tried
        await broker._tiers.uploader.round(everything=True)
        objects.fault = "none"
        await upload_all(broker)
        assert broker._tiers.uploader.failure is None
        await catalog_covers(broker, 4500)
        assert await everything(client) == list(range(4500))


async def test_the_running_broker_uploads_again_once_the_store_is_back(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pydanube.storage.segments.uploader.RETRY_S_MIN", 0.01)
    objects = FaultyObjectStore()
    objects.fault = "hanging"
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=IMPATIENT) as broker:
        running = asyncio.create_task(broker._tiers.run())
        client = await created(broker)
        await filled(client, 20)
        await objects.waiting.wait()
        objects.fault = "none"
        async with asyncio.timeout(200):
            while not await keys(objects):  # noqa: ASYNC110 - a store tells nobody
                await asyncio.sleep(0.01)
        running.cancel()


async def test_what_failed_puts_left_behind_is_collected_after_the_grace(tmp_path: Path):
    objects, clock = FaultyObjectStore(), ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as broker:
        client = await created(broker)
        await filled(client, 10)
        objects.fault = "put and failed"
        for _ in range(3):
            await broker._tiers.uploader.round(everything=True)
        objects.fault = "none"
        await upload_all(broker)
        assert len(await keys(objects)) == 4
        clock.advance(3590)
        await broker._tiers.collector.collect_orphans()
        clock.advance(10**9)
        objects.fault = "stale"
        assert (await broker._tiers.collector.collect_orphans()).deleted == 0
        objects.fault = "none"
        assert (await broker._tiers.collector.collect_orphans()).deleted == 3
        assert await everything(client) == list(range(1000))


async def test_a_broker_closes_while_a_put_hangs(tmp_path: Path):
    objects = FaultyObjectStore()
    async with asyncio.timeout(200), open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as broker:
        client = await created(broker)
        await filled(client, 10)
        objects.fault = "hanging"
        uploading = broker._partitions._tasks.spawn(broker._tiers.uploader.round(everything=True), "upload")
        await objects.waiting.wait()
        await filled(client, 10, first=10)
        assert not uploading.done()
    assert uploading.cancelled()


async def test_a_broker_starts_and_takes_publishes_while_its_store_is_away(tmp_path: Path):
    objects = FaultyObjectStore()
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1}
    async with open_topic(tmp_path, **settings) as client:
        await filled(client, 60)
        await upload_all(client.broker)
        await filled(client, 20, first=60)
    objects.fault = "unreadable"
    async with open_client(tmp_path, **settings) as client:
        await filled(client, 10, first=80)
        with pytest.raises(Unavailable, match="no route"):
            await everything(client)
        objects.fault = "none"
        assert await everything(client) == list(range(9000))


async def test_a_read_that_hangs_ends_and_works_once_the_store_is_back(tmp_path: Path):
    objects = FaultyObjectStore()
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=IMPATIENT, tail_bytes=1) as client:
        await filled(client, 30)
        await upload_all(client.broker)
        objects.fault = "reads hang"
        with pytest.raises(Unavailable, match="no answer"):
            await everything(client)
        objects.fault = "none"
        assert await everything(client) == list(range(3000))


async def test_a_late_answer_counts_once(tmp_path: Path):
    objects = FaultyObjectStore()
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as client:
        await filled(client, 20)
        objects.fault = "late"
        uploading = asyncio.create_task(client.broker._tiers.uploader.round(everything=True))
        await objects.waiting.wait()
        await filled(client, 20, first=20)
        objects.fault = "none"
        objects.answer.set()
        assert await uploading == 1
        await upload_all(client.broker)
        await catalog_covers(client.broker, 4000)


async def test_a_partition_whose_log_is_damaged_keeps_no_other_from_uploading(tmp_path: Path, monkeypatch):
    objects = FaultyObjectStore()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as broker:
        damaged, fine, quiet = client_of(broker, "damaged"), client_of(broker, "fine"), client_of(broker, "quiet")
        for client, batches in ((damaged, 5), (fine, 5), (quiet, 1)):
            await client.create()
            await filled(client, batches, size=0 if client is quiet else 100)
        (first, *_) = broker._tiers.partitions.values()

        async def read(*_):
            raise Corrupt("ledger 1 is damaged")

        monkeypatch.setattr(first, "read", read)
        await upload_all(broker)
        waiting = [tier.waiting() for tier in broker._tiers.partitions.values()]
        assert [one is None for one in waiting] == [False, True, True]
        assert "damaged" in broker._tiers.uploader.unreadable[first.topic_id, 0][0].message


async def test_a_full_log_empties_although_its_warm_cache_would_be_larger(tmp_path: Path):
    objects = FaultyObjectStore()
    tiering = replace(SMALL, log_bytes_max=1 << 20, log_keep_bytes=1 << 30, segment_bytes=1 << 30, segment_age_s=10**6)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering) as broker:
        running = asyncio.create_task(broker._tiers.run())
        client = await created(broker)
        stored = 0
        async with asyncio.timeout(200):
            while stored < 200:
                try:
                    await filled(client, 1, first=stored)
                    stored += 1
                except Unavailable:  # it is full, and will be emptied
                    await asyncio.sleep(0.05)
        assert await everything(client) == list(range(20_000))
        assert broker.describe(ANONYMOUS).state == "ok"
        running.cancel()
