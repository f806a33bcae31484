"""Producers with exclusive access fence all producers before them, for good; a closed producer holds nothing."""

import asyncio
import random

import pytest
from broker_harness import TOPIC, BrokerClient, created, open_broker, open_client

from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import Refused, StaleEpoch
from pydanube.model.names import TopicName


async def test_an_exclusive_producer_fences_the_one_before(broker):
    client = await created(broker)
    older = await client.producer(access="exclusive")
    await client.publish(older, [b"a"], sequence=0)
    newer = await client.producer(access="exclusive")
    with pytest.raises(StaleEpoch, match="fenced"):
        await client.publish(older, [b"b"], sequence=1)
    with pytest.raises(StaleEpoch, match="fenced"):
        await client.come_back(older, access="exclusive")
    assert (await client.publish(newer, [b"c"], sequence=0)).base_offset == 1


async def test_an_exclusive_producer_fences_shared_ones_and_they_stay_fenced(broker):
    client = await created(broker)
    shared, named = await client.producer(), await client.producer("meter")
    exclusive = await client.producer(access="exclusive")
    for producer, name in ((shared, ""), (named, "meter")):
        with pytest.raises(StaleEpoch):
            await client.publish(producer, [b"x"])
        with pytest.raises(StaleEpoch):
            await client.come_back(producer, name)
    exclusive.close()
    for producer, name in ((shared, ""), (named, "meter")):
        with pytest.raises(StaleEpoch):
            await client.come_back(producer, name)
    await client.publish(await client.producer(), [b"new"])
    await client.publish(await client.producer("meter"), [b"new"])


async def test_a_shared_producer_is_refused_while_an_exclusive_one_is_live(broker):
    client = await created(broker)
    exclusive = await client.producer("boss", access="exclusive")
    for name in ("", "other", "boss"):
        with pytest.raises(Refused, match=r"exclusive access.*wait until it is closed"):
            await client.producer(name)
    assert (await client.publish(exclusive, [b"a"])).base_offset == 0, "a refused one has changed nothing"
    exclusive.close()
    assert (await client.publish(await client.producer(), [b"b"])).base_offset == 1


async def test_a_fenced_producer_stays_fenced_after_a_restart(tmp_path):
    async with open_broker(tmp_path, crash=True) as broker:
        client = await created(broker)
        shared, named = await client.producer(), await client.producer("meter")
        first = await client.producer(access="exclusive")
        holder = await client.producer("boss", access="exclusive")
    async with open_client(tmp_path) as client:
        for producer, name, access in ((shared, "", "shared"), (named, "meter", "shared"), (first, "", "exclusive")):
            with pytest.raises(StaleEpoch):
                await client.come_back(producer, name, access=access)
        again = await client.come_back(holder, "boss", access="exclusive")
        assert (again.producer_id, again.producer_epoch) == (holder.producer_id, holder.producer_epoch)
        await client.publish(again, [b"a"], sequence=0)


async def test_exclusive_access_covers_all_partitions(broker):
    client = await created(broker, partitions=3)
    shared = [await client.producer(partition=index) for index in range(3)]
    first = await client.producer(access="exclusive")
    handles = [first] + [await client.come_back(first, partition=index, access="exclusive") for index in (1, 2)]
    for index in range(3):
        with pytest.raises(StaleEpoch):
            await client.publish(shared[index], [b"x"])
        await client.publish(handles[index], [b"y"])
        with pytest.raises(Refused):
            await client.producer(partition=index)
    for handle in handles[:2]:
        handle.close()
    with pytest.raises(Refused):
        await client.producer()
    handles[2].close()
    await client.producer()


async def test_an_exclusive_producer_that_reconnects_fences_the_producers_opened_meanwhile(broker):
    client = await created(broker)
    holder = await client.producer(access="exclusive")
    holder.close()
    meanwhile = await client.producer()
    again = await client.come_back(holder, access="exclusive")
    with pytest.raises(StaleEpoch):
        await client.publish(meanwhile, [b"x"])
    await client.publish(again, [b"y"])
    again.close()
    with pytest.raises(StaleEpoch):
        await client.come_back(meanwhile)


async def test_a_shared_producer_may_take_exclusive_access_under_its_identity(broker):
    client = await created(broker)
    mine, other = await client.producer(), await client.producer()
    await client.publish(mine, [b"a"], sequence=0)
    taken = await client.come_back(mine, access="exclusive")
    with pytest.raises(StaleEpoch):
        await client.publish(other, [b"x"])
    assert (await client.publish(taken, [b"b"], sequence=1)).base_offset == 1


async def test_waiting_batches_of_a_fenced_producer_are_refused_and_never_stored(broker):
    client = await created(broker)
    await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
    older = await client.producer()
    await client.publish(older, [b"old"], sequence=0)
    waiting = [client.publish(older, [b"late"], sequence=n) for n in range(1, 5)]
    newer = await client.producer(access="exclusive")
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, StaleEpoch) for one in outcomes)
    await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": None})
    await client.publish(newer, [b"new"], sequence=0)
    assert [payload for _, payload in await client.read_all()] == [b"old", b"new"]


@pytest.mark.parametrize("access", ["shared", "exclusive"])
async def test_waiting_batches_of_a_closed_producer_are_not_stored_after_it_was_fenced(broker, access):
    client = await created(broker)
    await broker.policies.set(ANONYMOUS, TOPIC, {"publish_messages_per_s": 1})
    gone = await client.producer("meter")
    await client.publish(gone, [b"old"] * 100, sequence=0)
    left = client.publish(gone, [b"late"], sequence=100)
    gone.close()
    await client.producer("meter", access=access)
    with pytest.raises(StaleEpoch):
        await left


async def test_of_many_exclusive_producers_opened_at_once_one_stays(broker):
    client = await created(broker)
    opened = await asyncio.gather(*[client.producer(access="exclusive") for _ in range(10)])
    able = []
    for producer in opened:
        try:
            able.append(await client.publish(producer, [b"x"]))
        except StaleEpoch:
            continue
    assert len(able) == 1
    assert broker._producers.count((await broker.topics.lookup(ANONYMOUS, TOPIC, False)).topic_id) == 1


async def test_exclusive_access_does_not_affect_other_topics(broker):
    client, neighbour = await created(broker), BrokerClient(broker, TopicName.parse("/default/orders-dlq"))
    await neighbour.create()
    shared = await neighbour.producer()
    await client.producer(access="exclusive")
    await neighbour.publish(shared, [b"x"])
    await neighbour.producer()
    await broker.topics.delete(ANONYMOUS, TOPIC)
    await client.create()
    await client.producer(), await client.producer(access="exclusive")
    assert (await neighbour.publish(shared, [b"x"])).base_offset == 1


class ProducersModel:
    """A model of the producers of a topic: which identities were given out, which are live, and which are fenced."""

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


async def step(client: BrokerClient, model: ProducersModel, rng: random.Random) -> None:
    access = rng.choice(["shared", "shared", "exclusive"])
    index = rng.randrange(len(model.given)) if model.given and rng.random() < 0.5 else None
    if index in model.live:
        model.closed(index)
        return
    name = rng.choice(["", f"name-{len(model.given)}"]) if index is None else model.given[index][1]
    opening = client.producer(name, access=access)
    if index is not None:
        opening.close()
        opening = client.come_back(model.given[index][0], name, access=access)
    if (expected := model.refusal(index, access)) is not None:
        with pytest.raises(expected) as refused:
            await opening
        assert refused.type is expected
        return
    producer = await opening
    if index is None:
        index = len(model.given)
        model.given.append((producer, name))
    model.opened(index, producer, access)


async def test_in_any_sequence_only_producers_that_are_not_fenced_may_publish(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, model = random.Random(seed), ProducersModel()
    for start in range(4):
        async with open_client(tmp_path, crash=bool(start % 2)) as client:
            if not start:
                await client.create()
            model.live, model.holder, model.losers = {}, None, []
            for _ in range(60):
                await step(client, model, rng)
                for producer in model.losers:
                    with pytest.raises(StaleEpoch):
                        await client.publish(producer, [b"x"])
                for producer in model.live.values():
                    await client.publish(producer, [b"x"])


@pytest.mark.parametrize(("name", "access"), [("meter", "shared"), ("meter", "exclusive"), ("", "exclusive")])
async def test_a_producer_is_not_fenced_by_an_open_of_its_own_whose_answer_was_lost(tmp_path, name: str, access: str):
    async with open_broker(tmp_path) as broker:
        client = await created(broker)
        known = await client.producer(name, access=access, opener=7)
        (await client.producer(name, access=access, opener=7)).close()  # asked for before, and carried out late
        if name:
            assert (await client.publish(known, [b"before"], sequence=0)).base_offset == 0
        again = await client.come_back(known, name, access=access, opener=7)
        assert (await client.publish(again, [b"a"], sequence=int(bool(name)))).base_offset == bool(name)
    async with open_client(tmp_path) as client:
        await client.come_back(again, name, access=access, opener=7)
        await client.producer(name, access=access, opener=8)
        for opener in (7, 0):
            with pytest.raises(StaleEpoch, match="fenced"):
                await client.come_back(again, name, access=access, opener=opener)


async def test_clients_without_an_opener_number_are_never_taken_for_the_same(broker):
    client = await created(broker)
    known = await client.producer("meter")
    await client.producer("meter")
    with pytest.raises(StaleEpoch, match="fenced"):
        await client.come_back(known, "meter")
