"""Whose store it is: other clusters keep out, and a broker that was given up for lost lets the restored one work."""

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker
from tiering_harness import SMALL, WAL, FaultyObjectStore, everything, filled, keys, upload_all

from pydanube.broker.tiering.disaster_recovery import rebuild
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import Corrupt, Denied, Refused
from pydanube.runtime.clock import ManualClock, SystemClock
from pydanube.runtime.objects import Capabilities
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.segments.manifest import candidates
from pydanube.storage.segments.store_ownership import (
    CHECK_S,
    DELETE_CHECK_S,
    OWNER_KEY,
    StoreOwner,
    StoreOwnership,
    read_owner,
)


@asynccontextmanager
async def ownership_of(path: Path, objects, cluster: str = "cluster", clock=None):
    await asyncio.to_thread(path.mkdir, exist_ok=True)
    async with await EmbeddedStore.open(path / "metadata.db", SystemClock()) as store:
        yield StoreOwnership(objects, store, cluster, clock or SystemClock())


async def restored(path: Path, objects, clock=None) -> None:
    await asyncio.to_thread(path.mkdir, exist_ok=True)
    clock = clock or SystemClock()
    async with await EmbeddedStore.open(path / "metadata.db", clock) as store:
        await rebuild(objects, store, clock, await read_owner(objects))


def opened(path: Path, objects, **changes):
    path.mkdir(exist_ok=True)
    return open_broker(path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1, **changes)


async def test_the_first_broker_writes_its_name_and_others_are_refused(tmp_path: Path):
    objects = MemoryStore()
    async with ownership_of(tmp_path / "a", objects) as mine, ownership_of(tmp_path / "b", objects, "other") as others:
        await mine.check()
        assert bytes(await objects.get(OWNER_KEY)) == b"cluster", "as it was before restores were counted"
        with pytest.raises(Refused, match="cluster cluster, and this is other"):
            await others.check()
        assert mine.is_held and not others.is_held


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"cluster\nmany tokens here\n", b"cluster\nx y"])
async def test_an_owner_that_cannot_be_read_is_damage(tmp_path: Path, data: bytes):
    objects = MemoryStore()
    await objects.put(OWNER_KEY, data)
    async with ownership_of(tmp_path / "a", objects) as ownership:
        with pytest.raises(Corrupt, match=OWNER_KEY):
            await ownership.check()


def test_an_owner_reads_back_as_it_was_written():
    for owner in (StoreOwner("danube-1"), StoreOwner("danube-1", 3, "0f0f")):
        assert StoreOwner.decode(owner.encode(), "memory://") == owner


async def test_of_many_brokers_that_come_at_once_one_cluster_gets_the_store(tmp_path: Path):
    objects = MemoryStore()

    async def come(number: int) -> bool:
        async with ownership_of(tmp_path / str(number), objects, f"cluster-{number}") as ownership:
            try:
                await ownership.check()
            except Refused:
                return False
            return True

    assert sum(await asyncio.gather(*(come(number) for number in range(10)))) == 1


async def test_a_broker_that_was_restored_elsewhere_stops_writing_to_the_store(tmp_path: Path):
    objects = MemoryStore()
    async with opened(tmp_path / "lost", objects) as lost:
        client = await created(lost)
        await filled(client, 20)
        assert await lost._tiers._round()
        await lost._tiers.manifests.write()
        await restored(tmp_path / "new", objects)
        await filled(client, 10, first=20)
        assert await lost._tiers.upload(lost._tiers.partitions.keys()), "nobody has taken it over yet"
        async with opened(tmp_path / "new", objects) as new:
            await new._tiers._round()
            await filled(BrokerClient(new), 10, first=30)
            await upload_all(new)
            before = await keys(objects, "")
            await filled(client, 10, first=40)
            lost._tiers.ownership._checked_at -= DELETE_CHECK_S
            with pytest.raises(Refused, match="taken over"):
                await lost._tiers.objects.delete(before)
            lost._tiers.ownership._checked_at -= CHECK_S
            assert await lost._tiers._round() == 0
            assert "was taken over by a broker that was restored" in lost.describe(ANONYMOUS).state
            for orphans in (False, True):
                await lost._tiers._collect(orphans=orphans)
            with pytest.raises(Refused, match="taken over"):
                await lost.storage.collect(ANONYMOUS, False, False, "")
            await lost._tiers.close()
            assert await keys(objects, "") == before
            assert (await client.publish(await client.producer(), [b"00000000"])).base_offset > 0, "it serves on"
            assert await everything(BrokerClient(new)) == [*range(2000), *range(3000, 4000)]
            assert new.describe(ANONYMOUS).state == "ok"


async def test_what_is_garbage_to_the_lost_broker_stays_if_the_restored_one_needs_it(tmp_path: Path):
    objects, clock = MemoryStore(), ManualClock()
    async with opened(tmp_path / "lost", objects, clock=clock) as lost:
        client = await created(lost)
        await filled(client, 20)
        await lost._tiers._round()
        await lost._tiers.manifests.write()
        await lost.topics.delete(ANONYMOUS, TOPIC)
        clock.advance(3000)
        await restored(tmp_path / "new", objects, clock)
        async with opened(tmp_path / "new", objects, clock=clock) as new:
            await new._tiers._round()
            clock.advance(1000)
            await lost._tiers._collect(orphans=True)
            assert await everything(BrokerClient(new)) == list(range(2000))


async def test_of_two_restores_the_one_that_starts_first_gets_the_store(tmp_path: Path):
    objects = MemoryStore()
    async with opened(tmp_path / "lost", objects) as lost:
        await BrokerClient(lost).create()
        await lost._tiers._round()
    for name in ("one", "two"):
        await restored(tmp_path / name, objects)
    async with ownership_of(tmp_path / "two", objects) as second, ownership_of(tmp_path / "one", objects) as first:
        await second.check()
        with pytest.raises(Refused, match="taken over"):
            await first.check()
        await second.check(within_s=0)
    await restored(tmp_path / "three", objects)
    async with ownership_of(tmp_path / "three", objects) as third, ownership_of(tmp_path / "two", objects) as second:
        await third.check()
        assert (await read_owner(objects)).restore == 2
        with pytest.raises(Refused, match="restore 2, this one is of 1"):
            await second.check()


async def test_manifests_of_a_restored_broker_are_newer_than_any_of_the_lost_one(tmp_path: Path):
    objects = MemoryStore()
    async with opened(tmp_path / "lost", objects) as lost:
        await BrokerClient(lost).create()
        await lost._tiers._round()
        await restored(tmp_path / "new", objects)
        async with opened(tmp_path / "new", objects) as new:
            newest = await new._tiers.manifests.write()
        for number in range(20):
            await lost.namespaces.create(ANONYMOUS, f"n-{number}")
        await lost._tiers.manifests.write()
        assert (await candidates(objects))[0].key == newest


async def test_ownership_is_checked_again_only_after_a_while_or_before_a_deletion(tmp_path: Path):
    class Counting(MemoryStore):
        looks = 0

        async def head(self, key):
            self.looks += 1
            return await super().head(key)

    objects, clock = Counting(), ManualClock()
    async with ownership_of(tmp_path / "a", objects, clock=clock) as ownership:
        for _ in range(100):
            await ownership.check()
            clock.advance(1)
        assert objects.looks <= 5
        await ownership.check(within_s=0)
        assert objects.looks <= 6


async def test_a_store_without_conditional_puts_is_taken_over_too(tmp_path: Path):
    class Simple(MemoryStore):
        @property
        def capabilities(self):
            return Capabilities(if_match=False)

        async def put(self, key, data, *, create=False, if_match=None):
            assert if_match is None
            return await super().put(key, data, create=create)

    objects = Simple()
    async with opened(tmp_path / "lost", objects) as lost:
        await BrokerClient(lost).create()
        await lost._tiers._round()
    await restored(tmp_path / "new", objects)
    async with ownership_of(tmp_path / "new", objects) as ownership, ownership_of(tmp_path / "lost", objects) as former:
        await ownership.check()
        with pytest.raises(Refused, match="taken over"):
            await former.check()


async def test_a_store_that_does_not_allow_the_take_over_says_so(tmp_path: Path):
    objects = FaultyObjectStore()
    async with opened(tmp_path / "lost", objects) as lost:
        await BrokerClient(lost).create()
        await lost._tiers._round()
    await restored(tmp_path / "new", objects)
    objects.fault = Denied("read only")
    async with ownership_of(tmp_path / "new", objects) as ownership:
        with pytest.raises(Denied):
            await ownership.check()


async def test_an_old_copy_of_a_data_directory_leaves_alone_what_was_uploaded_since(tmp_path: Path):
    objects, clock = MemoryStore(), ManualClock()
    async with opened(tmp_path / "data", objects, clock=clock) as broker:
        await BrokerClient(broker).create()
        await filled(BrokerClient(broker), 10)
        await broker._tiers._round()
        await broker._tiers.manifests.write()
    await asyncio.to_thread(shutil.copytree, tmp_path / "data", tmp_path / "copy")
    async with opened(tmp_path / "data", objects, clock=clock) as broker:
        await filled(BrokerClient(broker), 10, first=10)
        await broker._tiers._round()
        await broker._tiers.manifests.write()
    stored = await keys(objects, "")  # with the manifest of its end, if it wrote one
    clock.advance(10**9)
    async with opened(tmp_path / "copy", objects, clock=clock) as copy:
        await BrokerClient(copy).fetch()
        assert await copy._tiers._round() == 0
        await copy._tiers._collect(orphans=True)
        assert "older copy" in copy.describe(ANONYMOUS).state
    assert await keys(objects, "") == stored
    async with opened(tmp_path / "data", objects, clock=clock) as broker:
        await broker._tiers._round()
        assert broker.describe(ANONYMOUS).state == "ok"
        assert await everything(BrokerClient(broker)) == list(range(2000))
