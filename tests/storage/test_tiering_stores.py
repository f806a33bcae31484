"""Stores that fail, hang, lose connections, answer late or lie: uploads recover, publishes go on, nothing is lost.
Damaged objects: the error names the object, other readers are unaffected, and a copy that is put back is read.
Reading over objects, log and cache: whatever lies where, every message comes once and in order. Offsets that the
catalog does not list: an error where something was there, a gap to pass over where nothing was."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import SETTINGS, BrokerClient, created, open_broker, open_client, open_topic
from tiering_harness import SMALL, WAL, FaultyObjectStore, client_of, everything, filled, keys, numbers_of, upload_all

from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.codec.batch import Batch
from pydanube.codec.segment import TRAILER_BYTES, read_trailer
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Delete
from pydanube.model.errors import Corrupt, Unavailable
from pydanube.model.positions import Position
from pydanube.model.storage import StoragePlace
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.catalog import Catalog, CatalogSegment, segment_key
from pydanube.storage.segments.store_ownership import StoreOwner

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


PLACES = ["batch header", "batch body", "footer", "trailer", "cut short", "gone", "another's"]


async def damage(objects: MemoryStore, key: str, place: str) -> bytes:
    """Returns the object as it was."""
    whole = bytes(await objects.get(key))
    trailer = read_trailer(whole[-TRAILER_BYTES:], len(whole))
    flip = {
        "batch header": 64 + 30,
        "batch body": trailer.footer_start - 200,
        "footer": trailer.footer_start + trailer.footer_length // 2,
        "trailer": len(whole) - 20,
    }
    if place in flip:
        changed = bytearray(whole)
        changed[flip[place]] ^= 0x10
        await objects.put(key, changed)
    elif place == "cut short":
        await objects.put(key, whole[: len(whole) // 2])
    elif place == "gone":
        await objects.delete([key])
    else:
        (*_, last) = await keys(objects)
        await objects.put(key, bytes(await objects.get(last)).ljust(len(whole), b"\0")[: len(whole)])
    return whole


@pytest.mark.parametrize("place", PLACES)
async def test_damage_names_the_object_and_ends_when_a_copy_is_put_back(tmp_path: Path, place: str):
    objects = MemoryStore()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as broker:
        damaged, fine = client_of(broker, "damaged"), client_of(broker, "fine")
        for client in (damaged, fine):
            await client.create()
            await filled(client, 60)
        await upload_all(broker)
        first_topic = min(key.split("/")[1] for key in await keys(objects))
        mine = await keys(objects, f"segments/{first_topic}/")
        whole = await damage(objects, mine[1], place)
        with pytest.raises(Corrupt, match=mine[1]):
            await everything(damaged)
        assert await everything(fine) == list(range(6000))
        consumer = await damaged.subscribe("slow")
        async with asyncio.timeout(60):
            while consumer.error is None:
                consumer._arrived.clear()
                await consumer._arrived.wait()
        assert mine[1] in consumer.error.message
        seen = numbers_of(consumer.received)
        assert seen == list(range(len(seen)))
        await consumer.ack((0, len(seen)))
        await objects.put(mine[1], whole)
        assert await everything(damaged) == list(range(6000))
        again = await damaged.subscribe("slow", consumer="b")
        assert numbers_of(await again.wait_for(6000 - len(seen))) == list(range(len(seen), 6000))


async def test_no_flipped_bit_of_an_object_is_ever_served(tmp_path: Path):
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    objects = MemoryStore()
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as client:
        await filled(client, 20)
        await upload_all(client.broker)
        (key, *_) = await keys(objects)
        whole = bytes(await objects.get(key))
    for _ in range(40):
        changed = bytearray(whole)
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        await objects.put(key, changed)
        async with open_broker(tmp_path, crash=True, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as broker:
            try:
                found = await everything(BrokerClient(broker))
            except Corrupt as error:
                assert key in error.message  # noqa: PT017 - either is right
            else:
                assert found == list(range(2000)), f"seed={seed}"


async def test_a_damaged_log_harms_nobody_where_objects_have_the_same(tmp_path: Path):
    objects = MemoryStore()
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1}
    async with open_topic(tmp_path, **settings) as client:
        await filled(client, 30)
        await upload_all(client.broker, trim=False)
    files = sorted((tmp_path / "wal").glob("*.wal")) or sorted((tmp_path / "wal").glob("*.log"))
    assert files, list((tmp_path / "wal").iterdir())
    content = bytearray(files[0].read_bytes())
    content[100_000] ^= 1
    files[0].write_bytes(content)
    async with open_broker(tmp_path, **settings) as broker:
        assert await everything(BrokerClient(broker)) == list(range(3000))
        await filled(BrokerClient(broker), 5, first=30)
        assert await everything(BrokerClient(broker)) == list(range(3500))
        assert (await BrokerClient(broker).fetch(Position("offset", 150))).batches


async def test_a_partition_of_which_the_log_has_nothing_any_more_is_read_whole(tmp_path: Path):
    async with open_broker(tmp_path, wal=WAL, objects=MemoryStore(), tiering=SMALL, tail_bytes=1) as broker:
        quiet, busy = BrokerClient(broker), client_of(broker, "busy")
        await quiet.create()
        await busy.create()
        await filled(quiet, 5)
        await upload_all(broker)
        await filled(busy, 60)
        await upload_all(broker)
        assert await everything(quiet) == list(range(500))
        await filled(quiet, 5, first=5)
        assert await everything(quiet) == list(range(1000))


class CountingStore(MemoryStore):
    """Counts the bytes that are being read at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.reading_bytes = self.most_bytes = 0

    async def get(self, key: str, start: int = 0, end: int | None = None) -> memoryview:
        data = await super().get(key, start, end)
        self.reading_bytes += len(data)
        self.most_bytes = max(self.most_bytes, self.reading_bytes)
        await asyncio.sleep(0.001)
        self.reading_bytes -= len(data)
        return data


async def test_many_that_read_at_different_places_load_no_more_than_the_cache_may_have(tmp_path: Path):
    objects, tiering = CountingStore(), replace(SMALL, cache_bytes=1 << 19)
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=tiering, tail_bytes=1) as client:
        await filled(client, 400)
        await upload_all(client.broker)
        places = range(0, 40_000, 2_000)
        await asyncio.gather(*(client.fetch(Position("offset", place), bytes_max=1) for place in places))  # footers
        objects.most_bytes = 0
        found = await asyncio.gather(*(client.fetch(Position("offset", place), bytes_max=1) for place in places))
        assert objects.most_bytes <= 1 << 19
        assert [Batch.trust(one.batches[0]).base_offset for one in found] == list(places)
        assert all(len(one.batches[0].obj) == len(one.batches[0]) for one in found), "no view keeps a whole range"


async def segments_of(catalog: Catalog) -> list[CatalogSegment]:
    (topic_id,) = await catalog.topics()
    return [one async for page in catalog.pages(topic_id, 0) for one in page]


async def lose(directory: Path, number: int) -> CatalogSegment:
    """Remove an entry from the catalog, as damage would."""
    async with await EmbeddedStore.open(directory / "metadata.db", SystemClock()) as store:
        lost = (await segments_of(Catalog(store)))[number]
        await store.transact([], [Delete(segment_key(lost.topic_id, lost.index, lost.end_offset))])
        return lost


def opened(path: Path, objects, **changes):
    path.mkdir(exist_ok=True)
    return open_broker(path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1, **changes)


async def uploaded(directory: Path, objects: MemoryStore, ack_level: AckLevel = AckLevel.DURABLE) -> None:
    async with opened(directory, objects) as broker:
        client = await created(broker, ack_level=ack_level)
        await filled(client, 100)
        await upload_all(broker)
        await broker._tiers.manifests.write()


@pytest.mark.parametrize("ack_level", [AckLevel.DURABLE, AckLevel.WRITTEN])
@pytest.mark.parametrize("number", [1, 2])
async def test_what_the_catalog_has_lost_is_an_error_that_names_it(tmp_path: Path, ack_level: AckLevel, number: int):
    objects = MemoryStore()
    await uploaded(tmp_path, objects, ack_level)
    lost = await lose(tmp_path, number)
    async with opened(tmp_path, objects) as broker:
        client = BrokerClient(broker)
        named = f"offsets {lost.first_offset}..{lost.end_offset - 1} of partition 0"
        with pytest.raises(Corrupt, match=named):
            await everything(client)
        with pytest.raises(Corrupt, match=f"offsets {lost.end_offset - 10}..{lost.end_offset - 1} "):
            await client.fetch(Position("offset", lost.end_offset - 10))
        assert (await client.fetch(Position("offset", lost.end_offset))).batches, "what is behind it can be read"
        verified = (await broker.storage.verify(ANONYMOUS, None, StoragePlace(), 1 << 30)).verified
        assert [(one.kind, one.first_offset) for one in verified.damages] == [("missing", lost.first_offset)]


async def test_the_beginning_of_a_durable_topic_cannot_be_missing_either(tmp_path: Path):
    objects = MemoryStore()
    await uploaded(tmp_path, objects)
    lost = await lose(tmp_path, 0)
    async with opened(tmp_path, objects) as broker:
        with pytest.raises(Corrupt, match=f"offsets 0..{lost.end_offset - 1} of partition 0"):
            await BrokerClient(broker).fetch(Position("offset", 0))


async def test_what_retention_took_is_not_missed(tmp_path: Path):
    objects = MemoryStore()
    await uploaded(tmp_path, objects)
    async with opened(tmp_path, objects) as broker:
        partition = await broker._partitions.get(BrokerClient(broker).topic, 0)
        await partition.trim(5050)
        assert await everything(BrokerClient(broker)) == list(range(5000, 10_000)), "whole batches"
        assert (await BrokerClient(broker).fetch(Position("offset", 10))).start_offset == 5050


async def restored(path: Path, objects: MemoryStore) -> None:
    await asyncio.to_thread(path.mkdir)
    async with await EmbeddedStore.open(path / "metadata.db", SystemClock()) as store:
        await rebuild(objects, store, SystemClock(), StoreOwner("cluster"))


async def test_the_gap_that_a_restore_leaves_is_passed_over(tmp_path: Path):
    objects = MemoryStore()
    await uploaded(tmp_path, objects)
    for number in range(2):
        place = tmp_path / f"restored-{number}"
        await restored(place, objects)
        async with opened(place, objects) as broker:
            await filled(BrokerClient(broker), 5, first=100 + 5 * number)
            await upload_all(broker)
            await broker._tiers.manifests.write()
            assert await everything(BrokerClient(broker)) == list(range(10_000 + 500 * (number + 1)))


async def test_a_restore_does_not_hide_what_the_catalog_had_lost_before(tmp_path: Path):
    objects = MemoryStore()
    await uploaded(tmp_path, objects)
    lost = await lose(tmp_path, 1)
    async with opened(tmp_path, objects) as broker:
        await broker._tiers.manifests.write()
    await restored(tmp_path / "restored", objects)
    async with opened(tmp_path / "restored", objects) as broker:
        with pytest.raises(Corrupt, match=f"offsets {lost.first_offset}..{lost.end_offset - 1} of partition 0"):
            await everything(BrokerClient(broker))


async def test_a_gap_that_a_crash_left_in_a_written_topic_is_passed_over(tmp_path: Path):
    objects = MemoryStore()
    async with opened(tmp_path, objects, crash=True) as broker:
        await BrokerClient(broker).create(ack_level=AckLevel.WRITTEN)
        await filled(BrokerClient(broker), 25)
        await upload_all(broker)
    async with opened(tmp_path, objects) as broker:
        await filled(BrokerClient(broker), 25, first=25)
        await upload_all(broker)
        stored = await BrokerClient(broker).read_all()
        assert stored[2500][0] == 3 * SETTINGS.topics.offset_block
        assert await everything(BrokerClient(broker)) == list(range(5000))
