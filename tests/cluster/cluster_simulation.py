"""A cluster in one process, in virtual time, from one seed: what breaks in it, what changes in it, and what is judged.

The seed decides when a broker joins, is killed, paused, cut off or drained, when partitions are moved, and when the
object store is away, while producers repeat what was not answered and consumers ack what they get. Meanwhile a topic
grows, another is deleted and created anew, a subscription comes and goes, and a query writes by stages. Afterwards
everything is healed and judged by `recorded_history`: what was acked is at its offset, once; nothing of a deleted topic
is in the next one of its name; a committed batch is there whole, and one that was given up not at all; what was
consumed and acked does not come again.

    python tests/cluster/cluster_simulation.py SEED [COUNT [SECONDS]] [-v]

runs seeds, with PYTHONHASHSEED=0, and begins no further one after so many seconds.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

if __name__ == "__main__":
    sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "broker")]

from broker_harness import BrokerClient
from recorded_history import History, Outcome, Row, Tag, check
from simulated_changes import MAIN, Growth, Remaking, StagedWrites, SubscriptionChanges
from simulated_clients import SimulatedConsumer, SimulatedProducer, SimulatedSubscription, SimulatedTopic
from simulated_cluster import PATIENCE_S, SESSION_S, SimulatedBroker, SimulatedCluster
from virtual_time import VirtualClock, memory_directory, run_virtually

from pydanube.broker import Broker
from pydanube.broker.handlers import carry_out
from pydanube.core.identity import NOBODY
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.levels import put_level
from pydanube.model.errors import AlreadyExists, DanubeError, NotFound
from pydanube.model.levels import THIS_RELEASE
from pydanube.model.names import TopicName
from pydanube.model.topics import AckLevel
from pydanube.operations import Operation
from pydanube.operations.brokers import DrainBroker, ResumeBroker
from pydanube.operations.topics import MoveTopic
from pydanube.runtime import telemetry

TOPIC: Final = TopicName.parse("/default/stored")
PARTITIONS: Final = 3
SUBSCRIPTION: Final = "all"


class FaultPlan:
    """Breaks something every now and then, from the seed, and heals everything at the end."""

    def __init__(self, world: SimulatedCluster) -> None:
        self._world = world
        self._chance = random.Random(world.chance.random())
        self._asking: list[asyncio.Task[None]] = []

    async def run(self, count: int) -> None:
        faults = [
            self.kill,
            self.restart,
            self.pause,
            self.resume,
            self.cut_off,
            self.reach,
            self.change_line_faults,
            self.stop,
            self.lose_store,
            self.move,
            self.drain,
            self.end_drain,
        ]
        for _ in range(count):
            await asyncio.sleep(self._chance.choice([0.05, 0.5, 2.0, 6.0]) * self._chance.random())
            await self._chance.choices(faults, [3, 3, 2, 2, 1, 1, 2, 2, 1, 4, 1, 1])[0]()
        await self.heal()

    def _choose(self, fits: Callable[[SimulatedBroker], bool]) -> SimulatedBroker | None:
        fitting = [one for one in self._world.brokers.values() if fits(one)]
        return self._chance.choice(fitting) if fitting else None

    async def kill(self) -> None:
        if (one := self._choose(lambda one: not one.is_down)) is not None:
            power = self._chance.random() < 0.3
            self._world.tell(f"kill {one.name}{' with its machine' if power else ''}")
            one.kill(power=power)

    async def stop(self) -> None:
        if (one := self._choose(lambda one: not one.is_down and one.broker is not None)) is not None:
            self._world.tell(f"stop {one.name} in order")
            one.stop()

    async def restart(self) -> None:
        if (one := self._choose(lambda one: one.is_down)) is not None:
            self._world.tell(f"start {one.name}")
            one.start()

    async def pause(self) -> None:
        if (one := self._choose(lambda one: not one.is_down and not one.process.is_paused)) is not None:
            self._world.tell(f"pause {one.name}")
            one.process.pause()

    async def resume(self) -> None:
        if (one := self._choose(lambda one: not one.is_down and one.process.is_paused)) is not None:
            self._world.tell(f"resume {one.name}")
            one.process.resume()

    async def cut_off(self) -> None:
        if (one := self._choose(lambda one: one.name not in self._world.line_faults.cut_off)) is not None:
            self._world.tell(f"cut {one.name} off from the metadata")
            self._world.line_faults.cut_off.add(one.name)

    async def reach(self) -> None:
        if (one := self._choose(lambda one: one.name in self._world.line_faults.cut_off)) is not None:
            self._world.tell(f"{one.name} reaches the metadata")
            self._world.line_faults.cut_off.discard(one.name)

    async def lose_store(self) -> None:
        """Let a broker alone lose the object store, mostly for long enough that it gives its partitions away."""
        if (one := self._choose(lambda one: one.name not in self._world.line_faults.objects_cut_off)) is not None:
            self._world.line_faults.objects_cut_off = {one.name}
            self._world.tell(f"{one.name} alone loses the object store")
            await asyncio.sleep(self._chance.choice([1.0, 12.0, 30.0]))

    async def move(self) -> None:
        """Have some partitions moved, one after the other, while other things break."""
        for _ in range(self._chance.choice([1, 3, 10])):
            index, to = self._chance.randrange(PARTITIONS), self._chance.choice(list(self._world.brokers))
            self._ask(MoveTopic(topic=TOPIC, partition=index, to=to), f"move partition {index} to {to}")
            await asyncio.sleep(self._chance.expovariate(2))

    async def drain(self) -> None:
        name = self._chance.choice(list(self._world.brokers))
        self._ask(DrainBroker(broker=name), f"drain {name}")

    async def end_drain(self) -> None:
        name = self._chance.choice(list(self._world.brokers))
        self._ask(ResumeBroker(broker=name), f"resume {name}")

    def _ask(self, operation: Operation[Any], what: str) -> None:
        """Ask some broker, and tell what it answers; what is refused, or whose answer is lost, is no complaint."""
        asked = self._choose(lambda one: not one.is_down and one.broker is not None)
        if asked is None:
            return
        at = self._world.connect(asked)

        async def ask() -> None:
            try:
                await self._world.ask(at, partial(_do, operation))
                self._world.tell(f"{what}: done")
            except DanubeError as error:
                self._world.tell(f"{what}: {error.message}")

        self._asking.append(asyncio.create_task(ask()))

    async def change_line_faults(self) -> None:
        line_faults = self._world.line_faults
        line_faults.objects_away = not line_faults.objects_away and self._chance.random() < 0.3
        line_faults.objects_cut_off.clear()
        line_faults.objects_delay_s = self._chance.choice([0.001, 0.02, 0.3])
        line_faults.objects_lost = self._chance.choice([0.0, 0.05, 0.3])
        line_faults.metadata_lost = self._chance.choice([0.0, 0.02, 0.1])
        self._world.tell(
            f"objects away={line_faults.objects_away} {line_faults.objects_delay_s} s lost={line_faults.objects_lost} "
            f"metadata lost={line_faults.metadata_lost}"
        )

    async def heal(self) -> None:
        self._world.tell("heal")
        self._world.is_healed = True
        self._world.line_faults.heal()
        for one in self._world.brokers.values():
            one.process.resume()
            if one.is_down:
                one.start()
        for name in self._world.brokers:
            with suppress(NotFound):  # it joins only now
                await self._world.at_owner(partial(_do, ResumeBroker(broker=name)))
        await asyncio.gather(*self._asking)


class SimulationOutcome(NamedTuple):
    complaints: list[str]
    """What is wrong."""
    story: list[str]
    """What happened."""
    acked: int


class Simulation:
    """One run: the topic that stays, with its clients, and what changes besides."""

    def __init__(self, world: SimulatedCluster) -> None:
        self.world = world
        self.topic = SimulatedTopic(TOPIC, PARTITIONS, MAIN)
        self._all = SimulatedSubscription(
            self.topic, SUBSCRIPTION, self.topic.history.received.setdefault(SUBSCRIPTION, [])
        )
        self._level = AckLevel.DURABLE if world.chance.random() < 0.3 else AckLevel.STORED
        self._producers = 0
        self._remaking: Remaking | None = None
        self._staged: StagedWrites | None = None
        self._subscribing: SubscriptionChanges | None = None

    @property
    def topics(self) -> list[SimulatedTopic]:
        """All topics, and all lives of those that were deleted."""
        return [self.topic, *(self._remaking.lives if self._remaking is not None else ())]

    @property
    def acked(self) -> int:
        return sum(one.outcome is Outcome.ACKED for topic in self.topics for one in topic.history.publishes)

    async def run(self) -> None:
        world = self.world
        later = world.chance.choice([None, "b", "c"])
        for one in world.brokers.values():
            if one.name != later:  # it joins with the first restart, or at the end
                one.start()
        await world.at_owner(self._create)
        async with asyncio.TaskGroup() as tasks:
            for index in range(PARTITIONS):
                tasks.create_task(SimulatedConsumer(world, self._all, index).run())
            for n in range(world.chance.randint(3, 5)):
                self._begin_producer(tasks, n % PARTITIONS)
            changing = [tasks.create_task(one) for one in self._changes(tasks)]
            await FaultPlan(world).run(world.chance.randint(4, 16))
            await asyncio.sleep(SESSION_S)
            world.is_over = True
            await asyncio.wait([*changing, *world.publishing])
            if self._subscribing is not None:
                self._subscribing.consume_all()
            if self._staged is not None:
                await self._staged.until_published()
            await self._until_consumed()
            world.is_drained = True
        await self._judge()

    async def _create(self, broker: Broker) -> None:
        with suppress(AlreadyExists):
            await BrokerClient(broker, TOPIC).create(partitions=PARTITIONS, ack_level=self._level)

    def _begin_producer(self, tasks: asyncio.TaskGroup, index: int) -> None:
        producer = SimulatedProducer(self.world, self.topic, self._producers, index)
        self._producers += 1
        self.world.publishing.append(tasks.create_task(producer.run()))

    def _begin_partition(self, tasks: asyncio.TaskGroup, index: int) -> None:
        tasks.create_task(SimulatedConsumer(self.world, self._all, index).run())
        self._begin_producer(tasks, index)

    def _changes(self, tasks: asyncio.TaskGroup) -> list[Coroutine[Any, Any, None]]:
        """Return what changes in this run: not everything in each, so that single things are seen alone too."""
        world, changes = self.world, list[Coroutine[Any, Any, None]]()
        growing, remaking, subscribing, staging = (world.chance.random() < 0.5 for _ in range(4))
        if growing:
            changes.append(Growth(world, self.topic, partial(self._begin_partition, tasks)).run())
        if remaking:
            self._remaking = Remaking(world, tasks)
            changes.append(self._remaking.run())
        if subscribing:
            self._subscribing = SubscriptionChanges(world, self.topic, tasks)
            changes.append(self._subscribing.run())
        if staging:
            self._staged = StagedWrites(world, self.topic, self._remaking)
            changes.append(self._staged.run())
        return changes

    async def _until_consumed(self) -> None:
        """Wait until every subscription got all that was acked. The checker says what is missing after the patience."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while any(map(_lacks, self.topics)):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(1.0)

    async def _judge(self) -> None:
        """Read everything, then again from brokers that were all killed and started anew."""
        for reading in ("before", "after"):
            for topic in self.topics:
                if not topic.is_ending:
                    topic.history.readings[reading] = await self._read(topic)
            if reading == "before":
                for one in self.world.brokers.values():
                    one.kill(power=True)
                    one.start()
        assert self.acked, "nothing was acked: nothing was tested"
        batches = self._staged.batches() if self._staged is not None else []
        history = History({f"{topic.name} ({topic.label})": topic.history for topic in self.topics}, batches)
        self.world.complaints += check(history)

    async def _read(self, topic: SimulatedTopic) -> list[Row]:
        rows: list[Row] = []
        for index in range(topic.partitions):
            _, found = await self.world.at_owner(partial(_read_partition, topic.name, index))
            rows += [Row(index, offset, Tag.parse(payload)) for offset, payload in found]
            if [offset for offset, _ in found] != list(range(len(found))):
                self.world.complaints.append(
                    f"{topic.label}: partition {index} has gaps: {[offset for offset, _ in found][:50]}"
                )
        return rows


def _lacks(topic: SimulatedTopic) -> bool:
    """Return whether a subscription of a topic that exists has not got everything yet."""
    if topic.is_ending:
        return False
    wanted = {one.tag for one in topic.history.publishes if one.outcome is Outcome.ACKED}
    return any(wanted - {row.tag for row in rows} for rows in topic.history.received.values())


async def _do(operation: Operation[Any], broker: Broker) -> None:
    await carry_out(broker, NOBODY, operation)


async def _read_partition(topic: TopicName, index: int, broker: Broker) -> list[tuple[int, bytes]]:
    return await BrokerClient(broker, topic).read_all(index)


async def simulate(seed: int, directory: Path) -> SimulationOutcome:
    """Run one history, and return what came out."""
    metadata = await EmbeddedStore.open(directory / "metadata.db", VirtualClock())
    await metadata.transact([], [put_level(THIS_RELEASE.newest)])
    world = SimulatedCluster(seed, metadata)
    simulation = Simulation(world)
    try:
        await simulation.run()
    except* (AssertionError, DanubeError) as errors:
        world.complaints += [f"a client failed: {error!r}" for error in errors.exceptions]
    return SimulationOutcome(world.complaints, world.story, simulation.acked)


def run_seed(seed: int) -> SimulationOutcome:
    with tempfile.TemporaryDirectory(prefix="danube-sim-", dir=memory_directory()) as directory:
        return run_virtually(simulate(seed, Path(directory)))


def main(arguments: list[str]) -> int:
    verbose = "-v" in arguments
    numbers = [int(one) for one in arguments if one != "-v"]
    first, count = numbers[0], numbers[1] if len(numbers) > 1 else 1
    ends_at = time.monotonic() + numbers[2] if len(numbers) > 2 else inf
    telemetry.configure("info" if verbose else "critical")
    failed = acked = done = 0
    for seed in range(first, first + count):
        if done and time.monotonic() > ends_at:
            break
        outcome = run_seed(seed)
        done += 1
        acked += outcome.acked
        if verbose:
            print("\n".join(outcome.story))
        if outcome.complaints:
            failed += 1
            print(f"seed {seed}:", *outcome.complaints[:10], sep="\n  ", flush=True)
            print(f"  again: PYTHONHASHSEED=0 python tests/cluster/cluster_simulation.py {seed} 1 -v")
    print(f"{done} seeds from {first} on, {failed} failed, {acked} messages acked")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main(sys.argv[1:]))
