"""kill -9 of the broker while clients register schemas: what was answered stays, and no number is used twice."""

import asyncio
import random

import pytest
from brokers import BrokerProcess

import pydanube
from exhaustive import several
from pydanube.model.schemas import Compatibility

pytestmark = pytest.mark.process

FORMATS = ("string", "number", "bytes")
CLIENTS, KILLS = 6, several(1, 4)


class Registrations:
    """Clients that register the same subjects at the same time, and what each of them was told."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self.url = url
        self.rng = rng
        self.told: dict[tuple[str, str], tuple[int, int, int]] = {}
        """By subject and format: schema id, version and global id."""
        self.stopping = False
        self.subject = 0
        self.progress = asyncio.Event()

    async def run(self, number: int) -> None:
        rng = random.Random(self.rng.random())
        async with pydanube.connect(self.url) as client:
            while not self.stopping:
                name, kind = f"subject-{self.subject}", rng.choice(FORMATS)
                found = await client.schemas.register(name, f"words of client {number}", format=kind)
                ids = (found.schema_id, found.version, found.global_id)
                assert self.told.setdefault((name, kind), ids) == ids, (name, kind)
                if all((name, one) in self.told for one in FORMATS):
                    self.subject = max(self.subject, int(name.removeprefix("subject-")) + 1)
                self.progress.set()

    async def until_subject(self, number: int) -> None:
        while self.subject < number:
            self.progress.clear()
            await self.progress.wait()


@pytest.mark.timeout(600)
async def test_a_registration_that_was_answered_stays_and_one_that_was_not_is_found(tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "data") as broker:
        async with pydanube.connect(broker.url) as client:
            await client.schemas.set_compatibility(None, Compatibility.NONE)
        work = Registrations(broker.url, rng)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(work.run(number))
            for _ in range(KILLS):
                await work.until_subject(work.subject + rng.randint(1, 20))
                await broker.restart()
            await work.until_subject(work.subject + 1)
            work.stopping = True
        async with pydanube.connect(broker.url) as client:
            for (name, kind), ids in work.told.items():
                again = await client.schemas.register(name, "other words", format=kind)
                assert ((again.schema_id, again.version, again.global_id), again.is_new) == (ids, False)
                assert (await client.schemas.get(name, again.version)).definition.format.value == kind
    names = {name: ids[0] for (name, _), ids in work.told.items()}
    assert len(set(names.values())) == len(names), "each subject has a schema id of its own"
    places = {ids[:2] for ids in work.told.values()}
    assert len(places) == len(work.told), "each version is used once"
    globals_by_kind = [frozenset(ids[2] for (_, one), ids in work.told.items() if one == kind) for kind in FORMATS]
    assert [len(one) for one in globals_by_kind] == [1, 1, 1] and len(set(globals_by_kind)) == 3
