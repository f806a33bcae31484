"""Two owners of one partition, one metadata store and one object store: the one that was replaced changes nothing."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from broker_harness import SETTINGS, TOPIC, BrokerClient
from tiering_harness import SMALL, WAL, FaultyObjectStore, everything, filled, upload_all

from pydanube.broker import Broker, BrokerParts
from pydanube.broker.registry.registry import Registry
from pydanube.core.access import AllowAll
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import MetadataStore
from pydanube.model.addresses import BrokerAddresses
from pydanube.model.errors import NotOwner
from pydanube.runtime.clock import Clock, SystemClock
from pydanube.runtime.disk import OsDisk
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.wal import LogWriter, NodeIdentity


@asynccontextmanager
async def broker_over(store: MetadataStore, objects: ObjectStore, directory: Path, clock: Clock):
    """Open a broker on this metadata and object store, which others may share, with its own log."""
    async with AsyncExitStack() as parts:
        registry = Registry(store, clock)
        await registry.load()
        writer = await LogWriter.open(OsDisk(), directory, NodeIdentity("cluster", directory.name, "one"), WAL, clock)
        parts.push_async_callback(writer.close)
        tasks = Tasks()
        parts.push_async_callback(tasks.close)
        address = BrokerAddresses("127.0.0.1:1")
        made_of = BrokerParts(store, registry, writer, AllowAll(), clock, tasks, lambda: address, objects)
        yield Broker(made_of, replace(SETTINGS, storage=SMALL))


async def segments_of(broker: Broker) -> list[tuple[int, int, int]]:
    tier = next(iter(broker._tiers.partitions.values()))
    return [
        (one.first_offset, one.end_offset, one.record.epoch)
        async for page in broker._tiers.catalog.pages(tier.topic_id, 0)
        for one in page
    ]


async def test_what_a_replaced_owner_uploads_late_is_seen_by_nobody(tmp_path: Path):
    clock, objects = SystemClock(), FaultyObjectStore()
    store = await EmbeddedStore.open(tmp_path / "metadata.db", clock)
    async with (
        broker_over(store, objects, tmp_path / "a", clock) as first,
        AsyncExitStack() as later,
    ):
        await BrokerClient(first).create()
        await filled(BrokerClient(first), 10)
        await upload_all(first)
        await filled(BrokerClient(first), 5, first=10)
        objects.fault = "late"
        late = asyncio.create_task(first._tiers.uploader.round(everything=True))
        await objects.waiting.wait()
        objects.fault = "none"
        second = await later.enter_async_context(broker_over(store, objects, tmp_path / "b", clock))
        assert await everything(BrokerClient(second)) == list(range(1000)), "what is in objects belongs to everybody"
        await filled(BrokerClient(second), 5, first=10)
        await upload_all(second)
        before = await segments_of(second)
        objects.answer.set()
        await late
        assert await segments_of(second) == before
        assert [(start, end) for start, end, _ in before] == [(0, 1000), (1000, 1500)]
        assert [epoch for _, _, epoch in before] == [1, 2]
        assert await everything(BrokerClient(second)) == list(range(1500))
    await store.close()


async def test_both_upload_at_once_and_only_the_owner_is_listed(tmp_path: Path):
    clock, objects = SystemClock(), FaultyObjectStore()
    store = await EmbeddedStore.open(tmp_path / "metadata.db", clock)
    async with broker_over(store, objects, tmp_path / "a", clock) as first:
        await BrokerClient(first).create()
        await filled(BrokerClient(first), 10)
        async with broker_over(store, objects, tmp_path / "b", clock) as second:
            await upload_all(first, trim=False)
            await BrokerClient(second).fetch()  # it takes the partition
            await filled(BrokerClient(second), 10, first=10)
            partition = await first._partitions.get(TOPIC, 0)
            try:
                await filled(BrokerClient(first), 10, first=20)
                await asyncio.gather(*(one._tiers.uploader.round(everything=True) for one in (first, second)))
                await partition.trim(500)
            except NotOwner:
                pass  # as it should be, wherever it is noticed
            assert {epoch for _, _, epoch in await segments_of(second)} == {1, 2}
            assert await everything(BrokerClient(second)) == list(range(2000))
            partition = await second._partitions.get(TOPIC, 0)
            assert partition.stream.start_offset == 0
    await store.close()
