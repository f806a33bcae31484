"""Offsets that the catalog does not list: an error where something was there, a gap to pass over where nothing was."""

import asyncio
from pathlib import Path

import pytest
from broker_harness import SETTINGS, BrokerClient, created, open_broker
from tiering_harness import SMALL, WAL, everything, filled, upload_all

from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import Delete
from pydanube.model.errors import Corrupt
from pydanube.model.positions import Position
from pydanube.model.storage import StoragePlace
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.catalog import Catalog, CatalogSegment, segment_key
from pydanube.storage.segments.store_ownership import StoreOwner


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
