"""A broker that alone loses the object store, in virtual time: its `stored` partitions go to the others."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from broker_harness import BrokerClient
from simulated_cluster import DRAIN_S, NAMES, SimulatedBroker, SimulatedCluster
from virtual_time import VirtualClock, memory_directory, run_virtually

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.model.errors import DanubeError
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel

STORED, DURABLE = TopicName.parse("/default/stored"), TopicName.parse("/default/durable")
PARTITIONS = 6
STEPS = 1_000
"""How often it is looked for something that is to happen, a tenth of a second apart."""


def in_a_cluster(test: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    """Run a test with three brokers that have a topic of each of two levels, with messages in it."""

    async def run(directory: Path) -> list[str]:
        world = SimulatedCluster(1, await EmbeddedStore.open(directory / "metadata.db", VirtualClock()))
        world.is_healed = True
        for one in world.brokers.values():
            one.start()
        await world.at_owner(create)
        await publish(world, range(PARTITIONS))
        await test(world)
        return world.complaints

    with tempfile.TemporaryDirectory(prefix="danube-sim-", dir=memory_directory()) as directory:
        assert run_virtually(run(Path(directory))) == []


async def create(broker: Broker) -> None:
    await BrokerClient(broker, STORED).create(partitions=PARTITIONS, ack_level=AckLevel.STORED)
    await BrokerClient(broker, DURABLE).create(partitions=PARTITIONS, ack_level=AckLevel.DURABLE)


async def publish(world: SimulatedCluster, partitions: range, topic: TopicName = STORED) -> None:
    """Publish one message to each partition, at whichever broker acks it."""

    async def one(index: int, broker: Broker) -> int:
        client = BrokerClient(broker, topic)
        return (await client.publish(await client.producer(partition=index), [b"%d" % index])).base_offset

    for index in partitions:
        await world.at_owner(partial(one, index))


async def read(world: SimulatedCluster, index: int) -> list[bytes]:
    async def one(broker: Broker) -> list[bytes]:
        return [payload for _, payload in await BrokerClient(broker, STORED).read_all(index)]

    return (await world.at_owner(one))[1]


def owners(world: SimulatedCluster, topic: TopicName = STORED) -> list[str]:
    """Return the owner of each partition, as broker c sees it."""
    broker = running(world.brokers["c"])
    return broker.owner_names(ANONYMOUS, topic)


def running(one: SimulatedBroker) -> Broker:
    assert one.broker is not None
    return one.broker


async def until(world: SimulatedCluster, holds: Callable[[], bool]) -> float:
    """Wait until it is so; return how long that took."""
    began = asyncio.get_running_loop().time()
    for _ in range(STEPS):
        if holds():
            return asyncio.get_running_loop().time() - began
        await asyncio.sleep(0.1)
    raise AssertionError(f"it never came: {owners(world)}")


def begin_publishing(world: SimulatedCluster, name: str) -> list[asyncio.Task[object]]:
    """Have a broker that has lost the store publish to all of its partitions; nothing of that may be acked."""
    at = world.brokers[name]

    async def one(index: int) -> None:
        client = BrokerClient(running(at), STORED)
        await client.publish(await client.producer(partition=index), [b"lost %d" % index])
        world.complaints.append(f"partition {index} acked without the store")

    mine = [index for index, owner in enumerate(owners(world)) if owner == name]
    return [at.process.spawn(one(index)) for index in mine]


def test_the_partitions_of_a_broker_that_alone_has_lost_the_store_go_to_the_others() -> None:
    async def test(world: SimulatedCluster) -> None:
        durable = owners(world, DURABLE)
        assert set(owners(world)) == set(durable) == set(NAMES)
        world.line_faults.objects_cut_off.add("a")
        waiting = begin_publishing(world, "a")
        assert await until(world, lambda: "a" not in owners(world)) < 25
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert outcomes and all(isinstance(one, DanubeError) for one in outcomes)
        await publish(world, range(PARTITIONS))
        assert owners(world, DURABLE) == durable, "what is in its log stays with it"
        await publish(world, range(PARTITIONS), DURABLE)
        for index in range(PARTITIONS):
            kept = [one for one in await read(world, index) if not one.startswith(b"lost")]
            assert kept == [b"%d" % index] * 2
        world.line_faults.objects_cut_off.clear()
        for name in ("b", "c"):
            world.line_faults.objects_cut_off = {name}
            begin_publishing(world, name)
            await until(world, lambda name=name: name not in owners(world))  # type: ignore[misc]
            await publish(world, range(PARTITIONS))
        assert set(owners(world)) <= {"a", "b"}, "a broker that has it again is given partitions"

    in_a_cluster(test)


def test_nothing_moves_while_all_brokers_have_lost_the_store() -> None:
    async def test(world: SimulatedCluster) -> None:
        former = owners(world)
        world.line_faults.objects_away = True
        waiting = [task for name in NAMES for task in begin_publishing(world, name)]
        await asyncio.sleep(120)
        assert owners(world) == former
        assert all(running(one).freshness.age_s == 0 for one in world.brokers.values()), "no session was given up"
        world.complaints.clear()
        world.line_faults.objects_away = False
        await until(world, lambda: all(one.done() for one in waiting))
        world.complaints.clear()  # now they were acked, as it should be
        await publish(world, range(PARTITIONS))
        assert owners(world) == former

    in_a_cluster(test)


def test_a_broker_that_stops_does_not_wait_for_a_store_that_it_has_lost() -> None:
    async def test(world: SimulatedCluster) -> None:
        for everybody in (False, True):
            world.line_faults.objects_away = everybody
            world.line_faults.objects_cut_off = {"a"}
            begin_publishing(world, "a")
            stopping = world.brokers["a"].process.spawn(world.brokers["a"]._stop())
            seconds = await until(world, stopping.done)
            assert stopping.exception() is None
            assert seconds < DRAIN_S, f"it took {seconds} s"
            world.complaints.clear()
            world.line_faults.heal()
            world.brokers["a"].kill()
            world.brokers["a"].start()
            await publish(world, range(PARTITIONS))

    in_a_cluster(test)
