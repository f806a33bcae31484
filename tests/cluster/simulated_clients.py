"""The clients of a simulated cluster: producers that repeat what was not answered, consumers that ack what they get."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from broker_harness import BrokerClient, Collector
from recorded_history import Kept, Outcome, Publish, Row, Tag, TopicHistory
from simulated_cluster import ANSWER_S, PATIENCE_S, Connection, GivenUp, SimulatedCluster

from pydanube.broker import Broker, Producer
from pydanube.model.errors import DanubeError, NotOwner, Refused, Unavailable
from pydanube.model.names import TopicName


@dataclass(eq=False)
class SimulatedTopic:
    """One life of a topic, and what clients saw of it."""

    name: TopicName
    partitions: int
    label: str
    """Names this life in what is recorded, and in the payloads of its messages."""
    history: TopicHistory = field(default_factory=lambda: TopicHistory(Kept.ALL))
    is_ending: bool = False
    """Its deletion was asked for: what is opened from now on may belong to the next life of the name."""


@dataclass(eq=False)
class SimulatedSubscription:
    """One life of a subscription from the beginning of a topic."""

    topic: SimulatedTopic
    name: str
    rows: list[Row] = field(default_factory=list)
    """What its consumers got."""
    is_deleted: bool = False
    """Its deletion was asked for."""

    @property
    def is_ending(self) -> bool:
        return self.is_deleted or self.topic.is_ending


class SimulatedProducer:
    """Publishes to one partition, and repeats every batch until it is acked, or the topic is deleted."""

    def __init__(self, world: SimulatedCluster, topic: SimulatedTopic, number: int, partition: int) -> None:
        self._world = world
        self._topic = topic
        self._name = f"p{number}"
        self._tags = f"{topic.label}-{self._name}"
        self._partition = partition
        self._chance = random.Random(world.chance.random())
        self._opener = self._chance.getrandbits(40)
        """The same in every open, so that a broker recognises an open that is repeated."""
        self._opened: Producer | None = None
        self._at: Connection | None = None
        self._sent = 0

    def _is_done(self) -> bool:
        return self._world.is_over or self._topic.is_ending

    async def run(self) -> None:
        while not self._is_done():
            tags = [Tag(self._tags, self._sent + n) for n in range(self._chance.randint(1, 5))]
            try:
                base = await self._publish([tag.payload() for tag in tags])
            except (Refused, GivenUp):
                if not self._topic.is_ending:
                    raise
                self._topic.history.publishes += [Publish(tag, Outcome.UNKNOWN) for tag in tags]
                return
            for n, tag in enumerate(tags):
                offset = base + n if base >= 0 else -1
                self._topic.history.publishes.append(Publish(tag, Outcome.ACKED, self._partition, offset))
            self._sent += len(tags)
            await asyncio.sleep(self._chance.expovariate(5))

    async def _publish(self, payloads: list[bytes]) -> int:
        """Return the offset at which the batch is; every try sends the same sequence numbers."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        last: DanubeError | None = None
        while asyncio.get_running_loop().time() < deadline:
            at, opened = await self._open()
            try:
                return await self._world.ask(at, partial(self._try, opened, payloads))
            except (NotOwner, Unavailable) as error:
                last = error
                self._at = None
                await asyncio.sleep(0.1)
        raise AssertionError(f"a batch of {self._tags} is not acked for {PATIENCE_S} s; the last was: {last!r}")

    async def _try(self, opened: Producer, payloads: list[bytes], broker: Broker) -> int:
        published = await BrokerClient(broker, self._topic.name).publish(opened, payloads, self._sent)
        return published.base_offset

    async def _open(self) -> tuple[Connection, Producer]:
        """Open the producer, of this life of the topic. Raises GivenUp if it may be of the next one."""
        if self._at is None or self._opened is None:
            known = self._opened

            async def open_one(broker: Broker) -> Producer:
                client = BrokerClient(broker, self._topic.name)
                if known is None:
                    return await client.producer(self._name, self._partition, opener=self._opener)
                return await client.come_back(known, self._name, self._partition, opener=self._opener)

            at, opened = await self._world.at_owner(open_one, lambda: self._topic.is_ending)
            if self._topic.is_ending:
                raise GivenUp
            self._at, self._opened = at, opened
        return self._at, self._opened


class SimulatedConsumer:
    """Gets and acks the messages of one partition, from whichever broker has it."""

    def __init__(self, world: SimulatedCluster, subscription: SimulatedSubscription, partition: int) -> None:
        self._world = world
        self._subscription = subscription
        self._partition = partition
        self._chance = random.Random(world.chance.random())
        self._confirmed: dict[tuple[int, int], str] = {}
        """By the id of the subscription and the offset: when its ack was confirmed, and by whom. A broker may not have
        heard yet that a subscription was deleted, and then the id is that of the former one."""

    def _is_done(self) -> bool:
        return self._world.is_drained or self._subscription.is_ending

    async def run(self) -> None:
        while not self._is_done():
            try:
                at, sink = await self._world.at_owner(self._subscribe, self._is_done)
                if self._is_done():
                    return  # it may be attached to the next life of the topic or the subscription
                with suppress(NotOwner, Unavailable):
                    await self._receive(at, sink)
            except (Refused, GivenUp):
                if not self._is_done():
                    raise
                return

    async def _subscribe(self, broker: Broker) -> Collector:
        return await BrokerClient(broker, self._subscription.topic.name).subscribe(
            self._subscription.name, f"c{self._partition}", partition=self._partition
        )

    async def _receive(self, at: Connection, sink: Collector) -> None:
        """Take what one broker delivers, until it is down, or has been silent for so long that another is asked."""
        process, taken, silent_s = at.process, 0, 0.0
        while not self._is_done() and sink.error is None and not process.is_dead and silent_s < 2 * ANSWER_S:
            pause_s = self._chance.expovariate(5)
            await asyncio.sleep(pause_s)
            silent_s += pause_s
            fresh = sink.received[taken:]
            taken += len(fresh)
            for offset, payload in fresh:
                self._take(sink.consumer.subscription_id, offset, payload, at)
            if fresh:
                silent_s = 0.0
                await self._ack(at, sink, [offset for offset, _ in fresh])

    def _take(self, subscription_id: int, offset: int, payload: bytes, at: Connection) -> None:
        self._subscription.rows.append(Row(self._partition, offset, Tag.parse(payload)))
        if (when := self._confirmed.get((subscription_id, offset))) is not None:
            self._world.complaints.append(
                f"subscription {self._subscription.name} of {self._subscription.topic.label}: partition "
                f"{self._partition} offset {offset} came again from {at.name}: its ack was confirmed {when}"
            )

    async def _ack(self, at: Connection, sink: Collector, offsets: list[int]) -> None:
        async def ack(_broker: Broker) -> DanubeError | None:
            done: asyncio.Future[DanubeError | None] = asyncio.get_running_loop().create_future()
            sink.consumer.ack([(one, one + 1) for one in offsets], False, done.set_result, sink.generation)
            return await done

        error = await self._world.ask(at, ack)
        if error is not None:
            raise error
        when = f"at {asyncio.get_running_loop().time() - 1000:.2f} by {at.name}"
        self._confirmed.update({(sink.consumer.subscription_id, offset): when for offset in offsets})
