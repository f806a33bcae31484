"""What changes in a simulated cluster while messages are published: topics grow, are deleted and created anew under the
same name; subscriptions come and go; a query writes by stages.

A request whose answer was lost may still be carried out at any later time, by a broker that was paused meanwhile. So
every deletion names the version of what it deletes, as careful clients do: it never hits the next life of the name.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from broker_harness import BrokerClient
from recorded_history import Kept, Outcome, Publish, StagedBatch, Tag
from simulated_clients import SimulatedConsumer, SimulatedProducer, SimulatedSubscription, SimulatedTopic
from simulated_cluster import PATIENCE_S, SimulatedCluster

from pydanube.broker import Broker, SectionRequest, StageRequest
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.packing import version_of
from pydanube.model.errors import AlreadyExists, Conflict, NotFound, Refused, StaleEpoch
from pydanube.model.names import TopicName
from pydanube.model.positions import EARLIEST
from pydanube.model.topics import AckLevel, SubscriptionType
from pydanube.operations.staging import CommitStages, StagesCommitted

PARTITIONS_MAX: Final = 5
REMADE: Final = TopicName.parse("/default/remade")
QUERY: Final = "query"
WAIT_MS: Final = 1000
"""How long a commit waits until its messages are published."""


class Growth:
    """Gives a topic more partitions while it is published to."""

    def __init__(self, world: SimulatedCluster, topic: SimulatedTopic, begin: Callable[[int], None]) -> None:
        """`begin` is called with each new partition."""
        self._world = world
        self._topic = topic
        self._begin = begin
        self._chance = random.Random(world.chance.random())

    async def run(self) -> None:
        while not self._world.is_over and self._topic.partitions < PARTITIONS_MAX:
            await asyncio.sleep(self._chance.expovariate(0.25))
            wanted = self._topic.partitions + 1
            await self._world.at_owner(partial(self._grow, wanted))
            self._topic.partitions = wanted
            self._world.tell(f"{self._topic.label} has {wanted} partitions")
            self._begin(wanted - 1)

    async def _grow(self, wanted: int, broker: Broker) -> None:
        await broker.topics.grow(ANONYMOUS, self._topic.name, wanted)


class Remaking:
    """Deletes a topic and creates it anew, again and again, with producers and consumers in each of its lives."""

    def __init__(self, world: SimulatedCluster, tasks: asyncio.TaskGroup) -> None:
        self._world = world
        self._tasks = tasks
        self._chance = random.Random(world.chance.random())
        self._former: set[str] = set()
        """The versions of the lives that are over."""
        self.lives: list[SimulatedTopic] = []

    @property
    def life(self) -> SimulatedTopic | None:
        """The life that was created last; None once its deletion was asked for."""
        return self.lives[-1] if self.lives and not self.lives[-1].is_ending else None

    async def run(self) -> None:
        while True:
            life = SimulatedTopic(REMADE, self._chance.randint(1, 3), f"life{len(self.lives)}")
            await self._world.at_owner(partial(self._create, life))
            version = await self._identify(life)
            self._world.tell(f"{life.label} of {life.name} begins")
            self.lives.append(life)
            self._populate(life)
            await asyncio.sleep(self._chance.expovariate(0.2))
            if self._world.is_over:
                return
            life.is_ending = True
            life.history.kept = Kept.SOME
            self._world.tell(f"{life.label} of {life.name} ends")
            self._former.add(version)
            await self._delete(life, version)

    async def _create(self, life: SimulatedTopic, broker: Broker) -> None:
        with suppress(AlreadyExists):  # by an earlier try
            await BrokerClient(broker, life.name).create(partitions=life.partitions, ack_level=AckLevel.STORED)

    async def _identify(self, life: SimulatedTopic) -> str:
        """Return the version of this life, and take over how many partitions it has: an earlier request to create the
        topic may have been carried out just now."""
        while True:
            _, found = await self._world.at_owner(lambda broker: broker.topics.describe(ANONYMOUS, life.name))
            if found.version not in self._former:  # else that broker has not heard of its end yet
                life.partitions = found.config.partition_count
                return found.version
            await asyncio.sleep(0.1)

    async def _delete(self, life: SimulatedTopic, version: str) -> None:
        async def delete(broker: Broker) -> None:
            with suppress(NotFound, Conflict):  # it is over: by an earlier try, and another one may have been made
                await broker.topics.delete(ANONYMOUS, life.name, version)

        await self._world.at_owner(delete)

    def _populate(self, life: SimulatedTopic) -> None:
        subscription = SimulatedSubscription(life, "all", life.history.received.setdefault("all", []))
        for index in range(life.partitions):
            self._tasks.create_task(SimulatedConsumer(self._world, subscription, index).run())
        for number in range(self._chance.randint(1, 3)):
            producer = SimulatedProducer(self._world, life, number, number % life.partitions)
            self._world.publishing.append(self._tasks.create_task(producer.run()))


class SubscriptionChanges:
    """Creates and deletes a subscription of one name, again and again. Each of its lives begins at the first message,
    and the last one gets everything."""

    NAME: Final = "late"

    def __init__(self, world: SimulatedCluster, topic: SimulatedTopic, tasks: asyncio.TaskGroup) -> None:
        self._world = world
        self._topic = topic
        self._tasks = tasks
        self._chance = random.Random(world.chance.random())
        self._life = SimulatedSubscription(topic, self.NAME)
        self._consumed = 0
        """The partition from which the present life is consumed already."""

    async def run(self) -> None:
        while True:
            self._life = SimulatedSubscription(self._topic, self.NAME)
            await self._world.at_owner(self._create)
            self._world.tell(f"subscription {self.NAME} begins")
            self._consumed = self._chance.randrange(self._topic.partitions)
            self._consume(self._consumed)
            await asyncio.sleep(self._chance.expovariate(0.25))
            if self._world.is_over:
                return
            self._world.tell(f"subscription {self.NAME} ends")
            self._life.is_deleted = True
            await self._delete()

    def consume_all(self) -> None:
        """Have the last life consumed from every partition. Call this once the topic grows no more."""
        self._topic.history.received[self.NAME] = self._life.rows
        for index in range(self._topic.partitions):
            if index != self._consumed:
                self._consume(index)

    def _consume(self, index: int) -> None:
        self._tasks.create_task(SimulatedConsumer(self._world, self._life, index).run())

    async def _create(self, broker: Broker) -> None:
        with suppress(AlreadyExists):
            await broker.subscriptions.create(
                ANONYMOUS, self._topic.name, self.NAME, SubscriptionType.EXCLUSIVE, EARLIEST
            )

    async def _delete(self) -> None:
        async def delete(broker: Broker) -> None:
            with suppress(NotFound):
                await broker._registry.refresh_subscription(self._topic.name, self.NAME)
                version = version_of(broker._registry.subscription(self._topic.name, self.NAME))
                await broker.subscriptions.delete(ANONYMOUS, self._topic.name, self.NAME, version)

        while True:
            with suppress(Conflict):  # that broker has not heard of the last change yet
                await self._world.at_owner(delete)
                return
            await asyncio.sleep(0.1)


@dataclass(eq=False)
class _Attempt:
    """One try to write a batch."""

    run: str
    rows: list[tuple[SimulatedTopic, int, Tag]] = field(default_factory=list)
    """Topic, partition and message."""
    stages: list[str] = field(default_factory=list)

    def is_for(self, topic: SimulatedTopic) -> bool:
        """Return whether all messages are for this topic."""
        return all(one is topic for one, _, _ in self.rows)

    @property
    def is_outdated(self) -> bool:
        """Whether the deletion of a topic in it was asked for."""
        return any(topic.is_ending for topic, _, _ in self.rows)

    def record(self, outcome: Outcome) -> None:
        """Record what became of the messages. Of a topic that is deleted again and again only what was given up is
        known here: StagedBatch knows the rest."""
        for topic, _, tag in self.rows:
            known = outcome if topic.label == MAIN or outcome is Outcome.REFUSED else Outcome.UNKNOWN
            topic.history.publishes.append(Publish(tag, known))

    def kept(self) -> list[Tag]:
        """Return the messages whose topic was not deleted."""
        return [tag for topic, _, tag in self.rows if not topic.is_ending]


class _Committed(NamedTuple):
    batch_id: int
    attempts: list[_Attempt]
    """Those that a commit named; one of them is the batch."""


MAIN: Final = "main"
"""The label of the topic that is never deleted."""


class StagedWrites:
    """Writes batches by stages into two topics, as a streaming query does: each batch is staged, and given up or
    committed, until a commit of it is answered. Now and then a new run takes the place of the one before."""

    def __init__(self, world: SimulatedCluster, topic: SimulatedTopic, remaking: Remaking | None) -> None:
        self._world = world
        self._topic = topic
        self._remaking = remaking
        self._chance = random.Random(world.chance.random())
        self._run = "run0"
        self._runs = 1
        self._attempts = 0
        self._committed: list[_Committed] = []

    async def run(self) -> None:
        while not self._world.is_over:
            await asyncio.sleep(self._chance.expovariate(0.5))
            await self._write(len(self._committed))

    async def _write(self, batch_id: int) -> None:
        """Write one batch, in as many attempts as it takes."""
        named: list[_Attempt] = []
        while True:
            attempt = await self._stage(batch_id)
            fate = self._chance.random()
            if fate < 0.15:
                attempt.record(Outcome.REFUSED)
                continue
            if fate < 0.25:
                await self._fence(attempt, batch_id)
                continue
            named.append(attempt)
            try:
                await self._commit(batch_id, attempt)
                break
            except Refused as error:
                # The topic was deleted since; or a broker that had not heard of that yet staged for the former one. A
                # commit without an answer may have happened all the same.
                if isinstance(error, StaleEpoch) or attempt.is_for(self._topic):
                    raise
        self._world.tell(f"batch {batch_id} is committed")
        for attempt in named:
            attempt.record(Outcome.ACKED if len(named) == 1 else Outcome.UNKNOWN)
        self._committed.append(_Committed(batch_id, named))

    async def _fence(self, attempt: _Attempt, batch_id: int) -> None:
        """Begin a new run. What the one before has staged can never be committed."""
        self._run, self._runs = f"run{self._runs}", self._runs + 1
        (await self._stage(batch_id)).record(Outcome.REFUSED)
        self._world.tell(f"{attempt.run} of the query is fenced")
        attempt.record(Outcome.REFUSED)
        with suppress(StaleEpoch):
            await self._commit(batch_id, attempt)
            self._world.complaints.append(f"batch {batch_id}: {attempt.run} committed after {self._run} had begun")

    async def _stage(self, batch_id: int) -> _Attempt:
        """Store the stages of a new attempt, each at some broker. One during which a topic is deleted is given up: its
        stages may be for the next topic of that name."""
        while True:
            number, self._attempts = self._attempts, self._attempts + 1
            attempt = _Attempt(self._run, self._rows(f"staged{batch_id}-{number}"))
            split = self._chance.randint(1, len(attempt.rows))
            try:
                for task, rows in enumerate(filter(None, [attempt.rows[:split], attempt.rows[split:]])):
                    _, name = await self._world.at_owner(partial(self._store, batch_id, number, task, rows))
                    attempt.stages.append(name)
            except NotFound:
                if not attempt.is_outdated:
                    raise
            if not attempt.is_outdated:
                return attempt
            attempt.record(Outcome.REFUSED)

    def _rows(self, name: str) -> list[tuple[SimulatedTopic, int, Tag]]:
        topics = [self._topic] * 3
        life = self._remaking.life if self._remaking is not None else None
        if life is not None:
            topics.append(life)
        chosen = [self._topic, *self._chance.choices(topics, k=self._chance.randint(2, 8))]
        places = sorted(((topic, self._chance.randrange(topic.partitions)) for topic in chosen), key=_place)
        return [(topic, index, Tag(name, number)) for number, (topic, index) in enumerate(places)]

    async def _store(
        self, batch_id: int, attempt: int, task: int, rows: list[tuple[SimulatedTopic, int, Tag]], broker: Broker
    ) -> str:
        sections: list[SectionRequest] = []
        body = bytearray()
        for topic, index in dict.fromkeys((topic, index) for topic, index, _ in rows):
            payloads = [tag.payload() for one, at, tag in rows if (one, at) == (topic, index)]
            batch = encode(payloads, publish_times=1)
            sections.append(SectionRequest(topic.name, index, [len(batch)]))
            body += batch + bytes(-len(batch) % 64)
        request = StageRequest(QUERY, self._run, batch_id, task, attempt, 0, sections)
        return await broker.staging.stage(ANONYMOUS, request, memoryview(bytes(body)))

    async def _commit(self, batch_id: int, attempt: _Attempt, run: str = "") -> StagesCommitted:
        request = CommitStages(
            query=QUERY, run=run or attempt.run, batch_id=batch_id, stages=attempt.stages, wait_ms=WAIT_MS
        )
        _, committed = await self._world.at_owner(lambda broker: broker.staging.commit(ANONYMOUS, request))
        return committed

    async def until_published(self) -> None:
        """Wait until everything that was committed is in its topics: a commit that is repeated says so."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        for one in self._committed:
            while not (await self._commit(one.batch_id, one.attempts[-1], self._run)).applied:
                assert asyncio.get_running_loop().time() < deadline, f"batch {one.batch_id} is never published"
                await asyncio.sleep(0.5)

    def batches(self) -> list[StagedBatch]:
        return [
            StagedBatch(f"batch {one.batch_id}", [attempt.kept() for attempt in one.attempts])
            for one in self._committed
        ]


def _place(one: tuple[SimulatedTopic, int]) -> tuple[str, int]:
    return one[0].label, one[1]
