"""Load on a cluster with everything recorded: producers, consumers, readers, staged writes, topics that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from cluster_world import PATIENCE_S, ClusterWorld, eventually
from recorded_history import History, Kept, Outcome, Publish, Row, Tag, TopicHistory, check

import pydanube
from pydanube.codec.batch import encode
from pydanube.model.errors import AlreadyExists, NotFound, NotOwner, Refused, StaleEpoch, Unavailable
from pydanube.model.topics import AckLevelName
from pydanube.spark.options import ReadOptions

BURST_MAX = 20
PAUSE_S = 0.03
"""Between two bursts of a producer: what is tested are faults, not the speed of the machine."""
KEYS = 16
SEND_SECONDS = 8.0
"""After this a publish is unknown; longer than a session, so that most faults are waited for."""
STAGED_ROWS = 10
SUBSCRIPTION = "all"


@dataclass(frozen=True, slots=True)
class LoadTopic:
    name: str
    kept: Kept
    partitions: int = 0
    ack_level: AckLevelName = "durable"
    producers: int = 1
    consumed: bool = True


def load_topics(suffix: str) -> list[LoadTopic]:
    """Return one topic of each kind. Runs in the same cluster use different suffixes."""
    return [
        LoadTopic(f"/default/plain-{suffix}", Kept.ALL, producers=2),
        LoadTopic(f"/default/wide-{suffix}", Kept.ALL, partitions=6, producers=2),
        *stored_topics(suffix),
        LoadTopic(f"/default/written-{suffix}", Kept.SOME, partitions=2, ack_level="written"),
        LoadTopic(f"/default/memory-{suffix}", Kept.SOME, partitions=2, ack_level="memory", consumed=False),
        LoadTopic(f"/default/loose-{suffix}", Kept.NONE, partitions=2),
    ]


def stored_topics(suffix: str) -> list[LoadTopic]:
    """Return topics that other brokers take over when their owner is gone."""
    return [
        LoadTopic(f"/default/stored-{suffix}", Kept.ALL, ack_level="stored"),
        LoadTopic(f"/default/wide-stored-{suffix}", Kept.ALL, partitions=6, ack_level="stored", producers=2),
    ]


class ClusterLoad:
    """Publishes, receives and reads until it is told to stop, and writes down what happened."""

    def __init__(
        self,
        world: ClusterWorld,
        chance: random.Random,
        suffix: str = "x",
        topics: list[LoadTopic] | None = None,
        level: AckLevelName = "durable",
    ) -> None:
        """`topics`: instead of one of each kind. `level`: of the topics that are made while the load runs."""
        self.world = world
        self.chance = chance
        self.topics = load_topics(suffix) if topics is None else list(topics)
        self.level: AckLevelName = level
        self.suffix = suffix
        self.history = History({topic.name: TopicHistory(topic.kept) for topic in self.topics})
        self.unexpected: list[str] = []
        """Errors that no client may see, whatever fails."""
        self._stopping = asyncio.Event()
        self._acked = asyncio.Condition()
        self._acked_count = 0
        self._opened = 0

    async def prepare(self) -> None:
        """Create the topics and, before the first publish, their subscriptions."""
        async with pydanube.connect(self.world.url) as client:
            for topic in self.topics:
                reliable = topic.kept is not Kept.NONE
                await client.create_topic(
                    topic.name, partitions=topic.partitions, reliable=reliable, ack_level=topic.ack_level
                )
                if topic.consumed and topic.kept is not Kept.NONE:
                    await client.create_subscription(topic.name, SUBSCRIPTION, type="shared", start="earliest")

    @contextlib.asynccontextmanager
    async def running(self, *, churn: bool = False, staged: bool = False) -> AsyncIterator[None]:
        """Run the load while the block runs, then until every task has ended what it began."""
        async with asyncio.TaskGroup() as tasks:
            for topic in self.topics:
                for _ in range(topic.producers):
                    tasks.create_task(self._produce(topic))
                if topic.consumed and topic.kept is not Kept.NONE:
                    tasks.create_task(self._consume(topic))
            tasks.create_task(self._read(self.topics[0]))
            if churn:
                tasks.create_task(self._remake())
                tasks.create_task(self._grow())
            if staged:
                tasks.create_task(self._stage())
            try:
                yield
            finally:
                self._stopping.set()

    async def until_acked(self, more: int, seconds: float = PATIENCE_S) -> None:
        """Wait until this many further messages of topics that keep all are acked: the cluster serves."""
        goal = self._acked_count + more
        async with self._acked:
            await asyncio.wait_for(self._acked.wait_for(lambda: self._acked_count >= goal), seconds)

    # Publishing

    def _name(self, kind: str) -> str:
        self._opened += 1
        return f"{kind}-{self._opened}"

    async def _produce(self, topic: LoadTopic) -> None:
        chance = random.Random(self.chance.random())
        record = self.history.topics[topic.name]
        while not self._stopping.is_set():
            name, number = self._name("producer"), 0
            with contextlib.suppress(Unavailable):
                async with (
                    pydanube.connect(self.world.url) as client,
                    client.producer(topic.name, timeout=SEND_SECONDS, create_topic=False) as producer,
                ):
                    while not self._stopping.is_set():
                        tags = [Tag(name, number + n) for n in range(chance.randint(1, BURST_MAX))]
                        number += len(tags)
                        await self._send(producer, record, tags, chance)
                        await self._pause()

    async def _send(
        self,
        producer: pydanube.Producer[bytes],
        record: TopicHistory,
        tags: list[Tag],
        chance: random.Random,
    ) -> None:
        sends = [producer.send(tag.payload(), key=f"key-{chance.randrange(KEYS)}") for tag in tags]
        results = await asyncio.gather(*sends, return_exceptions=True)
        for tag, result in zip(tags, results, strict=True):
            record.publishes.append(self._publish(tag, result))
        if record.kept is Kept.ALL:
            async with self._acked:
                self._acked_count += sum(isinstance(one, pydanube.Receipt) for one in results)
                self._acked.notify_all()

    def _publish(self, tag: Tag, result: pydanube.Receipt | BaseException) -> Publish:
        match result:
            case pydanube.Receipt():
                return Publish(tag, Outcome.ACKED, result.partition, result.offset)
            case StaleEpoch() | NotOwner():
                self.unexpected.append(f"{tag}: {result!r}")
                return Publish(tag, Outcome.UNKNOWN)
            case Refused():
                return Publish(tag, Outcome.REFUSED)
            case Unavailable():
                return Publish(tag, Outcome.UNKNOWN)
        raise result

    async def _pause(self, seconds: float = PAUSE_S) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    # Receiving and reading

    async def _consume(self, topic: LoadTopic) -> None:
        rows = self.history.topics[topic.name].received.setdefault(SUBSCRIPTION, [])
        while not self._stopping.is_set():
            with contextlib.suppress(Unavailable):
                async with (
                    pydanube.connect(self.world.url) as client,
                    client.consumer(topic.name, subscription=SUBSCRIPTION, type="shared") as consumer,
                ):
                    while not self._stopping.is_set():
                        await self._receive(consumer, rows, 0.5)

    async def _receive(self, consumer: pydanube.Consumer[bytes], rows: list[Row], seconds: float) -> bool:
        try:
            message = await consumer.receive(timeout=seconds)
        except TimeoutError:
            return False
        rows.append(Row(message.partition, message.offset, Tag.parse(message.payload)))
        await consumer.ack(message)
        return True

    async def drain(self) -> None:
        """Receive what is left in every subscription, after the faults."""
        async with pydanube.connect(self.world.url) as client:
            for topic in self.topics:
                for subscription, rows in self.history.topics[topic.name].received.items():
                    async with client.consumer(topic.name, subscription=subscription, type="shared") as consumer:

                        async def empty(
                            name: str = topic.name,
                            subscription: str = subscription,
                            consumer: pydanube.Consumer[bytes] = consumer,
                            rows: list[Row] = rows,
                        ) -> bool:
                            while await self._receive(consumer, rows, 0.3):
                                pass
                            described = await client.describe_subscription(name, subscription)
                            return sum(one.lag for one in described.partitions) == 0

                        await eventually(empty, f"{topic.name}: the subscription {subscription} has received all")

    async def _read(self, topic: LoadTopic) -> None:
        """Follow the topic with readers, each from where the last one ended."""
        rows = self.history.topics[topic.name].glimpses.setdefault("follower", [])
        while not self._stopping.is_set():
            with contextlib.suppress(Unavailable):
                start = rows[-1].offset + 1 if rows else 0
                async with (
                    pydanube.connect(self.world.url) as client,
                    client.reader(topic.name, start=start) as reader,
                ):
                    while not self._stopping.is_set():
                        with contextlib.suppress(TimeoutError):
                            message = await reader.receive(timeout=0.5)
                            rows.append(Row(message.partition, message.offset, Tag.parse(message.payload)))

    # What changes meanwhile

    async def _remake(self) -> None:
        """Delete a topic and create it anew, again and again; its last life is part of the history."""
        topic = LoadTopic(f"/default/remade-{self.suffix}", Kept.ALL, partitions=2)
        while not self._stopping.is_set():
            record = TopicHistory(Kept.ALL)
            with contextlib.suppress(Unavailable):
                async with pydanube.connect(self.world.url) as client:
                    self.history.topics.pop(topic.name, None)
                    with contextlib.suppress(NotFound):
                        await client.delete_topic(topic.name)
                    with contextlib.suppress(AlreadyExists):  # a repeated request, whose first answer was lost
                        await client.create_topic(topic.name, partitions=topic.partitions, ack_level=self.level)
                    self.history.topics[topic.name] = record
                    async with client.producer(topic.name, timeout=SEND_SECONDS, create_topic=False) as producer:
                        name = self._name("life")
                        await self._send(producer, record, [Tag(name, n) for n in range(BURST_MAX)], self.chance)
            await self._pause(1.0)

    async def _grow(self) -> None:
        """Give a topic more partitions and subscriptions while it is published to."""
        topic = LoadTopic(f"/default/grown-{self.suffix}", Kept.ALL, partitions=1)
        await self._insist(lambda client: client.create_topic(topic.name, partitions=1, ack_level=self.level))
        self.topics.append(topic)
        self.history.topics[topic.name] = TopicHistory(Kept.ALL)
        count = 1
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._produce(topic))
            while not self._stopping.is_set():
                await self._pause(1.0)
                if count < 8:
                    count += 1
                    wanted = count
                    await self._insist(lambda client, wanted=wanted: client.grow_topic(topic.name, wanted))
                await self._insist(
                    lambda client: client.create_subscription(topic.name, self._name("late"), start="earliest")
                )

    async def _insist(self, change: object) -> None:
        """Make a change; one that is refused because it was made before, by a request without an answer, is made."""
        assert callable(change)
        while not self._stopping.is_set():
            with contextlib.suppress(Unavailable):
                async with pydanube.connect(self.world.url) as client:
                    with contextlib.suppress(AlreadyExists, pydanube.Invalid):
                        await change(client)
                    return

    async def _stage(self) -> None:
        """Write by stages into two topics, as a Spark query does, batch after batch, whatever fails."""
        names = [self.topics[1].name, f"/default/staged-{self.suffix}"]
        await self._insist(lambda client: client.create_topic(names[1], partitions=3, ack_level=self.level))
        self.topics.append(LoadTopic(names[1], Kept.ALL, partitions=3))
        self.history.topics[names[1]] = TopicHistory(Kept.ALL)
        batch_id = 0
        while not self._stopping.is_set():
            tags = [Tag(f"stage-{batch_id}-{number}", row) for number in range(2) for row in range(STAGED_ROWS)]
            outcome = await self._stage_batch(names, tags, batch_id)
            for tag in tags:
                name = names[int(tag.producer[-1])]
                self.history.topics[name].publishes.append(Publish(tag, outcome))
            batch_id += 1
            await self._pause(0.3)

    async def _stage_batch(self, names: list[str], tags: list[Tag], batch_id: int) -> Outcome:
        """Stage and commit one batch; repeated until it is known, as a streaming query does it."""
        query, attempt, deadline = f"query-{self.suffix}", 0, time.monotonic() + 2 * PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(Unavailable):
                async with pydanube.connect(self.world.url) as client:
                    async with client.stager(query, run="run", batch_id=batch_id, attempt=attempt) as stager:
                        for number, name in enumerate(names):
                            payloads = [tag.payload() for tag in tags if tag.producer.endswith(f"-{number}")]
                            now = time.time_ns() // 1000
                            await stager.add(name, number, encode(payloads, publish_times=now))
                        stages = await stager.finish()
                    await client.commit_stages(query, "run", batch_id, stages, wait_ms=2_000)
                    return Outcome.ACKED
            attempt += 1
        return Outcome.UNKNOWN

    # Judging

    async def judge(self) -> None:
        """Read everything through each broker and assert that every promise was kept."""
        await self.drain()
        for broker in self.world.brokers:
            async with pydanube.connect(broker.client_url) as client:
                for topic in [one for one, record in self.history.topics.items() if record.kept is not Kept.NONE]:
                    self.history.topics[topic].readings[broker.name] = await read_all(client, topic)
        await self._judge_by_spark()
        counts = {outcome.value: self.history.count(outcome) for outcome in Outcome}
        print(f"publishes {counts}")
        assert not self.unexpected, self.unexpected[:5]
        complaints = check(self.history)
        assert not complaints, "\n".join([*complaints[:40], self.world.logs()])
        assert counts["acked"], "nothing was acked: nothing was tested"

    async def _judge_by_spark(self) -> None:
        """Read what is kept as Spark's batch reader does, with the address of one broker."""
        address = self.chance.choice(self.world.brokers).client_url.removeprefix("danube://")
        for name, record in self.history.topics.items():
            if record.kept is Kept.ALL:
                record.readings["spark"] = await asyncio.to_thread(spark_rows, address, name)


def spark_rows(address: str, topic: str) -> list[Row]:
    """Return every message of a topic as the tasks of a Spark query read it, without a Spark."""
    from pydanube.spark.reading.batch_reader import DanubeReader

    reader = DanubeReader(ReadOptions.parse({"servers": address, "topic": topic}, "batch"))
    rows = [
        Row(one["partition"], one["offset"], Tag.parse(one["payload"]))
        for task in reader.partitions()
        for batch in reader.read(task)
        for one in batch.select(["partition", "offset", "payload"]).to_pylist()
    ]
    return sorted(rows)


async def read_all(client: pydanube.Client, topic: str) -> list[Row]:
    """Return every message of a topic, partition by partition."""
    rows: list[Row] = []

    async def read() -> bool:
        rows.clear()
        for partition in range(await client.count_partitions(topic)):
            async with client.reader(topic, partition=partition, start="earliest", end="latest") as reader:
                rows.extend([Row(one.partition, one.offset, Tag.parse(one.payload)) async for one in reader])
        return True

    await eventually(read, f"{topic} can be read")
    return rows
