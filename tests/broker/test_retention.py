"""Retention moves the start of a partition, durably and never back."""

import asyncio

import pytest
from broker_harness import TOPIC, open_broker, open_client, open_topic
from metadata_harness import FaultyStore, puts

from pydanube.broker.registry.records import partition_key
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Corrupt
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import AckLevel
from pydanube.operations.subscriptions import Advance

pytestmark = pytest.mark.usefixtures("clock")


DAY = 24 * 3600


async def test_a_topic_that_is_told_nothing_keeps_seven_days(client, topic):
    producer = await client.producer()
    await client.fill(producer, 1)
    await client.pass_time(6 * DAY)
    await client.fill(producer, 1)
    assert await client.start() == 0
    await client.pass_time(2 * DAY)
    assert await client.start() == 10
    await client.pass_time(7 * DAY)
    assert await client.start() == 20


async def test_retention_by_time_goes_by_batches_and_their_append_time(client, topic):
    await client.policies(retention_s=60)
    await client.fill(await client.producer(), 10, rows=5, every_s=10)  # at 0, 10, ... 90 s; now it is 100 s
    await client.pass_time(0)
    assert await client.start() == 4 * 5  # appended at 0, 10, 20, 30: 40 is exactly a minute ago
    assert [offset for offset, _ in await client.read_all()] == list(range(20, 50))


async def test_minus_one_keeps_everything_for_ever(client, topic):
    await client.policies(retention_s=-1)
    await client.fill(await client.producer(), 3)
    await client.pass_time(10_000 * DAY)
    assert await client.start() == 0


async def test_what_one_subscription_has_not_acked_stays(client, topic):
    await client.policies(retention_s=60)
    for name in ("fast", "slow"):
        await client.subscription(name)
    await client.fill(await client.producer(), 5)
    await client.settle((0, 50), name="fast")
    await client.settle((0, 25), name="slow")
    await client.pass_time(3600)
    assert await client.start() == 25
    await client.settle((30, 50), name="slow")  # a hole is not acked
    await client.pass_time(3600)
    assert await client.start() == 25
    await client.settle((25, 30), name="slow")
    await client.pass_time(3600)
    assert await client.start() == 50


async def test_what_a_subscription_goes_back_to_during_a_look_stays(client, topic, clock):
    await client.policies(retention_s=60)
    await client.subscription()
    await client.fill(await client.producer(), 5)
    await client.settle((0, 50))
    clock.advance(100)
    await client.round_and_meanwhile(lambda: client.seek(EARLIEST))
    counted = await client.counted()
    assert (await client.start(), counted.position, counted.backlog) == (0, 0, 50)
    await client.settle((0, 30))
    await client.pass_time(0)
    assert await client.start() == 30


async def test_retention_by_size_keeps_about_so_much_of_what_is_acked(client, topic):
    await client.subscription()
    await client.policies(retention_bytes=300_000)
    await client.fill(await client.producer(), 100, rows=10, size=1_000)  # about a megabyte
    await client.settle((0, 800))
    await client.pass_time(1)
    start = await client.start()
    assert 500 <= start <= 530  # 300 kB below 800, and all that is not acked


async def test_what_was_given_up_is_not_counted_any_more(client, topic):
    await client.policies(retention_s=60)
    await client.subscription()
    await client.fill(await client.producer(), 10, every_s=10, size=10_000)  # 100 kB at 0, 10, ... 90 s
    await client.settle((0, 100))
    await client.pass_time(0)
    await client.broker.subscriptions.advance(
        ANONYMOUS, Advance(topic=TOPIC, subscription="billing", partition=0, offset=0, expected=100)
    )
    counted = await client.counted()
    assert (counted.position, counted.backlog) == (0, 60)
    assert counted.backlog_bytes == pytest.approx(600_000, rel=0.01)


async def test_retention_bytes_of_zero_deletes_what_is_consumed(client, topic):
    await client.subscription()
    await client.policies(retention_bytes=0)
    await client.fill(await client.producer(), 2)
    await client.pass_time(1)
    assert await client.start() == 0
    await client.settle((0, 13))
    await client.pass_time(1)
    assert await client.start() == 13
    await client.settle((13, 20))
    await client.pass_time(1)
    assert await client.start() == 20


@pytest.mark.parametrize("crash", [False, True])
async def test_the_start_survives_a_restart_and_never_moves_back(tmp_path, clock, crash):
    async with open_topic(tmp_path, clock=clock, crash=crash) as client:
        await client.policies(retention_s=60)
        await client.fill(await client.producer(), 10, every_s=10)
        await client.pass_time(0)
        assert await client.start() == 40
        await client.policies(retention_s=-1)
    async with open_client(tmp_path, clock=clock) as client:
        assert await client.start() == 40
        await client.broker._lifetimes.round()
        assert await client.start() == 40
        assert [offset for offset, _ in await client.read_all()] == list(range(40, 100))
        assert (await client.publish(await client.producer(), [b"on"])).base_offset == 100


async def test_after_a_restart_partitions_that_nobody_opened_are_looked_at_too(tmp_path, clock):
    async with open_topic(tmp_path, clock=clock) as client:
        await client.fill(await client.producer(), 1)
    clock.advance(8 * DAY)
    async with open_broker(tmp_path, clock=clock) as broker:
        await broker._lifetimes.round()
        opened = list(broker._partitions)
        assert [one.stream.start_offset for one in opened] == [10]


async def test_readers_and_subscriptions_below_the_start_go_on_at_the_start(client, topic):
    await client.policies(retention_s=60)
    await client.fill(await client.producer(), 10, every_s=10)
    await client.pass_time(0)
    fetched = await client.fetch(Position("offset", 7))
    assert (fetched.start_offset, fetched.next_offset) == (40, 100)
    assert await client.broker.topics.find_offset(ANONYMOUS, client.topic, 0, Position("time", 1)) == 40
    sink = await client.subscribe(start=EARLIEST)
    assert [offset for offset, _ in await sink.wait_for(60)] == list(range(40, 100))


async def test_a_memory_topic_gives_its_memory_back(client):
    await client.create(ack_level=AckLevel.MEMORY)
    await client.policies(retention_s=60)
    await client.fill(await client.producer(), 10, every_s=10)
    (partition,) = client.broker._partitions
    before = partition.stream.bytes
    await client.pass_time(0)
    assert await client.start() == 40
    assert partition.stream.bytes == before * 6 // 10


async def test_with_much_to_keep_the_start_does_not_move_at_every_look(client, topic):
    producer = await client.producer()
    await client.fill(producer, 3, every_s=30)
    await client.pass_time(7 * DAY - 60)  # the first is seven days old; one part in a thousand more is ten minutes
    assert await client.start() == 0
    await client.pass_time(606)
    assert await client.start() == 30


async def test_a_subscription_that_began_below_what_a_memory_topic_gave_up_goes_on_behind_it(tmp_path, clock):
    metadata = FaultyStore()
    async with open_client(tmp_path, clock=clock, metadata=metadata) as client:
        await client.create(ack_level=AckLevel.MEMORY)
        await client.policies(retention_s=60)
        producer = await client.producer()
        await client.fill(producer, 1)
        creating = metadata.hold(puts("/subscriptions/"))
        subscribing = asyncio.create_task(client.subscribe())
        await creating.asked.wait()
        await client.pass_time(100)
        assert await client.start() == 10
        creating.go_on()
        consumer = await subscribing
        await client.publish(producer, [b"on"])
        assert await consumer.wait_for(1) == [(10, b"on")]
        assert (await client.counted()).position == 10


# -- partitions beside each other --------------------------------------------------------------------------------------


def starts(broker) -> dict[int, int]:
    return {one.index: one.stream.start_offset for one in broker._partitions}


async def test_a_partition_that_cannot_be_read_does_not_keep_what_is_old_in_the_others(tmp_path, clock, monkeypatch):
    async def damaged(*_):
        raise Corrupt("a record is damaged")

    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=3)
        await client.policies(retention_s=60, ttl_s=60)
        await client.subscription()
        for partition in range(3):
            await client.fill(await client.producer(partition=partition), 1)
        bad = await client.broker._partitions.get(TOPIC, 1)
        with monkeypatch.context() as damage:
            damage.setattr(bad.stream, "read", damaged)
            await client.pass_time(100)
            assert starts(client.broker) == {0: 10, 1: 0, 2: 10}
            assert [(await client.counted(partition=index)).backlog for index in (0, 2)] == [0, 0]
        await client.pass_time(1)
        assert starts(client.broker) == {0: 10, 1: 10, 2: 10}


async def test_a_partition_that_cannot_be_opened_now_does_not_keep_what_is_old_in_the_others(tmp_path, clock):
    async with open_client(tmp_path, clock=clock) as client:
        await client.create(partitions=3)
        for partition in range(3):
            await client.fill(await client.producer(partition=partition), 1)
        topic_id = client.broker._registry.topic(TOPIC).topic_id
    clock.advance(8 * DAY)
    metadata = FaultyStore()
    async with open_broker(tmp_path, clock=clock, metadata=metadata) as broker:
        not_now = metadata.refuse_all(puts(partition_key(topic_id, 1)))
        await broker._lifetimes.round()
        assert starts(broker) == {0: 10, 2: 10}
        not_now.end()
        await broker._lifetimes.round()
        assert starts(broker) == {0: 10, 1: 10, 2: 10}
