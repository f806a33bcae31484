"""The upload task of the broker: failures are reported, the log is trimmed, and a clean stop uploads the rest."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic
from metadata_harness import FaultyStore, deletes
from tiering_harness import SMALL, WAL, FaultyObjectStore, client_of, everything, filled, keys, upload_all

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Unavailable
from pydanube.model.storage import StoragePlace
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from waiting import until

LIMITED = replace(SMALL, log_bytes_max=4 * WAL.file_bytes, upload_interval_s=0.01)


def state_of(broker) -> str:
    return broker.describe(ANONYMOUS).state


async def test_a_full_log_takes_publishes_again_although_nothing_is_left_to_upload(tmp_path: Path):
    objects = FaultyObjectStore()
    objects.fault = "away"
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=LIMITED) as client:
        with pytest.raises(Unavailable, match="log_bytes_max"):
            await filled(client, 1000)
        assert state_of(client.broker).startswith("publishes are refused: ")
        objects.fault = "none"
        await upload_all(client.broker, trim=False)  # and the broker dies before it trims
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=LIMITED) as broker:
        assert broker._tiers.refusal() is not None
        client = BrokerClient(broker)
        await client.fetch()
        running = asyncio.create_task(broker._tiers.run())
        await until(lambda: broker._tiers.refusal() is None)
        await client.publish(await client.producer(), [b"x"])
        running.cancel()


async def test_what_is_uploaded_leaves_the_log_soon_although_no_more_comes(tmp_path: Path):
    soon = replace(SMALL, upload_interval_s=0.01)
    async with open_broker(tmp_path, wal=WAL, objects=MemoryStore(), tiering=soon) as broker:
        running = asyncio.create_task(broker._tiers.run())
        client = await created(broker)
        await filled(client, 100)
        await until(lambda: broker._writer.stored_bytes <= WAL.file_bytes)
        running.cancel()


class Broken:
    """A partition that raises an unexpected exception when the uploader asks what is waiting."""

    topic_id, index, segment_bytes = 99, 0, 0

    def waiting(self):
        raise ZeroDivisionError("a mistake")


async def test_a_bug_in_an_upload_is_reported_and_uploads_continue(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("pydanube.storage.segments.uploader.RETRY_S_MIN", 0.01)
    soon = replace(SMALL, upload_interval_s=0.01)
    objects = MemoryStore()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=soon) as broker:
        broker._tiers.partitions[99, 0] = Broken()
        running = asyncio.create_task(broker._tiers.run())
        await until(lambda: "ZeroDivisionError: a mistake" in state_of(broker))
        del broker._tiers.partitions[99, 0]
        client = await created(broker)
        await filled(client, 5)
        await until(lambda: state_of(broker) == "ok" and broker._tiers.uploader.objects_made)
        running.cancel()


async def test_a_failure_is_over_when_what_failed_was_deleted(tmp_path: Path):
    objects = FaultyObjectStore()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as broker:
        client = await created(broker)
        await filled(client, 5)
        objects.fault = "away"
        await broker._tiers._round()
        assert state_of(broker).startswith("uploads fail: ")
        objects.fault = "none"
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await broker._tiers._round()
        assert state_of(broker) == "ok"


async def test_a_partition_whose_log_is_damaged_is_named_until_it_can_be_uploaded(tmp_path: Path):
    settings = {"wal": WAL, "objects": MemoryStore(), "tiering": SMALL, "tail_bytes": 1, "clock": ManualClock()}
    async with open_broker(tmp_path, **settings) as broker:
        damaged, fine = client_of(broker, "damaged"), client_of(broker, "fine")
        for client in (damaged, fine):
            await client.create()
            await filled(client, 5)
        (first, *_) = sorted((tmp_path / "wal").glob("*.log"))
        whole = first.read_bytes()
        where = whole.index(b"00000120x")
        first.write_bytes(whole[:where] + b"?" + whole[where + 1 :])
        await upload_all(broker)
        assert state_of(broker).startswith("a partition cannot be uploaded: ")
        usage = await broker.storage.usage(ANONYMOUS, None, StoragePlace())
        status, partitions = usage.status, usage.partitions
        assert status.uploads == "damaged" and status.failure
        assert [(one.topic, one.health == "ok") for one in partitions] == [
            ("/default/damaged", False),
            ("/default/fine", True),
        ]
        first.write_bytes(whole)
        settings["clock"].advance(61)
        await upload_all(broker)
        assert state_of(broker) == "ok"
        usage = await broker.storage.usage(ANONYMOUS, None, StoragePlace())
        status, partitions = usage.status, usage.partitions
        assert status.uploads == "ok" and {one.health for one in partitions} == {"ok"}


async def test_a_clean_stop_uploads_what_is_waiting(tmp_path: Path):
    objects = MemoryStore()
    ending = replace(SMALL, segment_age_s=3600, segment_bytes=1 << 30, shutdown_upload_s=20)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=ending) as broker:
        clients = [client_of(broker, f"t-{n}") for n in range(5)]
        for client in clients:
            await client.create()
            await filled(client, 1, size=1)
        await filled(clients[0], 32, first=1)
        assert await keys(objects) == []
    assert len(await keys(objects)) == 2, "one of its own, and one that the small ones share"
    assert len(await keys(objects, "manifests/")) == 1
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=ending, tail_bytes=1) as broker:
        for client in clients:
            client.broker = broker
        usage = await broker.storage.usage(ANONYMOUS, None, StoragePlace())
        assert [one.waiting_messages for one in usage.partitions] == [0] * 5
        assert await everything(clients[0]) == list(range(3300))


@pytest.mark.parametrize("fault", ["hanging", "away"])
async def test_a_stop_waits_for_the_store_only_for_the_configured_time(tmp_path: Path, fault: str):
    objects = FaultyObjectStore()
    ending = replace(SMALL, segment_age_s=3600, shutdown_upload_s=1)
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=ending) as client:
        await filled(client, 1)
        await client.broker._tiers.check_ours()
        objects.fault = fault
        began = time.monotonic()
    assert time.monotonic() - began < 60, "a second for what waits, five for the manifest"
    objects.fault = "none"
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=ending) as broker:
        assert await everything(BrokerClient(broker)) == list(range(100))


async def test_collections_leave_objects_of_others_under_the_same_prefix_alone(tmp_path: Path):
    objects, clock = MemoryStore(), ManualClock()
    others = ["stages/0000000000000001/0000000002/18f-0-1-0-abc", "mine/notes.txt", "segments.txt"]
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock) as client:
        await filled(client, 5)
        await upload_all(client.broker)
        for key in [*others, "segments/shared/00000000/orphan.seg"]:
            await objects.put(key, b"bytes")
        clock.advance(10**9)
        await client.broker._tiers._collect(orphans=True)
        left = await keys(objects, "")
        assert set(others) < set(left)
        assert not [key for key in left if "orphan" in key]
        assert await everything(client) == list(range(500))


@pytest.mark.parametrize("restarts", [False, True])
async def test_objects_past_retention_go_although_the_metadata_failed_when_they_were_to_be_forgotten(
    tmp_path: Path, restarts: bool
):
    clock, metadata = ManualClock(), FaultyStore()
    settings = {"wal": WAL, "tiering": SMALL, "clock": clock, "objects": MemoryStore(clock=clock)}
    async with open_topic(tmp_path, metadata=metadata, crash=restarts, **settings) as client:
        await client.policies(retention_s=60)
        await filled(client, 5)
        await upload_all(client.broker)
        metadata.refuse(deletes("/segments/"))
        await client.pass_time(100)
        assert await client.start() == 500
        if not restarts:
            await assert_nothing_is_left(client.broker, clock, settings["objects"])
    if restarts:
        async with open_broker(tmp_path, **settings) as broker:
            await assert_nothing_is_left(broker, clock, settings["objects"])


async def assert_nothing_is_left(broker, clock: ManualClock, objects: MemoryStore) -> None:
    """Run a round of expiration, let the grace period pass, and check that a collection deletes the only object."""
    assert len(await keys(objects)) == 1
    await broker._lifetimes.round()
    clock.advance(SMALL.grace_s)
    await broker._tiers._collect(orphans=False)
    assert await keys(objects) == []
