"""Retention moves the start of a partition, durably and never back."""

import asyncio

import pytest
from broker_harness import TOPIC, open_broker
from lifetimes_harness import Hourglass
from metadata_harness import FaultyStore, puts

from pydanube.broker.registry.records import partition_key
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel
from pydanube.runtime.clock import ManualClock

DAY = 24 * 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_a_topic_that_is_told_nothing_keeps_seven_days(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        producer = await door.producer()
        await door.fill(producer, 1)
        await door.pass_time(6 * DAY)
        await door.fill(producer, 1)
        assert await door.start() == 0
        await door.pass_time(2 * DAY)
        assert await door.start() == 10
        await door.pass_time(7 * DAY)
        assert await door.start() == 20


async def test_retention_by_time_goes_by_batches_and_their_append_time(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        await door.fill(await door.producer(), 10, rows=5, every_s=10)  # at 0, 10, ... 90 s; now it is 100 s
        await door.pass_time(0)
        assert await door.start() == 4 * 5  # appended at 0, 10, 20, 30: 40 is exactly a minute ago
        assert [offset for offset, _ in await door.read_all()] == list(range(20, 50))


async def test_minus_one_keeps_everything_for_ever(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=-1)
        await door.fill(await door.producer(), 3)
        await door.pass_time(10_000 * DAY)
        assert await door.start() == 0


async def test_what_one_subscription_has_not_acked_stays(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        for name in ("fast", "slow"):
            await door.subscription(name)
        await door.fill(await door.producer(), 5)
        await door.settle((0, 50), name="fast")
        await door.settle((0, 25), name="slow")
        await door.pass_time(3600)
        assert await door.start() == 25
        await door.settle((30, 50), name="slow")  # a hole is not acked
        await door.pass_time(3600)
        assert await door.start() == 25
        await door.settle((25, 30), name="slow")
        await door.pass_time(3600)
        assert await door.start() == 50


async def test_what_a_subscription_goes_back_to_during_a_look_stays(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        await door.subscription()
        await door.fill(await door.producer(), 5)
        await door.settle((0, 50))
        clock.advance(100)
        await door.round_and_meanwhile(lambda: door.seek(EARLIEST))
        counted = await door.counted()
        assert (await door.start(), counted.position, counted.backlog) == (0, 0, 50)
        await door.settle((0, 30))
        await door.pass_time(0)
        assert await door.start() == 30


async def test_retention_by_size_keeps_about_so_much_of_what_is_acked(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.subscription()
        await door.policies(retention_bytes=300_000)
        await door.fill(await door.producer(), 100, rows=10, size=1_000)  # about a megabyte
        await door.settle((0, 800))
        await door.pass_time(1)
        start = await door.start()
        assert 500 <= start <= 530  # 300 kB below 800, and all that is not acked


async def test_what_was_given_up_is_not_counted_any_more(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        await door.subscription()
        await door.fill(await door.producer(), 10, every_s=10, size=10_000)  # 100 kB at 0, 10, ... 90 s
        await door.settle((0, 100))
        await door.pass_time(0)
        await broker.subscriptions.advance(ANONYMOUS, TOPIC, "billing", 0, 0, 100)
        counted = await door.counted()
        assert (counted.position, counted.backlog) == (0, 60)
        assert counted.backlog_bytes == pytest.approx(600_000, rel=0.01)


async def test_retention_bytes_of_zero_deletes_what_is_consumed(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.subscription()
        await door.policies(retention_bytes=0)
        await door.fill(await door.producer(), 2)
        await door.pass_time(1)
        assert await door.start() == 0
        await door.settle((0, 13))
        await door.pass_time(1)
        assert await door.start() == 13
        await door.settle((13, 20))
        await door.pass_time(1)
        assert await door.start() == 20


@pytest.mark.parametrize("crash", [False, True])
async def test_the_start_survives_a_restart_and_never_moves_back(tmp_path, clock, crash):
    async with open_broker(tmp_path, clock=clock, crash=crash) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        await door.fill(await door.producer(), 10, every_s=10)
        await door.pass_time(0)
        assert await door.start() == 40
        await door.policies(retention_s=-1)
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        assert await door.start() == 40
        await broker.lifetimes.round()
        assert await door.start() == 40
        assert [offset for offset, _ in await door.read_all()] == list(range(40, 100))
        assert (await door.publish(await door.producer(), [b"on"])).base_offset == 100


async def test_after_a_restart_partitions_that_nobody_opened_are_looked_at_too(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.fill(await door.producer(), 1)
    clock.advance(8 * DAY)
    async with open_broker(tmp_path, clock=clock) as broker:
        await broker.lifetimes.round()
        opened = list(broker._partitions)
        assert [one.stream.start_offset for one in opened] == [10]


async def test_readers_and_subscriptions_below_the_start_go_on_at_the_start(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        await door.fill(await door.producer(), 10, every_s=10)
        await door.pass_time(0)
        fetched = await door.fetch(Position("offset", 7))
        assert (fetched.start_offset, fetched.next_offset) == (40, 100)
        assert await broker.find_offset(ANONYMOUS, door.topic, 0, Position("time", 1)) == 40
        sink = await door.subscribe(start=EARLIEST)
        assert [offset for offset, _ in await sink.wait_for(60)] == list(range(40, 100))


async def test_a_memory_topic_gives_its_memory_back(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create(ack_level=AckLevel.MEMORY)
        await door.policies(retention_s=60)
        await door.fill(await door.producer(), 10, every_s=10)
        (partition,) = broker._partitions
        before = partition.stream.bytes
        await door.pass_time(0)
        assert await door.start() == 40
        assert partition.stream.bytes == before * 6 // 10


async def test_with_much_to_keep_the_start_does_not_move_at_every_look(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        producer = await door.producer()
        await door.fill(producer, 3, every_s=30)
        await door.pass_time(7 * DAY - 60)  # the first is seven days old; one part in a thousand more is ten minutes
        assert await door.start() == 0
        await door.pass_time(606)
        assert await door.start() == 30


async def test_a_subscription_that_began_below_what_a_memory_topic_gave_up_goes_on_behind_it(tmp_path, clock):
    metadata = FaultyStore()
    async with open_broker(tmp_path, clock=clock, metadata=metadata) as broker:
        door = Hourglass(broker, clock)
        await door.create(ack_level=AckLevel.MEMORY)
        await door.policies(retention_s=60)
        producer = await door.producer()
        await door.fill(producer, 1)
        creating = metadata.hold(puts("/subscriptions/"))
        subscribing = asyncio.create_task(door.subscribe())
        await creating.asked.wait()
        await door.pass_time(100)
        assert await door.start() == 10
        creating.go_on()
        consumer = await subscribing
        await door.publish(producer, [b"on"])
        assert await consumer.wait_for(1) == [(10, b"on")]
        assert (await door.counted()).position == 10


# -- partitions beside each other --------------------------------------------------------------------------------------


def starts(broker) -> dict[int, int]:
    return {one.index: one.stream.start_offset for one in broker._partitions}


async def test_a_partition_that_cannot_be_read_does_not_keep_what_is_old_in_the_others(tmp_path, clock, monkeypatch):
    async def damaged(*_):
        raise Corrupt("a record is damaged")

    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create(partitions=3)
        await door.policies(retention_s=60, ttl_s=60)
        await door.subscription()
        for partition in range(3):
            await door.fill(await door.producer(partition=partition), 1)
        bad = await broker._partitions.get(TOPIC, 1)
        with monkeypatch.context() as damage:
            damage.setattr(bad.stream, "read", damaged)
            await door.pass_time(100)
            assert starts(broker) == {0: 10, 1: 0, 2: 10}
            assert [(await door.counted(partition=index)).backlog for index in (0, 2)] == [0, 0]
        await door.pass_time(1)
        assert starts(broker) == {0: 10, 1: 10, 2: 10}


async def test_a_partition_that_cannot_be_opened_now_does_not_keep_what_is_old_in_the_others(tmp_path, clock):
    async with open_broker(tmp_path, clock=clock) as broker:
        door = Hourglass(broker, clock)
        await door.create(partitions=3)
        for partition in range(3):
            await door.fill(await door.producer(partition=partition), 1)
        topic_id = broker._registry.topic(TOPIC).topic_id
    clock.advance(8 * DAY)
    metadata = FaultyStore()
    async with open_broker(tmp_path, clock=clock, metadata=metadata) as broker:
        not_now = metadata.refuse_all(puts(partition_key(topic_id, 1)))
        await broker.lifetimes.round()
        assert starts(broker) == {0: 10, 2: 10}
        not_now.end()
        await broker.lifetimes.round()
        assert starts(broker) == {0: 10, 1: 10, 2: 10}
