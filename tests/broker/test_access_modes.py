"""Producers with exclusive access: it fences everybody before it, for good; whoever has gone holds nothing."""

import asyncio

import pytest
from broker_harness import TOPIC, Door, open_broker

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Refused, StaleEpoch
from pydanube.model.names import TopicName


async def a_topic(broker, **config) -> Door:
    door = Door(broker)
    await door.create(**config)
    return door


async def test_an_exclusive_producer_fences_the_one_before(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        older = await door.producer(access="exclusive")
        await door.publish(older, [b"a"], sequence=0)
        newer = await door.producer(access="exclusive")
        with pytest.raises(StaleEpoch, match="fenced"):
            await door.publish(older, [b"b"], sequence=1)
        with pytest.raises(StaleEpoch, match="fenced"):
            await door.come_back(older, access="exclusive")
        assert (await door.publish(newer, [b"c"], sequence=0)).base_offset == 1


async def test_an_exclusive_producer_fences_shared_ones_and_they_stay_fenced(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        shared, named = await door.producer(), await door.producer("meter")
        exclusive = await door.producer(access="exclusive")
        for producer, name in ((shared, ""), (named, "meter")):
            with pytest.raises(StaleEpoch):
                await door.publish(producer, [b"x"])
            with pytest.raises(StaleEpoch):
                await door.come_back(producer, name)
        exclusive.close()
        for producer, name in ((shared, ""), (named, "meter")):
            with pytest.raises(StaleEpoch):
                await door.come_back(producer, name)
        await door.publish(await door.producer(), [b"new"])
        await door.publish(await door.producer("meter"), [b"new"])


async def test_a_shared_producer_is_refused_while_an_exclusive_one_lives(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        exclusive = await door.producer("boss", access="exclusive")
        for name in ("", "other", "boss"):
            with pytest.raises(Refused, match=r"exclusive access.*wait until it is closed"):
                await door.producer(name)
        assert (await door.publish(exclusive, [b"a"])).base_offset == 0, "a refused one has changed nothing"
        exclusive.close()
        assert (await door.publish(await door.producer(), [b"b"])).base_offset == 1


async def test_a_fenced_producer_stays_fenced_after_a_restart(tmp_path):
    async with open_broker(tmp_path, crash=True) as broker:
        door = await a_topic(broker)
        shared, named = await door.producer(), await door.producer("meter")
        first = await door.producer(access="exclusive")
        holder = await door.producer("boss", access="exclusive")
    async with open_broker(tmp_path) as broker:
        door = Door(broker)
        for producer, name, access in ((shared, "", "shared"), (named, "meter", "shared"), (first, "", "exclusive")):
            with pytest.raises(StaleEpoch):
                await door.come_back(producer, name, access=access)
        again = await door.come_back(holder, "boss", access="exclusive")
        assert (again.producer_id, again.producer_epoch) == (holder.producer_id, holder.producer_epoch)
        await door.publish(again, [b"a"], sequence=0)


async def test_exclusive_access_is_over_all_partitions(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker, partitions=3)
        shared = [await door.producer(partition=index) for index in range(3)]
        first = await door.producer(access="exclusive")
        handles = [first] + [await door.come_back(first, partition=index, access="exclusive") for index in (1, 2)]
        for index in range(3):
            with pytest.raises(StaleEpoch):
                await door.publish(shared[index], [b"x"])
            await door.publish(handles[index], [b"y"])
            with pytest.raises(Refused):
                await door.producer(partition=index)
        for handle in handles[:2]:
            handle.close()
        with pytest.raises(Refused):
            await door.producer()
        handles[2].close()
        await door.producer()


async def test_a_holder_that_comes_back_fences_who_came_meanwhile(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        holder = await door.producer(access="exclusive")
        holder.close()
        meanwhile = await door.producer()
        again = await door.come_back(holder, access="exclusive")
        with pytest.raises(StaleEpoch):
            await door.publish(meanwhile, [b"x"])
        await door.publish(again, [b"y"])
        again.close()
        with pytest.raises(StaleEpoch):
            await door.come_back(meanwhile)


async def test_a_shared_producer_may_take_the_topic_as_itself(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        mine, other = await door.producer(), await door.producer()
        await door.publish(mine, [b"a"], sequence=0)
        taken = await door.come_back(mine, access="exclusive")
        with pytest.raises(StaleEpoch):
            await door.publish(other, [b"x"])
        assert (await door.publish(taken, [b"b"], sequence=1)).base_offset == 1


async def test_what_waits_when_its_producer_is_fenced_is_refused_and_never_stored(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
        older = await door.producer()
        await door.publish(older, [b"old"], sequence=0)
        waiting = [door.publish(older, [b"late"], sequence=n) for n in range(1, 5)]
        newer = await door.producer(access="exclusive")
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(one, StaleEpoch) for one in outcomes)
        await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": None})
        await door.publish(newer, [b"new"], sequence=0)
        assert [payload for _, payload in await door.read_all()] == [b"old", b"new"]


async def test_many_who_want_it_at_once_leave_one_holder(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        opened = await asyncio.gather(*[door.producer(access="exclusive") for _ in range(10)])
        able = []
        for producer in opened:
            try:
                able.append(await door.publish(producer, [b"x"]))
            except StaleEpoch:
                continue
        assert len(able) == 1
        assert broker.producers.count((await broker.lookup(ANONYMOUS, TOPIC, False)).topic_id) == 1


async def test_other_topics_are_not_concerned(tmp_path):
    async with open_broker(tmp_path) as broker:
        door, neighbour = await a_topic(broker), Door(broker, TopicName.parse("/default/orders-dlq"))
        await neighbour.create()
        shared = await neighbour.producer()
        await door.producer(access="exclusive")
        await neighbour.publish(shared, [b"x"])
        await neighbour.producer()
        await broker.delete_topic(ANONYMOUS, TOPIC)
        await door.create()
        await door.producer(), await door.producer(access="exclusive")
        await neighbour.publish(shared, [b"x"])
