"""kill -9 between every two steps of a staged write: whatever was committed is there once, and nothing else is."""

import asyncio
import os
import random
from pathlib import Path

import pytest
from brokers import BrokerProcess
from entry_points import installed
from killing_stages import DEATH

import pydanube
from pydanube.broker.registry.records import DECISIONS, PENDING
from pydanube.codec.batch import encode
from pydanube.metadata.embedded import EmbeddedStore
from pydanube.metadata.store import list_all
from pydanube.model.limits import METADATA_OPERATIONS_MAX
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.objects.local import LocalStore

TOPIC = "/default/sink"
KINDS = "put transact publish delete"
BATCHES = 2
"""Of each partition."""

LAST_STEP = "after the delete of decisions"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of brokers whose store kills them."""
    monkeypatch.setenv("PYTHONPATH", installed(tmp_path / "site", "killing", "killing_stages"))
    monkeypatch.setenv("DANUBE_STORAGE_URL", f"killing://{tmp_path / 'objects'}")
    monkeypatch.setenv("KILLING_FILE", str(tmp_path / "kill"))
    return tmp_path / "data"


class Writer:
    """A query that writes one batch after the other, and the broker that is killed under it."""

    def __init__(self, broker: BrokerProcess, partitions: int) -> None:
        self.broker = broker
        self.partitions = partitions
        self.batches = 0
        self._kill = Path(os.environ["KILLING_FILE"])
        self._steps = self._kill.with_suffix(".steps")

    def rows(self, batch_id: int, part: int, partition: int) -> list[bytes]:
        return [b"%d %d %d %d" % (batch_id, part, partition, row) for row in range(2 + batch_id % 3)]

    async def write(self, client: pydanube.Client) -> None:
        """One batch. The client of a killed broker comes back by itself."""
        batch_id = self.batches
        async with client.stager("query", run="run", batch_id=batch_id) as stager:
            for partition in range(self.partitions):
                for part in range(BATCHES):
                    payloads = self.rows(batch_id, part, partition)
                    await stager.add(TOPIC, partition, encode(payloads, publish_times=1))
            stages = await stager.finish()
        await client.commit_stages("query", "run", batch_id, stages, wait_ms=10_000)
        self.batches += 1

    async def write_and_die(self, client: pydanube.Client, wish: str) -> str:
        """The step at which the broker was killed meanwhile; empty: the batch was over before. It runs either way, and
        nothing is left to do."""
        step = ""
        self._steps.write_text("")
        self._kill.write_text(wish)
        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            writing = group.create_task(self.write(client))
            while not (writing.done() and self._last_step() == LAST_STEP):
                if self._last_step().endswith(DEATH) and not step:
                    assert await asyncio.to_thread(self.broker.ended, 10) == -9
                    step = self._last_step()
                    self._kill.write_text("0")
                    self._steps.write_text(f"{LAST_STEP}\n" if step.startswith(LAST_STEP) else "")
                    await asyncio.to_thread(self.broker.start)
                await asyncio.sleep(0.005)
        return step.removesuffix(DEATH)

    def _last_step(self) -> str:
        return self._steps.read_text().rpartition("\n")[0].rpartition("\n")[2] or "none"

    async def check(self, client: pydanube.Client) -> None:
        for partition in range(self.partitions):
            expected = [
                row
                for batch_id in range(self.batches)
                for part in range(BATCHES)
                for row in self.rows(batch_id, part, partition)
            ]
            reader = client.reader(TOPIC, partition=partition, start="earliest", end="latest")
            async with reader:
                assert [message.payload async for message in reader] == expected


async def check_nothing_is_left(directory: Path) -> None:
    store = await EmbeddedStore.open(directory / "metadata.db", SystemClock())
    objects = await LocalStore.open(directory.parent / "objects")
    keys = [one.key async for one in list_all(store, "/staged/") if one.key.startswith((DECISIONS, PENDING))]
    await store.close()
    await objects.close()
    assert keys == []


async def kill_at_every_step(directory: Path, partitions: int, kinds: str, most: int = 100) -> list[str]:
    """The steps at which the broker was killed, in order."""
    died: list[str] = []
    with BrokerProcess(directory) as broker:
        writer = Writer(broker, partitions)
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=partitions)
            await writer.write_and_die(client, "0")
            while len(died) < most and (step := await writer.write_and_die(client, f"{len(died) + 1} {kinds}")):
                died.append(step)
            await writer.check(client)
        assert broker.stop() == 0
    await check_nothing_is_left(directory)
    return died


@pytest.mark.exhaustive
@pytest.mark.process
async def test_killing_the_broker_between_every_two_steps_of_a_commit_loses_and_repeats_nothing(directory):
    died = await kill_at_every_step(directory, 1, KINDS)
    print("\n".join(died))
    assert {step.split(" ", 1)[1] for step in died} >= {
        "a stage is put",
        "the put of decisions and pending and queries",
        "the delete of pending",
        "stages are deleted",
        "the delete of decisions",
    }
    assert died.count("before a batch is published") == died.count("after a batch is stored") == BATCHES


@pytest.mark.exhaustive
@pytest.mark.process
async def test_killing_the_broker_while_a_decision_is_spread_over_many_partitions_loses_and_repeats_nothing(directory):
    died = await kill_at_every_step(directory, METADATA_OPERATIONS_MAX + 1, "transact", most=9)
    print("\n".join(died))
    assert died.count("after the put of pending") == 2
    assert died.count("after the put of decisions") == 1


@pytest.mark.soak
@pytest.mark.process
async def test_killing_the_broker_a_hundred_times_around_commits_loses_and_repeats_nothing(directory):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with BrokerProcess(directory) as broker:
        writer = Writer(broker, 5)
        async with pydanube.connect(broker.url) as client:
            await client.create_topic(TOPIC, partitions=5)
            await writer.write_and_die(client, "0")
            for _ in range(100):
                await writer.write_and_die(client, f"{chance.randint(1, 60)} {KINDS}")
            await writer.check(client)
        assert broker.stop() == 0
    await check_nothing_is_left(directory)
