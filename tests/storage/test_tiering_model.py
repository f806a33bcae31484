"""The stream over objects and log against a list: random appends, uploads, trims, restarts, reads and searches."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from broker_harness import TOPIC, BrokerClient, open_client
from tiering_harness import SMALL, WAL, client_of, filled, upload_all

from exhaustive import several
from pydanube.codec.batch import Batch
from pydanube.core.access import ANONYMOUS
from pydanube.model.positions import Position
from pydanube.runtime.clock import ManualClock
from pydanube.runtime.objects.memory import MemoryStore

STEPS = 150


class Model:
    """What the partition holds, as a list of batches: (first offset, end, append time, payloads)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, list[bytes]]] = []
        self.start = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def at(self, offset: int) -> tuple[int, int, int, list[bytes]] | None:
        """The batch that a read from here begins with."""
        return next((one for one in self.batches if one[1] > max(offset, self.start)), None)

    def time(self, time_us: int) -> int:
        kept = [one for one in self.batches if one[1] > self.start]
        return next((max(self.start, one[0]) for one in kept if one[2] >= time_us), self.end)


class Run:
    """One seeded walk."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.model = Model()
        self.settings = {
            "wal": replace(WAL, file_bytes=1 << 16),
            "objects": MemoryStore(),
            "tiering": replace(SMALL, segment_bytes=1 << self.chance.randint(14, 18), cache_bytes=1 << 20),
            "clock": self.clock,
            "tail_bytes": 1 << self.chance.randint(0, 18),
        }
        self.directory = directory
        self.payloads = 0

    async def walk(self, steps: int) -> None:
        left = steps
        while left > 0:
            crash = self.chance.random() < 0.5
            async with open_client(self.directory, crash=crash, **self.settings) as client:
                if left == steps:
                    await client.create()
                    await client_of(client.broker, "busy").create()
                for _ in range(min(left, self.chance.randint(5, 60))):
                    left -= 1
                    await self.step(client.broker, client)
                await self.check_all(client)

    async def step(self, broker, client: BrokerClient) -> None:
        kinds = ["append", "read", "time", "upload", "trim log", "retention", "at once", "others"]
        kind = self.chance.choices(kinds, [30, 30, 10, 8, 5, 3, 5, 5])[0]
        if kind == "append":
            await self.append(client)
        elif kind == "read":
            await self.read(client)
        elif kind == "time":
            await self.find(broker)
        elif kind == "upload":
            await broker._tiers.uploader.round(everything=True)
        elif kind == "trim log":
            await broker._tiers.trim()
        elif kind == "retention":
            partition = await broker._partitions.get(TOPIC, 0)
            await partition.trim(self.chance.randint(self.model.start, self.model.end))
            self.model.start = max(self.model.start, partition.stream.start_offset)
        elif kind == "at once":
            await asyncio.gather(
                upload_all(broker), *(one for _ in range(3) for one in (self.read(client), self.find(broker)))
            )
        else:
            await filled(client_of(broker, "busy"), self.chance.randint(1, 20))
            await upload_all(broker)

    async def append(self, client: BrokerClient) -> None:
        producer = await client.producer()
        for _ in range(self.chance.randint(1, 10)):
            self.clock.advance(self.chance.choice([0, 0, 0.001, 1]))
            count = self.chance.randint(1, 20)
            payloads = [b"%d" % (self.payloads + n) + b"x" * self.chance.randint(0, 2000) for n in range(count)]
            self.payloads += count
            answer = await client.publish(producer, payloads)
            assert answer.base_offset == self.model.end, f"seed={self.seed}"
            self.model.batches.append((answer.base_offset, answer.base_offset + count, self.clock.now_us(), payloads))

    async def read(self, client: BrokerClient) -> None:
        offset = self.chance.randint(0, self.model.end)
        fetched = await client.fetch(Position("offset", offset), bytes_max=1 << self.chance.randint(0, 20))
        expected = self.model.at(offset)
        if expected is None:
            assert not fetched.batches, f"seed={self.seed}"
            return
        place = self.model.batches.index(expected)
        assert fetched.batches, f"seed={self.seed}: nothing at {offset} of [{self.model.start}, {self.model.end})"
        for view, (base, end, time_us, payloads) in zip(fetched.batches, self.model.batches[place:], strict=False):
            batch = Batch.open(view, stamped=True)
            found = (batch.base_offset, batch.end_offset, batch.append_time, list(batch.payloads))
            assert found == (base, end, time_us, payloads), f"seed={self.seed}"

    async def find(self, broker) -> None:
        if not self.model.batches:
            return
        time_us = self.chance.choice(self.model.batches)[2] + self.chance.choice([-1, 0, 1])
        found = await broker.topics.find_offset(ANONYMOUS, TOPIC, 0, Position("time", time_us))
        assert found == self.model.time(time_us), f"seed={self.seed}"

    async def check_all(self, client: BrokerClient) -> None:
        stored = await client.read_all()
        expected = [
            (base + n, payload)
            for base, end, _, payloads in self.model.batches
            if end > self.model.start
            for n, payload in enumerate(payloads)
        ]
        assert stored == expected, f"seed={self.seed}"


@pytest.mark.parametrize("walk", range(several(2, 6)))
async def test_a_random_walk_agrees_with_a_list(tmp_path: Path, walk: int):
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    await Run(tmp_path, seed).walk(STEPS)
