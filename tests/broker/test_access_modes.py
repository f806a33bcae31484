"""Producers with exclusive access fence all producers before them, for good; a closed producer holds nothing."""

import asyncio
import random

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


async def test_a_shared_producer_is_refused_while_an_exclusive_one_is_live(tmp_path):
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


async def test_exclusive_access_covers_all_partitions(tmp_path):
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


async def test_an_exclusive_producer_that_reconnects_fences_the_producers_opened_meanwhile(tmp_path):
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


async def test_a_shared_producer_may_take_exclusive_access_under_its_identity(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        mine, other = await door.producer(), await door.producer()
        await door.publish(mine, [b"a"], sequence=0)
        taken = await door.come_back(mine, access="exclusive")
        with pytest.raises(StaleEpoch):
            await door.publish(other, [b"x"])
        assert (await door.publish(taken, [b"b"], sequence=1)).base_offset == 1


async def test_waiting_batches_of_a_fenced_producer_are_refused_and_never_stored(tmp_path):
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


@pytest.mark.parametrize("access", ["shared", "exclusive"])
async def test_waiting_batches_of_a_closed_producer_are_not_stored_after_it_was_fenced(tmp_path, access):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
        gone = await door.producer("meter")
        await door.publish(gone, [b"old"] * 100, sequence=0)
        left = door.publish(gone, [b"late"], sequence=100)
        gone.close()
        await door.producer("meter", access=access)
        with pytest.raises(StaleEpoch):
            await left


async def test_of_many_exclusive_producers_opened_at_once_one_stays(tmp_path):
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


async def test_exclusive_access_does_not_affect_other_topics(tmp_path):
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
        assert (await neighbour.publish(shared, [b"x"])).base_offset == 1


class Everybody:
    """Who was given an identity, who of them is live, and who is fenced, as simply as it can be said."""

    def __init__(self) -> None:
        self.given: list[tuple[object, str]] = []
        self.live: dict[int, object] = {}
        self.fenced: set[int] = set()
        self.losers: list[object] = []
        """Handles that were live when their producers were fenced."""
        self.holder: int | None = None

    def opened(self, index: int, producer, access: str) -> None:
        if access == "exclusive" and self.holder != index:
            self.fenced |= set(range(len(self.given))) - {index}
            self.losers += [one for number, one in self.live.items() if number != index]
            self.live = {number: one for number, one in self.live.items() if number == index}
            self.holder = index
        self.live[index] = producer

    def closed(self, index: int) -> None:
        self.live.pop(index).close()
        if self.holder == index:
            self.holder = None

    def refusal(self, index: int | None, access: str) -> type[Exception] | None:
        if index in self.fenced:
            return StaleEpoch
        return Refused if access == "shared" and self.holder not in (None, index) else None


async def step(door: Door, world: Everybody, rng: random.Random) -> None:
    access = rng.choice(["shared", "shared", "exclusive"])
    index = rng.randrange(len(world.given)) if world.given and rng.random() < 0.5 else None
    if index in world.live:
        world.closed(index)
        return
    name = rng.choice(["", f"name-{len(world.given)}"]) if index is None else world.given[index][1]
    opening = door.producer(name, access=access)
    if index is not None:
        opening.close()
        opening = door.come_back(world.given[index][0], name, access=access)
    if (expected := world.refusal(index, access)) is not None:
        with pytest.raises(expected) as refused:
            await opening
        assert refused.type is expected
        return
    producer = await opening
    if index is None:
        index = len(world.given)
        world.given.append((producer, name))
    world.opened(index, producer, access)


async def test_in_any_sequence_only_producers_that_are_not_fenced_may_publish(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, world = random.Random(seed), Everybody()
    for start in range(4):
        async with open_broker(tmp_path, crash=bool(start % 2)) as broker:
            door = Door(broker)
            if not start:
                await door.create()
            world.live, world.holder, world.losers = {}, None, []
            for _ in range(60):
                await step(door, world, rng)
                for producer in world.losers:
                    with pytest.raises(StaleEpoch):
                        await door.publish(producer, [b"x"])
                for producer in world.live.values():
                    await door.publish(producer, [b"x"])


@pytest.mark.parametrize(("name", "access"), [("meter", "shared"), ("meter", "exclusive"), ("", "exclusive")])
async def test_a_producer_is_not_fenced_by_an_open_of_its_own_whose_answer_was_lost(tmp_path, name: str, access: str):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        known = await door.producer(name, access=access, opener=7)
        (await door.producer(name, access=access, opener=7)).close()  # a new identity, of which it never heard
        again = await door.come_back(known, name, access=access, opener=7)
        assert (await door.publish(again, [b"a"], sequence=0)).base_offset == 0
    async with open_broker(tmp_path) as broker:
        door = Door(broker)
        await door.come_back(again, name, access=access, opener=7)
        await door.producer(name, access=access, opener=8)
        for opener in (7, 0):
            with pytest.raises(StaleEpoch, match="fenced"):
                await door.come_back(again, name, access=access, opener=opener)


async def test_clients_without_an_opener_number_are_never_taken_for_the_same(tmp_path):
    async with open_broker(tmp_path) as broker:
        door = await a_topic(broker)
        known = await door.producer("meter")
        await door.producer("meter")
        with pytest.raises(StaleEpoch, match="fenced"):
            await door.come_back(known, "meter")
