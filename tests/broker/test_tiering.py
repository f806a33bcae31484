"""History in object storage: uploaded, released from the log, read back and deleted; across restarts and crashes."""

from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, TOPIC, BrokerClient, created, open_broker, open_client, open_topic
from tiering_harness import FaultyObjectStore

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.model.settings.sections import LogSettings
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore

WAL = LogSettings(file_bytes=1 << 18, fill_bytes=0)
SMALL = replace(TIERING, segment_bytes=1 << 18, shared_below_bytes=1 << 12, segment_age_s=0)


@pytest.fixture
def objects() -> ObjectStore:
    return MemoryStore()


async def filled(client: BrokerClient, batches: int, first: int = 0, size: int = 100) -> None:
    producer = await client.producer()
    for number in range(first, first + batches):
        await client.publish(producer, [b"%06d" % (number * 100 + n) + b"x" * size for n in range(100)])


async def everything(client: BrokerClient, partition: int = 0) -> list[int]:
    return [int(payload[:6]) for _, payload in await client.read_all(partition)]


async def keys(objects: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key async for info in objects.list(prefix)]


async def test_what_is_uploaded_leaves_the_log_and_is_read_from_objects(tmp_path: Path, objects: ObjectStore):
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as broker:
        client = await created(broker)
        await filled(client, 100)
        before = broker._writer.stored_bytes
        while await broker._tiers.uploader.round(everything=True):
            pass
        await broker._tiers.trim()
        assert broker._writer.stored_bytes < before / 2
        assert len(await keys(objects)) >= 4
        assert await everything(client) == list(range(10_000))


async def test_reading_goes_on_from_objects_to_log_to_cache_without_a_gap(tmp_path: Path, objects: ObjectStore):
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as client:
        await filled(client, 50)
        await client.broker._tiers.uploader.round(everything=True)
        await client.broker._tiers.trim()
        await filled(client, 50, first=50)
        assert await everything(client) == list(range(10_000))
        consumer = await client.subscribe("late")
        assert [int(payload[:6]) for _, payload in await consumer.wait_for(10_000)] == list(range(10_000))


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_goes_on_where_it_was(tmp_path: Path, objects: ObjectStore, crash: bool):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL}
    async with open_topic(tmp_path, crash=crash, **settings) as client:
        await filled(client, 40)
        while await client.broker._tiers.uploader.round(everything=True):
            pass
        await client.broker._tiers.trim()
    async with open_client(tmp_path, **settings) as client:
        await filled(client, 10, first=40)
        assert await everything(client) == list(range(5000))
        await client.broker._tiers.uploader.round(everything=True)
        assert await everything(client) == list(range(5000))


async def test_a_producer_is_remembered_although_all_its_batches_left_the_log(tmp_path: Path, objects: ObjectStore):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL}
    async with open_topic(tmp_path, **settings) as client:
        producer = await client.producer()
        for n in range(30):
            await client.publish(producer, [b"x" * 20_000], sequence=n)
        while await client.broker._tiers.uploader.round(everything=True):
            pass
        await client.broker._tiers.trim()
    async with open_broker(tmp_path, **settings) as broker:
        again = await BrokerClient(broker).come_back(producer)
        answer = await BrokerClient(broker).publish(again, [b"x" * 20_000], sequence=29)
        assert (answer.base_offset, answer.duplicate) == (29, True)
        assert (await BrokerClient(broker).publish(again, [b"y"], sequence=30)).base_offset == 30


async def test_quiet_partitions_share_an_object(tmp_path: Path, objects: ObjectStore):
    async with open_broker(tmp_path, objects=objects, tiering=SMALL) as broker:
        clients = [BrokerClient(broker, TopicName.parse(f"/default/quiet-{n}")) for n in range(20)]
        for number, client in enumerate(clients):
            await client.create()
            await client.publish(await client.producer(), [b"%06d" % number])
        assert await broker._tiers.uploader.round(everything=True) == 1
        assert len(await keys(objects, "segments/shared/")) == 1
        for number, client in enumerate(clients):
            assert await everything(client) == [number]


async def test_an_offset_is_found_by_time_in_objects_and_in_the_log(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock, tail_bytes=1) as broker:
        client = await created(broker)
        times = []
        for number in range(60):
            clock.advance(1)
            times.append(clock.now_us())
            await filled(client, 1, first=number)
            if number == 40:
                await broker._tiers.uploader.round(everything=True)
                await broker._tiers.trim()
        for number in (0, 1, 17, 40, 41, 59):
            for time_us in (times[number], times[number] - 1):
                found = await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", time_us))
                assert found == number * 100
        assert await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", times[-1] + 1)) == 6000


async def test_a_deleted_topic_leaves_nothing_behind_after_the_grace(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with open_broker(tmp_path, objects=objects, tiering=SMALL, clock=clock) as broker:
        client = await created(broker)
        await filled(client, 10)
        await broker._tiers.uploader.round(everything=True)
        await broker.topics.delete(ANONYMOUS, TOPIC)
        await broker._tiers.collector.collect_garbage()
        assert len(await keys(objects, "segments/")) == 1
        clock.advance(3601)
        await broker._tiers.collector.collect_garbage()
        assert await keys(objects, "segments/") == []


async def test_retention_takes_segments_out_and_what_is_shared_stays(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with open_broker(tmp_path, objects=objects, tiering=SMALL, clock=clock) as broker:
        other = BrokerClient(broker, TopicName.parse("/default/other"))
        for client in (BrokerClient(broker), other):
            await client.create()
            await client.publish(await client.producer(), [b"000000"])
        await broker._tiers.uploader.round(everything=True)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 60})
        clock.advance(100)
        await broker._lifetimes.round()
        clock.advance(4000)
        await broker._tiers.collector.collect_garbage()
        assert await everything(other) == [0]
        assert await everything(BrokerClient(broker)) == []


async def test_a_topic_may_have_segments_of_its_own_size_and_age(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    tiering = replace(SMALL, segment_bytes=1 << 24, segment_age_s=10_000)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering, clock=clock) as broker:
        client, plain = BrokerClient(broker), BrokerClient(broker, TopicName.parse("/default/plain"))
        for one in (client, plain):
            await one.create()
            await filled(one, 40)
        assert await broker._tiers.uploader.round() == 0
        await broker.policies.set(ANONYMOUS, TOPIC, {"segment_bytes": 1 << 16})
        while await broker._tiers.uploader.round():
            pass
        made = [info.size async for info in objects.list()]
        assert len(made) > 5
        assert max(made) < (1 << 16) + 20_000
        await broker.policies.set(ANONYMOUS, TOPIC, {"segment_bytes": None, "segment_age_s": 60})
        await broker._tiers.uploader.round()
        clock.advance(60)
        assert await broker._tiers.uploader.round() == 1
        assert len(await keys(objects)) == len(made) + 1
        assert await everything(client) == await everything(plain) == list(range(4000))


async def test_what_is_kept_for_ever_stays_in_objects_and_what_is_consumed_goes(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "clock": clock, "tail_bytes": 1}
    queue = TopicName.parse("/default/queue")
    async with open_broker(tmp_path, **settings) as broker:
        for client, policies in (
            (BrokerClient(broker), {"retention_s": -1}),
            (BrokerClient(broker, queue), {"retention_s": -1, "retention_bytes": 0}),
        ):
            await client.create()
            await broker.policies.set(ANONYMOUS, client.topic, policies)
            await client.subscribe()
            await filled(client, 20)
        while await broker._tiers.uploader.round(everything=True):
            pass
        await broker._tiers.trim()
    async with open_broker(tmp_path, **settings) as broker:
        for client in (BrokerClient(broker), BrokerClient(broker, queue)):
            consumer = await client.subscribe()
            await consumer.wait_for(2000)
            await consumer.ack((0, 1500))
        clock.advance(10 * 365 * 24 * 3600)
        await broker._lifetimes.round()
        clock.advance(4000)
        await broker._tiers.collector.collect_garbage()
        assert await everything(BrokerClient(broker)) == list(range(2000))
        assert await everything(BrokerClient(broker, queue)) == list(range(1500, 2000))
        await consumer.ack((1500, 2000))
        await broker._lifetimes.round()
        clock.advance(4000)
        await broker._tiers.collector.collect_garbage()
        assert await everything(BrokerClient(broker, queue)) == []
        topic_id = broker._registry.topic(queue).topic_id
        assert await keys(objects, f"segments/{topic_id:016x}/") == []


async def test_retention_by_size_counts_what_is_in_objects(tmp_path: Path, objects: ObjectStore):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1}
    async with open_topic(tmp_path, **settings) as client:
        await filled(client, 100)
        while await client.broker._tiers.uploader.round(everything=True):
            pass
        await client.broker._tiers.trim()
    async with open_client(tmp_path, **settings) as client:
        await filled(client, 1, first=100)
        await client.broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": 500_000})
        await client.broker._lifetimes.round()
        left = await everything(client)
        assert 300_000 < len(left) * 110 <= 520_000
        assert left[-1] == 10_099


async def test_a_damaged_object_is_an_error_that_names_it(tmp_path: Path, objects: ObjectStore):
    async with open_topic(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as client:
        await filled(client, 40)
        while await client.broker._tiers.uploader.round(everything=True):
            pass
        await client.broker._tiers.trim()
        (key, *_) = await keys(objects)
        whole = bytearray(await objects.get(key))
        whole[5000] ^= 1
        await objects.put(key, whole)
        with pytest.raises(Corrupt, match=key):
            await everything(client)


async def test_a_store_that_is_away_stops_uploads_and_not_publishes_until_the_log_is_full(tmp_path: Path):
    objects = FaultyObjectStore("away")
    tiering = replace(SMALL, log_bytes_max=1 << 19)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering) as broker:
        client = await created(broker)
        await filled(client, 20)
        assert await broker._tiers.uploader.round(everything=True) == 0
        assert "no route to the store" in broker.describe(ANONYMOUS).state
        with pytest.raises(Unavailable, match="log_bytes_max"):
            await filled(client, 100, first=20)
        stored = len(await everything(client))
        objects.fault = "none"
        while await broker._tiers.uploader.round(everything=True):
            pass
        await broker._tiers.trim()
        assert broker.describe(ANONYMOUS).state == "ok"
        await filled(client, 1, first=stored // 100)
        assert await everything(client) == list(range(stored + 100))
