"""Partitions of `durable` and `written` topics are moved: what only the log of their broker has goes through slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from broker_harness import TOPIC, truncate
from cluster_harness import MovingBroker, MovingCluster, moving_cluster, releases
from metadata_harness import puts
from tiering_harness import FaultyObjectStore, upload_all

from pydanube.broker.handlers import carry_out
from pydanube.broker.registry.records import DROPPED, LEDGERS, PARTITIONS
from pydanube.core.access import ANONYMOUS
from pydanube.core.identity import NOBODY
from pydanube.metadata.store import list_all
from pydanube.model.errors import Refused, Unavailable
from pydanube.model.topics import AckLevel
from pydanube.operations.brokers import DrainBroker
from pydanube.operations.topics import MoveTopic
from pydanube.runtime.objects import Buffer, ObjectInfo
from waiting import until

LEVELS = [AckLevel.DURABLE, AckLevel.WRITTEN]


class FailingSlices(FaultyObjectStore):
    """An object store that takes no slice with a message while `is_failing`."""

    is_failing = False

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], *, create: bool = False, if_match: str | None = None
    ) -> ObjectInfo:
        if self.is_failing and key.startswith("slices/") and b"keep me" in b"".join(map(bytes, data)):
            raise Unavailable("no route to the store")
        return await super().put(key, data, create=create, if_match=if_match)


@pytest.fixture
def objects() -> FailingSlices:
    return FailingSlices()


@pytest.fixture
async def cluster(tmp_path: Path, objects: FailingSlices) -> AsyncIterator[MovingCluster]:
    async with moving_cluster(tmp_path, "a", "b", objects=objects) as opened:
        yield opened


def pair(cluster: MovingCluster) -> tuple[MovingBroker, MovingBroker]:
    """Return the owner of partition 0, and the other broker."""
    owner = cluster.owners()[0]
    return owner, next(one for one in cluster.brokers.values() if one is not owner)


async def move(by: MovingBroker, to: MovingBroker) -> None:
    await carry_out(by.broker, NOBODY, MoveTopic(topic=TOPIC, partition=0, to=to.name))


async def moved(by: MovingBroker, to: MovingBroker) -> None:
    await move(by, to)
    await until(lambda: to.opened() == {0})


async def ledgers_of(cluster: MovingCluster, name: str) -> list[str]:
    """Return the keys of ledgers that are, or may be, in the log of a broker."""
    return [one.key async for one in list_all(cluster.store, LEDGERS) if f"log-{name}".encode() in one.value]


@pytest.mark.parametrize("level", LEVELS)
async def test_what_is_uploaded_what_is_not_and_every_position_move(cluster, level):
    topic_id = await cluster.create(ack_level=level)
    owner, other = pair(cluster)
    producer = await owner.client.producer("p")
    await owner.client.publish(producer, [b"0", b"1"], 0)
    await upload_all(owner.broker)
    await owner.client.publish(producer, [b"2", b"3", b"4"], 2)
    collected = await owner.client.subscribe()
    await collected.wait_for(5)
    await collected.ack((0, 1), (3, 4), cumulative=False)
    await moved(other, other)
    assert not owner.opened()
    assert await other.client.read_all() == [(number, b"%d" % number) for number in range(5)]
    again = await other.client.subscribe()
    assert [offset for offset, _ in await again.wait_for(3)] == [1, 2, 4]
    back = await other.client.come_back(producer, "p")
    repeated = await other.client.publish(back, [b"2", b"3", b"4"], 2)
    assert (repeated.base_offset, repeated.duplicate) == (2, True)
    assert (await other.client.publish(back, [b"5"], 5)).base_offset == 5
    record = await cluster.record(topic_id)
    assert (record.owner, record.log, record.sequences, record.lost) == (other.name, f"log-{other.name}", [], [])
    described = (await other.broker.topics.describe(ANONYMOUS, TOPIC)).partitions[0]
    assert (described.messages, described.missing_offsets) == (6, 0)


@pytest.mark.parametrize("level", LEVELS)
async def test_a_partition_moves_there_and_back_and_nothing_is_left_over(cluster, level):
    await cluster.create(ack_level=level)
    owner, other = pair(cluster)
    for number in range(4):
        here, there = (owner, other) if number % 2 == 0 else (other, owner)
        await here.client.publish(await here.client.producer(), [b"%d" % number])
        await moved(here, there)
    assert await owner.client.read_all() == [(number, b"%d" % number) for number in range(4)]
    assert not await ledgers_of(cluster, other.name)
    assert not await owner.broker.leftovers.describe(ANONYMOUS)


async def test_an_empty_partition_moves_and_one_of_which_everything_is_gone(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await moved(owner, other)
    producer = await other.client.producer("p")
    await other.client.publish(producer, [b"0", b"1", b"2"], 0)
    await truncate(other.broker, TOPIC, {0: 3})
    await moved(other, owner)
    assert await owner.client.read_all() == []
    back = await owner.client.come_back(producer, "p")
    assert (await owner.client.publish(back, [b"2"], 2)).duplicate
    assert (await owner.client.publish(back, [b"3"], 3)).base_offset == 3


async def test_a_start_within_a_batch_moves(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"0", b"1", b"2"])
    await truncate(owner.broker, TOPIC, {0: 2})
    await moved(owner, other)
    assert await other.client.start() == 2
    assert (await other.client.read_all())[-1] == (2, b"2")
    assert (await other.client.publish(await other.client.producer(), [b"3"])).base_offset == 3


async def test_most_is_uploaded_while_the_partition_is_served(cluster, objects, monkeypatch):
    monkeypatch.setattr("pydanube.broker.partitions.open_partitions.CARRIED_BYTES", 10_000)
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    producer = await owner.client.producer()
    for _ in range(10):
        await owner.client.publish(producer, [b"x" * 5_000])
    objects.fault = "late"  # the upload waits
    moving = asyncio.create_task(move(owner, other))
    await objects.waiting.wait()
    objects.fault = "none"
    assert (await owner.client.publish(producer, [b"meanwhile"])).base_offset == 10
    objects.answer.set()
    await moving
    await until(lambda: other.opened() == {0})
    assert [payload for _, payload in await other.client.read_all()] == [b"x" * 5_000] * 10 + [b"meanwhile"]


async def test_when_a_put_fails_the_owner_serves_the_partition_again(cluster, objects, monkeypatch):
    monkeypatch.setattr("pydanube.broker.partitions.log_carrying.CARRY_S", 0.3)
    topic_id = await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"keep me"])
    objects.is_failing = True
    with pytest.raises(Unavailable, match=r"could not be put into the object store.*no route to the store"):
        await move(other, other)
    assert owner.opened() == {0}
    record = await cluster.record(topic_id)
    assert (record.owner, record.log, record.sequences) == (owner.name, f"log-{owner.name}", [])
    assert (await owner.client.publish(await owner.client.producer(), [b"more"])).base_offset == 1
    with pytest.raises(Unavailable, match="slices cannot be put"):
        await move(owner, other)
    objects.is_failing = False
    slices = owner.broker._slices
    assert slices is not None
    await slices.writer().flush()
    await moved(owner, other)
    assert await other.client.read_all() == [(0, b"keep me"), (1, b"more")]


async def test_without_the_store_nothing_is_begun(cluster, objects):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    collected = await owner.client.subscribe()
    objects.fault = "away"
    with pytest.raises(Unavailable, match="cannot leave the log of this broker: no object can be put"):
        await move(owner, other)
    assert collected.error is None and owner.opened() == {0}
    objects.fault = "none"


async def test_a_store_without_create_only_puts_is_refused_by_name(tmp_path):
    async with moving_cluster(tmp_path, "a", "b", objects=FaultyObjectStore("careless")) as cluster:
        await cluster.create(ack_level=AckLevel.DURABLE)
        owner, other = pair(cluster)
        collected = await owner.client.subscribe()
        with pytest.raises(Refused, match="cannot leave the log of this broker: memory:// cannot keep topics"):
            await move(owner, other)
        assert collected.error is None and owner.opened() == {0}
        state = await carry_out(other.broker, NOBODY, DrainBroker(broker=owner.name))
        assert state.partitions == 1
        await until(lambda: bool(owner.broker._kept_empty.failures))
        state = await carry_out(other.broker, NOBODY, DrainBroker(broker=owner.name))
        assert state.stuck == 1 and "memory:// cannot keep topics" in state.examples[0].reason
        assert collected.error is None


async def test_after_a_release_that_failed_the_owner_serves_it_from_its_log(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    refused = owner.faults.refuse_all(releases)
    with pytest.raises(Unavailable):
        await move(owner, other)
    refused.end()
    assert owner.opened() == {0}
    assert await owner.client.read_all() == [(0, b"one")]
    await moved(owner, other)
    assert await other.client.read_all() == [(0, b"one")]


async def test_the_source_keeps_its_records_until_the_taker_has_them(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one"])
    before = await ledgers_of(cluster, owner.name)
    held = other.faults.hold(puts(PARTITIONS))
    await move(owner, other)
    await held.asked.wait()
    assert {*before} <= {*await ledgers_of(cluster, owner.name)}
    held.go_on()
    await until(lambda: other.opened() == {0})
    assert not await ledgers_of(cluster, owner.name)
    assert [one.key async for one in list_all(cluster.store, DROPPED) if one.value == f"log-{owner.name}".encode()]


async def test_a_source_that_is_lost_right_after_the_release_is_not_needed(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one", b"two"])
    held = other.faults.hold(puts(PARTITIONS))
    await move(owner, other)
    await held.asked.wait()
    await owner.membership.leave()
    held.go_on()
    await until(lambda: other.opened() == {0})
    assert await other.client.read_all() == [(0, b"one"), (1, b"two")]


async def test_a_taker_that_is_lost_before_it_has_opened_the_partition_is_replaced(cluster):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer(), [b"one", b"two"])
    await other.stop_following()
    await move(owner, other)
    await other.membership.leave()
    await until(lambda: owner.opened() == {0})
    assert await owner.client.read_all() == [(0, b"one"), (1, b"two")]
    assert (await owner.client.publish(await owner.client.producer(), [b"three"])).base_offset == 2


@pytest.mark.parametrize("step", range(1, 7))
async def test_a_taker_that_fails_at_any_step_of_its_opening_tries_again(cluster, step):
    await cluster.create(ack_level=AckLevel.DURABLE)
    owner, other = pair(cluster)
    await owner.client.publish(await owner.client.producer("p"), [b"one", b"two"], 0)
    collected = await owner.client.subscribe()
    await collected.wait_for(2)
    await collected.ack((0, 1), cumulative=False)
    held = other.faults.hold(puts(PARTITIONS))
    await move(owner, other)
    await held.asked.wait()
    writes = 0

    def fails(_writes: object) -> bool:
        nonlocal writes
        writes += 1
        return writes == step

    other.faults.refuse_all(fails)
    held.go_on()
    await until(lambda: writes >= step)
    topic = TOPIC

    async def opened() -> None:
        while other.opened() != {0}:
            try:
                await other.partitions.get(topic, 0)
            except Unavailable:
                await asyncio.sleep(0)

    await opened()
    assert await other.client.read_all() == [(0, b"one"), (1, b"two")]
    again = await other.client.subscribe()
    assert await again.wait_for(1) == [(1, b"two")]


async def test_a_drain_of_durable_partitions_leaves_nothing_on_the_disk_that_is_needed(tmp_path):
    async with moving_cluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.create(partitions=6, ack_level=AckLevel.DURABLE)
        for index, one in cluster.owners().items():
            await one.client.publish(await one.client.producer(partition=index), [b"%d" % index])
        a, b = cluster.brokers["a"], cluster.brokers["b"]
        await carry_out(b.broker, NOBODY, DrainBroker(broker="a"))
        await until(lambda: not a.opened() and len(cluster.owners()) == 6)
        assert not await ledgers_of(cluster, "a")
        await a.broker.close()
        await a.membership.leave()
        for index, one in cluster.owners().items():
            assert await one.client.read_all(index) == [(0, b"%d" % index)]
