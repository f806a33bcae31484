"""History in object storage: uploaded, released from the log, read back and deleted; across restarts and crashes."""

from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, TOPIC, Door, open_broker

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt, Unavailable
from pydanube.model.names import TopicName
from pydanube.model.positions import Position
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects import ObjectStore
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.storage.wal import WalSettings

WAL = WalSettings(file_bytes=1 << 18, fill_bytes=0)
SMALL = replace(TIERING, segment_bytes=1 << 18, shared_below_bytes=1 << 12, segment_age_s=0)


@pytest.fixture
def objects() -> ObjectStore:
    return MemoryStore()


async def filled(door: Door, batches: int, first: int = 0, size: int = 100) -> None:
    producer = await door.producer()
    for number in range(first, first + batches):
        await door.publish(producer, [b"%06d" % (number * 100 + n) + b"x" * size for n in range(100)])


async def everything(door: Door, partition: int = 0) -> list[int]:
    return [int(payload[:6]) for _, payload in await door.read_all(partition)]


async def keys(objects: ObjectStore, prefix: str = "") -> list[str]:
    return [info.key async for info in objects.list(prefix)]


async def test_what_is_uploaded_leaves_the_log_and_is_read_from_objects(tmp_path: Path, objects: ObjectStore):
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 100)
        before = broker._writer.stored_bytes
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
        assert broker._writer.stored_bytes < before / 2
        assert len(await keys(objects)) >= 4
        assert await everything(door) == list(range(10_000))


async def test_reading_goes_on_from_objects_to_log_to_cache_without_a_gap(tmp_path: Path, objects: ObjectStore):
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 50)
        await broker.tiers.uploader.round(everything=True)
        await broker.tiers.trim()
        await filled(door, 50, first=50)
        assert await everything(door) == list(range(10_000))
        consumer = await door.subscribe("late")
        assert [int(payload[:6]) for _, payload in await consumer.wait_for(10_000)] == list(range(10_000))


@pytest.mark.parametrize("crash", [False, True])
async def test_a_restart_goes_on_where_it_was(tmp_path: Path, objects: ObjectStore, crash: bool):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL}
    async with open_broker(tmp_path, crash=crash, **settings) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 40)
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
    async with open_broker(tmp_path, **settings) as broker:
        door = Door(broker)
        await filled(door, 10, first=40)
        assert await everything(door) == list(range(5000))
        await broker.tiers.uploader.round(everything=True)
        assert await everything(door) == list(range(5000))


async def test_a_producer_is_remembered_although_all_its_batches_left_the_log(tmp_path: Path, objects: ObjectStore):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL}
    async with open_broker(tmp_path, **settings) as broker:
        door = Door(broker)
        await door.create()
        producer = await door.producer()
        for n in range(30):
            await door.publish(producer, [b"x" * 20_000], sequence=n)
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
    async with open_broker(tmp_path, **settings) as broker:
        again = await Door(broker).come_back(producer)
        answer = await Door(broker).publish(again, [b"x" * 20_000], sequence=29)
        assert (answer.base_offset, answer.duplicate) == (29, True)
        assert (await Door(broker).publish(again, [b"y"], sequence=30)).base_offset == 30


async def test_quiet_partitions_share_an_object(tmp_path: Path, objects: ObjectStore):
    async with open_broker(tmp_path, objects=objects, tiering=SMALL) as broker:
        doors = [Door(broker, TopicName.parse(f"/default/quiet-{n}")) for n in range(20)]
        for number, door in enumerate(doors):
            await door.create()
            await door.publish(await door.producer(), [b"%06d" % number])
        assert await broker.tiers.uploader.round(everything=True) == 1
        assert len(await keys(objects, "segments/shared/")) == 1
        for number, door in enumerate(doors):
            assert await everything(door) == [number]


async def test_an_offset_is_found_by_time_in_objects_and_in_the_log(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, clock=clock, tail_bytes=1) as broker:
        door = Door(broker)
        await door.create()
        times = []
        for number in range(60):
            clock.advance(1)
            times.append(clock.now_us())
            await filled(door, 1, first=number)
            if number == 40:
                await broker.tiers.uploader.round(everything=True)
                await broker.tiers.trim()
        for number in (0, 1, 17, 40, 41, 59):
            for time_us in (times[number], times[number] - 1):
                found = await broker.find_offset(ANONYMOUS, TOPIC, 0, Position("time", time_us))
                assert found == number * 100
        assert await broker.find_offset(ANONYMOUS, TOPIC, 0, Position("time", times[-1] + 1)) == 6000


async def test_a_deleted_topic_leaves_nothing_behind_after_the_grace(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with open_broker(tmp_path, objects=objects, tiering=SMALL, clock=clock) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 10)
        await broker.tiers.uploader.round(everything=True)
        await broker.delete_topic(ANONYMOUS, TOPIC)
        await broker.tiers.collector.collect_garbage()
        assert len(await keys(objects, "segments/")) == 1
        clock.advance(3601)
        await broker.tiers.collector.collect_garbage()
        assert await keys(objects, "segments/") == []


async def test_retention_takes_segments_out_and_what_is_shared_stays(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    async with open_broker(tmp_path, objects=objects, tiering=SMALL, clock=clock) as broker:
        other = Door(broker, TopicName.parse("/default/other"))
        for door in (Door(broker), other):
            await door.create()
            await door.publish(await door.producer(), [b"000000"])
        await broker.tiers.uploader.round(everything=True)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_s": 60})
        clock.advance(100)
        await broker.lifetimes.round()
        clock.advance(4000)
        await broker.tiers.collector.collect_garbage()
        assert await everything(other) == [0]
        assert await everything(Door(broker)) == []


async def test_a_topic_may_have_segments_of_its_own_size_and_age(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    tiering = replace(SMALL, segment_bytes=1 << 24, segment_age_s=10_000)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering, clock=clock) as broker:
        door, plain = Door(broker), Door(broker, TopicName.parse("/default/plain"))
        for one in (door, plain):
            await one.create()
            await filled(one, 40)
        assert await broker.tiers.uploader.round() == 0
        await broker.policies.set(ANONYMOUS, TOPIC, {"segment_bytes": 1 << 16})
        while await broker.tiers.uploader.round():
            pass
        made = [info.size async for info in objects.list()]
        assert len(made) > 5
        assert max(made) < (1 << 16) + 20_000
        await broker.policies.set(ANONYMOUS, TOPIC, {"segment_bytes": None, "segment_age_s": 60})
        await broker.tiers.uploader.round()
        clock.advance(60)
        assert await broker.tiers.uploader.round() == 1
        assert len(await keys(objects)) == len(made) + 1
        assert await everything(door) == await everything(plain) == list(range(4000))


async def test_what_is_kept_for_ever_stays_in_objects_and_what_is_consumed_goes(tmp_path: Path, objects: ObjectStore):
    clock = ManualClock()
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "clock": clock, "tail_bytes": 1}
    queue = TopicName.parse("/default/queue")
    async with open_broker(tmp_path, **settings) as broker:
        for door, policies in (
            (Door(broker), {"retention_s": -1}),
            (Door(broker, queue), {"retention_s": -1, "retention_bytes": 0}),
        ):
            await door.create()
            await broker.policies.set(ANONYMOUS, door.topic, policies)
            await door.subscribe()
            await filled(door, 20)
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
    async with open_broker(tmp_path, **settings) as broker:
        for door in (Door(broker), Door(broker, queue)):
            consumer = await door.subscribe()
            await consumer.wait_for(2000)
            await consumer.ack((0, 1500))
        clock.advance(10 * 365 * 24 * 3600)
        await broker.lifetimes.round()
        clock.advance(4000)
        await broker.tiers.collector.collect_garbage()
        assert await everything(Door(broker)) == list(range(2000))
        assert await everything(Door(broker, queue)) == list(range(1500, 2000))
        await consumer.ack((1500, 2000))
        await broker.lifetimes.round()
        clock.advance(4000)
        await broker.tiers.collector.collect_garbage()
        assert await everything(Door(broker, queue)) == []
        topic_id = broker._registry.topic(queue).topic_id
        assert await keys(objects, f"segments/{topic_id:016x}/") == []


async def test_retention_by_size_counts_what_is_in_objects(tmp_path: Path, objects: ObjectStore):
    settings = {"wal": WAL, "objects": objects, "tiering": SMALL, "tail_bytes": 1}
    async with open_broker(tmp_path, **settings) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 100)
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
    async with open_broker(tmp_path, **settings) as broker:
        door = Door(broker)
        await filled(door, 1, first=100)
        await broker.policies.set(ANONYMOUS, TOPIC, {"retention_bytes": 500_000})
        await broker.lifetimes.round()
        left = await everything(door)
        assert 300_000 < len(left) * 110 <= 520_000
        assert left[-1] == 10_099


async def test_a_damaged_object_is_an_error_that_names_it(tmp_path: Path, objects: ObjectStore):
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=SMALL, tail_bytes=1) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 40)
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
        (key, *_) = await keys(objects)
        whole = bytearray(await objects.get(key))
        whole[5000] ^= 1
        await objects.put(key, whole)
        with pytest.raises(Corrupt, match=key):
            await everything(door)


async def test_a_store_that_is_away_stops_uploads_and_not_publishes_until_the_log_is_full(tmp_path: Path):
    class Away(MemoryStore):
        away = True

        async def put(self, *arguments, **options):
            if self.away:
                raise Unavailable("no route to the store")
            return await super().put(*arguments, **options)

    objects = Away()
    tiering = replace(SMALL, log_bytes_max=1 << 19)
    async with open_broker(tmp_path, wal=WAL, objects=objects, tiering=tiering) as broker:
        door = Door(broker)
        await door.create()
        await filled(door, 20)
        assert await broker.tiers.uploader.round(everything=True) == 0
        assert "no route to the store" in broker.describe(ANONYMOUS).state
        with pytest.raises(Unavailable, match="log_bytes_max"):
            await filled(door, 100, first=20)
        stored = len(await everything(door))
        objects.away = False
        while await broker.tiers.uploader.round(everything=True):
            pass
        await broker.tiers.trim()
        assert broker.describe(ANONYMOUS).state == "ok"
        await filled(door, 1, first=stored // 100)
        assert await everything(door) == list(range(stored + 100))
