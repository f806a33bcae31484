"""Random histories of deliveries, acks, nacks, seeks and restarts, against sets: an ack counts only for
the delivery that it names.

A failure prints its seed. More of them: SEEK_SEEDS=500.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest
from broker_harness import TOPIC, BrokerClient, Collector, open_broker

from exhaustive import several
from pydanube.broker.subscriptions.subscriptions import Attachment
from pydanube.core.access import ANONYMOUS
from pydanube.model.failure import FailurePolicy
from pydanube.model.positions import EARLIEST, Position
from pydanube.model.topics import SubscriptionType
from pydanube.operations.subscriptions import DescribeSubscription, Seek

SEEDS = int(os.environ.get("SEEK_SEEDS", several(3, 6)))
STEPS = 120
SINGLE = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class Recorder(Collector):
    """Records the seek generation of each message it receives."""

    def __init__(self, history: "History") -> None:
        super().__init__()
        self.history = history

    def deliver(self, batch, epoch, ranges, redeliveries, reasons) -> None:
        before = len(self.received)
        super().deliver(batch, epoch, ranges, redeliveries, reasons)
        for offset, _ in self.received[before:]:
            self.history.delivered.append((self.generation, offset))

    def closed(self, error) -> None:
        super().closed(error)
        self.history.consumers.remove(self)


class History:
    """One subscription, with everything that was ever delivered and what must be acknowledged."""

    def __init__(self, directory: Path, kind: SubscriptionType, seed: int) -> None:
        self.directory = directory
        self.kind = kind
        self.random = Random(seed)
        self.acked: set[int] = set()
        self.delivered: list[tuple[int, int]] = []
        self.consumers: list[Recorder] = []
        self.end = self.generation = 0

    async def run(self) -> None:
        begun = False
        for _ in range(3):
            crash = self.random.random() < 0.5
            async with AsyncExitStack() as stack:
                broker = await stack.enter_async_context(open_broker(self.directory, crash=crash))
                self.client = BrokerClient(broker)
                if not begun:
                    await self.client.create()
                    policy = FailurePolicy(delay_ms=0)
                    options = (TOPIC, "billing", self.kind, EARLIEST, policy)
                    await broker.subscriptions.create(ANONYMOUS, *options)
                    begun = True
                self.consumers = []
                self.producer = await self.client.producer()
                ((_, self.live),) = await broker.subscriptions._on_partitions(
                    DescribeSubscription(topic=TOPIC, subscription="billing"), [0]
                )
                self.check()
                await self.publish()
                await self.attach()
                for _ in range(STEPS // 3):
                    await self.random.choice(self.STEPS)(self)
                    self.check()
                await self.drain()

    def check(self) -> None:
        cursor = self.live.cursor
        assert cursor.generation == self.generation
        assert {offset for offset in range(self.end) if cursor.is_acked(offset)} == self.acked

    async def publish(self) -> None:
        count = self.random.randint(1, 8)
        keys = [self.random.choice("abc") for _ in range(count)]
        await self.client.publish(self.producer, [b"x"] * count, keys=keys)
        self.end += count

    async def attach(self) -> None:
        name = "a" if self.kind is SubscriptionType.EXCLUSIVE else self.random.choice("abc")
        recorder = Recorder(self)
        options = Attachment("billing", name, self.kind)
        recorder.consumer = await self.client.broker.subscriptions.subscribe(ANONYMOUS, TOPIC, 0, options, recorder)
        recorder.generation = recorder.consumer.generation
        self.consumers.append(recorder)
        recorder.consumer.credit(self.random.choice([3, 1_000]), 1 << 30)

    async def detach(self) -> None:
        if self.consumers:
            gone = self.consumers.pop(self.random.randrange(len(self.consumers)))
            gone.consumer.close()

    async def ack(self) -> None:
        """Ack any earlier delivery through any consumer, as clients do that reconnect with acks they could not send."""
        if not self.consumers or not self.delivered:
            return
        generation, offset = self.random.choice(self.delivered)
        cumulative = self.kind in SINGLE and self.random.random() < 0.3
        await self.random.choice(self.consumers).ack((offset, offset + 1), cumulative=cumulative, generation=generation)
        if generation == self.generation:
            self.acked |= set(range(offset + 1)) if cumulative else {offset}

    async def ack_latest(self) -> None:
        """Ack a delivery of the current generation."""
        present = [offset for generation, offset in self.delivered if generation == self.generation]
        if self.consumers and present:
            offset = self.random.choice(present)
            await self.random.choice(self.consumers).ack((offset, offset + 1), generation=self.generation)
            self.acked.add(offset)

    async def ack_many(self) -> None:
        """Ack all deliveries of one generation: so many ranges that the broker batches them."""
        if self.consumers and self.delivered:
            generation = self.random.choice(self.delivered)[0]
            offsets = sorted({offset for one, offset in self.delivered if one == generation})
            ranges = [(offset, offset + 1) for offset in offsets]
            await self.random.choice(self.consumers).ack(*ranges, generation=generation)
            if generation == self.generation:
                self.acked |= set(offsets)

    async def nack(self) -> None:
        if self.consumers and self.delivered:
            generation, offset = self.random.choice(self.delivered)
            self.random.choice(self.consumers).consumer.nack([(offset, offset + 1)], 0, generation=generation)

    async def seek(self) -> None:
        position = self.random.randint(0, self.end)
        await self.client.broker.subscriptions.seek(
            ANONYMOUS, Seek(topic=TOPIC, subscription="billing", position=Position("offset", position))
        )
        assert self.live.generation > self.generation
        self.generation = self.live.generation
        self.acked = set(range(position))

    async def drain(self) -> None:
        """Check that everything unacknowledged is delivered in the current generation, and that its acks count."""
        await self.attach()
        async with asyncio.timeout(30):
            while len(self.acked) < self.end:
                for one in self.consumers:
                    one.consumer.credit(1_000, 1 << 30)
                offsets = {offset for generation, offset in self.delivered if generation == self.generation}
                for offset in sorted(offsets - self.acked):
                    await self.consumers[-1].ack((offset, offset + 1), generation=self.generation)
                self.acked |= offsets
                await asyncio.sleep(0)
        self.check()

    STEPS = (publish, publish, attach, detach, ack, ack, ack_latest, ack_latest, ack_many, nack, seek)


@pytest.mark.parametrize("kind", SubscriptionType)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_in_any_history_an_ack_counts_only_for_the_delivery_that_it_names(tmp_path, kind, seed):
    print("seed", seed)
    await History(tmp_path, kind, seed).run()
