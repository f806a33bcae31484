"""Restarts with uploaded history: the log releases what was uploaded, nothing pins files, and nothing is lost."""

from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_topic
from tiering_harness import PER_BATCH, SMALL, WAL, client_of, everything, filled, keys, upload_all

from pydanube.broker.cluster.membership import SoleMembership
from pydanube.broker.partitions.ownership import Ownership
from pydanube.broker.registry.records import deleted_key
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.store import Delete, Put
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore


@pytest.fixture
def settings() -> dict:
    return {"wal": WAL, "objects": MemoryStore(), "tiering": SMALL, "tail_bytes": 1}


async def rolled(broker, rounds: int = 3) -> None:
    """Publish to other topics until every earlier file of the log could have been released."""
    busy = client_of(broker, "busy")
    if str(busy.topic) not in await broker.topics.names(ANONYMOUS):
        await busy.create()
    for _ in range(rounds):
        await filled(busy, 30)
        await upload_all(broker)
    await broker._tiers.trim()


@pytest.mark.parametrize("crash", [False, True])
async def test_the_log_lets_go_of_what_was_uploaded_before_a_start(tmp_path: Path, settings: dict, crash: bool):
    async with open_broker(tmp_path, crash=crash, **settings) as broker:
        await BrokerClient(broker).create()
        await filled(BrokerClient(broker), 30)
        await upload_all(broker, trim=False)
    async with open_broker(tmp_path, **settings) as broker:
        await BrokerClient(broker).fetch()  # opens it
        await rolled(broker)
        assert broker._writer.stored_bytes < 3 * WAL.file_bytes
        assert await everything(BrokerClient(broker)) == list(range(3000))


async def test_subscriptions_that_nobody_uses_pin_no_file(tmp_path: Path, settings: dict):
    async with open_broker(tmp_path, **settings) as broker:
        await BrokerClient(broker).create()
        await filled(BrokerClient(broker), 5)
        consumer = await BrokerClient(broker).subscribe("idle")
        await consumer.wait_for(500)
        await consumer.ack((0, 120))
        await upload_all(broker)
    async with open_broker(tmp_path, **settings) as broker:
        await BrokerClient(broker).fetch()
        await rolled(broker)
        await rolled(broker)
        assert broker._writer.stored_bytes < 3 * WAL.file_bytes
    async with open_broker(tmp_path, **settings) as broker:
        consumer = await BrokerClient(broker).subscribe("idle")
        assert [offset for offset, _ in await consumer.wait_for(380)] == list(range(120, 500))


async def test_a_ledger_that_was_begun_and_never_filled_pins_no_file(tmp_path: Path, settings: dict):
    async with open_topic(tmp_path, **settings) as client:
        producer = await client.producer()
        await client.publish(producer, [b"%08d" % 0], sequence=0)
        await upload_all(client.broker)
    async with open_broker(tmp_path, **settings) as broker:
        again = await BrokerClient(broker).come_back(producer)
        assert (await BrokerClient(broker).publish(again, [b"%08d" % 0], sequence=0)).duplicate
    async with open_broker(tmp_path, **settings) as broker:
        await BrokerClient(broker).fetch()
        await rolled(broker)
        assert broker._writer.stored_bytes < 3 * WAL.file_bytes
        again = await BrokerClient(broker).come_back(producer)
        assert (await BrokerClient(broker).publish(again, [b"%08d" % 0], sequence=0)).duplicate
        assert await everything(BrokerClient(broker)) == [0]


async def test_offsets_go_on_although_all_of_it_expired_before_it_was_uploaded(tmp_path: Path, settings: dict):
    clock = ManualClock()
    settings = {**settings, "clock": clock, "tiering": replace(SMALL, segment_bytes=1 << 30, segment_age_s=10**6)}
    async with open_broker(tmp_path, **settings) as broker:
        client = await created(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 10})
        producer = await client.producer()
        for number in range(30):
            await client.publish(producer, [b"x" * 10_000], sequence=number)
        for _ in range(2):
            clock.advance(100)
            await broker._lifetimes.round()
            await client.publish(producer, [b"x" * 10_000], sequence=(await client.fetch()).end_offset)
        clock.advance(100)
        await broker._lifetimes.round()
        busy = client_of(broker, "busy")
        await busy.create()
        await broker.policies.set(ANONYMOUS, busy.topic, {"retention_s": 10})
        for round_ in range(5):
            await filled(busy, 20, first=round_ * 20)
            clock.advance(100)
            await broker._lifetimes.round()
        await broker._tiers.trim()
        assert broker._writer.stored_bytes < 4 * WAL.file_bytes
        assert await keys(settings["objects"]) == []
    async with open_broker(tmp_path, **settings) as broker:
        again = await BrokerClient(broker).come_back(producer)
        assert (await BrokerClient(broker).publish(again, [b"y"], sequence=31)).duplicate
        assert (await BrokerClient(broker).publish(again, [b"y"], sequence=32)).base_offset == 32


async def expired_at_once(broker, clock: ManualClock) -> None:
    """Make a topic whose messages retention drops before they are uploaded, and to which nothing is published
    afterwards."""
    client = await created(broker)
    await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 10})
    await filled(client, 5)
    clock.advance(100)
    await broker._lifetimes.round()
    assert (await client.fetch()).start_offset == 500


async def test_an_idle_topic_of_which_all_expired_before_it_was_uploaded_pins_no_file(tmp_path: Path, settings: dict):
    clock = ManualClock()
    async with open_broker(tmp_path, clock=clock, **settings) as broker:
        await expired_at_once(broker, clock)
        await rolled(broker)
        assert broker._writer.stored_bytes < 3 * WAL.file_bytes
    async with open_broker(tmp_path, clock=clock, **settings) as broker:
        assert (await BrokerClient(broker).publish(await BrokerClient(broker).producer(), [b"next"])).base_offset == 500


@pytest.mark.parametrize("crash", [False, True])
async def test_it_pins_no_file_after_a_start_either(tmp_path: Path, settings: dict, crash: bool):
    clock = ManualClock()
    async with open_broker(tmp_path, clock=clock, crash=crash, **settings) as broker:
        await expired_at_once(broker, clock)
    async with open_broker(tmp_path, clock=clock, **settings) as broker:
        await BrokerClient(broker).fetch()  # opens it
        await rolled(broker)
        assert broker._writer.stored_bytes < 3 * WAL.file_bytes
    async with open_broker(tmp_path, clock=clock, **settings) as broker:
        assert (await BrokerClient(broker).publish(await BrokerClient(broker).producer(), [b"next"])).base_offset == 500


async def test_a_written_topic_keeps_its_gaps_and_nothing_else_is_missing(tmp_path: Path, settings: dict):
    async with open_broker(tmp_path, crash=True, **settings) as broker:
        await BrokerClient(broker).create(ack_level=AckLevel.WRITTEN)
        await filled(BrokerClient(broker), 12)
        await upload_all(broker, trim=False)
        await filled(BrokerClient(broker), 3, first=12)
    async with open_broker(tmp_path, crash=True, **settings) as broker:
        await filled(BrokerClient(broker), 12, first=15)
        await upload_all(broker)
        await rolled(broker)
        rows = await BrokerClient(broker).read_all()
        assert [int(payload[:8]) for _, payload in rows] == list(range(27 * PER_BATCH))
        offsets = [offset for offset, _ in rows]
        assert offsets == sorted(set(offsets)) and offsets[-1] >= 2700, "a crash leaves a gap, and no offset twice"
        consumer = await BrokerClient(broker).subscribe("all")
        assert [offset for offset, _ in await consumer.wait_for(2700)] == offsets


async def test_a_topic_whose_deletion_was_cut_short_leaves_the_catalog(tmp_path: Path, settings: dict):
    clock = ManualClock()
    settings = {**settings, "clock": clock}
    async with open_broker(tmp_path, crash=True, **settings) as broker:
        await BrokerClient(broker).create()
        await filled(BrokerClient(broker), 5)
        await upload_all(broker)
        topic_id = broker._registry.topic(TOPIC).topic_id
        writes = [Delete("/topics/default/orders"), Put(deleted_key(topic_id), b"")]
        await broker._registry._store.transact([], writes)
    async with open_broker(tmp_path, **settings) as broker:
        assert len(await keys(settings["objects"])) == 1
        await broker._tiers._collect(orphans=True)
        clock.advance(3601)
        await broker._tiers._collect(orphans=True)
        assert await keys(settings["objects"]) == []
        assert await broker._tiers.catalog.topics() == []


async def test_an_owner_that_was_replaced_commits_nothing_and_stops_trying(tmp_path: Path, settings: dict):
    objects = settings["objects"]
    async with open_broker(tmp_path, crash=True, **settings) as broker:
        client = await created(broker)
        await filled(client, 10)
        await upload_all(broker, trim=False)
        (tier,) = broker._tiers.partitions.values()
        other = Ownership(
            broker._registry._store, tier._ownership._ledger_ids, tier.topic_id, 0, SoleMembership("other")
        )
        await other.acquire()
        await filled(client, 10, first=10)
        before = len(await keys(objects))
        for _ in range(3):
            await broker._tiers.uploader.round(everything=True)
        assert len(await keys(objects)) == before + 1, "one try, whose object is an orphan"
        assert (await broker._tiers.catalog.find(tier.topic_id, 0, 1000)) is None
        assert other.uploaded_end == 1000
