"""kill -9 of the broker under load: nothing acked is lost, nothing is stored twice, nobody skips anything."""

import asyncio
import random
from collections import Counter

import pytest
from brokers import BrokerProcess

import pydanube

TOPIC = "/default/load"
PARTITIONS = 3


class Load:
    """Producers and a consumer that continue over kills of the broker, and a record of what was acked and received."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self.url = url
        self.rng = rng
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.received: Counter[tuple[int, int]] = Counter()
        self.content: dict[tuple[int, int], bytes] = {}
        self.stopping = self.all_sent = False
        self.progress = asyncio.Event()

    async def until_acked(self, count: int) -> None:
        while len(self.acked) < count:
            self.progress.clear()
            await self.progress.wait()

    async def produce(self, number: int) -> None:
        async with (
            pydanube.connect(self.url) as client,
            client.producer(TOPIC, name=f"p{number}" if number % 2 else None) as producer,
        ):
            count = 0
            while not self.stopping:
                payloads = [b"%d-%d" % (number, count + n) for n in range(self.rng.randint(1, 50))]
                count += len(payloads)
                receipts = await asyncio.gather(*[producer.send(one, key=one.decode()) for one in payloads])
                for payload, receipt in zip(payloads, receipts, strict=True):
                    self.acked[payload] = (receipt.partition, receipt.offset)
                self.progress.set()

    async def consume(self) -> None:
        async with (
            pydanube.connect(self.url) as client,
            client.consumer(TOPIC, subscription="load", start="earliest", name="c") as consumer,
        ):
            async for message in consumer:
                place = (message.partition, message.offset)
                self.received[place] += 1
                assert self.content.setdefault(place, message.payload) == message.payload, "an offset was used twice"
                await consumer.ack(message)
                if self.all_sent and self.caught_up():
                    return

    def caught_up(self) -> bool:
        return all(place in self.received for place in self.acked.values())


async def read_everything(url: str) -> dict[int, list[bytes]]:
    stored: dict[int, list[bytes]] = {}
    async with pydanube.connect(url) as client:
        topic = await client.describe_topic(TOPIC)
        for partition in topic.partitions:
            stored[partition.index] = []
            reader = client.reader(TOPIC, partition=partition.index, start="earliest", end="latest")
            async with reader:
                async for message in reader:
                    assert message.offset == len(stored[partition.index]), "offsets are dense"
                    stored[partition.index].append(message.payload)
    return stored


async def kill_again_and_again(directory, kills: int, seed: int) -> Load:
    print(f"seed {seed}")
    rng = random.Random(seed)
    with BrokerProcess(directory) as broker:
        load = Load(broker.url, rng)
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=PARTITIONS)
            await client.create_subscription(TOPIC, "load", start="earliest")
        async with asyncio.TaskGroup() as tasks:
            producers = [tasks.create_task(load.produce(number)) for number in range(3)]
            consumer = tasks.create_task(load.consume())
            for _ in range(kills):
                before = len(load.acked)
                await load.until_acked(before + rng.randint(50, 2000))
                await broker.restart()
            load.stopping = True
            await asyncio.wait(producers)
            load.all_sent = True
            # The last message may have been received before the consumer was told to stop: one more wakes it.
            async with pydanube.connect(broker.url) as client, client.producer(TOPIC) as producer:
                while not consumer.done():
                    receipt = await producer.send(b"end")
                    load.acked[b"end"] = (receipt.partition, receipt.offset)
                    await asyncio.wait([consumer], timeout=0.1)
                    if not consumer.done():
                        assert len(load.acked) < 10_000_000
        stored = await read_everything(broker.url)
        verify(load, stored)
    return load


def verify(load: Load, stored: dict[int, list[bytes]]) -> None:
    everywhere = [payload for payloads in stored.values() for payload in payloads]
    copies = {payload: count for payload, count in Counter(everywhere).items() if count > 1 and payload != b"end"}
    assert not copies, "a retrying producer stored twice"
    for payload, (partition, offset) in load.acked.items():
        assert stored[partition][offset] == payload, "acked and lost"
    for partition, payloads in stored.items():
        missed = [offset for offset in range(len(payloads)) if (partition, offset) not in load.received]
        unacked_tail = [offset for offset in missed if payloads[offset] in load.acked and payloads[offset] != b"end"]
        assert not unacked_tail, "the consumer skipped"


@pytest.mark.process
async def test_killing_the_broker_five_times_under_load_loses_and_repeats_nothing(tmp_path):
    load = await kill_again_and_again(tmp_path / "data", kills=5, seed=random.randrange(2**32))
    assert len(load.acked) > 250


@pytest.mark.soak
@pytest.mark.process
async def test_killing_the_broker_fifty_times_under_load_loses_and_repeats_nothing(tmp_path):
    load = await kill_again_and_again(tmp_path / "data", kills=50, seed=random.randrange(2**32))
    assert len(load.acked) > 2500
