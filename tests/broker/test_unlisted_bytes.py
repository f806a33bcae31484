"""Messages in slices that the catalog does not list have a limit: publishes are refused there, and nothing else."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TIERING, BrokerClient, open_broker
from metadata_harness import Fault, FaultyStore, puts
from storage_harness import usage
from stored_harness import STORED, client_of, stored_topic
from test_failing_disk import FAST_CURE, FailingDisk, until_cured
from tiering_harness import upload_all

from pydanube.broker import Broker, Producer
from pydanube.broker.partitions.unlisted_bytes import PartitionUnlistedBytes, UnlistedBytes
from pydanube.codec.batch import encode
from pydanube.core.access import ANONYMOUS
from pydanube.model.errors import DanubeError, Unavailable
from pydanube.model.settings.sections import SliceSettings
from pydanube.operations.topics import UnloadTopic
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore
from pydanube.runtime.tasks import Tasks
from pydanube.storage.segments.catalog import SEGMENTS

LIMIT = 64 << 10
LIMITED = SliceSettings(unlisted_bytes_max=LIMIT)
PAYLOAD = bytes(1000)
SEED = int(os.environ.get("DANUBE_SEED", "0")) or random.SystemRandom().getrandbits(32)


def total(broker: Broker) -> int:
    assert broker._tiers is not None
    return broker._tiers.unlisted.total


async def upload_round(broker: Broker) -> int:
    """Run a round as the task of the broker does."""
    assert broker._tiers is not None
    return await broker._tiers._round()


async def publish_until_refused(client: BrokerClient, producer: Producer) -> tuple[int, Unavailable]:
    """Return how many batches were taken, and why the next one was not."""
    for taken in range(10 * LIMIT // len(PAYLOAD)):
        try:
            await client.publish(producer, [PAYLOAD])
        except Unavailable as error:
            return taken, error
    raise AssertionError("nothing was refused")


async def test_while_the_metadata_is_away_publishes_go_on_up_to_the_limit_and_acks_beyond_it(tmp_path: Path) -> None:
    objects, metadata = MemoryStore(), FaultyStore()
    async with open_broker(tmp_path, objects=objects, metadata=metadata, crash=True, slices=LIMITED) as broker:
        client = await stored_topic(broker)
        producer, sink = await client.producer("till"), await client.subscribe()
        await client.publish(producer, [PAYLOAD])
        await sink.ack((0, 1))
        away = [metadata.refuse_all(lambda _writes: True), metadata.refuse_reads()]
        await upload_round(broker)
        taken, error = await publish_until_refused(client, producer)
        assert taken > LIMIT // len(PAYLOAD) // 2
        assert LIMIT <= total(broker) < LIMIT + 2 * len(PAYLOAD), "one batch beyond it at most"
        await upload_round(broker)
        with pytest.raises(
            Unavailable, match=r"slices\.unlisted_bytes_max is 65536; uploads or the catalog .*hiccuped"
        ):
            await client.publish(producer, [PAYLOAD])
        assert "slices.unlisted_bytes_max" in error.message
        assert "publishes to `stored` topics are refused" in broker.describe(ANONYMOUS).state
        assert len(await sink.wait_for(1 + taken)) == 1 + taken
        await sink.ack((1, 1 + taken))
        for one in away:
            one.end()
        assert await upload_round(broker) > 0
        assert total(broker) == 0
        assert "refused" not in broker.describe(ANONYMOUS).state
        status, (found,) = await usage(broker)
        assert (found.uploaded_end, status.refusing) == (1 + taken, "")
        assert (await client.publish(producer, [b"after"])).base_offset == 1 + taken
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        sink = await client_of(broker).subscribe()
        assert await sink.wait_for(1) == [(1 + taken, b"after")], "the acks are stored"


async def test_a_batch_that_is_sent_again_at_the_limit_is_recognised(tmp_path: Path) -> None:
    metadata = FaultyStore()
    async with open_broker(tmp_path, objects=MemoryStore(), metadata=metadata, crash=True, slices=LIMITED) as broker:
        client = await stored_topic(broker)
        producer = await client.producer("till")
        await client.publish(producer, [b"0"], sequence=0)
        metadata.refuse_all(puts(SEGMENTS))
        await publish_until_refused(client, await client.producer())
        assert (await client.publish(producer, [b"0"], sequence=0)).duplicate


async def test_other_topics_are_not_refused(tmp_path: Path) -> None:
    metadata = FaultyStore()
    async with open_broker(tmp_path, objects=MemoryStore(), metadata=metadata, crash=True, slices=LIMITED) as broker:
        client = await stored_topic(broker)
        metadata.refuse_all(puts(SEGMENTS))
        await publish_until_refused(client, await client.producer())
        durable = client_of(broker, "durable")
        await durable.create()
        await durable.publish(await durable.producer(), [PAYLOAD])


async def test_half_full_segments_of_many_partitions_are_uploaded_before_the_limit(tmp_path: Path) -> None:
    """None of them is due by size or by age."""
    async with open_broker(tmp_path, objects=MemoryStore(), clock=ManualClock(), crash=True, slices=LIMITED) as broker:
        client = await stored_topic(broker, partitions=12)
        producers = [await client.producer(partition=index) for index in range(12)]
        uploads = []
        for _ in range(20):
            for producer in producers:
                await client.publish(producer, [PAYLOAD])  # twelve are less than a quarter of the limit
            is_nearly_full = total(broker) >= LIMIT * 3 // 4
            assert (await upload_round(broker) > 0) == is_nearly_full
            uploads.append(is_nearly_full)
        assert 2 <= sum(uploads) <= 8
        await upload_all(broker)
        assert total(broker) == 0


async def test_what_retention_drops_before_it_is_uploaded_counts_no_more(tmp_path: Path) -> None:
    async with open_broker(tmp_path, objects=MemoryStore(), crash=True, slices=LIMITED) as broker:
        client = await stored_topic(broker)
        producer = await client.producer()
        for _ in range(5):
            await client.publish(producer, [PAYLOAD])
        (partition,) = broker._partitions.open_of(broker._registry.topic(client.topic).topic_id)
        before = total(broker)
        await partition.trim(2)
        assert total(broker) == before * 3 // 5
        await partition.trim(5)
        assert total(broker) == 0


async def test_batches_that_a_failing_disk_refused_count_no_more(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with open_broker(
        tmp_path, objects=MemoryStore(), disk=disk, wal=FAST_CURE, crash=True, slices=LIMITED
    ) as broker:
        client = await stored_topic(broker)
        producer = await client.producer("till")
        await client.publish(producer, [PAYLOAD], sequence=0)
        await upload_all(broker)
        assert total(broker) == 0
        disk.write_error = errno.EIO
        with pytest.raises(DanubeError):
            await client.publish(producer, [PAYLOAD], sequence=1)
        assert total(broker) == 0, "nothing is left to upload"
        disk.write_error = 0
        await until_cured(client, producer, 1)
        assert total(broker) > 0
        await upload_all(broker)
        assert total(broker) == 0


async def test_what_a_taker_inherits_counts_until_it_is_listed(tmp_path: Path) -> None:
    objects, metadata = MemoryStore(), FaultyStore()
    async with open_broker(tmp_path, objects=objects, crash=True, slices=LIMITED) as broker:
        client = await stored_topic(broker)
        producer = await client.producer()
        for _ in range(3):
            await client.publish(producer, [PAYLOAD])
        left = total(broker)
    async with open_broker(tmp_path, objects=objects, metadata=metadata, crash=True, slices=LIMITED) as broker:
        held, tasks = metadata.hold(puts(SEGMENTS)), Tasks()
        reading = tasks.spawn(client_of(broker).read_all(), "read")
        await held.asked.wait()
        assert total(broker) == left > 3 * len(PAYLOAD)
        held.go_on()
        assert len(await reading) == 3
        assert total(broker) == 0
        await tasks.close()


async def test_a_takeover_that_fails_counts_nothing(tmp_path: Path) -> None:
    objects, metadata = MemoryStore(), FaultyStore()
    async with open_broker(tmp_path, objects=objects, crash=True) as broker:
        client = await stored_topic(broker)
        await client.publish(await client.producer(), [PAYLOAD])
    async with open_broker(tmp_path, objects=objects, metadata=metadata, crash=True) as broker:
        refused = metadata.refuse_all(puts(SEGMENTS))
        with pytest.raises(Unavailable):
            await client_of(broker).read_all()
        assert total(broker) == 0
        refused.end()
        broker._partitions.try_again()
        assert await client_of(broker).read_all() == [(0, PAYLOAD)]


async def test_partitions_of_a_lost_session_count_no_more(world):
    a = await world.start("a", objects=MemoryStore())
    await a.client.create(ack_level=STORED)
    await a.client.publish(await a.client.producer(), [PAYLOAD])
    assert total(a.broker) > len(PAYLOAD)
    await world.sessions.end("a")
    assert total(a.broker) == 0


async def test_an_upload_whose_answer_was_lost_counts_no_more_once_that_is_known(tmp_path: Path) -> None:
    metadata = FaultyStore()
    async with open_broker(tmp_path, objects=MemoryStore(), metadata=metadata, crash=True) as broker:
        client = await stored_topic(broker)
        await client.publish(await client.producer(), [PAYLOAD])
        metadata.lose_answer(puts(SEGMENTS))
        await upload_all(broker)
        assert total(broker) > 0
        await upload_all(broker)
        assert total(broker) == 0


# -- random histories --------------------------------------------------------------------------------------------------


class History:
    """A broker under random calls, and the batches that were published to it."""

    def __init__(self, broker: Broker, metadata: FaultyStore, topics: list[str], dice: random.Random) -> None:
        self.broker = broker
        self._metadata = metadata
        self._clients = {topic: client_of(broker, topic) for topic in topics}
        self._producers: dict[str, Producer] = {}
        self._batches: dict[str, list[tuple[int, int]]] = {topic: [] for topic in topics}
        """End offsets and sizes, by topic."""
        self._dice = dice

    async def run(self, steps: int) -> None:
        dice = self._dice
        for _ in range(steps):
            topic = dice.choice(list(self._clients))
            match dice.choice(["append", "append", "together", "upload", "trim", "lost", "refused", "unload"]):
                case "append":
                    await self._publish(topic, 1)
                case "together":
                    await self._publish(topic, 5)
                case "upload":
                    await upload_round(self.broker)
                case "trim":
                    partition = await self.broker._partitions.get(self._clients[topic].topic, 0)
                    await partition.trim(dice.randint(0, partition.stream.end_offset))
                case "lost":
                    await self._upload_with(self._metadata.lose_answer(puts(SEGMENTS)))
                case "refused":
                    await self._upload_with(self._metadata.refuse(puts(SEGMENTS)))
                case "unload":
                    await self.broker.topics.unload(UnloadTopic(topic=self._clients[topic].topic))
                    self._producers.pop(topic, None)
            assert total(self.broker) >= self.unlisted()

    async def _publish(self, topic: str, batches: int) -> None:
        client = self._clients[topic]
        if topic not in self._producers:
            self._producers[topic] = await client.producer()
        payloads = [bytes(self._dice.randint(1, 2000)) for _ in range(batches)]
        for payload, answer in [(one, client.publish(self._producers[topic], [one])) for one in payloads]:
            size = len(encode([payload], publish_times=1, producer_id=1, producer_epoch=1, first_sequence=-1))
            self._batches[topic].append(((await answer).base_offset + 1, size))

    async def _upload_with(self, fault: Fault) -> None:
        await upload_round(self.broker)
        fault.end()

    def unlisted(self) -> int:
        """Return the bytes of the batches that no record says are listed, in partitions that are open."""
        unlisted = 0
        for topic, client in self._clients.items():
            for one in self.broker._partitions.open_of(self.broker._registry.topic(client.topic).topic_id):
                known = max(one.ownership.uploaded_end, one.ownership.start_offset)
                unlisted += sum(size for end, size in self._batches[topic] if end > known)
        return unlisted


@pytest.mark.parametrize("number", range(5))
async def test_the_total_is_0_when_everything_is_uploaded_in_any_history(number: int, tmp_path: Path) -> None:
    print(f"DANUBE_SEED={SEED}")
    dice, objects = random.Random(f"{SEED}-{number}"), MemoryStore()
    topics = ["one", "two", "three"]
    tiering = replace(TIERING, segment_bytes=4 << 10, shared_below_bytes=1 << 10)
    for start in range(4):
        metadata = FaultyStore()
        async with open_broker(tmp_path, objects=objects, metadata=metadata, tiering=tiering, crash=True) as broker:
            if not start:
                for topic in topics:
                    await stored_topic(broker, topic)
            history = History(broker, metadata, topics, dice)
            await history.run(dice.randint(5, 30))
            if dice.random() < 0.7:  # else the next broker takes over what is not uploaded
                await upload_all(broker)
                await upload_all(broker)  # the answer to an upload may have been lost
                assert total(broker) == history.unlisted() == 0


def test_parts_are_counted_until_all_their_batches_are_listed_or_refused() -> None:
    broker = UnlistedBytes(1000)
    one, other = PartitionUnlistedBytes(broker), PartitionUnlistedBytes(broker)
    one.add(10, 0, 100)
    one.add(20, 0, 50)
    one.add(30, 1, 25)
    other.add(5, 1, 800)
    assert broker.total == 975
    assert broker.is_nearly_full
    assert broker.refusal() is None
    one.listed(10)
    assert broker.total == 975, "a part of the slice is not listed"
    one.listed(20)
    assert broker.total == 825
    one.rolled_back(20)
    assert broker.total == 800
    one.add(25, 2, 200)
    assert one.refusal() is not None
    other.end()
    other.add(6, 3, 1)
    assert broker.total == 200
    one.listed(25)
    assert broker.total == 0
