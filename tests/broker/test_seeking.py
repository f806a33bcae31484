"""A subscription that is moved: where it goes while something else moves too, and which acks count after it."""

import asyncio

import pytest
from broker_harness import TOPIC, Door, open_broker
from lifetimes_harness import Hourglass
from metadata_harness import FaultyStore, puts

from pydanube.core.access import ANONYMOUS
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.runtime.clock import ManualClock


async def position(door: Door, name: str = "billing") -> int:
    return (await door.broker.subscriptions.describe(ANONYMOUS, TOPIC, name)).partitions[0].position


@pytest.mark.parametrize("where", [EARLIEST, Position("offset", 20), Position("time", 1)], ids=str)
async def test_a_seek_to_what_retention_is_giving_up_goes_behind_it(tmp_path, where):
    clock, metadata = ManualClock(), FaultyStore()
    async with open_broker(tmp_path, clock=clock, metadata=metadata, tail_bytes=1) as broker:
        door = Hourglass(broker, clock)
        await door.create()
        await door.policies(retention_s=60)
        await door.subscription()
        await door.fill(await door.producer(), 10, every_s=10)  # at 0, 10, ... 90 s; now it is 100 s
        await door.settle((0, 100))
        moving = metadata.hold(puts("/partitions/"))
        round_ = asyncio.create_task(broker.lifetimes.round())
        await moving.asked.wait()
        assert await door.seek(where) == [(0, 40)]
        moving.go_on()
        await round_
        assert await door.start() == 40
        consumer = await door.subscribe()
        assert [offset for offset, _ in await consumer.wait_for(60)] == list(range(40, 100))


async def test_a_seek_of_long_ago_takes_nothing_from_the_acks_that_a_consumer_brings_along(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = Door(broker)
        await door.create()
        await door.publish(await door.producer(), [b"x"] * 10)
        await broker.subscriptions.create(ANONYMOUS, TOPIC, "billing", SubscriptionType.SHARED, EARLIEST)
        await broker.subscriptions.seek(ANONYMOUS, TOPIC, "billing", EARLIEST)
        consumer = await door.subscribe(kind=SubscriptionType.SHARED)
        await consumer.wait_for(10)
        consumer.consumer.close()  # its connection breaks, and it comes back with what it could not tell
        again = await door.subscribe(kind=SubscriptionType.SHARED, credit=0)
        assert again.consumer.moves == consumer.consumer.moves == 1
        await again.ack((0, 7))
        assert await position(door) == 7


async def test_a_consumer_that_was_away_during_a_seek_is_told_so(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = Door(broker)
        await door.create()
        await door.publish(await door.producer(), [b"x"] * 10)
        consumer = await door.subscribe()
        await consumer.wait_for(10)
        consumer.consumer.close()
        await broker.subscriptions.seek(ANONYMOUS, TOPIC, "billing", Position("offset", 3))
        again = await door.subscribe()
        assert again.consumer.owner_epoch == consumer.consumer.owner_epoch
        assert (consumer.consumer.moves, again.consumer.moves) == (0, 1)
