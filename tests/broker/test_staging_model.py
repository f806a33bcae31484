"""Staged writes against a model: random queries, runs, crashes and failing stores, and every row exactly once."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from broker_harness import TOPIC
from staging_harness import Query, Rows, payloads, quiet, stages_in, staging_broker
from tiering_harness import FaultyObjectStore

from pydanube.broker import Broker
from pydanube.core.access import ANONYMOUS
from pydanube.metadata.store import list_all
from pydanube.model.errors import StaleEpoch, Unavailable
from pydanube.model.topics import TopicConfig

PARTITIONS = 3
STEPS = 120


@dataclass
class Life:
    """The model of one query: its runs, and what was committed under each batch id."""

    name: str
    run: int = 0
    over: list[int] = field(default_factory=list)
    last: int = -1
    rows: dict[int, list[bytes]] = field(default_factory=lambda: {index: [] for index in range(PARTITIONS)})
    staged: list[tuple[str, Rows]] = field(default_factory=list)
    """For the batch behind the last one."""
    unknown: list[tuple[str, Rows]] | None = None
    """A commit of the batch behind the last one that may have happened."""


class Machine:
    """Brokers that follow each other on the same directory, and what their partitions must hold."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.objects = FaultyObjectStore()
        self.lives = [Life(f"query {number}") for number in range(2)]
        self.rows = 0
        self.parts = AsyncExitStack()
        self.broker: Broker | None = None

    async def open(self, crash: bool) -> None:
        await self.parts.aclose()
        self.broker = await self.parts.enter_async_context(
            staging_broker(self.directory, self.objects, crash=crash, remembered_max=3)
        )

    def query(self, life: Life, run: int | None = None) -> Query:
        assert self.broker is not None
        return Query(self.broker, life.name, f"run {life.run if run is None else run}")

    def some_rows(self) -> Rows:
        rows: Rows = {}
        for index in self.chance.sample(range(PARTITIONS), self.chance.randint(1, PARTITIONS)):
            count = self.chance.randint(1, 5)
            rows[index] = [b"%d" % (self.rows + number) for number in range(count)]
            self.rows += count
        return rows

    async def step(self) -> None:
        life = self.chance.choice(self.lives)
        acts = [self.stage, self.stage, self.stage, self.commit, self.commit, self.repeat, self.zombie]
        acts += [self.change_fault, self.change_fault, self.restart, self.next_run]
        await self.chance.choice(acts)(life)

    async def stage(self, life: Life) -> None:
        rows = self.some_rows()
        try:
            name = await self.query(life).stage(life.last + 1, rows, per_batch=2)
        except Unavailable:
            return
        life.staged.append((name, rows))

    async def commit(self, life: Life) -> None:
        """Commit some of the stages. A commit that may have happened before is repeated first."""
        if life.unknown is None:
            count = self.chance.randint(0, len(life.staged))
            life.unknown = self.chance.sample(life.staged, count)
        chosen = life.unknown
        try:
            await self.query(life).commit(life.last + 1, *[name for name, _ in chosen], wait_ms=0)
        except Unavailable:
            return
        for _, rows in chosen:
            for index, ones in rows.items():
                life.rows[index] += ones
        life.last, life.staged, life.unknown = life.last + 1, [], None

    async def repeat(self, life: Life) -> None:
        if life.last < 0:
            return
        batch_id = self.chance.randint(0, life.last)
        assert (await self.query(life).commit(batch_id, wait_ms=0)).repeated

    async def zombie(self, life: Life) -> None:
        """Let a run that a later one has fenced try to write."""
        if life.over:
            with pytest.raises((StaleEpoch, Unavailable)):
                await self.query(life, self.chance.choice(life.over[-10:])).write(life.last + 1, {0: [b"zombie"]})

    async def next_run(self, life: Life) -> None:
        if life.unknown is None:
            self.objects.fault = "none"
            await self.query(life).stage(life.last + 1, {0: [b"never named"]})
            life.over.append(life.run)
            life.run += 1
            await self.query(life).stage(life.last + 1, {0: [b"never named"]})
            life.staged = []

    async def change_fault(self, _life: Life) -> None:
        self.objects.fault = self.chance.choice(["none", "none", "away", "unreadable", "put and failed"])

    async def restart(self, _life: Life) -> None:
        await self.open(crash=self.chance.random() < 0.7)

    async def check(self) -> None:
        self.objects.fault = "none"
        await self.open(crash=False)
        assert self.broker is not None
        for life in self.lives:
            while life.unknown is not None:
                await self.commit(life)
        await quiet(self.broker)
        for index in range(PARTITIONS):
            found = await payloads(self.broker, index)
            assert len(found) == len(set(found)), "something came twice"
            for life in self.lives:
                ours = set(life.rows[index])
                assert [one for one in found if one in ours] == life.rows[index]
            assert len(found) == sum(len(life.rows[index]) for life in self.lives), (
                "something came that was not committed"
            )
        store = self.broker.staging._records._store
        assert [one.key async for one in list_all(store, "/staged/") if "/queries/" not in one.key] == []
        for life in self.lives:
            with_record = await self.broker.staging._records.find(ANONYMOUS, life.name)
            if with_record is not None:
                await self.broker.staging.forget(ANONYMOUS, life.name)
        assert await stages_in(self.objects) == []
        await self.parts.aclose()


@pytest.mark.parametrize("number", range(4))
async def test_whatever_happens_every_committed_row_is_there_once_and_in_order(tmp_path, number):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    machine = Machine(tmp_path, seed)
    await machine.open(crash=False)
    assert machine.broker is not None
    await machine.broker.topics.create(ANONYMOUS, TOPIC, TopicConfig(partitions=PARTITIONS))
    async with asyncio.timeout(200):
        for _ in range(STEPS):
            await machine.step()
        await machine.check()
